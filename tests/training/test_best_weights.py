"""The weights of the best evaluation as the result of a run (--train.final_weights best)."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from keel.errors import Interrupted, UsageError
from keel.events import Event, OnEvent
from keel.training.checkpoint import Checkpoints
from keel.training.loop import Evaluate, fit
from keel.training.objective import Objective
from tests.training.test_loop import TRAIN, Plane

BEST = replace(TRAIN, steps=10, evaluate_every=2, checkpoint_every=2, final_weights="best")


@pytest.fixture
def data() -> Tensor:
    return torch.randn(50, 2, generator=torch.Generator().manual_seed(1))


def weights(objective: Objective) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in objective.state_dict().items()}


def scripted(values: list[dict[str, float]], seen: list[dict[str, Tensor]]) -> Evaluate:
    """These values one after the other; the weights at each evaluation go to `seen`."""
    coming: Iterator[dict[str, float]] = iter(values)

    def evaluate(objective: Objective) -> dict[str, float]:
        seen.append(weights(objective))
        return next(coming)

    return evaluate


def losses(*values: float) -> list[dict[str, float]]:
    return [{"loss": value} for value in values]


SCORED = [{"loss": 1.0, "score": 0.5}, {"loss": 2.0, "score": 0.9}, {"loss": 1.0, "score": 0.9}]


@pytest.mark.parametrize(
    ("values", "best"),
    [
        (losses(5.0, 4.0, 1.0, 2.0, 3.0, 2.5), 2),
        (losses(5.0, 4.0, 3.0, 2.0, 1.0, 0.5), 5),
        ([*SCORED, *[{"loss": 0.1, "score": 0.8}] * 3], 2),
    ],
    ids=["lowest loss", "the last one", "highest score, then lowest loss"],
)
def test_the_best_evaluation_gives_the_weights(data: Tensor, values: list[dict[str, float]], best: int) -> None:
    objective, seen = Plane(), list[dict[str, Tensor]]()
    events: list[Event] = []
    history = fit(objective, data, BEST, None, events.append, evaluate=scripted(values, seen))
    for name, value in weights(objective).items():
        assert torch.equal(value, seen[best][name])
    assert history.evaluations[-1]["loss"] == values[best]["loss"]
    notes = [event["text"] for event in events if event["event"] == "note"]
    assert [f"step {2 * best}," in text for text in notes if "final weights" in text] == [True] * (best < 5)


def test_the_last_weights_are_the_default(data: Tensor) -> None:
    objective, seen = Plane(), list[dict[str, Tensor]]()
    fit(objective, data, replace(BEST, final_weights="last"), evaluate=scripted(losses(5, 1, 2, 3, 4, 5), seen))
    assert all(torch.equal(value, seen[-1][name]) for name, value in weights(objective).items())


def test_a_stopped_run_resumes_to_the_same_weights(data: Tensor, tmp_path: Path) -> None:
    values = losses(5.0, 1.0, 2.0, 3.0, 4.0, 5.0)
    whole, stopped = Plane(), Plane()
    fit(whole, data, BEST, tmp_path / "whole", evaluate=scripted(values, []))

    def stop(event: Event) -> None:
        if event["event"] == "checkpoint" and event["step"] == 6:
            raise Interrupted("stopped")

    with pytest.raises(Interrupted):
        fit(stopped, data, BEST, tmp_path / "stopped", stop, evaluate=scripted(values, []))
    resumed = Plane()
    fit(resumed, data, BEST, tmp_path / "stopped", evaluate=scripted(values[4:], []))
    assert all(torch.equal(value, weights(whole)[name]) for name, value in weights(resumed).items())


def test_it_needs_a_validation_set(data: Tensor) -> None:
    with pytest.raises(UsageError, match="validation set"):
        fit(Plane(), data, BEST)


def test_checkpoints_of_earlier_versions_have_the_last_weights(
    data: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They lack the setting, and their best value is a number."""
    train = replace(TRAIN, steps=4, evaluate_every=2, checkpoint_every=2)
    fit(Plane(), data, train, tmp_path, evaluate=scripted(losses(5.0, 1.0, 2.0), []))
    latest = Checkpoints.latest

    def earlier(self: Checkpoints, on_event: OnEvent) -> dict[str, Any] | None:
        state = latest(self, on_event)
        assert state is not None
        del state["settings"]["final_weights"]
        return state | {"best": state["best"][0]}

    monkeypatch.setattr(Checkpoints, "latest", earlier)
    longer = replace(train, steps=6)
    with pytest.raises(UsageError, match="final_weights"):
        fit(Plane(), data, replace(longer, final_weights="best"), tmp_path, evaluate=scripted([], []))
    assert fit(Plane(), data, longer, tmp_path, evaluate=scripted(losses(3.0), [])).steps == 6
