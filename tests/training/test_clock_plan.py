"""A run with a time budget keeps its planned number of steps, also while the batch size grows."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from keel.events import Event
from keel.training import loop, loss_totals
from keel.training.plan import Train
from tests.training.test_loop import Plane, Points


@pytest.mark.parametrize("seconds_outside", [0.0, 0.01])
def test_the_plan_is_stable_under_a_batch_size_ramp(monkeypatch: pytest.MonkeyPatch, seconds_outside: float) -> None:
    """Simulated clock: 5 ms per example, 100 ms per optimizer step, and some time per step outside of it."""
    now = 0.0

    def advance(seconds: float) -> None:
        nonlocal now
        now += seconds

    class Timed(Plane):
        def forward(self, batch: Points, state: None = None) -> tuple[dict[str, Tensor], None]:
            advance(0.005 * len(batch.x))
            return super().forward(batch, state)

    adamw_step = torch.optim.AdamW.step

    def step(*arguments: Any, **settings: Any) -> Any:
        advance(0.1)
        return adamw_step(*arguments, **settings)

    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    monkeypatch.setattr(loop, "time", clock)
    monkeypatch.setattr(loss_totals, "time", clock)
    plans: list[int] = []

    def on_event(event: Event) -> None:
        if event["event"] == "plan":
            plans.append(event["steps"])
        elif event["event"] == "step":
            advance(seconds_outside)

    data = torch.randn(500, 2, generator=torch.Generator().manual_seed(1))
    train = Train(minutes=1, batch=64, ramp=0.6, device="cpu", log_every=1, evaluate_every=0)
    history = loop.fit(Timed(), data, train, on_event=on_event)
    assert all(abs(steps / plans[0] - 1) < 0.05 for steps in plans)
    assert abs(history.steps / plans[0] - 1) < 0.05
    assert 55 < now < 65
