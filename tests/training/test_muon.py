"""Muon: orthogonal updates for matrices, in batches; AdamW for everything else."""

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.training import muon
from keel.training.checkpoint import Checkpoints
from keel.training.distributed import World
from keel.training.muon import orthogonalize
from keel.training.objective import Objective
from keel.training.optimizers import make_optimizer, set_lr
from keel.training.plan import Train

ALONE = World(0, 1, torch.device("cpu"))


class FusedLinear(nn.Linear):
    parts = 3


class Network(Objective):
    """An embedding, two blocks with lying, standing, square and fused matrices, a norm and a head."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.words = nn.Embedding(7, 8)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {"qkv": FusedLinear(8, 24), "out": nn.Linear(8, 8), "up": nn.Linear(8, 16), "down": nn.Linear(16, 8)}
            )
            for _ in range(2)
        )
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 5)

    def blocks(self) -> list[nn.Module]:
        return list(self.layers)

    def matrices(self) -> list[nn.Parameter]:
        return [weight for block in self.blocks() for weight in block.parameters() if weight.ndim == 2]

    def loss(self, step: int) -> Tensor:
        ids = torch.arange(6) * (step + 3) % 7
        x = self.words(ids)
        for layer in self.layers:
            block = cast(nn.ModuleDict, layer)
            x = x + block["out"](block["qkv"](x).view(6, 3, 8).prod(1))
            x = x + block["down"](F.relu(block["up"](x)))
        return F.cross_entropy(self.head(self.norm(x)), ids % 5)


def settings(**given: Any) -> Train:
    return Train(steps=20, **{"optimizer": "muon", "lr": 0.01, "device": "cpu", **given})


def learn(network: Network, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        set_lr(optimizer, 0.01 * (1 - step / 20))
        optimizer.zero_grad()
        network.loss(step).backward()
        optimizer.step()


def with_spectrum(values: Tensor, columns: int) -> Tensor:
    """A random matrix that has these singular values."""
    left = torch.linalg.qr(torch.randn(len(values), len(values)))[0]
    right = torch.linalg.qr(torch.randn(columns, len(values)))[0]
    return left * values @ right.mT


@pytest.mark.parametrize("condition", [1.0, 30.0, 100.0])
@pytest.mark.parametrize(("rows", "columns"), [(1, 9), (16, 16), (24, 64), (30, 31)])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e5])
def test_singular_values_come_near_one(condition: float, rows: int, columns: int, size: float) -> None:
    torch.manual_seed(0)
    matrix = size * with_spectrum(torch.logspace(0, -1, rows) ** torch.tensor(condition).log10(), columns)
    found = torch.linalg.svdvals(orthogonalize(matrix[None])[0])
    assert 0.6 < found.min() <= found.max() < 1.25


def test_random_matrix_becomes_orthogonal_in_its_own_directions() -> None:
    torch.manual_seed(0)
    matrices = torch.randn(3, 32, 128)
    left, _, right = torch.linalg.svd(matrices, full_matrices=False)
    turned = left.mT @ orthogonalize(matrices) @ right.mT  # diagonal, if no direction was mixed with another
    diagonal = turned.diagonal(dim1=1, dim2=2)
    assert 0.6 < diagonal.min() <= diagonal.max() < 1.25
    torch.testing.assert_close(turned, torch.diag_embed(diagonal), atol=1e-4, rtol=0)


def test_matrix_of_zeros_stays() -> None:
    assert not orthogonalize(torch.zeros(2, 3, 4)).any()


def test_batch_is_as_one_by_one() -> None:
    torch.manual_seed(0)
    matrices = torch.randn(5, 12, 20) * torch.logspace(-3, 3, 5)[:, None, None]
    alone = torch.cat([orthogonalize(matrix[None]) for matrix in matrices])
    torch.testing.assert_close(orthogonalize(matrices), alone)


def test_step_follows_the_paper() -> None:
    network = Network()
    optimizer = make_optimizer(network, settings(weight_decay=0.1))
    momenta = [torch.zeros_like(weight) for weight in network.matrices()]
    for step in range(3):
        optimizer.zero_grad()
        network.loss(step).backward()
        expected = []
        for weight, momentum in zip(network.matrices(), momenta, strict=True):
            assert weight.grad is not None
            momentum.mul_(0.95).add_(weight.grad, alpha=0.05)
            ahead = 0.05 * weight.grad + 0.95 * momentum
            matrices = ahead.split(8) if weight.shape == (24, 8) else [ahead]  # queries, keys and values
            turned = [
                orthogonalize(matrix[None])[0]
                if len(matrix) <= matrix.shape[1]
                else orthogonalize(matrix.mT[None])[0].mT
                for matrix in matrices
            ]
            update = torch.cat([0.2 * max(matrix.shape) ** 0.5 * matrix for matrix in turned])
            expected.append((1 - 0.01 * 0.1) * weight.detach() - 0.01 * update)
        optimizer.step()
        for weight, value in zip(network.matrices(), expected, strict=True):
            torch.testing.assert_close(weight.detach(), value, rtol=1e-4, atol=1e-6)


def test_rest_is_stepped_as_by_adamw() -> None:
    found, expected = Network(), Network()
    mixed = make_optimizer(found, settings(weight_decay=0.1))
    plain = make_optimizer(expected, settings(weight_decay=0.1, optimizer="adamw"))
    for step in range(3):
        for network in (found, expected):
            network.zero_grad()
        expected.loss(step).backward()
        for one, other in zip(found.parameters(), expected.parameters(), strict=True):
            assert other.grad is not None
            one.grad = other.grad.clone()
        mixed.step()
        plain.step()
    turned = {name for name, weight in found.named_parameters() if weight.ndim == 2 and name.startswith("layers")}
    for (name, one), other in zip(found.named_parameters(), expected.parameters(), strict=True):
        assert torch.equal(one, other) is (name not in turned), name


def test_layer_groups_share_a_batch_and_step_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    shared, separate = Network(), Network()
    ours, reference = (make_optimizer(each, settings(layer_decay=0.5, weight_decay=0.1)) for each in (shared, separate))
    groups = reference.param_groups
    assert len({group["scale"] for group in groups}) == 3
    shapes: list[torch.Size] = []
    for step in range(3):
        for network in (shared, separate):
            network.zero_grad()
            network.loss(step).backward()
        with monkeypatch.context() as patch:
            patch.setattr(muon, "orthogonalize", lambda batch: shapes.append(batch.shape) or orthogonalize(batch))
            ours.step()
        for group in groups:
            reference.param_groups = [group]
            reference.step()
        reference.param_groups = groups
    assert shapes == 3 * [(8, 8, 8), (4, 8, 16)]  # queries, keys, values and output of two blocks; up and down
    for (name, one), other in zip(shared.named_parameters(), separate.parameters(), strict=True):
        assert torch.equal(one, other), name


def test_update_is_as_large_as_those_of_adamw() -> None:
    network = Network()
    before = [weight.detach().clone() for weight in network.matrices()]
    optimizer = make_optimizer(network, settings(weight_decay=0.0))
    network.loss(0).backward()
    optimizer.step()
    for old, new in zip(before, network.matrices(), strict=True):
        size = (new - old).square().mean().sqrt().item() / 0.01
        assert size == pytest.approx(0.2, rel=0.35)  # 0.6 to 1.25, but for directions that have no gradient yet


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_every_trained_parameter_is_in_one_group(optimizer: str) -> None:
    network = Network()
    network.layers[0].requires_grad_(False)
    network.words.requires_grad_(False)
    groups = make_optimizer(network, settings(optimizer=optimizer)).param_groups
    covered = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(covered) == sorted(id(parameter) for parameter in network.parameters() if parameter.requires_grad)
    turned = {id(weight) for group in groups if "parts" in group for weight in group["params"]}
    trained = [weight for weight in network.matrices() if weight.requires_grad]
    assert turned == ({id(weight) for weight in trained} if optimizer == "muon" else set())


def test_frozen_parameters_and_those_without_gradient_are_left_alone() -> None:
    network = Network()
    network.layers[0].requires_grad_(False)
    frozen = [parameter.clone() for parameter in network.layers[0].parameters()]
    optimizer = make_optimizer(network, settings(weight_decay=0.5))
    network.loss(0).backward()
    idle = next(network.layers[1].parameters())
    idle.grad, before = None, idle.detach().clone()
    moving = network.matrices()[-1]
    start = moving.detach().clone()
    optimizer.step()
    assert all(torch.equal(old, new) for old, new in zip(frozen, network.layers[0].parameters(), strict=True))
    assert torch.equal(before, idle)
    assert not torch.equal(start, moving)


def test_least_squares_are_learned_faster_than_by_adamw() -> None:
    class Squares(Objective):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 24, bias=False)
            nn.init.zeros_(self.layer.weight)

        def blocks(self) -> list[nn.Module]:
            return [self.layer]

    torch.manual_seed(0)
    inputs = with_spectrum(torch.logspace(0, -1.5, 16), 200).mT  # some directions are hardly seen
    targets = inputs @ torch.randn(16, 24)
    losses = {}
    for name in ("adamw", "muon"):
        objective = Squares()
        optimizer = make_optimizer(objective, settings(optimizer=name, weight_decay=0.0))
        for step in range(200):
            set_lr(optimizer, 0.1 * (1 - step / 200))
            optimizer.zero_grad()
            loss = (objective.layer(inputs) - targets).square().sum()
            loss.backward()
            optimizer.step()
            losses[name] = loss.item()
    assert losses["muon"] < losses["adamw"] < targets.square().sum()


def test_resumed_run_is_as_the_uninterrupted_one(tmp_path: Path) -> None:
    whole = Network()
    optimizer = make_optimizer(whole, settings())
    learn(whole, optimizer, range(5))
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save(5, whole, optimizer, {}, ALONE)
    learn(whole, optimizer, range(5, 12))
    checkpoints.wait()
    resumed = Network(seed=1)
    optimizer = make_optimizer(resumed, settings())
    checkpoints.load(5, resumed, optimizer)
    learn(resumed, optimizer, range(5, 12))
    for (name, one), other in zip(whole.named_parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other), name


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_captured_step_is_as_the_eager_one(optimizer: str) -> None:
    networks = [Network().cuda(), Network().cuda()]
    eager, captured = (make_optimizer(network, settings(optimizer=optimizer)) for network in networks)
    gradients = [[torch.randn_like(parameter) for parameter in networks[0].parameters()] for _ in range(5)]

    def set_gradients(network: Network, step: int) -> None:
        for parameter, gradient in zip(network.parameters(), gradients[step], strict=True):
            if parameter.grad is None:
                parameter.grad = gradient.clone()
            else:
                parameter.grad.copy_(gradient)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for network, one in zip(networks, (eager, captured), strict=True):
            set_lr(one, 0.01)
            set_gradients(network, 0)
            one.step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        captured.step()
    for step in range(1, 5):
        for one in (eager, captured):
            set_lr(one, 0.01 / step)  # the graph must see the new learning rate
        for network in networks:
            set_gradients(network, step)
        eager.step()
        graph.replay()
    for (name, one), other in zip(networks[0].named_parameters(), networks[1].parameters(), strict=True):
        torch.testing.assert_close(one, other, msg=name)


@pytest.mark.gpu
def test_bf16_iterations_come_near_one_too() -> None:
    torch.manual_seed(0)
    matrices = torch.randn(4, 96, 384, device="cuda", dtype=torch.bfloat16)
    found = torch.linalg.svdvals(orthogonalize(matrices).float())
    assert 0.6 < found.min() <= found.max() < 1.25
