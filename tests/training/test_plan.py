"""A plan gives every step its examples, its phase and its learning rate."""

import re
from itertools import pairwise
from typing import Any

import pytest

from keel.errors import UsageError
from keel.training.objective import Phase
from keel.training.plan import Plan, Train

LONG = (Phase(share=0.9), Phase(share=0.1, batch_share=0.25))


@pytest.mark.parametrize("length", [{"minutes": float("inf")}, {"minutes": 1e20}, {"epochs": float("inf")}])
def test_a_run_without_end_is_refused(length: dict[str, Any]) -> None:
    ((name, value),) = length.items()
    with pytest.raises(
        UsageError, match=rf"^{name}[= ]{re.escape(f'{value:g}')} would never end: give 1,000,000,000 or less"
    ):
        Train(**length)


def test_without_ramp_or_phases_every_step_is_alike() -> None:
    plan = Plan(10, Train(steps=10, batch=8, schedule="constant", warmup=1))
    assert [plan.step_plan(step).batch_size for step in range(10)] == [8] * 10
    assert [plan.step_plan(step).first_example for step in range(10)] == list(range(0, 80, 8))
    assert plan.describe() == ""


def test_the_batch_doubles_twice_and_no_example_is_sampled_twice() -> None:
    plan = Plan(40, Train(steps=40, batch=64, ramp=0.5, schedule="constant", warmup=1, lr=1.0))
    steps = [plan.step_plan(step) for step in range(40)]
    assert [step.batch_size for step in steps] == [16] * 10 + [32] * 10 + [64] * 20
    assert all(one.first_example + one.batch_size == two.first_example for one, two in pairwise(steps))
    assert [step.lr for step in steps[::10]] == pytest.approx([0.5, 0.5**0.5, 1.0, 1.0])


def test_longer_rows_are_fewer_and_counted_for_themselves() -> None:
    plan = Plan(100, Train(steps=100, batch=64), LONG)
    assert {(plan.step_plan(step).batch_size, plan.step_plan(step).phase) for step in range(90)} == {(64, 0)}
    assert [
        (plan.step_plan(step).batch_size, plan.step_plan(step).phase, plan.step_plan(step).first_example)
        for step in (90, 91, 99)
    ] == [
        (16, 1, 0),
        (16, 1, 16),
        (16, 1, 144),
    ]
    assert plan.step_plan(90).lr == pytest.approx(plan.train.lr * plan.lr_factor(90))  # fewer rows, as many tokens
    assert plan.describe() == ", batch size 64 from step 0, batch size 16 from step 90"


def test_the_time_of_a_plan_is_that_of_its_stretches() -> None:
    plan = Plan(100, Train(steps=100, batch=64), LONG)
    costs = {(64, 0): 1.0, (16, 1): 3.0}
    assert plan.seconds_from(costs, 0) == 90 + 30
    assert plan.seconds_from(costs, 80) == 10 + 30
    assert plan.seconds_from(costs, 95) == 15


@pytest.mark.parametrize(("steps", "count"), [(50, 5), (5000, 100)])
def test_the_average_takes_the_last_weights_evenly(steps: int, count: int) -> None:
    plan = Plan(steps, Train(steps=steps, average=0.1))
    taken = [step for step in range(steps) if plan.averages_step(step)]
    assert len(taken) == count
    assert taken[-1] == steps - 1
    assert taken[0] >= 0.9 * steps


def test_few_steps_lose_phases_rather_than_fail() -> None:
    plan = Plan(1, Train(steps=1, batch=2, ramp=0.3), LONG)
    assert plan.step_plan(0).batch_size >= 1


def test_epochs_count_rows_whatever_the_batch_was() -> None:
    train = Train(epochs=1, batch=64, ramp=0.5)
    assert Plan(1_000_000, Train(epochs=1, batch=64), LONG).steps_for(640) == 10
    assert Plan(1_000_000, train).steps_for(640) == pytest.approx(10 / (0.25 * 0.25 + 0.25 * 0.5 + 0.5), abs=1)
