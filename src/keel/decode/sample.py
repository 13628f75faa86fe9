"""One word after the other, each drawn by how likely the words before make it."""

from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor

from keel.decode.writer import Writer
from keel.errors import UsageError


def sample(
    writer: Writer,
    prompts: Sequence[Sequence[int]],
    *,
    tokens: int,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    stop: Collection[int] = (),
    banned: Collection[int] = (),
) -> Iterator[list[int]]:
    """Up to `tokens` times an id for each of the prompts, which are equally long; the last is where all have met one of
    `stop`, and what a row gives after its own means nothing. Row n is drawn as if it were alone with `seed` + n.

    Scores are divided by `temperature` (0 takes the likeliest); drawn from are the `top_k` likeliest (0: all), of these
    as few as hold `top_p` of the probability, and never the `banned`.
    """
    if tokens < 1:
        raise UsageError(f"--tokens must be 1 or more, not {tokens}")
    if not 0 <= temperature < float("inf"):
        raise UsageError(f"--temperature must be 0 (always the likeliest) or above, not {temperature}")
    if top_k < 0:
        raise UsageError(f"--top-k must be 0 (all words) or above, not {top_k}")
    if not 0 < top_p <= 1:
        raise UsageError(f"--top-p must lie above 0 and not above 1, not at {top_p}")
    return _drawn(writer, prompts, tokens, temperature, top_k, top_p, seed, stop, list(banned))


@torch.no_grad()
def _drawn(
    writer: Writer,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int,
    stop: Collection[int],
    banned: list[int],
) -> Iterator[list[int]]:
    # On the CPU: the same text on any device.
    random = [torch.Generator().manual_seed(seed + row) for row in range(len(prompts))]
    state, read = writer.begin(len(prompts)), [[writer.opening, *prompt] for prompt in prompts]
    ended: set[int] = set()
    for _ in range(tokens):
        scores, state = writer.next(torch.tensor(read), state)
        scores = scores.double().cpu()
        scores[:, banned] = -torch.inf
        chosen = scores.argmax(1).tolist()
        if temperature:
            kept = (_kept(row / temperature, top_k, top_p) for row in scores)
            chosen = [int(torch.multinomial(row, 1, generator=own)) for row, own in zip(kept, random, strict=True)]
        yield chosen
        ended.update(row for row, number in enumerate(chosen) if number in stop)
        if len(ended) == len(prompts):
            return
        read = [[number] for number in chosen]


def _kept(scores: Tensor, top_k: int, top_p: float) -> Tensor:
    """[vocabulary] the probabilities of those that may be drawn."""
    chances = scores.softmax(0)
    if not top_k and top_p == 1:
        return chances
    best, places = chances.sort(descending=True, stable=True)
    if top_k:
        best[top_k:] = 0
        best /= best.sum()
    best[best.cumsum(0) - best >= top_p] = 0  # those before it hold enough
    return torch.zeros_like(chances).scatter(0, places, best)
