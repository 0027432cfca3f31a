"""Random commands as a person types them: a run, and every command that reads what it wrote.

Each case plays one or two methods on an installed suite, in few rounds, with random settings. A run
that makes no sense is refused in one line; of what is played

- `verify` has the same bytes, of all rounds and of the first ones;
- typed again, the run changes nothing;
- `show`, `diff`, `export`, `plot`, `leaderboard` and `submit` read its files.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random

from every import METHODS, declared, other_value, settings_of
from fault_record import Fault
from typed_command import Done, typed

from flbench.plugin.registry import entries

SUITES = list(entries("suites"))
LONG = 240
"""Seconds that a command may take."""
SUITE: dict[str, list[str]] = {
    "clients": ["2", "5", "8", "12", "20"],
    "participation": ["0.1", "0.3", "0.5", "1.0"],
    "unseen": ["0.25", "0.5"],
    "unseen_epochs": ["1"],
    "ft_epochs": ["1"],
    "own_models": ["true"],
    "eval_every": ["2", "3"],
    "server_samples": ["0", "10", "50"],
    "validation_fraction": ["0.0", "0.4"],
    "test_set": ["labels", "proportional"],
    "test_fraction": ["0.1", "0.5"],
    "buffers": ["local", "reset"],
    "headline": ["validation"],
    "not_judged": ["0", "0-1"],
    "target": ["0.2", "0.9"],
    "model": ["mlp", "logistic-regression", '{name = "mlp", hidden = 8, norm = true}'],
    "further_models": ['[{name = "mlp", hidden = 8}]'],
    "common_head": ["true"],
    "partition": [
        "iid",
        '{name = "dirichlet", alpha = 0.5}',
        '{name = "label-groups", groups = 2}',
        '{name = "label-skew", share = 0.3}',
    ],
    "local.epochs": ["1", "2", "3"],
    "local.batch_size": ["1", "3", "32", "1000"],
    "local.lr": ["0.001", "0.5"],
    "local.momentum": ["0.9"],
    "local.weight_decay": ["0.01"],
    "local.optimizer": ["adam"],
    "local.lr_decay": ["0.9"],
    "local.drop_last": ["true"],
    "local.clip_norm": ["0.5"],
    "clock.dropout": ["0.3", "0.9"],
    "clock.absent": ["0.5"],
    "clock.deadline": ["1.0", "20.0"],
    "clock.seconds_per_step": ["0.1"],
    "plugins": ['["label-flip"]', '["median"]', '[{name = "norm-bound", bound = 0.5}]'],
}
METRICS = ("f1", "ece", "auroc", "balanced-accuracy", "top-k:k=3", "auroc:average=weighted")
SEVERAL = "--devices=2"
SHARE = 0.12
"""Of the fields above that a case sets."""


def names(count: int) -> list[str]:
    """The cases; each number has a suite, methods, settings and commands of its own."""
    return [f"{number:04}" for number in range(count)]


def words_of(rng: Random) -> tuple[list[str], list[str]]:
    """The methods of a case, and what is typed after `flbench run`."""
    methods = rng.sample(METHODS, 1 if rng.random() < 0.6 else 2)
    settings: dict[str, str] = {"suite.eval_every": "1"}
    for method in methods:
        asked = dict(declared(method).suite)
        clock = {f"clock.{key}": value for key, value in asked.pop("clock", {}).items()}
        settings |= {f"suite.{key}": toml(value) for key, value in (asked | clock).items()}
        if rng.random() < 0.5:
            settings |= {f"{method}.{key}": toml(v) for key, v in settings_of(method).items()}
        if rng.random() < 0.4:
            settings |= {f"{method}.{key}": toml(v) for key, v in other_value(rng, method)}
    settings |= {
        f"suite.{key}": rng.choice(values) for key, values in SUITE.items() if rng.random() < SHARE
    }
    words = ["-p", "+".join(methods), "-s", rng.choice(SUITES), "--offline-data"]
    words += ["--rounds", str(rng.randint(1, 5)), "--seeds", str(rng.choice([1, 1, 2, 3]))]
    words += ["--executor", (executor := rng.choice(["sequential", "vectorised"]))]
    if executor == "sequential" and rng.random() < SHARE:
        words.append(SEVERAL)
    if rng.random() < 0.2:
        words += ["--metric", ",".join(rng.sample(METRICS, 2))]
    if rng.random() < 0.2:
        words += ["--bank-budget", "100KB"]
    return methods, [*words, *(word for it in settings.items() for word in ("--set", "=".join(it)))]


def toml(value: object) -> str:
    """A value as it is typed after `--set KEY=`."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value) if not isinstance(value, float) else repr(value)


def run_of(words: list[str]) -> Done:
    """What comes of `flbench run`; of several processes where the words say so."""
    if SEVERAL not in words:
        return typed("run", *words, seconds=LONG)
    command = [sys.executable, "-m", "flbench", "run", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONG)
    except subprocess.TimeoutExpired:
        return Done(None, "", "", "too long")
    wrong = "traceback" if "Traceback" in done.stderr else ""
    return Done(done.returncode, done.stdout, done.stderr, wrong)


def read_by_all(rng: Random, folder: Path, words: list[str]) -> tuple[str, Done]:
    """What goes wrong where commands read what a run wrote, and the last command."""
    out = folder / "out"
    files = sorted(out.glob("*/*/*/*/seed-*.json"))
    before = {file: file.read_bytes() for file in files}
    result = json.loads(before[files[0]])
    every, rounds = int(result["suite"].get("eval_every", 1)), int(result["suite"]["rounds"])
    first = str(rng.randint(min(every, rounds), rounds))
    alone = [word for word in words if word != SEVERAL]
    log, begun, results = folder / "log.jsonl", folder / "begun.jsonl", ("--results", str(out))
    commands: dict[str, tuple[str, ...]] = {
        "verify": ("verify", str(out), "--workers", "1", "--log", str(log)),
        "verify --rounds": (
            *("verify", str(files[-1]), "--workers", "1"),
            *("--rounds", first, "--log", str(begun)),
        ),
        "run again": ("run", *alone),
        "show": ("show", "result", str(files[0])),
        "diff": ("diff", str(files[0]), str(files[-1])),
        "export": ("export", str(out), "--out", str(folder / "exported")),
        "plot": ("plot", str(out), "--out", str(folder / "figures")),
        "leaderboard": ("leaderboard", *results, "--out", str(folder / "pages"), "--no-figures"),
        "leaderboard --check": (
            *("leaderboard", *results, "--out", str(folder / "pages"), "--no-figures", "--check"),
        ),
        "submit --check": (
            *("submit", str(out), "--check", "--new-table", "--results", str(folder / "empty")),
        ),
    }
    for title, typed_words in commands.items():
        done = typed(*typed_words, seconds=LONG)
        if done.wrong or done.code:
            return f"{title}: {done.wrong or 'refused'}", done
    audits = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    if len(audits) != len(files) or any(one["outcome"] != "same bytes" for one in audits):
        return "verify: other bytes", done
    if before != {file: file.read_bytes() for file in files}:
        return "run again: another file", done
    return "", done


def inject(name: str) -> Fault:
    """Play one case."""
    rng = Random(name)
    methods, words = words_of(rng)
    kind = f"{len(methods)} method{'s'[: len(methods) - 1]}"
    with tempfile.TemporaryDirectory(prefix="flbench-faults-") as text:
        folder = Path(text)
        words += ["--out", str(folder / "out")]
        played = run_of(words)
        if played.wrong or played.code:
            fault = played.fault(name, kind)
            return Fault(name, kind, fault.outcome, fault.wrong, message=shown(words, fault))
        wrong, done = read_by_all(rng, folder, words)
        outcome = "read by all" if not wrong else "wrong"
        fault = done.fault(name, kind)
        return Fault(name, kind, outcome, wrong, message=shown(words, fault) if wrong else "")


def shown(words: list[str], fault: Fault) -> str:
    """What was typed, and the last line of what came."""
    typed_words = " ".join(f"'{one}'" if {*one} & {*' {["'} else one for one in words[:-2])
    return f"flbench run {typed_words}: {fault.message}"
