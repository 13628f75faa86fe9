"""Several layers of an encoder as one vector (Peters et al. 2018)."""

import torch
from torch import Tensor, nn


class ScalarMix(nn.Module):
    """γ Σ_j s_j h_j over all layers h_0 ... h_L, where s = softmax(scores): which layers a task likes is learned."""

    def __init__(self, layers: int):
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(layers))
        self.gamma = nn.Parameter(torch.ones(1))

    @property
    def weights(self) -> Tensor:
        """[layers]: s, from the embedded input upwards."""
        return self.scores.softmax(0)

    def forward(self, layers: Tensor) -> Tensor:
        """[..., width] of [..., layers, width]."""
        return self.gamma * (self.weights[:, None] * layers).sum(-2)
