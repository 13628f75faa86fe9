"""Muon (Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024): momentum made orthogonal.

Every direction of a weight matrix moves equally far, also the rare ones that a gradient hardly shows. An update is as
large as AdamW's usually is (Liu et al., "Muon is Scalable for LLM Training", 2025), so that one rate serves both.
"""

# Torch's own optimizers are made of the same functions, though torch does not export them.
# pyright: reportPrivateImportUsage=false

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

MOMENTUM = 0.95
ITERATIONS = 5
QUINTIC = (3.4445, -4.7750, 2.0315)
"""Steep at zero, so that small singular values grow fast; none settles at 1 exactly, which does no harm."""
USUAL_SIZE = 0.2
"""The root mean square of AdamW's updates at rate 1, as seen in practice."""


def orthogonalize(matrices: Tensor) -> Tensor:
    """[count, rows, columns], no more rows than columns: U V^T of each matrix U S V^T, but for singular values near 1.

    Newton-Schulz: X <- a X + (b A + c A A) X with A = X X^T, starting from the matrix over its norm.
    """
    a, b, c = QUINTIC
    x = matrices / torch.linalg.vector_norm(matrices, dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT  # [count, rows, rows]
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def pieces(tensor: Tensor, parts: tuple[int, ...]) -> list[Tensor]:
    """Views of the matrices that a tensor is made of, so many along each dimension."""
    found = [tensor]
    for dimension, count in enumerate(parts):
        found = [piece for each in found for piece in each.chunk(count, dimension)]
    return [piece.flatten(0, -2) for piece in found]


class Muon(torch.optim.Optimizer):
    """Muon for a group with "parts": how many matrices each of its weights is along each dimension. AdamW for a group
    without.

    All state is there from the start and every step does the same, so that a CUDA graph can hold it.
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
                take = self._muon if "parts" in group else self._adamw
                take(group, weights, [weight.grad for weight in weights])

    def _muon(self, group: dict[str, Any], weights: list[Tensor], gradients: list[Tensor]) -> None:
        device = weights[0].device
        momenta = [self.state[weight]["momentum"] for weight in weights]
        torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
        ahead = torch._foreach_lerp(gradients, momenta, MOMENTUM)  # Nesterov: as if the same gradient came again
        rate = torch.as_tensor(group["lr"], dtype=torch.float32, device=device)
        torch._foreach_mul_(weights, 1 - rate * group["weight_decay"])
        batches: defaultdict[tuple[int, int], list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for weight, direction in zip(weights, ahead, strict=True):
            parts = group["parts"][weight]
            for pair in zip(pieces(weight, parts), pieces(direction, parts), strict=True):
                rows, columns = pair[0].shape
                if rows <= columns:
                    batches[rows, columns].append(pair)
                else:  # standing matrices join the lying ones
                    batches[columns, rows].append((pair[0].mT, pair[1].mT))
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        for (rows, columns), pairs in batches.items():
            directions = torch.empty(len(pairs), rows, columns, dtype=dtype, device=device)
            torch._foreach_copy_(directions.unbind(), [direction for _, direction in pairs])
            size = rate.view(1, 1, 1) * (USUAL_SIZE * columns**0.5)  # with dimensions it makes the product fp32
            torch._foreach_sub_([weight for weight, _ in pairs], (orthogonalize(directions) * size).unbind())

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
