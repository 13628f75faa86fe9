import os
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch

from keel.kernels.hopper import gluon

PROGRAM = """
import torch
torch.version.cuda = torch.version.cuda or "12.8"  # so that Keel takes Triton up
from triton.backends.compiler import GPUTarget
from triton.compiler import compile
from triton.experimental.gluon._runtime import GluonASTSource
from keel.kernels.hopper import attention_fixed, fused_feed_forward
from keel.kernels.hopper.gluon import REGISTERS, gl

def tile(*shape):
    return f"tensordesc<bf16[{shape[0]}, {shape[1]}],{gl.NVMMASharedLayout.get_default_for([*shape], gl.bfloat16)!r}>"

def check(kernel, kinds, fixed, warps):
    numbers = {name: "fp32" if name == "scale" else "i32" for name in kernel.arg_names}
    source = GluonASTSource(kernel, numbers | kinds | dict.fromkeys(fixed, "constexpr"), fixed, {})
    made = compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps, "maxnreg": REGISTERS})
    assert made.metadata.shared <= 232_448, made.metadata.shared
    assert "wgmma.mma_async" in made.asm["ptx"]
    print("compiled")

for back in (False, True):
    weight = tile(64, 128) if back else tile(128, 64)
    kinds = {"x": tile(128, 64), "weight": weight, "bias": "*fp32", "out": tile(128, 64), "slopes": tile(128, 64)}
    check(fused_feed_forward._product, kinds | {"sums": "*fp32"}, {"back": back, "tanh": False, "needs_grad": True}, 4)
for dropped, causal in ((0, False), (429496729, False), (429496729, True)):
    fixed = {"heads": 12, "threshold": dropped, "causal": causal}
    pointers = {"lengths": "*i64", "normalizers": "*fp32"}
    kinds = dict.fromkeys(("qkv", "out"), tile(128, 64)) | pointers | {"seed": "*i64"}
    check(attention_fixed._forward, kinds, fixed, 8)
    kinds = dict.fromkeys(("qkv", "dout", "dqkv"), tile(128, 64)) | pointers | {"sums": "*fp32"}
    check(attention_fixed._backward, kinds, fixed, 8)
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="no Triton")
def test_the_kernels_compile_for_hopper_without_one():
    """In a process of its own: Triton's interpreter, once it is on, has no compiler."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["compiled"] * 8, done.stderr[-2000:]


@pytest.fixture
def on_hopper(monkeypatch):
    """What stands for a tensor on such a GPU."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
    monkeypatch.setattr(gluon, "triton_usable", lambda x: True)
    monkeypatch.setattr(gluon, "hopper", object())
    return SimpleNamespace(is_cuda=True, dtype=torch.bfloat16, device=torch.device("cuda", 0))


def test_a_kernel_is_checked_once_and_trusted_if_near_its_twin(on_hopper):
    checked = []

    def near(device: torch.device, dtype: torch.dtype) -> float:
        checked.append((device.index, dtype))
        return 0.01

    assert gluon.trusted(near, on_hopper)
    assert gluon.trusted(near, on_hopper)
    assert checked == [(0, torch.bfloat16)]


def test_a_kernel_is_checked_with_each_of_its_settings(on_hopper):
    tried = []

    def near_if_causal(device: torch.device, dtype: torch.dtype, heads: int, causal: bool) -> float:
        tried.append((heads, causal))
        return 0.001 if causal else 1.0

    assert gluon.trusted(near_if_causal, on_hopper, 12, True)
    with pytest.warns(UserWarning, match="relative error is 1"):
        assert not gluon.trusted(near_if_causal, on_hopper, 12, False)
    assert gluon.trusted(near_if_causal, on_hopper, 12, True)
    assert tried == [(12, True), (12, False)]


@pytest.mark.parametrize("outcome", [0.5, float("nan"), RuntimeError("no such word")])
def test_a_wrong_or_failing_kernel_is_reported_and_not_used(on_hopper, outcome):
    def far(device: torch.device, dtype: torch.dtype) -> float:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    with pytest.warns(UserWarning, match="falls back to a slower kernel on this GPU"):
        assert not gluon.trusted(far, on_hopper)


def test_out_of_memory_is_no_result_of_the_check(on_hopper):
    outcomes = [torch.OutOfMemoryError(), 0.0]

    def at_last(device: torch.device, dtype: torch.dtype) -> float:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    with pytest.raises(torch.OutOfMemoryError):
        gluon.trusted(at_last, on_hopper)
    assert gluon.trusted(at_last, on_hopper)


def test_the_kernels_can_be_switched_off(on_hopper, monkeypatch):
    """KEEL_HOPPER_KERNELS=0 sets it at import."""
    assert gluon.trusted(lambda device, dtype: 0.0, on_hopper)
    monkeypatch.setattr(gluon, "ENABLED", False)
    assert not gluon.trusted(lambda device, dtype: 0.0, on_hopper)


def test_another_gpu_is_not_checked(on_hopper, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: (8, 0))
    assert not gluon.trusted(lambda device, dtype: 0.0, on_hopper)


def test_the_relative_error_is_that_of_the_worst_gradient():
    x, y = torch.randn(4, 3), torch.randn(4, 3)

    def wrong(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + 1.5 * y - 0.5 * y.detach()

    assert gluon.relative_error(torch.add, torch.add, x, y) == 0
    assert gluon.relative_error(wrong, torch.add, x, y) == pytest.approx(0.5, rel=1e-4)


def test_a_gradient_that_is_no_number_is_not_overlooked():
    def wrong(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y + (y - y.detach()).sqrt() * 0  # infinity times zero on the way back

    x, y = torch.randn(4, 3), torch.randn(4, 3)
    assert not gluon.relative_error(wrong, torch.add, x, y) <= 1
