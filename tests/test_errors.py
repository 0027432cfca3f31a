"""What the machine refuses is one line that names path and remedy; what interrupts is found."""

from __future__ import annotations

import errno
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from mentions import mention, mentions
from safetensors.torch import save_file

from flbench.errors import (
    MachineError,
    ProcessDied,
    UserError,
    is_interruption,
    machine_error,
    naming,
    number_of,
)

FULL = "No space left on device; free some space, or choose another folder"


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (OSError(errno.EROFS, "x"), errno.EROFS),
        (MemoryError(), errno.ENOMEM),
        (RuntimeError("I/O error: No space left on device (os error 28)"), errno.ENOSPC),
        (RuntimeError("unable to write to file </x>: No space left on device (28)"), errno.ENOSPC),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), errno.ENOMEM),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), errno.ENOMEM),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (28)"), None),
        (RuntimeError("Expected 3 channels"), None),
        (ValueError("(os error 28)"), None),
    ],
    ids=repr,
)
def test_the_number_of_a_system_error_is_found(error: Exception, number: int | None) -> None:
    assert number_of(error) == number


def test_torch_and_safetensors_say_it_in_these_words(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError) as refused:
        torch.empty(2**60)
    assert number_of(refused.value) == errno.ENOMEM
    with pytest.raises(Exception, match="os error") as broken:
        save_file({"a": torch.zeros(9)}, tmp_path)
    assert number_of(broken.value) == errno.EISDIR


def test_the_line_names_path_and_remedy() -> None:
    assert str(machine_error(OSError(errno.ENOSPC, "x"), Path("a/b"))) == f"a/b: {FULL}"
    assert str(machine_error(OSError(errno.ENOSPC, "x", "its own"))) == f"its own: {FULL}"
    assert str(machine_error(OSError("no number"))) == "no number"
    limited = str(machine_error(OSError(errno.EFBIG, "x"), Path("a/b")))
    assert mentions(limited, "ulimit -f")
    full = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a")
    assert mentions(str(machine_error(full)), "memory", "programs")
    assert machine_error(ValueError("no number")) is None


def test_a_block_names_the_file_that_it_writes() -> None:
    with (
        pytest.raises(MachineError, match=mention("a", "No space left on device")),
        naming(Path("a")),
    ):
        raise OSError(errno.ENOSPC, "x", "temporary")
    with pytest.raises(UserError, match=r"^mine$"), naming(Path("a")):
        raise UserError("mine")
    with pytest.raises(ZeroDivisionError), naming(Path("a")):
        raise ZeroDivisionError


def caused(*errors: BaseException) -> BaseException:
    """The first error; each is the cause of the one before."""
    for one, cause in pairwise(errors):
        one.__cause__ = cause
    return errors[0]


def test_an_interruption_is_found_behind_other_errors() -> None:
    assert is_interruption(KeyboardInterrupt())
    assert is_interruption(caused(ValueError(), ImportError(), KeyboardInterrupt()))
    assert not is_interruption(caused(ValueError(), ImportError()))


def test_causes_that_form_a_circle_have_an_end() -> None:
    """They are what `raise error from error` makes."""
    one, other = ProcessDied("a process of this run died"), ValueError()
    assert not is_interruption(caused(one, one))
    assert not is_interruption(caused(one, other, one))
    assert is_interruption(caused(KeyboardInterrupt(), one, one))


def test_no_temporary_folder_is_one_line_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/nowhere"])
    with pytest.raises(FileNotFoundError) as caught:
        tempfile.gettempdir()
    assert "set TMPDIR" in str(machine_error(caught.value))
