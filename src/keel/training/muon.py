"""Muon (Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024): orthogonalized momentum.

Updates are scaled to the usual RMS of AdamW's (Liu et al., "Muon is Scalable for LLM Training", 2025), so that one
learning rate serves both.
"""

# torch.optim uses the same private functions.
# pyright: reportPrivateImportUsage=false

from collections import defaultdict

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


class Muon(torch.optim.AdamW):
    """AdamW, but Muon for parameter groups with "parts" (the matrices stacked in each weight, see `split_matrices`).

    Every step does the same work on a state that exists before the first one, so that a CUDA graph can capture it.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        groups = self.param_groups
        self.param_groups = [group for group in groups if "parts" not in group]
        super().step()
        self.param_groups = groups
        # Matrices of all groups are orthogonalized in one batch per shape, then scaled by the lr of their group.
        batches: defaultdict[tuple[int, ...], list[tuple[Tensor, Tensor, Tensor]]] = defaultdict(list)
        for group in groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if "parts" not in group or not weights:
                continue
            lr = torch.as_tensor(group["lr"], dtype=torch.float32, device=weights[0].device)
            momenta = [self.state[weight]["momentum"] for weight in weights]
            gradients = [weight.grad for weight in weights]
            torch._foreach_lerp_(momenta, gradients, 1 - MOMENTUM)
            directions = torch._foreach_lerp(gradients, momenta, MOMENTUM)  # Nesterov
            torch._foreach_mul_(weights, 1 - lr * group["weight_decay"])
            for weight, direction in zip(weights, directions, strict=True):
                stacked = (split_matrices(each, group["parts"][weight]) for each in (weight, direction))
                for matrix, update in zip(*stacked, strict=True):
                    if matrix.shape[0] > matrix.shape[1]:  # batched with the transposed shape
                        matrix, update = matrix.mT, update.mT
                    batches[matrix.shape].append((matrix, update, lr))
        for (rows, columns), entries in batches.items():
            matrices, updates, lrs = zip(*entries, strict=True)
            dtype = torch.bfloat16 if matrices[0].is_cuda else torch.float32
            batch = torch.empty(len(matrices), rows, columns, dtype=dtype, device=matrices[0].device)
            torch._foreach_copy_(batch.unbind(), updates)
            scale = torch.stack(lrs).view(-1, 1, 1) * (ADAMW_RMS * columns**0.5)  # no scalar: the product becomes fp32
            torch._foreach_sub_(matrices, (orthogonalize(batch) * scale).unbind())
