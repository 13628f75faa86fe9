"""The remaining time does not jump: noise, compilation and pauses are smoothed."""

import random
import time
from typing import Any

import pytest
import torch

from keel.config import replace
from keel.events import Event
from keel.training.loop import fit
from keel.training.plan import Plan, Train
from keel.training.time_estimate import TimeEstimate
from tests.training.test_loop import TRAIN, Plane


@pytest.mark.parametrize("seed", range(5))
def test_the_estimate_is_within_a_fifth_of_the_time_that_is_left(seed: int) -> None:
    rng, estimate = random.Random(seed), TimeEstimate()
    for interval in range(100):
        seconds = 10 * rng.uniform(0.8, 1.2)
        if interval == 0:
            seconds += 120  # compilation
        elif rng.random() < 0.1:
            seconds *= 20  # another program took the machine for a while
        estimate.add(seconds, work=10)
        if interval > 3:
            assert estimate.seconds_for(1000) == pytest.approx(1000, rel=0.2)


def test_it_follows_a_lasting_change_of_speed() -> None:
    estimate = TimeEstimate()
    for seconds in [10.0] * 20 + [20.0] * 40:
        estimate.add(seconds, work=10)
    assert estimate.seconds_for(10) == pytest.approx(20, rel=0.1)


def test_a_run_reports_a_smooth_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    class Slow(Plane):
        steps = 0

        def forward(self, batch: Any, state: None = None) -> Any:
            nonlocal now
            self.steps += 1
            now += 30.0 if self.steps == 1 else 4.0 if self.steps % 17 == 0 else 0.1
            return super().forward(batch, state)

    events: list[Event] = []
    data = torch.randn(50, 2, generator=torch.Generator().manual_seed(1))
    fit(Slow(), data, replace(TRAIN, steps=200, log_every=2, checkpoint_every=0), None, events.append)
    left = [event["seconds_left"] for event in events if event["event"] == "step"]
    expected = [0.1 * (200 - step) for step in range(2, 202, 2)]
    assert left[2:] == pytest.approx(expected[2:], rel=0.2)


def test_larger_batches_of_a_ramp_take_longer() -> None:
    plan = Plan(100, Train(steps=100, batch=64, ramp=0.5))
    assert plan.examples_between(0, 100) == 25 * 16 + 25 * 32 + 50 * 64
    assert plan.examples_between(40, 60) == 10 * 32 + 10 * 64
