"""What the loop promises, on an objective small enough to check by hand."""

import json
import math
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from keel.errors import KeelError, UsageError
from keel.events import Event
from keel.training.checkpoint import Checkpoints
from keel.training.counter_rng import CounterRng
from keel.training.loop import fit
from keel.training.loss_totals import validation_loss
from keel.training.objective import Objective, Tensors
from keel.training.plan import Train

TRAIN = Train(steps=6, batch=8, device="cpu", log_every=1, checkpoint_every=2, schedule="constant", warmup=1, lr=0.1)


@dataclass(frozen=True, kw_only=True)
class Points(Tensors):
    x: Tensor  # [rows, 2]
    y: Tensor  # [rows]
    weights: Tensor  # [rows] 0 for a row that predicts nothing


class Plane(Objective):
    """y = w x + b by least squares over rows of which some do not count, so that micro-batches count differently."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(2, 1)

    def epoch_size(self, data: Tensor) -> int:
        return len(data)

    def batch(self, data: Tensor, rng: CounterRng, examples: range) -> Points:
        index, _ = rng.epoch_order(torch.arange(examples.start, examples.stop), len(data))
        x = data[index]
        return Points(x=x, y=x @ torch.tensor([3.0, -1.0]) + 0.5, weights=(x[:, 0] > -0.3).float())

    def counts(self, batch: Points) -> dict[str, Tensor]:
        return {"square": batch.weights.sum(), "points": torch.ones_like(batch.weights).sum()}

    def forward(self, batch: Points, state: None = None) -> tuple[dict[str, Tensor], None]:
        return {"square": ((self.linear(batch.x)[:, 0] - batch.y).square() * batch.weights).sum()}, None


@pytest.fixture
def data() -> Tensor:
    return torch.randn(50, 2, generator=torch.Generator().manual_seed(1))


def saved_steps(out: Path) -> list[int]:
    return Checkpoints(out / "checkpoints", 1).steps()


def weights(out: Path, step: int) -> dict[str, Tensor]:
    return load_file(Checkpoints(out / "checkpoints", 1).path(step) / "weights.safetensors")


def of_kind(kind: str, events: list[Event]) -> list[Event]:
    return [event for event in events if event["event"] == kind]


def test_it_learns_and_reports_losses(data: Tensor, tmp_path: Path) -> None:
    events: list[Event] = []
    train = replace(TRAIN, steps=300, log_every=50, checkpoint_every=0, schedule="linear", weight_decay=0.0)
    history = fit(Plane(), data, train, tmp_path, events.append)
    steps = of_kind("step", events)
    assert [event["step"] for event in steps] == [50, 100, 150, 200, 250, 300]
    assert steps[-1]["loss"] < 1e-4 < steps[0]["loss"]
    assert steps[-1]["loss"] == steps[-1]["losses"]["square"]
    assert steps[0]["points_per_second"] > 0
    assert steps[0]["seconds_left"] > steps[-1]["seconds_left"] == 0
    assert (history.steps, history.losses[-1]) == (300, (300, steps[-1]["loss"]))
    assert history.seconds > 0
    assert weights(tmp_path, 300)["linear.bias"].item() == pytest.approx(0.5, abs=0.01)


def test_reported_loss_is_the_mean_over_what_counts(data: Tensor, tmp_path: Path) -> None:
    objective = Plane()
    expected = []
    for step in range(2):
        batch = objective.batch(data, CounterRng(seed=0, step=step, first_example=8 * step), range(8))
        expected.append(float(objective(batch)[0]["square"].detach() / batch.weights.sum()))
        assert 0 < batch.weights.sum() < 8
    # A learning rate so low that nothing is learned between the two.
    history = fit(objective, data, replace(TRAIN, steps=2, lr=1e-9, log_every=2), tmp_path)
    assert history.losses == [(2, pytest.approx(sum(expected) / 2, rel=1e-5))]


@pytest.mark.parametrize("accumulate", [2, 3, 8])
def test_micro_batches_give_the_gradient_of_the_whole_batch(data: Tensor, accumulate: int, tmp_path: Path) -> None:
    objective = Plane()
    rng = CounterRng(seed=0, step=0, first_example=0)
    parts = [objective.batch(data, rng, range(row, row + 1)).weights.sum().item() for row in range(8)]
    assert 0 < sum(parts) < 8, "counts must differ, or this shows nothing"
    runs = []
    for number in (1, accumulate):
        history = fit(Plane(), data, replace(TRAIN, accumulate=number), tmp_path / str(number))
        runs.append((weights(tmp_path / str(number), 6), [loss for _, loss in history.losses]))
    (one, one_losses), (many, many_losses) = runs
    assert many_losses == pytest.approx(one_losses, rel=1e-5)
    for name, value in one.items():
        torch.testing.assert_close(many[name], value, rtol=1e-5, atol=1e-6)


def test_a_batch_of_nothing_to_predict_changes_nothing(tmp_path: Path) -> None:
    objective = Plane()
    before = {name: value.clone() for name, value in objective.state_dict().items()}
    fit(objective, torch.full((20, 2), -1.0), replace(TRAIN, weight_decay=0.0), tmp_path)
    assert all(torch.equal(value, before[name]) for name, value in objective.state_dict().items())


def test_gradient_is_clipped(data: Tensor, tmp_path: Path) -> None:
    events: list[Event] = []
    # AdamW forgets a scale common to all steps: only epsilon, made large here, lets it through.
    moved = {}
    for clip in (0.0, 0.01):
        objective = Plane()
        start = objective.linear.weight.detach().clone()
        settings = replace(TRAIN, steps=1, clip=clip, epsilon=1e3, weight_decay=0.0)
        fit(objective, data, settings, tmp_path / str(clip), events.append)
        moved[clip] = float((objective.linear.weight.detach() - start).norm())
    norm = of_kind("step", events)[0]["norm"]
    assert norm > 1
    assert moved[0.01] == pytest.approx(moved[0.0] * 0.01 / norm, rel=1e-2)


@pytest.mark.parametrize(("epochs", "steps"), [(1.0, 7), (2.0, 13), (0.5, 4), (0.01, 1)])
def test_epochs_become_steps(data: Tensor, epochs: float, steps: int, tmp_path: Path) -> None:
    assert fit(Plane(), data, replace(TRAIN, steps=0, epochs=epochs), tmp_path).steps == steps


@pytest.mark.parametrize("checkpoint_every", [0, 50])
def test_minutes_become_a_plan_that_is_kept(data: Tensor, checkpoint_every: int, tmp_path: Path) -> None:
    class Slow(Plane):
        def forward(self, batch: Points, state: None = None) -> tuple[dict[str, Tensor], None]:
            time.sleep(0.01)
            return super().forward(batch)

    events: list[Event] = []
    began = time.monotonic()
    train = replace(TRAIN, steps=0, minutes=0.03, checkpoint_every=checkpoint_every, log_every=1000)
    history = fit(Slow(), data, train, tmp_path, events.append)
    first, *_, last = [*of_kind("plan", events), *of_kind("plan", events)]
    assert first["step"] == 0
    assert f"--steps {first['steps']}" in first["text"]
    assert history.steps == last["steps"]
    assert 0.9 < time.monotonic() - began < 3.6  # planned 1.8; other work on the machine may slow it down midway
    state = json.loads((tmp_path / "checkpoints" / f"step-{history.steps:08d}" / "state.json").read_text())
    assert state["plan"] == history.steps


@pytest.mark.parametrize(
    ("minutes", "ready", "message"),
    [
        (0.01, 0.1, r"^plan: 0.01 minutes \(less [\d.]+ s of set-up\) = \d+ steps of"),
        (
            0.002,
            0.3,
            r"^plan: 0.002 minutes \(less [\d.]+ s of set-up\) leave no time for more than 1 step: use more --minutes",
        ),
    ],
)
def test_time_before_the_first_step_is_reported(data: Tensor, minutes: float, ready: float, message: str) -> None:
    class Cold(Plane):
        """Takes long the first time, as what must be compiled does."""

        def forward(self, batch: Points, state: None = None) -> tuple[dict[str, Tensor], None]:
            nonlocal ready
            time.sleep(ready)
            ready = 0.0
            return super().forward(batch)

    events: list[Event] = []
    fit(Cold(), data, replace(TRAIN, steps=0, minutes=minutes), on_event=events.append)
    assert re.search(message, of_kind("plan", events)[0]["text"])


def test_measuring_for_the_plan_changes_nothing(data: Tensor, tmp_path: Path) -> None:
    by_clock: list[Event] = []
    fit(Plane(), data, replace(TRAIN, steps=0, minutes=0.002, checkpoint_every=0), tmp_path / "clock", by_clock.append)
    plan = of_kind("plan", by_clock)[0]["steps"]
    by_count = fit(Plane(), data, replace(TRAIN, steps=plan, checkpoint_every=0), tmp_path / "count")
    assert [event["loss"] for event in of_kind("step", by_clock)] == [loss for _, loss in by_count.losses]


class Spoiled(Plane):
    """Goes wrong at step 4 in a way of the test's choice."""

    def __init__(self, spoil: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.spoil = spoil

    def batch(self, data: Tensor, rng: CounterRng, examples: range) -> Points:
        batch = super().batch(data, rng, examples)
        return replace(batch, y=batch.y + (1000 if rng.step == 4 else 0))

    def forward(self, batch: Points, state: None = None) -> tuple[dict[str, Tensor], None]:
        losses, _ = super().forward(batch)
        loss = losses["square"]
        return {"square": self.spoil(loss) if batch.y.min() > 500 else loss}, None


@pytest.mark.parametrize("clip", [0.0, 1.0])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda loss: loss * math.nan,
        lambda loss: loss + math.inf,
        lambda loss: loss + (loss - loss.detach()).sqrt(),  # the loss is finite, its gradient is not
    ],
    ids=["nan", "inf", "gradient"],
)
def test_no_number_stops_the_run_and_is_never_saved(
    data: Tensor, spoil: Callable[[Tensor], Tensor], clip: float, tmp_path: Path
) -> None:
    train = replace(TRAIN, steps=20, clip=clip, checkpoint_every=1, keep=20)
    with pytest.raises(KeelError, match="not finite before step 5; the last checkpoint is of step 4: try a lower lr"):
        fit(Spoiled(spoil), data, train, tmp_path)
    assert saved_steps(tmp_path) == [1, 2, 3, 4]
    assert all(value.isfinite().all() for value in weights(tmp_path, 4).values())


def test_last_and_best_checkpoints_are_kept(data: Tensor, tmp_path: Path) -> None:
    figures = iter([5.0, 4.0, 1.0, 2.0, 3.0, 2.5, 1.5])
    events: list[Event] = []
    train = replace(TRAIN, steps=12, evaluate_every=2, checkpoint_every=2, keep=2)
    history = fit(Plane(), data, train, tmp_path, events.append, evaluate=lambda _: {"loss": next(figures)})
    assert saved_steps(tmp_path) == [4, 10, 12]
    assert [evaluation["step"] for evaluation in history.evaluations] == [0, 2, 4, 6, 8, 10, 12]
    assert [event["loss"] for event in of_kind("evaluation", events)] == [5.0, 4.0, 1.0, 2.0, 3.0, 2.5, 1.5]


def test_best_is_kept_even_between_checkpoints(data: Tensor, tmp_path: Path) -> None:
    figures = iter([5.0, 1.0, 2.0, 3.0, 4.0])
    train = replace(TRAIN, steps=12, evaluate_every=3, checkpoint_every=5, keep=1)
    fit(Plane(), data, train, tmp_path, evaluate=lambda _: {"loss": next(figures)})
    assert saved_steps(tmp_path) == [3, 12]


def test_best_is_remembered_across_a_resume(data: Tensor, tmp_path: Path) -> None:
    train = replace(TRAIN, evaluate_every=2, keep=1)
    figures = iter([9.0, 1.0, 2.0, 3.0])
    fit(Plane(), data, train, tmp_path, evaluate=lambda _: {"loss": next(figures)})
    figures = iter([4.0, 5.0])
    fit(Plane(), data, replace(train, steps=10), tmp_path, evaluate=lambda _: {"loss": next(figures)})
    assert saved_steps(tmp_path) == [2, 10]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lr", 0.2),
        ("batch", 16),
        ("accumulate", 2),
        ("seed", 1),
        ("precision", "bf16"),
        ("compile", True),
        ("threads", 1),
    ],
)
def test_changed_setting_is_refused_by_name(data: Tensor, name: str, value: Any, tmp_path: Path) -> None:
    fit(Plane(), data, TRAIN, tmp_path)
    before = weights(tmp_path, 6)
    with pytest.raises(
        UsageError, match=rf"started with {name} = .*, not {value!r}: use the old value to resume, or ov"
    ):
        fit(Plane(), data, replace(TRAIN, **{name: value}), tmp_path)
    assert all(torch.equal(value, before[name]) for name, value in weights(tmp_path, 6).items())


def test_changed_identity_is_refused_by_name(data: Tensor, tmp_path: Path) -> None:
    fit(Plane(), data, TRAIN, tmp_path, identity={"corpus": "abc"})
    for identity in ({"corpus": "xyz"}, {}, {"corpus": "abc", "tokenizer": "new"}):
        with pytest.raises(UsageError, match=r"started with (corpus|tokenizer) = "):
            fit(Plane(), data, TRAIN, tmp_path, identity=identity)
    fit(Plane(), data, TRAIN, tmp_path, identity={"corpus": "abc"})


@pytest.mark.parametrize(
    ("before", "now", "message"),
    [
        ("a.txt", "b.txt", "with a.txt, not b.txt: use that"),
        ("a.txt", "a.txt", "with another version or part of a.txt: use that"),
        ("", "b.txt", "with other corpus, not b.txt: use that"),
    ],
)
def test_the_source_of_a_fingerprint_is_reported(
    data: Tensor, tmp_path: Path, before: str, now: str, message: str
) -> None:
    fit(Plane(), data, TRAIN, tmp_path, identity={"corpus": "a" * 16}, sources={"corpus": before} if before else {})
    with pytest.raises(
        UsageError, match=f"^this run was started {message} to resume, or overwrite to start from scratch$"
    ):
        fit(Plane(), data, TRAIN, tmp_path, identity={"corpus": "b" * 16}, sources={"corpus": now})
    fit(Plane(), data, TRAIN, tmp_path, identity={"corpus": "a" * 16}, sources={"corpus": now})


def test_what_changes_no_weight_may_change(data: Tensor, tmp_path: Path) -> None:
    fit(Plane(), data, TRAIN, tmp_path)
    changes: dict[str, Any] = {"evaluate_every": 3, "checkpoint_every": 1, "checkpoint_minutes": 1.0, "log_every": 2}
    assert fit(Plane(), data, replace(TRAIN, keep=1, **changes), tmp_path).steps == 6


def test_more_steps_are_allowed_where_the_rate_stays(data: Tensor, tmp_path: Path) -> None:
    fit(Plane(), data, TRAIN, tmp_path / "longer")
    fit(Plane(), data, replace(TRAIN, steps=10), tmp_path / "longer")
    fit(Plane(), data, replace(TRAIN, steps=10), tmp_path / "at once")
    for name, value in weights(tmp_path / "at once", 10).items():
        assert torch.equal(value, weights(tmp_path / "longer", 10)[name])
    with pytest.raises(UsageError, match="started with steps = 10, not 5"):
        fit(Plane(), data, replace(TRAIN, steps=5), tmp_path / "longer")


@pytest.mark.parametrize("schedule", ["linear", "cosine", "trapezoid"])
def test_more_steps_are_refused_where_the_rate_fell(data: Tensor, schedule: Any, tmp_path: Path) -> None:
    train = replace(TRAIN, schedule=schedule)
    fit(Plane(), data, train, tmp_path)
    with pytest.raises(UsageError, match="started with steps = 6, not 10"):
        fit(Plane(), data, replace(train, steps=10), tmp_path)


class Fading(Plane):
    """Fewer and fewer of the points count in the course of a run."""

    @property
    def follows_progress(self) -> bool:
        return True

    def batch(self, data: Tensor, rng: CounterRng, examples: range) -> Points:
        points = super().batch(data, rng, examples)
        if not rng.steps:
            return points
        return replace(points, weights=(torch.arange(len(points.x)) < 8 * (1 - rng.step / rng.steps)).float())


def test_batches_know_the_planned_steps_and_a_run_of_other_length_is_refused(data: Tensor, tmp_path: Path) -> None:
    train, counted = replace(TRAIN, steps=4), []

    class Recorded(Fading):
        def counts(self, batch: Points) -> dict[str, Tensor]:
            counted.append(int(batch.weights.sum()))
            return super().counts(batch)

    fit(Recorded(), data, train, tmp_path)
    assert counted == [8, 6, 4, 2]
    assert validation_loss(data, TRAIN)(Fading()) == validation_loss(data, TRAIN)(Plane()), "all count outside of a run"
    with pytest.raises(UsageError, match="started with steps = 4, not 10"):
        fit(Fading(), data, replace(train, steps=10), tmp_path)


def test_checkpoint_falls_due_by_the_clock(data: Tensor, tmp_path: Path) -> None:
    fit(Plane(), data, replace(TRAIN, checkpoint_every=0, checkpoint_minutes=1e-9, keep=9), tmp_path)
    assert saved_steps(tmp_path) == [1, 2, 3, 4, 5, 6]


def test_without_a_folder_nothing_is_kept(data: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    history = fit(Plane(), data, TRAIN)
    assert history.losses == fit(Plane(), data, TRAIN).losses
    assert len(history.losses) == 6
    assert not list(tmp_path.iterdir())


def test_fit_runs_outside_the_main_thread(data: Tensor, tmp_path: Path) -> None:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(fit(Plane(), data, TRAIN, tmp_path).steps))
    thread.start()
    thread.join()
    assert found == [6]


def test_rate_reaches_the_optimizer(data: Tensor, tmp_path: Path) -> None:
    events: list[Event] = []
    fit(Plane(), data, replace(TRAIN, warmup=4, schedule="linear"), tmp_path, events.append)
    assert [event["lr"] for event in of_kind("step", events)] == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.05])


@pytest.mark.parametrize("rows", [7, 16, 50])
def test_held_out_loss_is_the_mean_over_all_rows(data: Tensor, rows: int) -> None:
    objective = Plane().train()
    batch = objective.batch(data, CounterRng(seed=0, step=0, first_example=0), range(rows))
    expected = float(objective(batch)[0]["square"].detach() / batch.weights.sum())
    evaluate = validation_loss(data, TRAIN, max_examples=rows)
    assert (
        evaluate(objective)
        == evaluate(objective)
        == {"loss": pytest.approx(expected), "square": pytest.approx(expected)}
    )
    assert objective.training


@pytest.mark.parametrize(
    "settings",
    [
        {"steps": 5, "epochs": 1.0},
        {"steps": -1},
        {"steps": 5, "minutes": -1.0},
        {"steps": 1, "batch": 0},
        {"steps": 1, "lr": 0.0},
        {"steps": 1, "keep": 0},
        {"steps": 1, "batch": 2, "accumulate": 3},
    ],
)
def test_settings_without_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Train(**settings)


def test_a_run_needs_a_length(data: Tensor) -> None:
    with pytest.raises(UsageError, match="length of the run"):
        fit(Plane(), data, Train(lr=0.1))


def test_the_threads_of_a_run_are_its_own(data: Tensor) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        fit(Plane(), data, replace(TRAIN, threads=1))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("found", "message"), [(0, "no GPU"), (2, "2 GPUs")])
def test_device_that_is_not_there_is_refused(
    data: Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: int, message: str
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: found)
    with pytest.raises(UsageError, match=f"no device 'cuda:77': this machine has {message}; use device cpu or auto"):
        fit(Plane(), data, replace(TRAIN, device="cuda:77"), tmp_path)


@pytest.mark.parametrize("name", ["gpu", "cuda:x", ""])
def test_a_name_of_no_device_is_refused(data: Tensor, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=f"there is no device '{name}': use device cpu, cuda, cuda:1 or auto"):
        fit(Plane(), data, replace(TRAIN, device=name), tmp_path)


@pytest.mark.gpu
def test_a_run_on_a_gpu_resumes_to_the_same_bits(data: Tensor, tmp_path: Path) -> None:
    train = replace(TRAIN, device="cuda")
    fit(Plane(), data, train, tmp_path / "longer")
    fit(Plane(), data, replace(train, steps=10), tmp_path / "longer")
    fit(Plane(), data, replace(train, steps=10), tmp_path / "at once")
    folder = "checkpoints/step-00000010"
    for file in ("weights.safetensors", "optimizer.safetensors"):
        once, longer = (load_file(tmp_path / run / folder / file) for run in ("at once", "longer"))
        assert all(torch.equal(value, longer[name]) for name, value in once.items())


@pytest.mark.gpu
def test_a_step_that_cannot_be_captured_runs_eagerly_with_its_dropout(data: Tensor, tmp_path: Path) -> None:
    class Waiting(Plane):
        """Waits for the device in its forward pass, which a capture does not permit; then it needs random numbers."""

        def forward(self, batch: Points, state: None = None) -> tuple[dict[str, Tensor], None]:
            assert int(batch.weights.sum()) <= len(batch.x)
            return super().forward(replace(batch, x=nn.functional.dropout(batch.x, 0.1)), state)

    events: list[Event] = []
    fit(Waiting(), data, replace(TRAIN, device="cuda"), tmp_path, events.append)
    assert [event["step"] for event in of_kind("step", events)] == [1, 2, 3, 4, 5, 6]
    assert any("CUDA graphs" in event["text"] for event in of_kind("note", events))
    assert torch.rand(3, device="cuda").isfinite().all()
    fit(Plane(), data, replace(TRAIN, device="cuda"), tmp_path / "next")  # captures again
