"""Results: the schema of one canonical JSON per (suite, data set, method, parameters, seed).

Canonical means: sorted keys, one line per top-level key, no NaN, and the same bytes for the same
run but for the keys in VOLATILE. Each value that passes can be tabled and drawn.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from flbench.errors import field_of
from flbench.metrics import (
    WAYS,
    ClientValues,
    Measurements,
    Value,
    computed,
    headlines,
    is_taken,
    metrics_for,
    metrics_of,
    metrics_of_periods,
    period_starts,
)
from flbench.results.hashed_fields import DESCRIBES, LATER
from flbench.results.marks import (
    ANSWERS,
    BYTES,
    CURVES,
    EQUAL,
    EQUAL_AT_END,
    FIELDS,
    FIELDS_AT_END,
    GROUPS,
    LOSSES,
    NOT,
    NOTES,
    REPORTED,
    SCORES,
    SUMMARY,
    VALUES,
)
from flbench.results.score_encoding import Floats, decode
from flbench.tasks import TASKS, Task, TaskName

SCHEMA = 3
DIGESTED = 3
"""Files of this version or a later one have a digest."""
YOUNGER = {
    2: frozenset({
        "clients.labels", "curves.selection_error", "curves.selection_false_negatives",
        "curves.selection_false_positives", "curves.slowest_down", "curves.trained_epochs", "reads",
        "scores", "summary.accuracy_decile_gap", "summary.churn", "summary.ece", "summary.kld",
        "summary.link_seconds", "summary.link_seconds_to_final", "summary.megabits_to_target_flis",
        "summary.noise",
        "summary.purity", "summary.rounds_to_final", "summary.seconds_to_final",
        "summary.selection_error_mean", "summary.trained_epochs", "suite_plugins",
    }),
    3: frozenset({
        "curves.trained_epochs", "reads", "summary.link_seconds_to_final",
        "summary.rounds_to_final", "summary.seconds_to_final", "summary.trained_epochs",
        "suite_plugins",
    }),
}  # fmt: skip
"""What files of a version may lack: it was added after the first of them."""
YOUNGER_KEYS = (
    "client_metrics", "energy", "own", "reads", "saved", "source_changes", "suite_plugins", "task",
)  # fmt: skip
"""Keys that a file without such content lacks."""
HEADLINES = ("correct", "correct_tuned", "values", "values_tuned")
"""Fields of clients, of which a file has those of its task: `correct` of classes, else `values`."""
VOLATILE = ("digest", "seconds", "energy", "saved", "environment")
"""Keys that differ between two runs of the same thing."""
LARGEST = 2**53
"""Whole numbers up to here are exact everywhere."""
LONGEST = 200
"""Characters of a name."""
WIDEST = 1e100
"""Numbers up to here can be drawn."""
DEEPEST = 20
"""Lists and tables within each other."""
BARRED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that move the cursor, change the direction of text, or are no characters."""
OWN_NAME = re.compile(r"-own-[0-9a-f]{12}$")
"""How the name ends of an object of a person's own, which no package offers: with its hash."""
Complaint = tuple[str, str]
"""A field, and what is wrong with it."""


def _text(value: str) -> str:
    """Replace control characters: messages may contain any text."""
    return BARRED.sub("\ufffd", value)


def _line(value: str) -> str:
    if not value.isprintable() or len(value) > LONGEST:
        raise PydanticCustomError(
            "line", f"one line of at most {LONGEST} printable characters expected"
        )
    return value


def _name(value: str) -> str:
    if not value.strip():
        raise PydanticCustomError("name", "a name expected, got nothing")
    return _line(value)


def _plain(value: Any, depth: int = 0, key: str = "") -> Any:  # noqa: ANN401 - whatever JSON holds
    """Any JSON value whose numbers, texts and depth are within reason."""
    problem = ""
    if depth > DEEPEST:
        problem = f"at most {DEEPEST} levels expected"
    elif isinstance(value, str):
        if BARRED.search(value):
            problem = "text without control characters expected"
    elif isinstance(value, Mapping):
        for name, one in value.items():
            if not isinstance(name, str):
                problem = f"texts as keys expected, got {type(name).__name__}"
                break
            _plain(one, depth + 1, _line(name))
    elif isinstance(value, (list, tuple)):
        for one in value:
            _plain(one, depth + 1, key)
    elif isinstance(value, int) and abs(value) > LARGEST:
        problem = f"numbers up to {LARGEST} expected"
    elif isinstance(value, float) and not isfinite(value):
        problem = "finite numbers expected"
    elif value is not None and not isinstance(value, (int, float)):
        problem = f"numbers, texts, lists or tables of them expected, got {type(value).__name__}"
    if problem:
        where = f" in '{key}'" if key else ""
        raise PydanticCustomError("plain", "{problem}", {"problem": f"{problem}{where}"})
    return value


def _number(value: float) -> float:
    if abs(value) > WIDEST:
        raise PydanticCustomError("number", f"numbers up to {WIDEST:g} expected")
    return value


Text = Annotated[str, AfterValidator(_text)]
Line = Annotated[str, AfterValidator(_line)]
Name = Annotated[str, AfterValidator(_name)]
Hash = Annotated[str, Field(pattern=r"^[\w.+-]{1,64}$")]
"""A fingerprint; it is part of files' names."""
StoredValue = Annotated[Any, AfterValidator(_plain)]
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Positive = Annotated[int, Field(ge=1, le=LARGEST)]
Group = Annotated[int, Field(ge=-1, le=2**31)]
"""-1 = in none."""
MOST_LABELS = 10_000
"""Labels above which a result has no counts of them."""
Label = Annotated[int, Field(ge=0, lt=MOST_LABELS)]
Number = Annotated[float, AfterValidator(_number)]
Amount = Annotated[float, Field(ge=0, le=WIDEST)]
Whole = Annotated[int, Field(ge=-LARGEST, le=LARGEST)]


Note = dict[Name, StoredValue]
"""What a method notes in a round."""


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True)


class _Local(_Strict):
    epochs: Annotated[float, Field(gt=0, le=LARGEST)]


class _Model(_Strict):
    name: Name


class _Period(_Strict):
    start: Positive
    until: Positive | None = None


class Settings(_Strict):
    """What every result says of its suite; there is more, which no table needs."""

    name: Name
    version: Positive
    dataset: Name
    clients: Positive
    participation: Annotated[float, Field(gt=0, le=1)]
    rounds: Positive
    eval_every: Positive = 1
    local: _Local
    model: _Model
    not_judged: list[Count] = []
    plugins: list[_Model] = []
    periods: list[_Period] = []


class _Stored(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class Plugin(_Stored):
    """One plugin of a method: where it came from, what it openly uses, what it is beside others.

    A baseline is what a personalised method must beat to be worth anything. `source` is a hash of
    its module's files; "" in results from before it was kept.
    """

    name: Annotated[Name, EQUAL]
    distribution: Annotated[Line, NOT]
    version: Annotated[Line, NOT]
    uses_true_groups: Annotated[bool, EQUAL] = False
    paper_leak: Annotated[bool, EQUAL] = False
    pools_data: Annotated[bool, EQUAL] = False
    baseline: Annotated[bool, EQUAL, DESCRIBES] = False
    source: Annotated[Line, NOT, DESCRIBES] = ""


class Method(_Stored):
    """The method of a row."""

    name: Annotated[Name, EQUAL]
    params: Annotated[dict[Name, StoredValue], EQUAL]
    plugins: Annotated[list[Plugin], FIELDS]


class Fingerprint(_Stored):
    """What makes two rows comparable, in clear; hashes are hex.

    `config` covers suite, method and parameters (it names the folder); `suite` the suite's
    settings alone: rows of one table share it. The others belong to the seed.
    """

    config: Annotated[Hash, NOT]  # of the plugins' versions, too: made again from the file
    suite: Annotated[Hash, EQUAL]
    data: Annotated[Hash, EQUAL]
    partition: Annotated[Hash, EQUAL]
    initial_weights: Annotated[Hash, EQUAL]
    cohorts: Annotated[Hash, EQUAL]


class Clients(_Stored):
    """Per-client arrays, index = client id, at the round the summary reports.

    Attributes:
        train: training samples, as `validation`.
        test: test samples; 0 = the suite says that the client is not judged.
        correct: test samples the personal model got right; null where the task is not `classes`.
        values: of other tasks, the headline of its model (`flbench.tasks`); null in the list =
            undefined for the client, or it is not judged.
        loss: sum of its losses on the test samples, in nats; of numbers, of squared errors in
            squared deviations.
        group: true group, if the suite has any.
        bytes: sent and received in the whole run.
        labels: training samples by label, label -> count; None where samples have no label.
    """

    train: Annotated[list[Count], EQUAL]
    validation: Annotated[list[Count], EQUAL]
    test: Annotated[list[Count], EQUAL]
    correct: Annotated[list[Count] | None, ANSWERS] = None
    loss: Annotated[list[Number], LOSSES]
    group: Annotated[list[Group] | None, EQUAL]
    bytes: Annotated[list[Count], BYTES]
    labels: Annotated[list[dict[Label, Count]] | None, EQUAL] = None
    values: Annotated[list[Number | None] | None, VALUES] = None

    def headline_values(self) -> Floats:
        """Headline of each client that is judged, shape (n,); NaN = undefined for the client.

        It is the accuracy, or what the result's task has (`Result.headline`).
        """
        return headlines(np.array(self.test), _ints(self.correct), _floats(self.values))


def _ints(numbers: Sequence[int] | None) -> Any:  # noqa: ANN401 - an array, or None
    return None if numbers is None else np.array(numbers)


def _floats(numbers: Sequence[float | None] | None) -> Any:  # noqa: ANN401 - an array, or None
    """The numbers as an array, NaN for those that are null."""
    return None if numbers is None else np.array(numbers, dtype=np.float64)


class ClientMetricValues(_Stored):
    """A metric that was asked for beside accuracy, at the round the summary reports.

    Attributes:
        name: of an entry point of group `flbench.metrics`, or of a class of torchmetrics.
        package: distribution and version it comes from.
        plugin: the method's plugin that brings it; "" = a person or the suite asked for it.
        higher_is_better: None = neither.
        values: by client id; null = undefined for the client, or it is not judged.
    """

    name: Annotated[Name, EQUAL]
    params: Annotated[dict[Name, StoredValue], EQUAL] = {}
    package: Annotated[Line, NOT]
    plugin: Annotated[Line, EQUAL] = ""
    higher_is_better: Annotated[bool | None, EQUAL]
    values: Annotated[list[Number | None], VALUES]


class Change(_Stored):
    """Groups from a round on: of all clients, or of those named, the others staying."""

    round: Count
    labels: list[Group]
    clients: list[Count] | None = None


class ScoreMatrix(_Stored):
    """The last of the largest score matrices that groups were made from; higher is better.

    Attributes:
        round: when it was measured.
        columns: what is judged: models of the bank, or clients.
        row_ids: judging clients.
        column_ids: judged models or clients.
        low: value of the lowest entry, as `high` of the highest.
        cells: entries row by row, a byte each, in base64: see `flbench.results.score_encoding`.
    """

    round: Count
    columns: Literal["models", "clients"]
    row_ids: list[Count]
    column_ids: list[Count]
    low: Number
    high: Number
    cells: str

    def values(self) -> Floats:
        """The scores, shape (rows, columns); NaN = not asked."""
        return decode(self.cells, self.low, self.high, len(self.row_ids))


class Tuning(_Stored):
    """How the parameters of a row were found, where they are not the defaults.

    Attributes:
        budget: sets of parameters that might be tried, the defaults among them.
        tried: sets that there were to try; fewer where the method has few parameters.
        seeds: seeds they were tried on; never those that are scored.
        score: what was to be high: a curve's last value, averaged over the seeds.
        lr: the learning rate of local training that was found, where one was searched for; it
            takes the place of the suite's. None = the suite's, which was not questioned.
        both: whether the learning rate was searched for together with parameters.
    """

    budget: Positive
    tried: Positive
    seeds: list[Count]
    score: Line
    lr: Annotated[Annotated[float, Field(gt=0, le=WIDEST)] | None, LATER] = None
    both: Annotated[bool, LATER] = False

    @model_serializer(mode="wrap")
    def _as_stored(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without a rate where none was searched for, as in files from before it."""
        table: dict[str, Any] = handler(self)
        return {
            key: value
            for key, value in table.items()
            if (key, value) not in (("lr", None), ("both", False))
        }


class SourceChange(_Stored):
    """What computed changed within a run: the person resumed it with `--changed-source`.

    Attributes:
        round: the last round before.
        plugin: what has changed: a plugin, or a key of the environment, as `core` or `threads`.
        before: hash of source files, version or value, as `after`.
    """

    round: Count
    plugin: Name
    before: Line
    after: Line


class Energy(_Stored):
    """Energy of a run as a meter estimated it, in watt-hours.

    Attributes:
        meter: distribution and version of what measured.
        cpu: of the processor, for the share of this process, as `gpu` of the accelerators.
        memory: of the main memory.
    """

    meter: Line
    cpu: Amount
    gpu: Amount
    memory: Amount

    @property
    def total(self) -> float:
        """All of it, in watt-hours."""
        return self.cpu + self.gpu + self.memory


SavedKind = Literal["models", "predictions"]
"""What a run saves beside its result where it is asked to."""


def saved_name(kind: SavedKind, seed: int) -> str:
    """The name of a saved file, in the folder of its result.

    Example:
        >>> saved_name("models", 0)
        'seed-0.models.safetensors'
    """
    return f"seed-{seed}.{kind}.safetensors"


class SavedFile(_Stored):
    """A file that the run wrote beside its result.

    Attributes:
        name: of the file, without a folder.
        sha256: of its bytes, in hex.
    """

    name: Line
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Unseen(_Stored):
    """Clients that joined after the last round, index = newcomer.

    `correct` is of the model they got, `correct_tuned` of the same after `epochs` local epochs; of
    other tasks than `classes`, `values` and `values_tuned` are the headlines.
    """

    epochs: Annotated[Count, EQUAL]
    train: Annotated[list[Count], EQUAL]
    test: Annotated[list[Count], EQUAL]
    correct: Annotated[list[Count] | None, ANSWERS] = None
    correct_tuned: Annotated[list[Count] | None, ANSWERS] = None
    group: Annotated[list[Group] | None, EQUAL]
    values: Annotated[list[Number | None] | None, VALUES] = None
    values_tuned: Annotated[list[Number | None] | None, VALUES] = None

    def headline_values(self, task: TaskName = "classes") -> dict[str, Floats]:
        """Headline of each newcomer by the name of its metric; NaN = undefined for it."""
        test, headline = np.array(self.test), TASKS[task].headline
        tuned = _ints(self.correct_tuned), _floats(self.values_tuned)
        return {
            f"unseen_{headline}": headlines(test, _ints(self.correct), _floats(self.values)),
            f"unseen_{headline}_tuned": headlines(test, *tuned),
        }


class Own(_Stored):
    """How clients are judged with their own models, at the round that the summary reports.

    Attributes:
        trained: whether a client has trained; if not, it is judged with what serves it.
        test: test samples, as in `clients`.
        correct: those that its own model got right; null where the task is not `classes`.
        values: of other tasks, the headline of its own model, as in `clients`.
    """

    trained: Annotated[list[bool], EQUAL]
    test: Annotated[list[Count], EQUAL]
    correct: Annotated[list[Count] | None, ANSWERS] = None
    values: Annotated[list[Number | None] | None, VALUES] = None


def _with_digest(schema: dict[str, Any]) -> None:
    """Add the digest to the schema: it is of the file, and no field of a result."""
    digest = {"pattern": "^[0-9a-f]{64}$", "title": "Digest", "type": "string"}
    schema["properties"]["digest"] = digest


NOTE, TEXT = TypeAdapter(Note), TypeAdapter(Text)


class Result(_Stored):
    """Everything a run leaves behind."""

    model_config = ConfigDict(json_schema_extra=_with_digest)

    schema_version: Annotated[int, NOT] = Field(default=SCHEMA, ge=1)
    status: Annotated[Literal["self-reported", "reproduced"], NOT] = "self-reported"
    suite: Annotated[dict[Name, StoredValue], EQUAL]
    dataset: Annotated[Name, EQUAL]
    task: Annotated[TaskName | None, EQUAL] = None
    method: Annotated[Method, FIELDS]
    seed: Annotated[Count, EQUAL]
    fingerprint: Annotated[Fingerprint, FIELDS]
    summary: Annotated[dict[Name, Number | Whole | None], SUMMARY]
    curves: Annotated[dict[Name, list[Whole | Number | None]], CURVES]
    clients: Annotated[Clients, FIELDS]
    client_metrics: Annotated[dict[Name, ClientMetricValues] | None, FIELDS_AT_END] = None
    unseen: Annotated[Unseen | None, FIELDS_AT_END] = None
    own: Annotated[Own | None, FIELDS_AT_END] = None
    membership: Annotated[list[Change], GROUPS]
    scores: Annotated[ScoreMatrix | None, SCORES] = None
    tuning: Annotated[Tuning | None, EQUAL] = None
    source_changes: Annotated[list[SourceChange] | None, NOT] = None
    suite_plugins: Annotated[list[Plugin] | None, FIELDS] = None
    bytes: Annotated[dict[Name, dict[Name, Count]], BYTES]
    reads: Annotated[list[Name] | None, EQUAL_AT_END] = None
    notes: Annotated[list[Note], NOTES]
    warnings: Annotated[list[Text], REPORTED]
    seconds: Annotated[dict[Name, Amount], NOT]
    energy: Annotated[Energy | None, NOT] = None
    saved: Annotated[dict[SavedKind, SavedFile] | None, NOT] = None
    environment: Annotated[dict[Name, Line], NOT]

    @model_validator(mode="after")
    def _fits(self) -> Result:
        _refuse(contradictions(self))
        return self

    @property
    def headline(self) -> Task:
        """What was predicted, the metric that ranks methods on it, and its direction."""
        return TASKS[self.task or "classes"]

    def memberships(self) -> list[tuple[int, list[int]]]:
        """Rounds in which groups changed, with everybody's group from then on."""
        found: list[tuple[int, list[int]]] = []
        for change in self.membership:
            labels = list(found[-1][1]) if change.clients is not None else change.labels
            for client, label in zip(change.clients or (), change.labels, strict=False):
                labels[client] = label
            found.append((change.round, labels))
        return found

    def outcome(self) -> Measurements:
        """What the metrics are computed from, at the round the summary reports."""
        clients, changes, name = self.clients, self.memberships(), self.headline.name
        last = max(map(len, self.curves.values()), default=0)
        shown = self.summary.get("round") or last
        labels = [labels for round_, labels in changes if round_ <= shown]
        labels = labels or [labels for _, labels in changes[:1]]
        return Measurements(
            correct=_ints(clients.correct),
            tested=np.array(clients.test),
            loss=np.array(clients.loss),
            labels=np.array(labels[-1]) if labels else None,
            groups=None if clients.group is None else np.array(clients.group),
            curves=self.curves,
            memberships=[np.array(labels) for _, labels in changes],
            target=self.summary.get("target"),
            newcomers=None if self.unseen is None else self.unseen.headline_values(name),
            is_text="perplexity" in self.summary,
            client_metrics={
                label: ClientValues(one.values, one.higher_is_better)
                for label, one in (self.client_metrics or {}).items()
            },
            periods=self.periods,
            own_correct=None if self.own is None else _ints(self.own.correct),
            task=name,
            values=_floats(clients.values),
            own_values=None if self.own is None else _floats(self.own.values),
        )

    @property
    def periods(self) -> list[int]:
        """First rounds of the suite's periods after the first one."""
        changes = [_Period.model_validate(one) for one in self.suite.get("periods", [])]
        pairs = [(one.start, one.until) for one in changes]
        return period_starts(pairs, self.suite.get("rounds", 0))

    @property
    def plugins(self) -> list[Plugin]:
        """The plugins of the method, then those of the suite, where the file names their code."""
        return [*self.method.plugins, *(self.suite_plugins or [])]

    @property
    def unpublished(self) -> list[str]:
        """Names of objects of a person's own, without which nobody can run it again."""
        networks = [self.suite["model"], *self.suite.get("further_models", [])]
        names = [*(one.name for one in self.plugins), self.dataset]
        return [one for one in (*names, *(net["name"] for net in networks)) if OWN_NAME.search(one)]

    @property
    def not_judged(self) -> list[int]:
        """Ids of the clients that train, but are in no test figure, ascending."""
        return sorted(self.suite.get("not_judged", []))

    def metrics(self) -> dict[str, Value]:
        """The summary, with metrics that are younger than the file computed from its arrays."""
        return {**computed(self.outcome(), self.summary), **self.summary}

    def canonical(self, as_read: bool = False) -> str:
        """The file's text; as it was read, it is without the fields that its file lacks."""
        # not mode="json", which would turn NaN into null unseen
        table = self.model_dump(exclude_unset=as_read)
        for name in YOUNGER_KEYS:
            if getattr(self, name) is None:  # as in files from before it
                table.pop(name, None)
        for part in filter(None, map(table.get, ("clients", "unseen", "own"))):
            for name in HEADLINES:
                if part.get(name) is None:
                    part.pop(name, None)
        lines = {
            key: json.dumps(value, sort_keys=True, allow_nan=False, separators=(",", ":"))
            for key, value in table.items()
        }
        if self.is_digested:
            lines["digest"] = '""'
            lines["digest"] = json.dumps(digest_of(file_text(lines)))
        return file_text(lines)

    @property
    def is_digested(self) -> bool:
        """Whether its file has a digest, which was checked when it was read."""
        return self.schema_version >= DIGESTED


def digest_of(text: str) -> str:
    """The digest of a file: the SHA-256, in hex, of its text with an empty digest."""
    return hashlib.sha256(text.encode()).hexdigest()


def file_text(lines: Mapping[str, str]) -> str:
    """The text of a file, by its keys."""
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {lines[key]}" for key in sorted(lines)) + "\n}\n"


class Skip(_Stored):
    """Why a method was not run on a suite: it is not defined there. Lies where results would."""

    suite: dict[Name, StoredValue]
    suite_hash: Hash
    dataset: Name
    method: Method
    reason: Text

    @model_validator(mode="after")
    def _fits(self) -> Skip:
        _refuse(_settings(self.suite))
        return self

    def canonical(self) -> str:
        """The file's text."""
        return json.dumps(self.model_dump(), sort_keys=True, indent=1) + "\n"


def first_problem(error: ValidationError, table: object) -> Complaint:
    """The first problem with what was validated, a table or list."""
    return _complaint(error.errors()[0], table)


def _complaint(problem: Any, table: object) -> Complaint:  # noqa: ANN401 - pydantic's description
    """What pydantic says of a field of a table or list."""
    what = problem["msg"]
    return field_of(problem["loc"], table), what[:1].lower() + what[1:]


def check_note(name: str, value: object) -> None:
    """Refuse what no result file could hold as soon as a method notes it.

    Raises:
        ValueError: what is wrong with it, in one line.
    """
    try:
        NOTE.validate_python({"name": name, "value": value})
    except ValidationError as error:
        raise ValueError(f"note '{name}': {first_problem(error, {})[1]}") from None


def check_text(what: str, value: object) -> None:
    """Refuse a text that no result file could hold.

    Raises:
        ValueError: what is wrong with it, in one line.
    """
    try:
        TEXT.validate_python(value)
    except ValidationError as error:
        raise ValueError(f"{what}: {first_problem(error, {})[1]}, got {value!r:.60}") from None


def unfit(parts: dict[str, Any]) -> Iterator[Complaint]:
    """What is wrong with parts of a result-to-be, its suite among them; others may be missing."""
    try:
        Result.model_validate(parts)
    except ValidationError as error:
        missing = [one for one in error.errors() if one["type"] == "missing"]
        yield from (_complaint(one, parts) for one in error.errors() if one not in missing)
    yield from _settings(parts["suite"])


def problem_text(field: str, what: str) -> str:
    """A complaint in one line; a field's name may hold anything."""
    if not field:
        return what
    return f"'{field if field.isprintable() else ascii(field)[1:-1]}': {what}"


def _refuse(complaints: Iterator[Complaint]) -> None:
    """Refuse what there is a complaint about, inside a validator."""
    for field, what in complaints:
        raise PydanticCustomError("field", "{message}", {"message": f"'{field}': {what}"})


def _settings(suite: Mapping[str, Any]) -> Iterator[Complaint]:
    """What is wrong with a suite's settings."""
    try:
        Settings.model_validate(suite)
    except ValidationError as error:
        field, what = first_problem(error, suite)
        yield f"suite.{field}", what


def contradictions(result: Result) -> Iterator[Complaint]:
    """What does not fit together in a result; each complaint needs that there was none before."""
    yield from _settings(result.suite)
    if result.source_changes is not None and not result.source_changes:
        yield "source_changes", "at least one entry, or nothing, expected"
    if result.suite_plugins is not None:
        yield from _brought(result.suite.get("plugins"), result.suite_plugins)
    if result.source_changes and result.status == "reproduced":
        yield "status", "self-reported expected, as the code changed within the run"
    if result.tuning is not None and result.tuning.tried > result.tuning.budget:
        most = f"at most the {result.tuning.budget} of 'tuning.budget' expected"
        yield "tuning.tried", f"{most}, got {result.tuning.tried}"
    if result.tuning is not None and result.tuning.both and result.tuning.lr is None:
        yield "tuning.lr", "a learning rate expected, as 'tuning.both' says that one was searched"
    target, limit = result.summary.get("target"), result.headline.limits[1]
    if target is not None and target > limit:
        yield "summary.target", f"at most {limit:g} expected of {result.headline.headline}"
    if not result.clients.test:
        yield "clients.test", "at least one client expected"
    elif not any(result.clients.test):
        yield "clients.test", "at least one client with test samples expected"
    if result.task == "classes":
        yield "task", "nothing expected where samples have classes"
    yield from _arrays("clients", result.clients, result.task)
    yield from _judged(result)
    yield from _asked(result)
    yield from _summary(result)
    yield from _curves(result)
    rounds = max(map(len, result.curves.values()), default=0)
    yield from _membership(result.membership, len(result.clients.test), rounds)
    if result.scores is not None:
        yield from _scores(result.scores, len(result.clients.test))
    if result.unseen is not None:
        yield from _arrays("unseen", result.unseen, result.task)
    yield from _own(result)
    yield from _saved(result)
    for place, note in enumerate(result.notes):
        round_ = note.get("round")
        if not isinstance(round_, int) or not isinstance(note.get("name"), str):
            yield f"notes.{place}", "a whole number 'round' and a text 'name' expected"
        if "value" not in note:
            yield f"notes.{place}.value", "field required"


def _brought(settings: object, plugins: Sequence[Plugin]) -> Iterator[Complaint]:
    """Plugins of a suite that are not those of its settings."""
    listed = settings if isinstance(settings, list) else []
    names = [one.get("name") for one in listed if isinstance(one, dict)]
    if not names or names != [one.name for one in plugins]:
        yield "suite_plugins", f"{', '.join(map(str, names)) or 'nothing'} expected, as in 'suite'"


def _own(result: Result) -> Iterator[Complaint]:
    """Own models of other clients, or with other test samples; or that nobody asked for."""
    asked, own = bool(result.suite.get("own_models")), result.own
    if asked != (own is not None):
        expected = "field required, as" if asked else "nothing expected, unless"
        yield "own", f"{expected} 'suite.own_models' is true"
    if own is None:
        return
    yield from _arrays("own", own, result.task)
    if own.test != result.clients.test:
        yield "own.test", "the same numbers as in 'clients.test' expected"


def _saved(result: Result) -> Iterator[Complaint]:
    """Files that are not named as a run names them: no other file is ever looked at."""
    if result.saved is not None and not result.saved:
        yield "saved", "at least one entry, or nothing, expected"
    for kind, file in (result.saved or {}).items():
        if file.name != (wanted := saved_name(kind, result.seed)):
            yield f"saved.{kind}.name", f"{wanted} expected, got {file.name}"


def _arrays(name: str, part: Clients | Unseen | Own, task: TaskName | None) -> Iterator[Complaint]:
    """Arrays not as long as `test`, or of another task, and more right answers than samples."""
    for key, array in part:
        if key in HEADLINES and (array is None) == key.startswith("values" if task else "correct"):
            yield f"{name}.{key}", "field required" if array is None else "nothing expected"
        elif array is None:
            continue
        elif isinstance(array, list) and len(array) != len(part.test):
            what = f"{len(part.test)} entries expected as in 'test', got {len(array)}"
            yield f"{name}.{key}", what
        elif key.startswith("correct"):
            for client, (right, asked) in enumerate(zip(array, part.test, strict=True)):
                if right > asked:
                    what = f"at most the {asked} test samples expected, got {right}"
                    yield f"{name}.{key}.{client}", what


def _judged(result: Result) -> Iterator[Complaint]:
    """Clients that the suite does not judge and that are not there, or were tested."""
    clients, ids = len(result.clients.test), result.not_judged
    for client, value in enumerate(result.clients.values or ()):
        if value is not None and not result.clients.test[client]:
            yield f"clients.values.{client}", "null expected: the client has no test samples"
    if ids:
        yield from _ids("suite.not_judged", ids, clients)
    for client in ids:
        if result.clients.test[client]:
            yield f"clients.test.{client}", "0 expected, as 'suite.not_judged' names the client"


def _asked(result: Result) -> Iterator[Complaint]:
    """Metrics whose name is that of another number, or whose values are not one per client."""
    clients = len(result.clients.test)
    for label, one in (result.client_metrics or {}).items():
        field = f"client_metrics.{label}"
        if is_taken(label, result.headline.name):
            yield field, "another name expected: a result has a number of this name"
        if len(one.values) != clients:
            yield f"{field}.values", f"{clients} entries expected, got {len(one.values)}"
        for client, value in enumerate(one.values[:clients]):
            if value is not None and not result.clients.test[client]:
                yield f"{field}.values.{client}", "null expected: the client has no test samples"


def _tested(result: Result) -> Floats:
    """Headlines of the clients that are judged, where defined; empty if one has no test sample."""
    tests = enumerate(result.clients.test)
    if not all(asked for client, asked in tests if client not in result.not_judged):
        return np.empty(0)
    found = result.clients.headline_values()
    return found[~np.isnan(found)]


def _summary(result: Result) -> Iterator[Complaint]:
    name, cost = f"{result.headline.headline}_mean", result.summary.get("mb_per_client")
    headline = result.summary.get(name)
    if headline is None:
        yield f"summary.{name}", "a number expected"
    elif len(judged := _tested(result)):
        mean = float(judged.mean())
        if abs(headline - mean) > 1e-6:
            of = "'clients.values'" if result.task else "'clients.correct' over 'clients.test'"
            what = f"{mean:.6f} expected, the mean of {of}"
            yield f"summary.{name}", f"{what}, got {headline:.6f}"
    if cost is not None and (cost < 0 or cost > LARGEST):
        yield "summary.mb_per_client", f"0 to {LARGEST} expected, got {cost}"
    asked = [one for label in result.client_metrics or {} for one in metrics_of(label, None)]
    count, task = len(result.periods) + 1, result.headline.name
    periods = metrics_of_periods(count, task) if result.periods else []
    known = {one.name for one in (*metrics_for(task), *periods, *asked)}
    for name in sorted(result.summary.keys() - known):
        yield f"summary.{name}", "the name of a metric expected"


def _curves(result: Result) -> Iterator[Complaint]:
    if result.summary.get("target") is not None:
        for name in (result.headline.headline, *(f"bytes_{way}" for way in WAYS)):
            if name not in result.curves:
                yield f"curves.{name}", "field required, as 'summary' has a target"
    sizes = {name: len(curve) for name, curve in result.curves.items()}
    for name, size in sizes.items():
        if size != max(sizes.values()):
            yield f"curves.{name}", f"{max(sizes.values())} rounds expected, got {size}"
    for at, value in enumerate(result.curves.get("accuracy", [])):
        if value is not None and not 0 <= value <= 1:
            yield f"curves.accuracy.{at}", f"0 to 1 expected, got {value}"


def _membership(changes: Sequence[Change], clients: int, rounds: int) -> Iterator[Complaint]:
    last = 1
    for place, change in enumerate(changes):
        field = f"membership.{place}"
        if not last <= change.round <= rounds:
            what = f"a round from {last} to {rounds}, the last in 'curves', expected"
            yield f"{field}.round", f"{what}, got {change.round}"
        last = change.round
        named = change.clients
        if named is None and len(change.labels) != clients:
            yield f"{field}.labels", f"{clients} entries expected, got {len(change.labels)}"
        if named is None:
            continue
        if place == 0:
            yield f"{field}.clients", "null expected: the first change is of everybody"
        yield from _ids(f"{field}.clients", named, clients)
        if len(named) != len(change.labels):
            yield f"{field}.labels", f"{len(named)} entries expected, got {len(change.labels)}"


def _ids(field: str, ids: Sequence[int], clients: int | None) -> Iterator[Complaint]:
    if not ids:
        yield field, "at least one entry expected"
    if clients is not None and ids and max(ids) >= clients:
        yield field, f"clients 0 to {clients - 1} expected, got {max(ids)}"
    if len(set(ids)) != len(ids):
        yield field, "each once expected"


def _scores(scores: ScoreMatrix, clients: int) -> Iterator[Complaint]:
    yield from _ids("scores.row_ids", scores.row_ids, clients)
    judged = clients if scores.columns == "clients" else None
    yield from _ids("scores.column_ids", scores.column_ids, judged)
    if scores.low > scores.high:
        yield "scores.low", f"at most 'high', {scores.high}, expected, got {scores.low}"
    size = len(scores.row_ids) * len(scores.column_ids)
    try:
        found = len(base64.b64decode(scores.cells, validate=True))
    except (binascii.Error, ValueError):
        yield "scores.cells", "base64 expected"
        return
    if found != size:
        yield "scores.cells", f"{size} bytes expected, one per row and column, got {found}"
