"""AdamW and Muon, with parameter groups by learning rate and weight decay."""

from typing import Any

import torch
from torch import Tensor, nn

from keel.errors import UsageError
from keel.training.distributed import is_sharded
from keel.training.muon import Muon
from keel.training.objective import Objective
from keel.training.parameter_groups import lr_multipliers
from keel.training.plan import Train


def make_optimizer(objective: Objective, train: Train) -> torch.optim.Optimizer:
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
    kind = Muon if train.optimizer == "muon" else torch.optim.AdamW
    betas = (train.beta1, train.beta2)
    optimizer = kind(groups, betas=betas, eps=train.epsilon, fused=True, capturable=on_gpu)
    # State exists before the first step: running out of memory then leaves the weights unchanged.
    for group in optimizer.param_groups:
        for weight in group["params"]:
            kinds = ["momentum"] if "parts" in group else ["exp_avg", "exp_avg_sq"]
            optimizer.state[weight] = {kind: torch.zeros_like(weight) for kind in kinds}
            if "parts" not in group:
                optimizer.state[weight]["step"] = torch.zeros((), device=weight.device)
    return optimizer


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
