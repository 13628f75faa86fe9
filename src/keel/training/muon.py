"""Muon (Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024): orthogonalized momentum.

Updates are scaled to the usual RMS of AdamW's (Liu et al., "Muon is Scalable for LLM Training", 2025), so that one
learning rate serves both.
"""

# torch.optim uses the same private functions.
# pyright: reportPrivateImportUsage=false

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

MOMENTUM = 0.95
ITERATIONS = 5
QUINTIC = (3.4445, -4.7750, 2.0315)
"""Steep at zero, so that small singular values grow fast; the result is only near 1, which does no harm."""
ADAMW_RMS = 0.2
"""Typical root mean square of AdamW's updates at learning rate 1."""


def orthogonalize(matrices: Tensor) -> Tensor:
    """Approximately U V^T for each matrix U S V^T of [count, rows, columns], rows <= columns.

    Newton-Schulz: X <- a X + (b A + c A A) X with A = X X^T, starting from the matrix divided by its norm.
    """
    a, b, c = QUINTIC
    x = matrices / torch.linalg.vector_norm(matrices, dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT  # [count, rows, rows]
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def split_matrices(tensor: Tensor, parts: tuple[int, ...]) -> list[Tensor]:
    """Views of the matrices stacked in a tensor, `parts[d]` of them along dimension d."""
    chunks = [tensor]
    for dimension, count in enumerate(parts):
        chunks = [chunk for each in chunks for chunk in each.chunk(count, dimension)]
    return [chunk.flatten(0, -2) for chunk in chunks]


class Muon(torch.optim.Optimizer):
    """Muon for parameter groups with "parts" (the matrices stacked in each weight, see `split_matrices`), AdamW for
    the others.

    The state is allocated in advance and every step does the same work, so that a CUDA graph can capture it.
    """

    def __init__(self, groups: list[dict[str, Any]], *, betas: tuple[float, float], epsilon: float):
        super().__init__(groups, {"betas": betas, "eps": epsilon})
        for group in self.param_groups:
            kinds = ["momentum"] if "parts" in group else ["exp_avg", "exp_avg_sq"]
            for weight in group["params"]:
                self.state[weight] = {kind: torch.zeros_like(weight) for kind in kinds}
                if "parts" not in group:
                    self.state[weight]["step"] = torch.zeros((), device=weight.device)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if weights:
                update = self._muon if "parts" in group else self._adamw
                update(group, weights, [weight.grad for weight in weights])

    def _muon(self, group: dict[str, Any], weights: list[Tensor], gradients: list[Tensor]) -> None:
        device = weights[0].device
        momenta = [self.state[weight]["momentum"] for weight in weights]
        torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
        directions = torch._foreach_lerp(gradients, momenta, MOMENTUM)  # Nesterov
        lr = torch.as_tensor(group["lr"], dtype=torch.float32, device=device)
        torch._foreach_mul_(weights, 1 - lr * group["weight_decay"])
        batches: defaultdict[tuple[int, int], list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for weight, direction in zip(weights, directions, strict=True):
            parts = group["parts"][weight]
            for pair in zip(split_matrices(weight, parts), split_matrices(direction, parts), strict=True):
                rows, columns = pair[0].shape
                if rows <= columns:
                    batches[rows, columns].append(pair)
                else:  # batched with the transposed shape
                    batches[columns, rows].append((pair[0].mT, pair[1].mT))
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        for (rows, columns), pairs in batches.items():
            stacked = torch.empty(len(pairs), rows, columns, dtype=dtype, device=device)
            torch._foreach_copy_(stacked.unbind(), [direction for _, direction in pairs])
            scale = lr.view(1, 1, 1) * (ADAMW_RMS * columns**0.5)  # not a scalar tensor: the product becomes fp32
            torch._foreach_sub_([weight for weight, _ in pairs], (orthogonalize(stacked) * scale).unbind())

    def _adamw(self, group: dict[str, Any], weights: list[Tensor], gradients: list[Tensor]) -> None:
        states = [self.state[weight] for weight in weights]
        means, squares, counts = ([state[kind] for state in states] for kind in ("exp_avg", "exp_avg_sq", "step"))
        torch._foreach_add_(counts, 1)
        torch._fused_adamw_(
            weights,
            gradients,
            means,
            squares,
            [],
            counts,
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )
