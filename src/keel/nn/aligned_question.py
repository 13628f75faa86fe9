"""Soft alignment of a passage with a question, for encoders whose tokens do not attend to each other.

Chen et al. 2017, "Reading Wikipedia to Answer Open-Domain Questions" (DrQA).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def aligned_width(width: int) -> int:
    """Output width of `AlignedQuestion` for vectors of this width."""
    return 3 * width + 1


class AlignedQuestion(nn.Module):
    """Extends each vector x_i of a sequence by what the question says about it:

    f_align(x_i) = sum_j a_ij q_j with a_ij = softmax_j(alpha(x_i) . alpha(q_j)) and alpha(x) = ReLU(W x), where the q_j
    are the vectors of the question's tokens; max_j cos(x_i, q_j), which is 1 for a word of the question; and the mean
    of the q_j, which tells what kind of answer the question needs.
    """

    def __init__(self, width: int):
        super().__init__()
        self.project = nn.Linear(width, width)
        self.width = aligned_width(width)
        """Width of the output."""

    def forward(self, vectors: Tensor, in_question: Tensor) -> Tensor:
        """[batch, tokens, 3 * width + 1] of vectors [batch, tokens, width]; `in_question` [batch, tokens] is True for
        the tokens of the question."""
        others = ~in_question[:, None, :]  # [batch, 1, tokens]
        alpha = F.relu(self.project(vectors))
        scores = (alpha @ alpha.transpose(1, 2)).masked_fill(others, -torch.inf)  # [batch, tokens, tokens]
        # A question without tokens attends to nothing: softmax would be NaN.
        weights = scores.softmax(-1).nan_to_num()
        unit = F.normalize(vectors, dim=-1)
        match = (unit @ unit.transpose(1, 2)).masked_fill(others, -1.0).amax(-1, keepdim=True)
        share = in_question.to(vectors) / in_question.sum(1, keepdim=True).clamp(min=1)  # [batch, tokens]
        question = (share[:, None, :] @ vectors).expand_as(vectors)
        return torch.cat([vectors, weights @ vectors, match, question], -1)
