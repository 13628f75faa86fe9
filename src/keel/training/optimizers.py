"""AdamW or Muon, as a run's settings say, and the learning rate as a pure function of the step."""

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
"""How much smaller than the full rate a slanted one is at its ends."""


def lr_at(step: int, steps: int, *, schedule: Schedule, warmup: int, cooldown: int) -> float:
    """The share of the full rate at `step` of `steps`: up linearly over `warmup`, then by the schedule's name.

    linear and cosine fall to zero at the end, inverse_sqrt as 1 / sqrt(step) does (Vaswani et al.); trapezoid stays at
    one and falls linearly over the last `cooldown` steps; slanted is Howard and Ruder's triangle,
    (1 + p (32 - 1)) / 32 with p from 0 up to 1 over the warm-up and down again.
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
    """AdamW for all that is trained; or Muon for the matrices inside the blocks, and AdamW for the rest.

    Only matrices decay: biases and norms are vectors, and decay would only hold them back. Weights of one level of the
    network have one rate, as `layer_decay` says.
    """
    trained = [parameter for parameter in objective.parameters() if parameter.requires_grad]
    if train.optimizer == "muon" and any(map(is_sharded, trained)):
        remedy = "use --train.parallel ddp or --train.optimizer adamw"
        raise UsageError(f"Muon works on whole matrices, and fsdp cuts them into shards: {remedy}")
    matrices = _matrices(objective)
    inside = {weight for block in objective.blocks() for weight in block.parameters() if train.optimizer == "muon"}
    # What has further dimensions of its own, as filters over several letters do, is no matrix to Muon.
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
        # A CUDA graph keeps every number that it was captured with, so there the rate is a tensor, filled anew.
        group["lr"] = torch.tensor(train.lr, device=trained[0].device) if on_gpu else train.lr
    betas = (train.beta1, train.beta2)
    if train.optimizer == "muon":
        return Muon(groups, betas=betas, epsilon=train.epsilon)
    adamw = torch.optim.AdamW(groups, betas=betas, eps=train.epsilon, fused=True, capturable=on_gpu)
    for parameter in trained:  # at once: should memory not suffice, no weight has moved yet
        adamw.state[parameter] = {
            "step": torch.zeros((), device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return adamw


def set_lr(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give every group its share ("scale") of the rate; never waits for the GPU."""
    for group in optimizer.param_groups:
        share = rate * group.get("scale", 1.0)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(share)
        else:
            group["lr"] = share


def _matrices(objective: Objective) -> dict[nn.Parameter, tuple[int, ...]]:
    """The weights that are no vectors, each with the number of matrices that it is made of along each dimension.

    A fused layer says so by an attribute `parts`: 3 for queries, keys and values one above the other; or one that
    names its matrices, each with its numbers, and what it does not name are vectors side by side.
    """
    found: dict[nn.Parameter, tuple[int, ...]] = {}
    for module in objective.modules():
        parts = getattr(module, "parts", 1)
        for name, weight in module.named_parameters(recurse=False):
            named = parts if isinstance(parts, dict) else {name: (parts, *[1] * (weight.ndim - 1))}
            if weight.ndim > 1 and name in named:
                found[weight] = named[name]
    return found
