"""Scalar mix: a learned weighted sum of an encoder's layers (Peters et al. 2018)."""

import torch
from torch import Tensor, nn


class ScalarMix(nn.Module):
    """γ Σ_j s_j h_j over the layers h_0 ... h_L, with learned weights s = softmax(scores) and scale γ."""

    def __init__(self, layers: int):
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(layers))
        self.gamma = nn.Parameter(torch.ones(1))

    @property
    def weights(self) -> Tensor:
        """[layers]: s, from the input embeddings upwards."""
        return self.scores.softmax(0)

    def forward(self, layers: Tensor) -> Tensor:
        """[..., width] of [..., layers, width]."""
        return self.gamma * (self.weights[:, None] * layers).sum(-2)
