"""torchmetrics is there, whatever of it is asked for, and is not imported before."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from types import ModuleType

import pytest

from flbench.core.deferred_torchmetrics import DeferredTorchmetrics, run

HEAVY = "torchvision", "transformers", "scipy.signal", "matplotlib"
USE = {
    "a class": "from torchmetrics import Accuracy; Accuracy(task='binary')",
    "a class of a part": "from torchmetrics.text import BLEUScore; BLEUScore()",
    "a function": "from torchmetrics.functional import accuracy; assert callable(accuracy)",
    "a part": "import torchmetrics; assert torchmetrics.image.PeakSignalNoiseRatio",
    "everything": "from torchmetrics import *; assert MeanMetric().compute() != 0",
    "a list of names": "import torchmetrics; assert 'MeanMetric' in dir(torchmetrics)",
    "its source": "import inspect, torchmetrics; assert inspect.getsource(torchmetrics)",
    "a figure": (
        "import torch; from torchmetrics.classification import BinaryAccuracy as A; m = A();"
        "m(torch.tensor([0, 1]), torch.tensor([1, 1])); m.plot()"
    ),
    "its version": "import torchmetrics as t; assert t.__version__.startswith('1.')",
}

"""Uses for which none of the heavy packages is needed."""


OWN = "from flbench.engine.processes.own_process import defer_imports; defer_imports();"


def python(code: str, own: str = OWN) -> str:
    """What a new process prints, which is flbench's own."""
    done = subprocess.run([sys.executable, "-c", own + code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_part_that_was_not_imported_is() -> None:
    """Of a package that stands in for torchmetrics: its own code is not run for that."""
    package = DeferredTorchmetrics("wsgiref")
    assert package.util is importlib.import_module("wsgiref.util")
    assert type(package) is DeferredTorchmetrics
    with pytest.raises(AttributeError, match="has no attribute '__wrapped__'"):
        _ = package.__wrapped__


def test_the_code_of_a_package_is_run_once() -> None:
    package = DeferredTorchmetrics("json")
    package.__spec__ = importlib.util.find_spec("json")
    assert package.dumps([1]) == "[1]"
    assert type(package) is ModuleType
    marked = package.mark = object()
    assert run(package).mark is marked


@pytest.mark.slow
def test_the_client_module_imports_nothing_that_is_heavy() -> None:
    code = f"import flbench.core.client, sys; print(*[m for m in {HEAVY} if m in sys.modules])"
    assert python(code) == ""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("use", ["a class", "a function", "a figure"])
def test_it_works_first_thing_in_a_process(use: str) -> None:
    assert python(f"import flbench.core.client; {USE[use]}") == ""


@pytest.mark.slow
@pytest.mark.long
def test_all_of_it_works_in_one_process() -> None:
    missing = "import torchmetrics; assert not hasattr(torchmetrics, 'nothing')"
    assert python("\n".join(["import flbench.core.client", missing, *USE.values()])) == ""


@pytest.mark.slow
@pytest.mark.long
def test_an_imported_or_another_version_is_left_alone() -> None:
    imported = (
        "import flbench.core.torchvision_compat, torchmetrics, flbench.core.client;"
        f"{OWN} import torchmetrics.functional; print(type(torchmetrics).__name__)"
    )
    assert python(imported, own="") == "module"
    other = (
        "from importlib import metadata; found = metadata.version;"
        "metadata.version = lambda name: '2.0.0' if name == 'torchmetrics' else found(name);"
        f"{OWN} import flbench.core.client, torchmetrics; print(type(torchmetrics).__name__)"
    )
    assert python(other, own="") == "module"
