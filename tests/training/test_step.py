"""Steps where memory, compiler or room on the GPU do not suffice."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import keel
from keel.errors import KeelError, UsageError
from keel.events import Event
from keel.training.batch_loading import CpuBatches, PrefetchedBatches, batch_source
from keel.training.counter_rng import CounterRng
from keel.training.distributed import World
from keel.training.loop import fit
from keel.training.objective import Objective, Tensors
from keel.training.plan import Plan, Train
from keel.training.step import Stepper, resolve_precision
from tests.training.test_loop import Plane, Points

TRAIN = Train(steps=6, batch=8, device="cpu", log_every=1, schedule="constant", warmup=1, lr=0.1)
CPU = torch.device("cpu")


@pytest.fixture
def data() -> Tensor:
    return torch.randn(50, 2, generator=torch.Generator().manual_seed(1))


class Greedy(Plane):
    """Takes no more than `room` rows at once."""

    room = 8

    def forward(self, batch: Points, state: None = None) -> tuple[dict[str, Tensor], None]:
        if len(batch.x) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().forward(batch, state)


def copy_weights(objective: Objective) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in objective.state_dict().items()}


def test_a_batch_too_large_is_cut_and_the_run_stays_the_same(data: Tensor) -> None:
    events: list[Event] = []
    whole, cut = Greedy(), Greedy()
    cut.room = 3
    fit(whole, data, TRAIN)
    fit(cut, data, TRAIN, on_event=events.append)
    for name, value in copy_weights(whole).items():
        torch.testing.assert_close(copy_weights(cut)[name], value, rtol=1e-5, atol=1e-6)
    notes = [event["text"] for event in events if event["event"] == "note"]
    assert len(notes) == 2  # 8 rows, then 4, then 2
    assert "2 micro-batches of 4" in notes[0]
    assert "4 micro-batches of 2" in notes[1]


def test_one_row_too_large_is_an_error(data: Tensor) -> None:
    objective = Greedy()
    objective.room = 0
    with pytest.raises(KeelError, match="micro-batch of 1 example"):
        fit(objective, data, TRAIN)


def test_parts_are_kept_across_a_resume(data: Tensor, tmp_path: Any) -> None:
    objective = Greedy()
    objective.room = 4
    train = replace(TRAIN, checkpoint_every=2)
    fit(objective, data, train, tmp_path)
    events: list[Event] = []
    again = Greedy()
    again.room = 4
    fit(again, data, replace(train, steps=8), tmp_path, events.append)
    assert not [event for event in events if "do not fit" in event.get("text", "")]


class Uncompilable(Plane):
    """Its block fails in the compiler alone."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Linear(1, 1)
        self.block.compile = self.pretend  # pyright: ignore[reportAttributeAccessIssue]

    def pretend(self) -> None:
        def fail(*inputs: Any) -> Any:
            from torch._dynamo.exc import BackendCompilerFailed

            raise BackendCompilerFailed(lambda: None, RuntimeError("no compiler found"), None)

        self.block._compiled_call_impl = fail

    def blocks(self) -> list[nn.Module]:
        return [self.block]

    def forward(self, batch: Points, state: None = None) -> tuple[dict[str, Tensor], None]:
        losses, state = super().forward(batch, state)
        return {"square": losses["square"] + 0 * self.block(batch.x[:, :1]).sum()}, state


def test_what_cannot_be_compiled_runs_eagerly_with_a_note(data: Tensor) -> None:
    events: list[Event] = []
    fit(Uncompilable(), data, replace(TRAIN, compile=True), on_event=events.append)
    notes = [event["text"] for event in events if event["event"] == "note"]
    assert len(notes) == 1
    assert "cannot be compiled here and run eagerly" in notes[0]
    assert len([event for event in events if event["event"] == "step"]) == TRAIN.steps


def test_all_learning_goes_through_one_line() -> None:
    sources = Path(keel.__file__).parent.rglob("*.py")
    library = [path for path in sources if path.parent.name != "claims"]  # experiments may train networks of their own
    lines = [line for path in library for line in path.read_text().splitlines() if ".backward(" in line]
    assert len(lines) == 1, lines


def test_each_part_of_a_block_is_compiled(data: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[nn.Module] = []
    monkeypatch.setattr(nn.Module, "compile", lambda self: compiled.append(self))
    objective = Plane()
    pair, alone = nn.ModuleList([nn.Identity(), nn.Identity()]), nn.Identity()
    monkeypatch.setattr(objective, "blocks", lambda: [alone, nn.ModuleList(pair)])
    fit(objective, data, replace(TRAIN, compile=True))
    assert compiled == [alone, *pair]


def test_prefetched_batches_equal_those_made_on_demand(data: Tensor) -> None:
    objective, plan = Plane(), Plan(20, TRAIN)
    here = CpuBatches(objective, data, 0, CPU)
    ahead = PrefetchedBatches(objective, data, 0, CPU)
    for step in (0, 1, 2, 7, 8):
        coming = [(plan.step_plan(later), [range(4), range(4, 8)]) for later in (step + 1, step + 2)]
        one, counts = here.get(plan.step_plan(step), [range(4), range(4, 8)], [])
        two, counted = ahead.get(plan.step_plan(step), [range(4), range(4, 8)], coming)
        for expected, found in zip(one, two, strict=True):
            assert all(map(torch.equal, expected.tensors(), found.tensors()))
        assert counts.keys() == counted.keys()
        assert all(torch.equal(counts[name], counted[name]) for name in counts)


def test_an_error_in_the_thread_reaches_the_run(data: Tensor) -> None:
    class Broken(Plane):
        def batch(self, data: Tensor, rng: CounterRng, examples: range) -> Points:
            raise UsageError("no such row")

    ahead = PrefetchedBatches(Broken(), data, 0, CPU)
    with pytest.raises(UsageError, match="no such row"):
        ahead.get(Plan(5, TRAIN).step_plan(0), [range(8)], [])


def test_precision_is_what_the_device_has(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "an old GPU")
    for has in (True, False):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation, has=has: has)
        assert resolve_precision("auto", gpu) == ("bf16" if has else "fp32")
    assert resolve_precision("auto", CPU) == "fp32"
    with pytest.raises(UsageError, match="an old GPU does not support bf16: use precision"):
        resolve_precision("bf16", gpu)


def test_data_that_does_not_fit_stays_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[Event] = []
    data = Points(x=torch.ones(10, 2), y=torch.ones(10), weights=torch.ones(10))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (data.nbytes(), data.nbytes()))
    assert isinstance(batch_source(Plane(), data, TRAIN, torch.device("cuda"), events.append), PrefetchedBatches)
    assert "they stay in main memory, with 2 batches prefetched" in events[0]["text"]


def test_signatures_depend_on_shapes() -> None:
    def points(rows: int) -> Tensors:
        return Points(x=torch.ones(rows, 2), y=torch.ones(rows), weights=torch.ones(rows))

    assert points(3).signature() == points(3).signature() != points(4).signature()
    assert points(3).nbytes() == 3 * 4 * 4
    copy = (original := points(3)).clone()
    original.tensors()[0].zero_()
    assert copy.tensors()[0].sum() == 6


def test_dry_runs_are_undone(data: Tensor) -> None:
    objective = Plane()
    before = copy_weights(objective)
    with World.join("cpu") as world:
        stepper = Stepper(objective, data, TRAIN, world, lambda event: None)
        for step in range(3):
            stepper.dry_run(Plan(6, TRAIN).step_plan(step))
        stepper.undo_dry_runs()
        states = [value for state in stepper.optimizer.state.values() for value in state.values()]
        assert states
        assert not any(value.any() for value in states)
    assert all(torch.equal(value, before[name]) for name, value in copy_weights(objective).items())
    assert all(parameter.grad is None for parameter in objective.parameters())


def test_own_updates_are_for_those_who_make_them(data: Tensor) -> None:
    with pytest.raises(UsageError, match=r"no custom updates: use optimizer adamw or muon"):
        fit(Plane(), data, replace(TRAIN, optimizer="own"))
