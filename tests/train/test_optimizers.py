import pytest
import torch
from torch import nn

from keel.train.optimizers import Schedule, adamw, rate_share
from keel.train.plan import Plan, Train


@pytest.mark.parametrize(
    ("schedule", "shares"),
    [
        ("linear", {0: 0.1, 4: 0.5, 9: 1.0, 10: 1.0, 55: 0.5, 99: 1 / 90}),
        ("cosine", {0: 0.1, 9: 1.0, 10: 1.0, 55: 0.5, 99: 0.0003046}),
        ("constant", {0: 0.1, 9: 1.0, 10: 1.0, 55: 1.0, 99: 1.0}),
        ("trapezoid", {0: 0.1, 9: 1.0, 10: 1.0, 80: 1.0, 90: 0.5, 99: 0.05}),
    ],
)
def test_rate_at_key_steps(schedule: Schedule, shares: dict[int, float]) -> None:
    train = Train(steps=100, schedule=schedule, warmup=0.1, cooldown=0.2, lr=3.0)
    for step, share in shares.items():
        assert Plan(100).rate(step, train) == pytest.approx(3 * share, rel=1e-3), step


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant", "trapezoid"])
@pytest.mark.parametrize("steps", [1, 2, 3, 50])
@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.999, 1, 5, 1000])
def test_rate_is_never_zero_nor_above_full(schedule: Schedule, steps: int, warmup: float) -> None:
    train = Train(steps=steps, schedule=schedule, warmup=warmup, lr=1.0)
    rates = [Plan(steps).rate(step, train) for step in range(steps)]
    assert all(0 < rate <= 1 for rate in rates)


def test_warmup_of_one_or_more_counts_steps() -> None:
    train = Train(steps=100, warmup=4, schedule="constant", lr=1.0)
    assert [Plan(100).rate(step, train) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_a_rate_past_the_end_is_zero() -> None:
    for schedule in ("linear", "cosine", "trapezoid"):
        assert rate_share(120, 100, schedule=schedule, warmup=10, cooldown=20) == pytest.approx(0, abs=1e-12)


def test_only_matrices_decay() -> None:
    module = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.LayerNorm(4))
    before = {name: value.detach().clone() for name, value in module.named_parameters()}
    optimizer = adamw(module.named_parameters(), lr=0.1, weight_decay=0.5, betas=(0.9, 0.999), epsilon=1e-6)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, value in module.named_parameters():
        kept = 0.95 if value.ndim > 1 else 1.0
        torch.testing.assert_close(value.detach(), before[name] * kept, msg=name)


def test_frozen_parameters_are_left_out() -> None:
    module = nn.Linear(3, 3)
    module.weight.requires_grad_(False)
    optimizer = adamw(module.named_parameters(), lr=0.1, weight_decay=0.5, betas=(0.9, 0.999), epsilon=1e-6)
    assert [parameter for group in optimizer.param_groups for parameter in group["params"]] == [module.bias]
