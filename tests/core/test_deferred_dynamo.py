"""Modules of torch that are deferred: there when they are used, and not imported before."""

from __future__ import annotations

import subprocess
import sys

import pytest

RUN = """
import sys, torch, flbench.core.client
from lightning.fabric import Fabric
net = torch.nn.Linear(2, 2)
fabric = Fabric(accelerator="cpu", devices=1)
module, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1, fused=True))
fabric.backward(module(torch.ones(1, 2)).sum())
optimizer.step()
optimizer.zero_grad()
print(*[name for name in ("sympy", "torch._dynamo.eval_frame") if name in sys.modules])
"""
USES = {
    "a name": "import torch._dynamo; assert torch._dynamo.list_backends()",
    "a module": "import torch._dynamo.config as c; assert c.cache_size_limit > 0",
    "a name of a module": (
        "from torch._dynamo.eval_frame import OptimizedModule as O; import torch._dynamo as d;"
        "assert O is d.OptimizedModule and issubclass(O, torch.nn.Module)"
    ),
    "its names": "import torch._dynamo; assert 'reset' in dir(torch._dynamo)",
    "shapes": "import torch.fx.experimental.symbolic_shapes as s; assert s.ShapeEnv()",
    "all of it": "from torch._dynamo import *; assert callable(optimize)",
}
CONNECTED = """
import sys, torch, flbench.core.client
store = torch.distributed.HashStore()
torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=store)
print(*[name for name in ("sympy", "torch._dynamo.eval_frame") if name in sys.modules])
rules = torch._dynamo.trace_rules
assert rules.lookup is sys.modules["torch._dynamo.trace_rules"].lookup
rules.get_mod_inlinelist()
rules.clear_lru_cache()
assert not rules.get_mod_inlinelist.cache_info().currsize
"""
GRADIENTS = """
import sys, torch, flbench.core.client
square = lambda x: (x * x).sum()
assert torch.equal(torch.vmap(torch.func.grad(square))(torch.ones(2, 3)), 2 * torch.ones(2, 3))
loss = lambda x, y: torch.nn.functional.cross_entropy(x, y)
torch.vmap(torch.func.grad(loss))(torch.ones(2, 3, 4), torch.ones(2, 3, dtype=torch.int64))
print(*[name for name in ("sympy", "torch._dynamo.eval_frame") if name in sys.modules])
from torch.fx.experimental.symbolic_shapes import expect_true, guard_bool
assert guard_bool(True) and expect_true(True) and not expect_true(False)
assert "sympy" in sys.modules
stand_in = torch._dynamo.compiled_autograd
assert stand_in.reset is sys.modules["torch._dynamo.compiled_autograd"].reset
assert torch.equal(torch.func.grad(square)(torch.ones(2)), 2 * torch.ones(2))
assert type(stand_in._disable()).__name__ == "_GeneratorContextManager"
"""
COMPILED = """
import torch, flbench.core.client
from lightning.fabric import wrappers
plain = torch.nn.Linear(2, 2)
assert not isinstance(plain, wrappers.OptimizedModule)
whole = torch.compile(plain, backend="eager")
assert isinstance(whole, wrappers.OptimizedModule)
assert not isinstance(plain, wrappers.OptimizedModule)
assert torch.equal(whole(torch.ones(1, 2)), plain(torch.ones(1, 2)))
optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
optimizer.zero_grad()
"""
MARKED = """
import torch, flbench.core.client
from torch._dynamo import disable, graph_break
def once(x):
    return x + 1
apart = disable(once)
graph_break()
assert apart(1) == 2
found = []
def backend(graph, inputs):
    found.append(graph)
    return graph.forward
torch.compile(lambda x: apart(x * 2) * 3, backend=backend)(torch.ones(1))
print(len(found))
"""

COUNTED = """
import sys, torch, flbench.core.client
from lightning.pytorch.utilities.model_summary.model_summary import FlopCounterMode as theirs
from torch.utils.flop_counter import FlopCounterMode
print(type(sys.modules["torch.utils.flop_counter"]).__name__, "triton" in sys.modules)
class Mine(FlopCounterMode):
    pass
with Mine(display=False) as mine, theirs(display=False) as other:
    torch.ones(2, 3) @ torch.ones(3, 4)
print(mine.get_total_flops(), other.get_total_flops())
assert isinstance(mine, theirs) and isinstance(other, theirs) and not isinstance(1, theirs)
assert isinstance(other, torch.utils.flop_counter.FlopCounterMode) and not isinstance(other, Mine)
"""


OWN = "from flbench.engine.processes.own_process import defer_imports; defer_imports()\n"


def python(code: str) -> str:
    """What a new process of flbench's own prints."""
    done = subprocess.run([sys.executable, "-c", OWN + code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("code", [RUN + GRADIENTS, CONNECTED], ids=["training", "connecting"])
def test_no_compiler_is_imported(code: str) -> None:
    assert python(code) == ""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("use", USES)
def test_all_of_it_is_there(use: str) -> None:
    assert python(f"import torch, flbench.core.client\n{USES[use]}") == ""


@pytest.mark.slow
@pytest.mark.long
def test_a_compiled_module_is_known_to_lightning() -> None:
    assert python(COMPILED) == ""


@pytest.mark.slow
@pytest.mark.long
def test_a_marked_function_is_left_alone_by_the_compiler() -> None:
    """The graph is broken in two by the function between."""
    assert python(MARKED) == "2"


@pytest.mark.slow
@pytest.mark.long
def test_operations_are_counted_by_torchs_class() -> None:
    assert python(COUNTED) == "DeferredDynamo False\n48 48"


@pytest.mark.slow
@pytest.mark.long
def test_it_stays_as_it_is_if_it_is_there_already() -> None:
    code = "import torch._dynamo as d, flbench.core.client, sys; print(type(d).__name__)"
    assert (
        python(
            f"import sys; finders = sys.meta_path[:2]; del sys.meta_path[:2]; import torch;"
            f"import torch._dynamo; sys.meta_path[:0] = finders\n{code}"
        )
        == "module"
    )
