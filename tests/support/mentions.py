"""Check which facts a line of text mentions, whatever its words and their order.

A message may be reworded; what it must not lose is what came, where, what was expected, and what to
type next. `mention` is for `pytest.raises(match=...)`, `mentions` looks into a longer text, and
`mentioning` stands in the place of a line that is compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable


def mention(*facts: object) -> str:
    """A regular expression for a line with all these facts, each as whole words or numbers.

    >>> bool(re.search(mention("--clients", 3), "--clients: expected 5, got 3"))
    True
    >>> bool(re.search(mention("--clients", 3), "--clients: expected 5, got 3.5"))
    False
    """
    return "(?m)^" + "".join(f"(?=.*{_whole(str(fact))})" for fact in facts)


def mentions(text: str | Iterable[str], *facts: object) -> bool:
    """Whether one line of a text, or of several texts, has all these facts."""
    texts = [text] if isinstance(text, str) else text
    return any(re.search(mention(*facts), one) for one in texts)


class mentioning:
    """Equal to every text of one line that has all these facts."""

    def __init__(self, *facts: object) -> None:
        self.facts = facts

    def __eq__(self, other: object) -> bool:
        one_line = isinstance(other, str) and len(other.splitlines()) == 1
        return one_line and mentions(str(other), *self.facts)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"mentioning({', '.join(map(repr, self.facts))})"


def _whole(fact: str) -> str:
    """A pattern of a fact that is not a part of a longer word or number."""
    start = r"(?<![\w.])" if re.match(r"\w", fact) else ""
    end = r"(?!\w|\.\d)" if re.search(r"\w$", fact) else ""
    return start + re.escape(fact) + end
