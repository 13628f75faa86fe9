"""A linear-chain conditional random field (Lafferty, McCallum & Pereira 2001): joint prediction of tags.

p(y | x) = exp(s(x, y)) / Z, where s(x, y) = start(y_1) + sum_t e_t(y_t) + sum_t transition(y_{t-1}, y_t) + end(y_T)
and Z sums exp(s) over all tag sequences.
"""

from typing import Any

import torch
from torch import Tensor, nn

from keel.data.tag_schemes import AllowedTransitions

SPREAD = 300.0
"""Range of scores up to which the compiled sums are exact: they hold exp(-2 SPREAD), and float64 ends at exp(-700)."""


class Crf(nn.Module):
    """Start, transition and end scores of tags, added to the emission scores of each word."""

    def __init__(self, tags: int):
        super().__init__()
        self.starts = nn.Parameter(torch.empty(tags).uniform_(-0.1, 0.1))
        self.transitions = nn.Parameter(torch.empty(tags, tags).uniform_(-0.1, 0.1))
        self.ends = nn.Parameter(torch.empty(tags).uniform_(-0.1, 0.1))

    def forward(self, emissions: Tensor, tags: Tensor, lengths: Tensor) -> Tensor:
        """[batch] log p(y | x) of tag sequences [batch, time], by `emissions` [batch, time, tags]; 0 if empty."""
        return self.score(emissions, tags, lengths) - self.normalizer(emissions, lengths)

    def score(self, emissions: Tensor, tags: Tensor, lengths: Tensor) -> Tensor:
        """[batch]: s(x, y)."""
        inside = torch.arange(emissions.shape[1], device=emissions.device) < lengths[:, None]
        tags = tags.where(inside, 0)
        words = emissions.gather(2, tags[..., None])[..., 0].where(inside, 0.0).sum(1)
        steps = self.transitions[tags[:, :-1], tags[:, 1:]].where(inside[:, 1:], 0.0).sum(1)
        last = tags.gather(1, (lengths - 1).clamp(min=0)[:, None])[:, 0]
        return words + steps + (self.starts[tags[:, 0]] + self.ends[last]).where(lengths > 0, 0.0)

    def normalizer(self, emissions: Tensor, lengths: Tensor) -> Tensor:
        """[batch] log Z, by the forward algorithm."""
        return _fast_normalizer(emissions, lengths, self.starts, self.transitions, self.ends)

    @torch.no_grad()
    def decode(self, emissions: Tensor, lengths: Tensor, allowed: "AllowedTransitions | None" = None) -> Tensor:
        """[batch, time] most probable tag sequences (Viterbi) among those `allowed`; 0 beyond a length."""
        from keel.kernels.crf_forward import viterbi  # here, as it imports Numba

        weights = [self.starts, self.transitions, self.ends]
        if allowed is not None:
            weights = [
                weight.masked_fill(~mask.to(weight.device), -torch.inf)
                for weight, mask in zip(weights, allowed, strict=True)
            ]
        found = torch.zeros(emissions.shape[:2], dtype=torch.int64)
        scores, starts, steps, ends = (each.float().cpu().contiguous().numpy() for each in (emissions, *weights))
        viterbi(scores, lengths.cpu().numpy(), starts, steps, ends, found.numpy())
        return found.to(emissions.device)

    def marginals(self, emissions: Tensor, lengths: Tensor) -> Tensor:
        """[batch, time, tags] marginal probabilities, the gradient of log Z by the emissions."""
        with torch.inference_mode(False), torch.enable_grad():
            scores = emissions.detach().clone().requires_grad_()
            weights = [parameter.detach().clone() for parameter in (self.starts, self.transitions, self.ends)]
            return torch.autograd.grad(_fast_normalizer(scores, lengths.clone(), *weights).sum(), scores)[0]


def log_normalizer(emissions: Tensor, lengths: Tensor, starts: Tensor, transitions: Tensor, ends: Tensor) -> Tensor:
    """[batch] log Z in log space, for scores of any range on any device: the reference of the kernel."""
    alpha = starts + emissions[:, 0]  # [batch, tags]
    for t in range(1, emissions.shape[1]):
        later = torch.logsumexp(alpha[:, :, None] + transitions, 1) + emissions[:, t]
        alpha = torch.where((t < lengths)[:, None], later, alpha)
    return torch.logsumexp(alpha + ends, 1).where(lengths > 0, 0.0)


def _fast_normalizer(emissions: Tensor, lengths: Tensor, *weights: Tensor) -> Tensor:
    """[batch] log Z by the kernel on a CPU, if the scores allow it."""
    exact = not emissions.is_cuda and _narrow(emissions, *weights)
    return (_Normalizer.apply if exact else log_normalizer)(emissions, lengths, *weights)


def _narrow(emissions: Tensor, *weights: Tensor) -> bool:
    """Whether products of exp(scores), scaled per step, fit into float64."""
    with torch.no_grad():
        words = (emissions.amax(-1) - emissions.amin(-1)).max() if emissions.numel() else 0.0
        sides = sum(float(side.max() - side.min()) for side in weights)
        return bool(float(words) + sides < SPREAD)  # False for NaN


class _Normalizer(torch.autograd.Function):
    """log Z and its gradient by a Numba kernel."""

    @staticmethod
    def forward(ctx: Any, emissions: Tensor, lengths: Tensor, *weights: Tensor) -> Tensor:
        from keel.kernels.crf_forward import forward  # here, as it imports Numba

        scores, starts, transitions, ends = (_doubles(tensor) for tensor in (emissions, *weights))
        alphas = torch.empty(emissions.shape, dtype=torch.float64)
        scales = torch.empty(emissions.shape[:2], dtype=torch.float64)
        found = forward(scores, lengths.numpy(), starts, transitions, ends, alphas.numpy(), scales.numpy())
        ctx.save_for_backward(emissions, lengths, *weights, alphas, scales)
        return torch.from_numpy(found).to(emissions.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from keel.kernels.crf_forward import backward

        emissions, lengths, *weights, alphas, scales = ctx.saved_tensors
        sums = [torch.zeros(tensor.shape, dtype=torch.float64) for tensor in (emissions, *weights)]
        scores, _, transitions, ends = (_doubles(tensor) for tensor in (emissions, *weights))
        grads, alphas, scales = _doubles(gradients[0]), alphas.numpy(), scales.numpy()
        tags, starts, steps, lasts = (each.numpy() for each in sums)
        backward(scores, lengths.numpy(), transitions, ends, alphas, scales, grads, tags, starts, steps, lasts)
        found, *others = (each.to(emissions.dtype) for each in sums)
        return found, None, *others


def _doubles(tensor: Tensor) -> Any:
    return tensor.detach().double().contiguous().numpy()
