"""AdamW and Muon, and the learning rate schedule as a pure function of the step."""

import math
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from keel.errors import UsageError
from keel.training.distributed import is_sharded
from keel.training.muon import Muon
from keel.training.objective import Objective
from keel.training.parameter_groups import lr_multipliers

if TYPE_CHECKING:
    from keel.training.plan import Train

Schedule = Literal["linear", "cosine", "constant", "trapezoid", "slanted", "inverse_sqrt"]
SLANT = 32
"""Ratio of the peak learning rate to the smallest one of the slanted triangular schedule."""


def lr_at(step: int, steps: int, *, schedule: Schedule, warmup: int, cooldown: int) -> float:
    """Factor of the peak learning rate at `step` of `steps`: linear warm-up, then the schedule.

    linear and cosine decay to 0; inverse_sqrt decays as 1 / sqrt(step) (Vaswani et al.); trapezoid is constant, then
    decays linearly over the last `cooldown` steps; slanted is the slanted triangle of Howard and Ruder,
    (1 + p (32 - 1)) / 32 with p from 0 to 1 over the warm-up and back to 0.
    """
    if schedule == "slanted":
        p = step / warmup if step < warmup else 1 - (step - warmup) / max(1, steps - warmup)
        return (1 + max(0.0, p) * (SLANT - 1)) / SLANT
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "inverse_sqrt":
        return (max(1, warmup) / (step + 1)) ** 0.5
    progress = (step - warmup) / max(1, steps - warmup)
    if schedule == "linear":
        return max(0.0, 1 - progress)
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    if schedule == "trapezoid":
        return max(0.0, min(1.0, (steps - step) / max(1, cooldown)))
    return 1.0


def make_optimizer(objective: Objective, train: "Train") -> torch.optim.Optimizer:
    """AdamW; or Muon for the matrices inside the blocks, and AdamW for the rest.

    Weight decay is for matrices only, not for biases and norms. Each layer group has its own learning rate
    (`layer_decay`).
    """
    trained = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    if train.optimizer == "muon" and any(map(is_sharded, trained)):
        remedy = "use --train.parallel ddp or --train.optimizer adamw"
        raise UsageError(f"Muon needs whole matrices, which fsdp shards: {remedy}")
    matrices = _matrices(objective)
    inside = {weight for block in objective.blocks() for weight in block.parameters() if train.optimizer == "muon"}
    # Convolution filters have further dimensions: no matrices for Muon.
    parts = {each: cut for each, cut in matrices.items() if each in inside and cut[:-2] == each.shape[:-2]}
    shares = lr_multipliers(objective, train)
    groups: list[dict[str, Any]] = []
    for share in dict.fromkeys(shares.values()):
        mine = [parameter for parameter in trained if shares[parameter] == share]
        whole = {parameter: parts[parameter] for parameter in mine if parameter in parts}
        rest = [parameter for parameter in mine if parameter not in parts]
        groups += [
            {"params": list(whole), "parts": whole, "weight_decay": train.weight_decay, "scale": share},
            {"params": [each for each in rest if each in matrices], "weight_decay": train.weight_decay, "scale": share},
            {"params": [each for each in rest if each not in matrices], "weight_decay": 0.0, "scale": share},
        ]
    groups = [group for group in groups if group["params"]]
    on_gpu = trained[0].is_cuda
    for group in groups:
        # A CUDA graph captures Python numbers as constants, so on a GPU the learning rate is a tensor.
        group["lr"] = torch.tensor(train.lr, device=trained[0].device) if on_gpu else train.lr
    betas = (train.beta1, train.beta2)
    if train.optimizer == "muon":
        return Muon(groups, betas=betas, epsilon=train.epsilon)
    adamw = torch.optim.AdamW(groups, betas=betas, eps=train.epsilon, fused=True, capturable=on_gpu)
    for parameter in trained:  # before the first step: running out of memory then leaves the weights unchanged
        adamw.state[parameter] = {
            "step": torch.zeros((), device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return adamw


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of every parameter group, times its "scale"; never synchronizes with the GPU."""
    for group in optimizer.param_groups:
        scaled = lr * group.get("scale", 1.0)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(scaled)
        else:
            group["lr"] = scaled


def _matrices(objective: Objective) -> dict[nn.Parameter, tuple[int, ...]]:
    """Parameters that are matrices, with the number of matrices stacked along each dimension.

    A fused layer declares them by an attribute `parts`: 3 for queries, keys and values; or a dict by parameter name,
    where parameters that are not named hold vectors.
    """
    matrices: dict[nn.Parameter, tuple[int, ...]] = {}
    for module in objective.modules():
        parts = getattr(module, "parts", 1)
        for name, weight in module.named_parameters(recurse=False):
            named = parts if isinstance(parts, dict) else {name: (parts, *[1] * (weight.ndim - 1))}
            if weight.ndim > 1 and name in named:
                matrices[weight] = named[name]
    return matrices
