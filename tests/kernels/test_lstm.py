"""The LSTM with projection: formulas, torch's own, and the kernels that a GPU runs."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from keel.kernels import lstm
from keel.kernels.lstm import projected_lstm, projected_lstm_twin

STACKS, TIME, BATCH, IN, CELLS, OUT = 2, 5, 3, 4, 6, 4
LAST = torch.tensor([4, 0, 2])


def inputs(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """x, the state before and the weights; all but the state want gradients."""
    generator = torch.Generator().manual_seed(0)

    def sample(*shape: int, learned: bool = True) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_(learned)

    state = sample(STACKS, BATCH, OUT, learned=False), sample(STACKS, BATCH, CELLS, learned=False)
    weights = sample(STACKS, IN, 4 * CELLS), sample(STACKS, 4 * CELLS), sample(STACKS, OUT, 4 * CELLS)
    return [sample(STACKS, TIME, BATCH, IN), *state, *weights, sample(STACKS, CELLS, OUT)]


def outcome(function: partial[tuple[Tensor, Tensor]], values: list[Tensor]) -> list[Tensor]:
    h, c = function(*values[:3], LAST, *values[3:])
    slopes = torch.randn(h.shape, generator=torch.Generator().manual_seed(1)).to(h)
    gradients = torch.autograd.grad((h * slopes).sum(), [value for value in values if value.requires_grad])
    return [h, c, *gradients]


@pytest.mark.parametrize("clips", [{}, {"cell_clip": 0.6}, {"clip": 0.4}, {"cell_clip": 0.6, "clip": 0.4}])
def test_values_and_gradients_are_those_of_the_formulas(clips: dict[str, float]) -> None:
    values = inputs()
    for one, other in zip(
        outcome(partial(projected_lstm, **clips), values),
        outcome(partial(projected_lstm_twin, **clips), values),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("function", [projected_lstm, projected_lstm_twin])
def test_the_state_before_is_a_constant(function: Callable[..., tuple[Tensor, Tensor]]) -> None:
    x, hidden, cells, *weights = inputs()
    h, c = function(x, hidden.requires_grad_(), cells.requires_grad_(), LAST, *weights)
    assert h.requires_grad
    assert not c.requires_grad
    assert torch.autograd.grad(h.sum(), [hidden, cells], allow_unused=True) == (None, None)


@pytest.mark.filterwarnings("ignore:LSTM with projections")  # torch says that its own is slow
def test_without_clips_it_is_the_lstm_of_torch() -> None:
    x, hidden, cells, into, bias, recurrent, projection = inputs()
    order = [0, 1, 3, 2]  # torch has i, f, g, o
    for stack in range(STACKS):
        theirs = nn.LSTM(IN, CELLS, proj_size=OUT, dtype=torch.float64)

        def in_torch_order(gates: Tensor) -> Tensor:
            return torch.cat([gates.chunk(4, -1)[number] for number in order], -1).movedim(-1, 0)

        weights = {"weight_ih_l0": in_torch_order(into[stack]), "weight_hh_l0": in_torch_order(recurrent[stack])}
        weights |= {"weight_hr_l0": projection[stack].T, "bias_ih_l0": in_torch_order(bias[stack])}
        theirs.load_state_dict({**weights, "bias_hh_l0": torch.zeros(4 * CELLS)})
        expected, (_, cell) = theirs(x[stack], (hidden[stack : stack + 1], cells[stack : stack + 1]))
        ends = torch.full((BATCH,), TIME - 1)
        h, c = projected_lstm(x, hidden, cells, ends, into, bias, recurrent, projection)
        torch.testing.assert_close(h[stack], expected)
        torch.testing.assert_close(c[stack], cell[0])


def test_half_precision_is_near() -> None:
    values = inputs(torch.float32)
    expected = outcome(partial(projected_lstm), values)
    with torch.autocast("cpu", torch.bfloat16):
        found = outcome(partial(projected_lstm), values)
    assert found[0].dtype == torch.bfloat16
    for one, other in zip(found, expected, strict=True):
        assert (one.float() - other).abs().max() < 0.05 * other.abs().max()


@pytest.mark.parametrize("clips", [{}, {"cell_clip": 0.6}])
def test_the_kernels_open_and_shut_gates_as_their_twins_do(
    device: torch.device, clips: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [value.detach().to(device).requires_grad_(value.requires_grad) for value in inputs(torch.float32)]
    monkeypatch.setattr(f"{__name__}.LAST", LAST.to(device))
    found = []
    for fused in (True, False):
        monkeypatch.setattr(lstm, "fused", lambda gates, fused=fused: fused)
        found.append(outcome(partial(projected_lstm, **clips), values))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
