"""The kernels run compiled where there is a GPU, else in Triton's interpreter if TRITON_INTERPRET=1 switches it on."""

from collections.abc import Callable
from typing import Any, Protocol

import pytest
import torch
from torch import Tensor

from keel.kernels.triton_support import INTERPRETED, PRESENT

if INTERPRETED:
    from triton.runtime import interpreter  # pyright: ignore[reportMissingImports]

    original = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        """Triton 3.6 turns the bounds of a loop into integers in a way that numpy 2.4 refuses."""
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch


class Hold(Protocol):
    def __call__(
        self, kernel: Callable[..., Any], twin: Callable[..., Any], *inputs: Tensor, within: float
    ) -> None: ...


class Numbers(Protocol):
    def __call__(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor: ...


@pytest.fixture
def device() -> torch.device:
    if PRESENT and torch.cuda.is_available():
        return torch.device("cuda")
    if not INTERPRETED:
        pytest.skip("no Triton, or neither a GPU nor its interpreter")
    return torch.device("cpu")


@pytest.fixture
def numbers(device: torch.device) -> Numbers:
    """Normal ones of any shape that want a gradient."""
    generator = torch.Generator().manual_seed(0)

    def sample(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype).requires_grad_()

    return sample


@pytest.fixture
def hold() -> Hold:
    """Hold a kernel to its twin: outputs, then the gradients of every input that wants one."""

    def check(kernel: Callable[..., Any], twin: Callable[..., Any], *inputs: Tensor, within: float) -> None:
        pairs = zip(outcome(kernel, *inputs), outcome(twin, *inputs), strict=True)
        for number, (ours, theirs) in enumerate(pairs):
            assert ours.dtype == theirs.dtype, number
            assert ours.shape == theirs.shape, number
            gap = (ours.float() - theirs.float()).abs().max().item()
            assert gap <= within * max(1.0, theirs.float().abs().max().item()), f"result {number} is off by {gap}"

    return check


def outcome(function: Callable[..., Any], *inputs: Tensor) -> list[Tensor]:
    copies = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
    out = function(*copies)
    outputs = out if isinstance(out, tuple) else (out,)
    values = [value.detach().clone() for value in outputs]
    generator = torch.Generator().manual_seed(1)
    torch.autograd.backward(outputs, [torch.randn(x.shape, generator=generator).to(x) for x in outputs])
    return values + [x.grad for x in copies if x.grad is not None]
