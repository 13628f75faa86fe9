"""State goes from step to step, through checkpoints, however a step is cut."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from keel.errors import Interrupted, KeelError
from keel.events import Event
from keel.training.counter_rng import CounterRng
from keel.training.loop import fit
from keel.training.loss_totals import validation_loss
from keel.training.objective import Objective, Phase, Tensors
from keel.training.plan import Train

TRAIN = Train(steps=6, batch=4, lr=0.1, warmup=0, schedule="constant", log_every=1, device="cpu", clip=0.0)


@dataclass(frozen=True, kw_only=True)
class Numbers(Tensors):
    values: Tensor


class Memory(Objective):
    """Predicts a number from the decaying sum of those before it, which is its state."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.5]))
        self.seen: list[Tensor] = []

    def epoch_size(self, data: Tensor) -> int:
        return len(data)

    def batch(self, data: Tensor, rng: CounterRng, examples: range) -> Numbers:
        return Numbers(values=data[(rng.first_example + torch.arange(examples.start, examples.stop)) % len(data)])

    def counts(self, batch: Numbers) -> dict[str, Tensor]:
        return {"square": torch.tensor(float(len(batch.values)))}

    def initial_state(self, batch_size: int) -> Numbers:
        return Numbers(values=torch.zeros(batch_size))

    def forward(self, batch: Numbers, state: Any = None) -> tuple[dict[str, Tensor], Numbers]:
        self.seen.append(state.values.clone())
        predicted = self.weight * state.values
        return {"square": (batch.values - predicted).square().sum()}, Numbers(values=predicted + batch.values)


@pytest.fixture
def data() -> Tensor:
    return torch.randn(24, generator=torch.Generator().manual_seed(3))


def run(data: Tensor, out: Path | None = None, stop_at: int = 0, **settings: Any) -> Memory:
    objective = Memory()

    def stop(event: Event) -> None:
        if stop_at and event["event"] == "step" and event["step"] == stop_at:
            raise KeyboardInterrupt

    fit(objective, data, replace(TRAIN, **settings), out, stop)
    return objective


def test_the_next_step_gets_the_state_without_its_gradients(data: Tensor) -> None:
    seen = run(data).seen
    assert (seen[0] == 0).all()
    assert torch.equal(seen[1], data[:4])  # 0.5 * 0 + x
    assert seen[2].abs().sum() > 0
    assert not torch.equal(seen[2], seen[1])


def test_cut_into_parts_it_is_the_same(data: Tensor) -> None:
    whole, parts = run(data), run(data, accumulate=2)
    assert torch.allclose(whole.weight, parts.weight)
    assert torch.allclose(whole.seen[3], torch.cat(parts.seen[6:8]))


def test_dry_runs_leave_the_initial_state(data: Tensor) -> None:
    timed = run(data, steps=0, minutes=0.02)
    assert (timed.seen[0] == 0).all()
    assert (timed.seen[6] == 0).all()  # the first step, after six dry runs
    assert (timed.seen[7] != 0).any()


def test_another_batch_size_starts_from_the_initial_state(data: Tensor) -> None:
    class Grows(Memory):
        def phases(self) -> list[Phase]:
            return [Phase(share=0.5), Phase(share=0.5, batch_share=0.5)]

    objective = Grows()
    fit(objective, data, TRAIN)
    assert [len(state) for state in objective.seen] == [4, 4, 4, 2, 2, 2]
    assert (objective.seen[3] == 0).all()
    assert (objective.seen[4] != 0).any()


def test_a_resumed_run_has_the_same_state(data: Tensor, tmp_path: Path) -> None:
    whole = run(data, tmp_path / "whole")
    with pytest.raises((Interrupted, KeyboardInterrupt)):
        run(data, tmp_path / "cut", stop_at=4, checkpoint_every=1)
    resumed = run(data, tmp_path / "cut", checkpoint_every=1)
    assert 1 <= len(resumed.seen) < 6
    assert torch.equal(resumed.seen[0], whole.seen[6 - len(resumed.seen)])
    assert torch.equal(resumed.weight, whole.weight)


def test_a_state_of_other_rows_is_refused(data: Tensor, tmp_path: Path) -> None:
    with pytest.raises((Interrupted, KeyboardInterrupt)):
        run(data, tmp_path, stop_at=4, checkpoint_every=1)

    class Wider(Memory):
        def initial_state(self, batch_size: int) -> Numbers:
            return Numbers(values=torch.zeros(batch_size, 2))

    with pytest.raises(KeelError, match=r"state of shape \(4, 2\).*holds one of shape \(4,\).*overwrite"):
        fit(Wider(), data, replace(TRAIN, checkpoint_every=1), tmp_path)


def test_held_out_rows_carry_it_too(data: Tensor) -> None:
    objective = Memory()
    validation_loss(data, TRAIN)(objective)
    assert len(objective.seen) == 6
    assert torch.equal(objective.seen[1], data[:4])


def test_it_is_restored_as_it_was_even_if_the_plan_has_changed_since(data: Tensor, tmp_path: Path) -> None:
    """The next step may have another batch size by the new plan: it starts from the initial state, not refused."""

    class Grows(Memory):
        rows_then = 0.5

        def phases(self) -> list[Phase]:
            return [Phase(share=0.5, batch_share=self.rows_then), Phase(share=0.5)]

    def stop(event: Event) -> None:
        if event["event"] == "step" and event["step"] == 2:
            raise KeyboardInterrupt

    with pytest.raises((Interrupted, KeyboardInterrupt)):
        fit(Grows(), data, replace(TRAIN, checkpoint_every=1), tmp_path, stop)
    resumed = Grows()
    resumed.rows_then = 0.25
    fit(resumed, data, replace(TRAIN, checkpoint_every=1), tmp_path)
    assert [len(state) for state in resumed.seen][-3:] == [4, 4, 4]
    assert len(resumed.seen[0]) == 1
