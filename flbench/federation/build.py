"""Build a federation from a data set: server samples, partition, newcomers, test sets."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn, cast

import numpy as np
import torch

from flbench.core.dataset import Dataset, Indices, Partition
from flbench.core.seeding import late_ones_last, rng
from flbench.errors import UnknownName, UserError
from flbench.federation import shared_test_sets
from flbench.federation.federation import (
    Division,
    Federation,
    Gather,
    SplitRule,
    federated,
    gathered,
    server_indices,
    split_up,
)
from flbench.federation.fixed_parts import FixedParts, dealt, fixed_parts
from flbench.plugin.hooks import HookCaller
from flbench.suite import Suite
from flbench.tasks import TaskName

NEAREST = 10
"""Names that are told where one is not known."""


def divide(
    suite: Suite,
    hooks: HookCaller,
    dataset: Dataset,
    seed: int,
    gather: Gather = gathered,
    say: Callable[[str], None] = lambda message: None,
) -> Federation:
    """Divide a data set among server, test pool and clients, and copy what each pool holds.

    Args:
        gather: copies samples from the data set to a pool.
        say: is told of what is left out.
    """
    return federated(dataset, divided(suite, hooks, dataset, seed, say), gather)


def divided(
    suite: Suite,
    hooks: HookCaller,
    dataset: Dataset,
    seed: int,
    say: Callable[[str], None] = lambda message: None,
) -> Division:
    """Who gets which samples of a data set; nothing is copied.

    `federation.split_up` splits each client's samples into training, validation and test, unless
    the data fix these parts (`fixed_parts`).

    Newcomers become the last clients, so that training clients have ids 0..N-1.
    """
    fixed = fixed_parts(dataset, suite.test_fraction, suite.validation_fraction)
    for note in fixed.notes:
        say(f"{dataset.name}: {note}")
    if suite.clients > len(dataset.labels):
        raise UserError(
            f"suite.clients={suite.clients} of {len(dataset.labels)} samples: expected a sample or"
            " more for each client; use fewer clients"
        )
    held_out = unseen_domains(suite, dataset)
    server, test_pool = set_aside(suite, dataset, seed, fixed, held_out)
    if note := unused_fraction(suite, dataset, fixed):
        say(note)
    rest = np.setdiff1d(fixed.train, np.concatenate([server, test_pool]))
    away = np.isin(_domains(dataset)[rest], held_out)
    partition = partitioned(suite, hooks, dataset, rest[~away], server, seed)
    if partition.groups is None and not len(held_out):
        partition = replace(partition, groups=groups_of_domains(dataset, rest, partition.clients))
    if len(held_out):
        ordered = with_domains(dataset, partition, rest[~away], rest[away], held_out)
    else:
        ordered = newcomers_last(suite, partition, rest, seed)
    if note := unused_split(suite, dataset, fixed, ordered.clients):
        say(note)
    if left := unused_domains(dataset, rest, ordered.clients):
        say(f"{dataset.name}: {left}: more take part with --set suite.clients=NUMBER")
    tests = test_sets(suite, dataset, test_pool, ordered.clients, fixed.test is not None, seed)
    if note := fewer_tests(suite, tests):
        say(note)
    validations = None
    if fixed.validation is not None:
        pool = (shared_test_sets.kinds(dataset), _domains(dataset), fixed.validation)
        validations = dealt(*pool, ordered.clients, seed, "validation")
        if suite.validation_fraction > 0:
            _all_have_some(dataset, validations, ordered.clients, "validation")
    return split_up(
        dataset,
        ordered,
        SplitRule(
            seed, suite.test_fraction, suite.validation_fraction, suite.split == "stratified"
        ),
        server=server,
        newcomers=suite.clients - suite.training_clients,
        tests=tests,
        validations=validations,
    )


def partitioned(
    suite: Suite, hooks: HookCaller, dataset: Dataset, rest: Indices, server: Indices, seed: int
) -> Partition:
    """The partition of the samples that are left for clients.

    Where domains are held out by name, `rest` is without them, and so are the clients.

    Raises:
        UserError: they cannot be divided so; says if the server has taken too many.
    """
    labels = dataset.labels.numpy()
    domains = None if dataset.domains is None else dataset.domains.numpy()
    task, name = dataset.task, suite.partition.name

    away = len(suite.unseen_domains)

    def of_rows(rows: Indices) -> Partition:
        own = None if domains is None else domains[rows]
        if own is not None and away:  # without gaps
            own = np.unique(own, return_inverse=True)[1].astype(np.int64)
        known = labels[rows] if task == "classes" else NoClasses(len(rows), task, name)
        count = suite.clients - away
        return hooks.partition(cast("Indices", known), own, count, rng(seed, "partition"))

    try:
        return of_rows(rest)
    except UserError as error:
        took = False
        if len(server):
            with suppress(UserError):
                of_rows(np.union1d(rest, server))
                took = True
        if not took and away:
            raise UserError(
                f"{error} (beside the {away} of suite.clients={suite.clients} that are unseen)"
            ) from None
        if not took:
            raise
        raise UserError(
            f"{error}; the server took {len(server)} samples before the clients got theirs:"
            " --set suite.server_samples=0 leaves them to the clients"
        ) from None


def unused_domains(dataset: Dataset, pool: Indices, clients: Sequence[Indices]) -> str:
    """How many domains of the pool no client has a sample of, in words; "" = none, or no domains.

    Args:
        pool: samples that are divided.
        clients: of each client its samples.
    """
    if dataset.domains is None:
        return ""
    domains = dataset.domains.numpy()
    there, used = np.unique(domains[pool]), np.unique(domains[np.concatenate(clients)])
    return f"{len(used)} of {len(there)} domains take part" if len(used) < len(there) else ""


def groups_of_domains(
    dataset: Dataset, pool: Indices, clients: Sequence[Indices]
) -> Indices | None:
    """The true group of each client, shape (N,), if the data know them and clients are domains.

    Args:
        pool: samples that are divided.
        clients: of each client its samples, as places in the pool.

    Returns:
        None where a client holds several domains.
    """
    if dataset.domain_groups is None or dataset.domains is None:
        return None
    domains = dataset.domains.numpy()[pool]
    held = [np.unique(domains[rows]) for rows in clients]
    if any(len(one) != 1 for one in held):
        return None
    found: Indices = dataset.domain_groups.numpy()[np.concatenate(held)]
    return found


class NoClasses:
    """In place of the labels where samples have no classes: it has a length, and nothing else.

    So a partition that looks at labels says so, whoever wrote it.

    Args:
        samples: their number.
        task: of the data set.
        partition: name of the one that gets it.
    """

    def __init__(self, samples: int, task: TaskName, partition: str) -> None:
        self.shape, self.size, self.ndim = (samples,), samples, 1
        self._text = (
            f"partition '{partition}' divides by classes, and the task of the data set is '{task}':"
            " use iid, quantity-skew, natural or by-domain, as --set suite.partition=iid"
        )

    def __len__(self) -> int:
        """Number of samples."""
        return self.size

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise UserError(self._text)

    __array__ = __getitem__ = __iter__ = __contains__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __add__ = __sub__ = __mul__ = __mod__ = _refuse
    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse what an array has beside its shape."""
        if name.startswith("__") or "_text" not in vars(self):
            raise AttributeError(name)
        self._refuse()


def test_sets(
    suite: Suite,
    dataset: Dataset,
    pool: Indices,
    clients: Sequence[Indices],
    is_fixed: bool,
    seed: int,
) -> list[Indices] | None:
    """The test samples of each client; None = a share of its own."""
    kinds = shared_test_sets.kinds(dataset)
    if suite.test_set == "proportional":
        return shared_test_sets.proportional(kinds, pool, clients, suite.test_samples, seed)
    if suite.test_set == "labels":
        if dataset.task != "classes" and dataset.domains is None:
            raise UserError(
                "test_set 'labels' gives clients the samples of their classes, and the task of"
                f" {dataset.name} is '{dataset.task}': --set suite.test_set=own"
            )
        if is_fixed:
            return shared_test_sets.whole(kinds, _domains(dataset), pool, clients)
        return shared_test_sets.by_labels(kinds, pool, clients)
    if not len(pool):
        return None
    tests = dealt(kinds, _domains(dataset), pool, clients, seed, "test")
    _all_have_some(dataset, tests, clients, "test")
    return tests


def fewer_tests(suite: Suite, tests: Sequence[Indices] | None) -> str:
    """What to say where clients get fewer test samples than `test_samples`; "" = none does."""
    if tests is None or suite.test_set != "proportional":
        return ""
    sizes = [len(one) for one in tests]
    few = sum(size < suite.test_samples for size in sizes)
    if not few:
        return ""
    return (
        f"test_samples={suite.test_samples}: {few} of {len(sizes)} clients have fewer, {min(sizes)}"
        f" to {max(sizes)}, as the test pool has no more of their labels"
    )


def _domains(dataset: Dataset) -> Indices:
    """Domain of each sample, shape (m,); 0 where there are none."""
    domains = torch.zeros(len(dataset.y)).long() if dataset.domains is None else dataset.domains
    found: Indices = domains.numpy()
    return found


def _all_have_some(
    dataset: Dataset, given: Sequence[Indices], clients: Sequence[Indices], part: str
) -> None:
    """Refuse clients that a fixed part has no sample for.

    Raises:
        UserError: there are such.
    """
    without = [client for client, rows in enumerate(given) if not len(rows)]
    if not without:
        return
    first = without[0]
    domain = int(_domains(dataset)[clients[first][0]])
    who = f" ('{dataset.domain_names[domain]}')" if dataset.domain_names else ""
    more = f" and {len(without) - 1} more" if len(without) > 1 else ""
    raise UserError(
        f"the {part} part of {dataset.name} has no sample for client {first}{who}{more} of"
        f" {len(given)}: expected one or more for each; use fewer clients, give each domain samples"
        " in both parts, or mark no test part, so that suites draw one"
    )


def unused_fraction(suite: Suite, dataset: Dataset, fixed: FixedParts) -> str:
    """What to say of a `test_fraction` that decides nothing; "" = it does, or nobody set it."""
    if suite.test_fraction == Suite.model_fields["test_fraction"].default:
        return ""
    pooled, has_part = suite.test_set != "own", dataset.test is not None
    if pooled and suite.test_sizes:
        reason = "test_sizes says how many"
    elif has_part and (pooled or fixed.test is not None):
        reason = f"{dataset.name} has a test part"
    else:
        return ""
    return f"test_fraction={suite.test_fraction:g} has no effect: {reason}"


def unused_split(
    suite: Suite, dataset: Dataset, fixed: FixedParts, clients: Sequence[Indices]
) -> str:
    """What to say of a `split` that decides nothing; "" = it does, or nobody set it."""
    if suite.split == Suite.model_fields["split"].default:
        return ""
    draws_test = fixed.test is None and suite.test_set == "own"
    draws_validation = fixed.validation is None and suite.validation_fraction > 0
    if dataset.gap is not None:
        reason = f"{dataset.name} is divided by time"
    elif not draws_test and not draws_validation:
        reason = "nothing is drawn of a client's own samples"
    elif len(dataset.labels.unique()) < 2:
        reason = f"{dataset.name} has no labels that could have shares"
    elif all(len(dataset.labels[client].unique()) < 2 for client in map(torch.as_tensor, clients)):
        reason = "no client has samples of two labels, whose shares could be kept"
    else:
        return ""
    return f"split={suite.split} has no effect: {reason}"


def set_aside(
    suite: Suite, dataset: Dataset, seed: int, fixed: FixedParts, held_out: Indices
) -> tuple[Indices, Indices]:
    """Samples of the server, and of the pool of test samples; none where the suite has none.

    Those of the server come from the test pool if the suite has one, else from all samples; where
    the data fix the test part, from the training part. None is of a domain that is held out.
    """
    labels = dataset.labels.numpy()
    test_pool, source, share = np.arange(0), np.arange(len(labels)), 0.1
    if fixed.test is not None:
        if suite.test_sizes:
            raise UserError(f"test_sizes: none expected, as {dataset.name} fixes its test part")
        test_pool, source = fixed.test, fixed.train
    elif suite.test_set != "own":
        test_pool = shared_test_sets.test_pool(dataset, suite.test_fraction, seed, suite.test_sizes)
        source, share = test_pool, 0.25
    server = np.arange(0)
    source = source[~np.isin(_domains(dataset)[source], held_out)]
    if suite.server_samples:
        generator = rng(seed, "server-samples")
        server = source[server_indices(labels[source], suite.server_samples, generator, share)]
    return server, np.setdiff1d(test_pool, server)


def unseen_domains(suite: Suite, dataset: Dataset) -> Indices:
    """Numbers of the domains that the suite holds out by name, in the order of the names.

    Domains without names are called 0, 1, ...

    Raises:
        UserError: the data set has no domains.
        UnknownName: it has none of this name; tells the nearest ones.
    """
    if not suite.unseen_domains:
        return np.arange(0)
    if dataset.domains is None:
        raise UserError(
            f"unseen: {dataset.name} has no domains, so none is named"
            f" '{suite.unseen_domains[0]}': expected a share of the clients, such as 0.2"
        )
    known = dataset.domain_names or tuple(map(str, range(int(dataset.domains.max()) + 1)))
    for name in suite.unseen_domains:
        if name not in known:
            near = difflib.get_close_matches(name, known, NEAREST, cutoff=0)
            of_all = f"the nearest of {len(known)}" if len(known) > len(near) else "there are"
            raise UnknownName(f"domain of {dataset.name} in 'unseen'", name, near, of_all)
    return np.array([known.index(name) for name in suite.unseen_domains], dtype=np.int64)


def with_domains(
    dataset: Dataset, partition: Partition, pool: Indices, away: Indices, held_out: Indices
) -> Partition:
    """A partition of a pool as one of the data set, and each domain held out as a client after it.

    Such a domain is a true group of its own, where there are true groups.

    Args:
        pool: what the partition divides.
        away: samples of the domains that are held out.
    """
    of = _domains(dataset)[away]
    clients = [*(pool[rows] for rows in partition.clients), *(away[of == one] for one in held_out)]
    groups = partition.groups
    if groups is not None:
        groups = np.append(groups, np.max(groups) + 1 + np.arange(len(held_out)))
    return replace(partition, clients=tuple(clients), groups=groups)


def newcomers_last(suite: Suite, partition: Partition, pool: Indices, seed: int) -> Partition:
    """A partition of a pool as one of the data set, with those clients last that join late."""
    order = late_ones_last(suite.clients, suite.clients - suite.training_clients, seed)
    return replace(
        partition,
        clients=tuple(pool[partition.clients[client]] for client in order),
        groups=None if partition.groups is None else np.asarray(partition.groups)[order],
    )
