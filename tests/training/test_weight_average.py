"""The mean of the weights over several steps, kept across checkpoints."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from keel.training.checkpoint import Checkpoints
from keel.training.distributed import World, gather_tensor
from keel.training.objective import Objective
from keel.training.weight_average import WeightAverage


class Layer(Objective):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.scale = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
        self.frozen = nn.Parameter(torch.ones(5), requires_grad=False)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, batch: Tensor, state: None = None) -> tuple[dict[str, Tensor], None]:
        return {"sum": self.linear(batch).sum()}, None


def walk(objective: Objective, step: int) -> None:
    """Move every parameter somewhere else, by the step's number."""
    generator = torch.Generator().manual_seed(step)
    with torch.no_grad():
        for parameter in objective.parameters():
            parameter += torch.randn(parameter.shape, generator=generator)


def test_mean_of_all_that_was_added_is_put_into_the_network() -> None:
    objective, average = Layer(), WeightAverage()
    seen = []
    for step in range(7):
        walk(objective, step)
        average.add(objective)
        seen.append({name: parameter.detach().double().clone() for name, parameter in objective.named_parameters()})
    frozen = objective.frozen.clone()
    average.apply(objective)
    for name in ("linear.weight", "linear.bias"):
        expected = torch.stack([weights[name] for weights in seen]).mean(0)
        torch.testing.assert_close(objective.get_parameter(name).detach().double(), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(objective.frozen, frozen)


def test_mean_is_fp32_and_its_own() -> None:
    objective, average = Layer(), WeightAverage()
    average.add(objective)
    before = average.means["linear.weight"].clone()
    walk(objective, 0)
    assert torch.equal(average.means["linear.weight"], before)
    assert {mean.dtype for mean in average.means.values()} == {torch.float32}
    assert objective.scale.dtype == torch.bfloat16
    average.add(objective)
    average.apply(objective)
    assert objective.scale.dtype == torch.bfloat16


def test_many_small_steps_are_not_lost() -> None:
    objective, average = Layer(), WeightAverage()
    for step in range(3000):
        nn.init.constant_(objective.linear.weight, 1000 + step % 2)
        average.add(objective)
    assert average.means["linear.weight"].mean().item() == pytest.approx(1000.5, abs=1e-2)


def test_restored_average_resumes_to_the_same_bits(tmp_path: Path) -> None:
    objective, average = Layer(), WeightAverage()
    checkpoints = Checkpoints(tmp_path, keep=1)
    optimizer = torch.optim.AdamW(objective.parameters())
    restored = WeightAverage()
    for step in range(6):
        if step == 3:
            world = World(0, 1, torch.device("cpu"))
            checkpoints.save(step, objective, optimizer, {}, world, extra={"other": torch.ones(1), **average.tensors()})
            checkpoints.wait()
            restored.restore(checkpoints.load(step, objective, optimizer), objective)
        walk(objective, step)
        average.add(objective)
        if step >= 3:
            restored.add(objective)
    assert restored.count == average.count == 6
    assert restored.means.keys() == average.means.keys()
    assert all(torch.equal(restored.means[name], mean) for name, mean in average.means.items())


def test_nothing_added_changes_nothing() -> None:
    average, objective = WeightAverage(), Layer()
    assert average.tensors() == {}
    average.restore({}, objective)
    before = objective.linear.weight.clone()
    average.apply(objective)
    assert torch.equal(objective.linear.weight, before)


@pytest.fixture
def sharded(tmp_path: Path) -> Iterator[Objective]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    objective = Layer()
    objective.scale.requires_grad_(False)
    fully_shard(objective, mesh=init_device_mesh("cpu", (1,)))
    yield objective
    dist.destroy_process_group()


def test_shards_are_averaged_as_shards_even_after_an_evaluation(sharded: Objective) -> None:
    average = WeightAverage()
    values = []
    for step in range(4):
        with torch.no_grad():
            weight = sharded.state_dict()["linear.weight"]
            weight.fill_(step)
            sharded(torch.ones(2, 4))  # leaves the weights whole
        average.add(sharded)
        values.append(step)
    kept = average.tensors()
    assert isinstance(kept["average.linear.weight"], DTensor)
    restored = WeightAverage()
    restored.restore({name: gather_tensor(value) for name, value in kept.items()}, sharded)
    restored.apply(sharded)
    assert (gather_tensor(sharded.state_dict()["linear.weight"]) == sum(values) / 4).all()
