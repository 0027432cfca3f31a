"""The classes of torchmetrics that may be asked for, and the parameters that each takes.

A name comes from a file of somebody else, or from a command: whatever it says, nothing is imported
but `HOMES`, and nothing is made but these classes, those of the task, with these parameters. They
are numbers and words within bounds: no list, no path, no name of a model. A class beyond them is
asked for through an installed metric (entry points of group `flbench.metrics`).

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from flbench.core.parameters import Parameter
from flbench.errors import BadParameter, UnknownName
from flbench.tasks import TaskName

LIBRARY = "torchmetrics"
HOMES: Mapping[TaskName, str] = {
    "classes": f"{LIBRARY}.classification",
    "numbers": f"{LIBRARY}.regression",
    "labels": f"{LIBRARY}.classification",
}
"""The only modules that are imported, by task."""
MOST_ENTRIES = 2**26
"""Numbers that an instance may keep beside samples: 512 MiB. A client in work has one."""

Kinds = Mapping[str, Any]
"""Names of parameters, with their types and bounds."""

IGNORE: Kinds = {"ignore_index": Annotated[int, Field(ge=-(2**31), lt=2**31)] | None}
THRESHOLDS: Kinds = {"thresholds": Annotated[int, Field(ge=2, le=1000)] | None}
RATES: Kinds = {
    "average": Literal["micro", "macro", "weighted"],
    "top_k": Annotated[int, Field(ge=1, le=1000)],
    **IGNORE,
}
AREAS: Kinds = {"average": Literal["macro", "weighted"], **THRESHOLDS, **IGNORE}


@dataclass(frozen=True)
class Allowed:
    """A class that may be asked for.

    Attributes:
        kinds: its parameters.
        entries: numbers that an instance keeps, whatever samples it gets: of the number of classes
            and the number of thresholds.
    """

    kinds: Kinds
    entries: Callable[[int, int], int] = lambda classes, thresholds: 4 * classes


def _square(classes: int, thresholds: int) -> int:
    return classes * classes


def _curve(classes: int, thresholds: int) -> int:
    return 4 * classes * thresholds


CLASSES: Mapping[str, Allowed] = {
    "Accuracy": Allowed(RATES),
    "AUROC": Allowed(AREAS, _curve),
    "AveragePrecision": Allowed(AREAS, _curve),
    "CalibrationError": Allowed(
        {
            "n_bins": Annotated[int, Field(ge=1, le=1000)],
            "norm": Literal["l1", "l2", "max"],
            **IGNORE,
        }
    ),
    "CohenKappa": Allowed({"weights": Literal["linear", "quadratic"] | None, **IGNORE}, _square),
    "F1Score": Allowed(RATES),
    "FBetaScore": Allowed({"beta": Annotated[float, Field(gt=0, le=1000)], **RATES}),
    "HammingDistance": Allowed(RATES),
    "HingeLoss": Allowed({"squared": bool, "multiclass_mode": Literal["crammer-singer"], **IGNORE}),
    "JaccardIndex": Allowed({k: v for k, v in RATES.items() if k != "top_k"}, _square),
    "MatthewsCorrCoef": Allowed(IGNORE, _square),
    "NegativePredictiveValue": Allowed(RATES),
    "Precision": Allowed(RATES),
    "Recall": Allowed(RATES),
    "Specificity": Allowed(RATES),
}
"""Those that give one number per client."""

THRESHOLD: Kinds = {"threshold": Annotated[float, Field(gt=0, lt=1)]}
MANY: Kinds = {"average": Literal["micro", "macro", "weighted"], **THRESHOLD, **IGNORE}
MANY_AREAS: Kinds = {
    "average": Literal["micro", "macro", "weighted"], **THRESHOLDS, **IGNORE,
}  # fmt: skip
BY_LABEL: Mapping[str, Allowed] = {
    "Accuracy": Allowed(MANY),
    "AUROC": Allowed(MANY_AREAS, _curve),
    "AveragePrecision": Allowed(MANY_AREAS, _curve),
    "F1Score": Allowed(MANY),
    "FBetaScore": Allowed({"beta": Annotated[float, Field(gt=0, le=1000)], **MANY}),
    "HammingDistance": Allowed(MANY),
    "JaccardIndex": Allowed(MANY),
    "MatthewsCorrCoef": Allowed({**THRESHOLD, **IGNORE}),
    "NegativePredictiveValue": Allowed(MANY),
    "Precision": Allowed(MANY),
    "Recall": Allowed(MANY),
    "Specificity": Allowed(MANY),
}
"""Those of any number of labels that have a short name, as `CLASSES`."""
RANKINGS: Mapping[str, Allowed] = {
    f"MultilabelRanking{short}": Allowed(IGNORE) for short in ("AveragePrecision", "Loss")
}
OUTPUTS: Kinds = {"multioutput": Literal["uniform_average", "variance_weighted"]}
NUMBERS: Mapping[str, Allowed] = {
    "ConcordanceCorrCoef": Allowed({}),
    "ExplainedVariance": Allowed(OUTPUTS),
    "MeanAbsoluteError": Allowed({}),
    "MeanSquaredError": Allowed({"squared": bool}),
    "PearsonCorrCoef": Allowed({}),
    "R2Score": Allowed(OUTPUTS),
    "SpearmanCorrCoef": Allowed({}),
}
"""Those of numbers, in deviations of all training targets."""
TASKS: Mapping[TaskName, Mapping[str, Allowed]] = {
    "classes": {
        name: one for short, one in CLASSES.items() for name in (short, f"Multiclass{short}")
    },
    "numbers": NUMBERS,
    "labels": {
        **{name: one for short, one in BY_LABEL.items() for name in (short, f"Multilabel{short}")},
        **RANKINGS,
    },
}
"""Task -> the classes that judge it."""


UNLIKE = frozenset(
    [
        "Accuracy",
        "F1Score",
        "FBetaScore",
        "HammingDistance",
        "NegativePredictiveValue",
        "Precision",
        "Recall",
        "Specificity",
    ]
)
"""Names of which torchmetrics averages by another rule than under the long name: it is asked for.

Of one label for each sample, most of them are the accuracy with `average=micro`.
"""


def usual_params(task: TaskName, outputs: int) -> dict[str, object]:
    """What a class gets that nobody asks for: the task, and the number of classes or labels."""
    if task == "numbers":
        return {}
    if task == "labels":
        return {"task": "multilabel", "num_labels": outputs}
    return {"task": "multiclass", "num_classes": outputs}


def is_class(name: str) -> bool:
    """Whether a name is meant for a class of torchmetrics, not for an installed metric.

    Example:
        >>> is_class("MulticlassF1Score"), is_class("torchmetrics.anything"), is_class("f1")
        (True, True, False)
    """
    return name.startswith(f"{LIBRARY}.") or name.rpartition(".")[2][:1].isupper()


def task_of_class(name: str) -> TaskName:
    """The first task that a class judges; `classes` if there is none.

    Example:
        >>> task_of_class("R2Score"), task_of_class("torchmetrics.F1Score")
        ('numbers', 'classes')
    """
    last = name.rpartition(".")[2]
    return next((task for task, known in TASKS.items() if last in known), "classes")


def allowed(name: str, task: TaskName = "classes") -> tuple[str, Allowed]:
    """The class of a name, alone or as `torchmetrics.classification.NAME`, as the table has it.

    Raises:
        UnknownName: it is none of the table.
    """
    path, _, last = name.rpartition(".")
    if path not in ("", LIBRARY, HOMES[task]) or last not in TASKS[task]:
        short: Iterable[str] = (
            {"classes": CLASSES, "labels": {**BY_LABEL, **RANKINGS}}.get(task, NUMBERS)
            if path or any(last in known for known in TASKS.values())
            else dict.fromkeys((*CLASSES, *NUMBERS, *BY_LABEL, *RANKINGS))
        )
        listed = "only these are taken; others need an installed metric"
        raise UnknownName("class of torchmetrics", name, short, listed)
    return last, TASKS[task][last]


def checked_params(
    name: str, params: Mapping[str, object], task: TaskName = "classes"
) -> dict[str, object]:
    """The parameters of a class, each of its type and within its bounds.

    Raises:
        UnknownName: the class is none of the table, or has no such parameter.
        BadParameter: a value does not fit.
    """
    last, one = allowed(name, task)
    found = {}
    for key, value in params.items():
        owner = f"metric '{last}'"
        if key not in one.kinds:
            raise UnknownName(f"parameter of {owner}", key, one.kinds, listed="it takes")
        hint = one.kinds[key]
        if isinstance(value, str) and not _takes_text(hint):  # no text stands for a number
            raise BadParameter(f"{owner}: '{key}' expects a number, got {value!r}")
        found[key] = Parameter(key, hint, None).check(owner, value)
    return found


def refuse_unsaid_average(name: str, params: Mapping[str, object]) -> None:
    """Refuse a short name without `average` where a person asks; stored results may have it.

    Raises:
        BadParameter: torchmetrics would take another one than under the long name.
    """
    last = name.rpartition(".")[2]
    if last in UNLIKE and is_class(name) and "average" not in params:
        raise BadParameter(
            f"metric '{last}': 'average' expected, as {last}:average=macro (each label counts"
            f" alike, as in Multiclass{last} and Multilabel{last}) or {last}:average=micro (each"
            " answer does)"
        )


def refuse_too_large(
    name: str, params: Mapping[str, object], classes: int, task: TaskName = "classes"
) -> None:
    """Refuse a metric whose counts would fill the memory, before it is made.

    Raises:
        BadParameter: it would keep too many numbers for so many labels.
    """
    last, one = allowed(name, task)
    thresholds = params.get("thresholds")
    entries = one.entries(classes, thresholds if isinstance(thresholds, int) else 1)
    if entries > MOST_ENTRIES:
        raise BadParameter(
            f"metric '{last}': {entries:,} numbers for {classes:,} labels, expected at most"
            f" {MOST_ENTRIES:,}"
        )


def _takes_text(hint: Any) -> bool:  # noqa: ANN401 - any annotation
    """Whether a type has words among its values."""
    return any(isinstance(one, str) or _takes_text(one) for one in get_args(hint))
