from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from keel.errors import UsageError
from keel.training.objective import Objective
from keel.training.optimizers import make_optimizer, set_lr
from keel.training.plan import Plan, Schedule, Train


@pytest.mark.parametrize(
    ("schedule", "shares"),
    [
        ("linear", {0: 0.1, 4: 0.5, 9: 1.0, 10: 1.0, 55: 0.5, 99: 1 / 90}),
        ("cosine", {0: 0.1, 9: 1.0, 10: 1.0, 55: 0.5, 99: 0.0003046}),
        ("constant", {0: 0.1, 9: 1.0, 10: 1.0, 55: 1.0, 99: 1.0}),
        ("trapezoid", {0: 0.1, 9: 1.0, 10: 1.0, 80: 1.0, 90: 0.5, 99: 0.05}),
        # Howard and Ruder's (3): p = t / cut, 1 - (t - cut) / (cut (1 / cut_frac - 1)); (1 + p (ratio - 1)) / ratio
        ("slanted", {0: 1 / 32, 5: 16.5 / 32, 10: 1.0, 55: 16.5 / 32, 99: (1 + 31 / 90) / 32}),
        ("inverse_sqrt", {0: 0.1, 4: 0.5, 9: 1.0, 10: (10 / 11) ** 0.5, 39: 0.5, 99: 0.1**0.5}),
    ],
)
def test_lr_at_key_steps(schedule: Schedule, shares: dict[int, float]) -> None:
    train = Train(steps=100, schedule=schedule, warmup=0.1, cooldown=0.2, lr=3.0)
    for step, share in shares.items():
        assert Plan(100, train).step_plan(step).lr == pytest.approx(3 * share, rel=1e-3), step


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant", "trapezoid", "slanted", "inverse_sqrt"])
@pytest.mark.parametrize("steps", [1, 2, 3, 50])
@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.999, 1, 5, 1000])
def test_lr_is_never_zero_nor_above_full(schedule: Schedule, steps: int, warmup: float) -> None:
    train = Train(steps=steps, schedule=schedule, warmup=warmup, lr=1.0)
    lrs = [Plan(steps, train).step_plan(step).lr for step in range(steps)]
    assert all(0 < lr <= 1 for lr in lrs)


def test_the_inverse_square_root_is_the_formula_of_vaswani() -> None:
    width, warmup = 512, 400
    train = Train(steps=5000, schedule="inverse_sqrt", warmup=warmup, lr=(width * warmup) ** -0.5)
    for number in (1, 7, 399, 400, 401, 5000):  # theirs are counted from 1
        formula = width**-0.5 * min(number**-0.5, number * warmup**-1.5)
        assert Plan(5000, train).step_plan(number - 1).lr == pytest.approx(formula)


def test_warmup_of_one_or_more_counts_steps() -> None:
    train = Train(steps=100, warmup=4, schedule="constant", lr=1.0)
    assert [Plan(100, train).step_plan(step).lr for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_lr_past_the_end_is_zero() -> None:
    for schedule in ("linear", "cosine", "trapezoid"):
        plan = Plan(100, Train(steps=100, schedule=schedule, warmup=10, cooldown=0.2))
        assert plan.lr_factor(120) == pytest.approx(0, abs=1e-12)


class Small(Objective):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.LayerNorm(4))

    def blocks(self) -> list[nn.Module]:
        return [self.layers[1]]


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_only_matrices_decay(name: Literal["adamw", "muon"]) -> None:
    objective = Small()
    before = {which: value.detach().clone() for which, value in objective.named_parameters()}
    optimizer = make_optimizer(objective, Train(steps=1, optimizer=name, lr=0.1, weight_decay=0.5))
    for parameter in objective.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for which, value in objective.named_parameters():
        kept = 0.95 if value.ndim > 1 else 1.0
        torch.testing.assert_close(value.detach(), before[which] * kept, msg=which)


def test_frozen_parameters_are_left_out() -> None:
    objective = Small()
    objective.requires_grad_(False)
    bias = objective.layers[1].bias
    assert isinstance(bias, nn.Parameter)
    bias.requires_grad_(True)
    groups = make_optimizer(objective, Train(steps=1)).param_groups
    assert [parameter for group in groups for parameter in group["params"]] == [bias]


def test_each_group_gets_its_share_of_the_lr() -> None:
    optimizer = make_optimizer(Small(), Train(steps=1, lr=0.5))
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.5]
    optimizer.param_groups[0]["scale"] = 0.25
    del optimizer.param_groups[1]["scale"]
    set_lr(optimizer, 2.0)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 2.0]


def test_lr_in_a_tensor_is_filled_in_place() -> None:
    optimizer = make_optimizer(Small(), Train(steps=1))
    lr = torch.tensor(0.0)  # as on a GPU, where a graph reads it
    optimizer.param_groups[0] |= {"lr": lr, "scale": 0.5}
    set_lr(optimizer, 3.0)
    assert optimizer.param_groups[0]["lr"] is lr
    assert lr == 1.5


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_every_group_has_its_own_lr_tensor_on_the_gpu(name: Literal["adamw", "muon"]) -> None:
    optimizer = make_optimizer(Small().cuda(), Train(steps=1, optimizer=name))
    lrs = [group["lr"] for group in optimizer.param_groups]
    assert all(isinstance(lr, Tensor) and lr.is_cuda and lr.ndim == 0 for lr in lrs)
    assert len({lr.data_ptr() for lr in lrs}) == len(lrs)


@pytest.fixture
def sharded(tmp_path: Path) -> Iterator[Objective]:
    """An objective whose parameters are shards, though there is one process alone."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    objective = Small()
    fully_shard(objective, mesh=init_device_mesh("cpu", (1,)))
    yield objective
    dist.destroy_process_group()


def test_muon_refuses_shards(sharded: Objective) -> None:
    with pytest.raises(UsageError, match=r"parallel ddp or optimizer adamw"):
        make_optimizer(sharded, Train(steps=1, optimizer="muon"))
    assert make_optimizer(sharded, Train(steps=1, optimizer="adamw")).param_groups
