"""Layer-wise learning rates and gradual unfreezing, on a network whose layer groups can be counted by hand."""

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from keel.errors import UsageError
from keel.events import Event
from keel.training.counter_rng import CounterRng
from keel.training.loop import fit
from keel.training.objective import Objective, Phase, Tensors
from keel.training.optimizers import make_optimizer, set_lr
from keel.training.parameter_groups import layer_groups
from keel.training.plan import Train

# 12 rows by 4 are 3 steps an epoch.
TRAIN = Train(steps=15, batch=4, device="cpu", log_every=1, schedule="constant", warmup=1, lr=0.01, weight_decay=0.5)


@dataclass(frozen=True, kw_only=True)
class Ids(Tensors):
    ids: Tensor  # [rows]


class Tower(Objective):
    """Words, two blocks, a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(6, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.head = nn.Linear(4, 1)
        self.seen: list[dict[str, Tensor]] = []

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)

    def input_parameters(self) -> list[nn.Parameter]:
        return list(self.words.parameters())

    def epoch_size(self, data: Tensor) -> int:
        return len(data)

    def batch(self, data: Tensor, rng: CounterRng, examples: range) -> Ids:
        index, _ = rng.epoch_order(torch.arange(examples.start, examples.stop), len(data))
        return Ids(ids=data[index])

    def counts(self, batch: Ids) -> dict[str, Tensor]:
        return {"square": torch.tensor(float(len(batch.ids)))}

    def forward(self, batch: Ids, state: None = None) -> tuple[dict[str, Tensor], None]:
        self.seen.append({name: value.detach().clone() for name, value in self.named_parameters()})
        vectors = self.words(batch.ids)
        for layer in self.layers:
            vectors = torch.tanh(layer(vectors))
        return {"square": (self.head(vectors)[:, 0] - batch.ids).square().sum()}, None


DATA = torch.arange(12) % 6


def run(out: Path | None = None, on_event: Any = lambda event: None, **settings: Any) -> Tower:
    tower = Tower()
    fit(tower, DATA, replace(TRAIN, **settings), out, on_event)
    return tower


def level_of(name: str) -> int:
    return ["head", "layers.1", "layers.0", "words"].index(name.rpartition(".")[0])


def test_levels_are_counted_from_the_head_down() -> None:
    tower = Tower()
    names = {parameter: name for name, parameter in tower.named_parameters()}
    found = [{level_of(names[parameter]) for parameter in level} for level in layer_groups(tower)]
    assert found == [{0}, {1}, {2}, {3}]
    tower.head.requires_grad_(False)  # what does not learn is no level
    assert [{level_of(names[parameter]) for parameter in level} for level in layer_groups(tower)] == [{1}, {2}, {3}]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_rate_falls_from_level_to_level(optimizer: Literal["adamw", "muon"]) -> None:
    tower = Tower()
    made = make_optimizer(tower, replace(TRAIN, layer_decay=0.5, optimizer=optimizer))
    set_lr(made, 0.8)
    rates = {parameter: group["lr"] for group in made.param_groups for parameter in group["params"]}
    expected = {0: 0.8, 1: 0.4, 2: 0.2, 3: 0.1}
    for name, parameter in tower.named_parameters():
        assert rates[parameter] == pytest.approx(expected[level_of(name)]), name
    decays = {parameter: group["weight_decay"] for group in made.param_groups for parameter in group["params"]}
    assert {decays[parameter] for parameter in rates if parameter.ndim == 1} == {0.0}
    assert {decays[parameter] for parameter in rates if parameter.ndim == 2} == {0.5}


def test_a_lower_rate_is_a_smaller_step() -> None:
    one, other = run(steps=1, weight_decay=0.0), run(steps=1, weight_decay=0.0, layer_decay=0.5)
    start = Tower().state_dict()
    for name, value in one.state_dict().items():
        moved = value - start[name]
        torch.testing.assert_close(
            (other.state_dict()[name] - start[name]) / 0.5 ** level_of(name), moved, rtol=1e-3, atol=1e-6
        )


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_one_level_more_learns_each_epoch(optimizer: Literal["adamw", "muon"]) -> None:
    events: list[Event] = []
    tower = run(unfreeze="gradual", optimizer=optimizer, on_event=events.append)
    states = [*tower.seen, {name: value.detach() for name, value in tower.named_parameters()}]
    for step, (before, after) in enumerate(pairwise(states)):
        for name, value in before.items():
            # Neither gradient nor momentum nor decay may move what is frozen.
            assert torch.equal(value, after[name]) == (level_of(name) > step // 3), (step, name)
    notes = [event["text"] for event in events if event["event"] == "note"]
    assert notes == [f"step {3 * (count - 1)}: {count} of 4 layer groups are trained" for count in (1, 2, 3, 4)]
    assert all(parameter.requires_grad for parameter in tower.parameters())


def test_moments_of_what_is_frozen_stay_empty() -> None:
    tower = Tower()
    made: list[torch.optim.Optimizer] = []

    def look(event: Event) -> None:
        if event["event"] == "step" and event["step"] == 5:
            raise KeyboardInterrupt

    from keel.training import step

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step, "make_optimizer", lambda *given: made.append(make_optimizer(*given)) or made[-1])
        with pytest.raises(KeyboardInterrupt):
            fit(tower, DATA, replace(TRAIN, unfreeze="gradual"), on_event=look)
    for name, parameter in tower.named_parameters():
        state = made[0].state[parameter]
        steps = {0: 5, 1: 2, 2: 0, 3: 0}[level_of(name)]
        assert state["step"] == steps, name
        assert state["exp_avg"].any() == (steps > 0)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("stop", [1, 3, 4, 11])
def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path, stop: int, optimizer: Literal["adamw", "muon"]) -> None:
    settings: dict[str, Any] = {
        "unfreeze": "gradual",
        "layer_decay": 0.7,
        "schedule": "slanted",
        "optimizer": optimizer,
    }
    whole = run(**settings)

    def halt(event: Event) -> None:
        if event["event"] == "step" and event["step"] == stop + 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, halt, checkpoint_every=stop, **settings)
    resumed = run(tmp_path, checkpoint_every=stop, **settings)
    assert len(resumed.seen) < 15
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_dry_runs_train_all_layer_groups() -> None:
    events: list[Event] = []
    tower = run(unfreeze="gradual", steps=0, minutes=0.01, on_event=events.append)
    assert any(event.get("text", "").startswith("step 0: 1 of 4") for event in events)
    assert all(parameter.requires_grad for parameter in tower.parameters())


def test_one_layer_group_refuses_layer_wise_settings() -> None:
    class Flat(Tower):
        def blocks(self) -> list[nn.Module]:
            return []

        def input_parameters(self) -> list[nn.Parameter]:
            return []

    with pytest.raises(UsageError, match="layer_decay"):
        fit(Flat(), DATA, replace(TRAIN, layer_decay=0.5))
    with pytest.raises(UsageError, match="unfreeze"):
        fit(Flat(), DATA, replace(TRAIN, unfreeze="gradual"))


def test_epochs_of_rows_that_change_are_refused() -> None:
    class Grows(Tower):
        def phases(self) -> list[Phase]:
            return [Phase(share=0.5), Phase(share=0.5, batch_share=0.5)]

    with pytest.raises(UsageError, match="several phases"):
        fit(Grows(), DATA, replace(TRAIN, unfreeze="gradual"))


@pytest.mark.parametrize(
    "settings", [{"layer_decay": 0.0}, {"layer_decay": 1.5}, {"unfreeze": "gradual", "average": 0.5}]
)
def test_settings_without_sense(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        replace(TRAIN, **settings)
