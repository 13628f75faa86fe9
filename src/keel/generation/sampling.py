"""One word after the other, each drawn by how likely the words before make it."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor
from torch.nn import functional as F

from keel.config import Validated
from keel.errors import UsageError
from keel.generation.decoding_trace import Trace
from keel.generation.next_token import BLOCK, NextTokenModel, groups, kept, started, top_candidates

AHEAD = 64
"""Steps for which random numbers are drawn at once."""
HEADS = 128, 2048
"""As many words hold `top_p` of the probability most of the time: more are sorted only where they do not."""


@dataclass(frozen=True, kw_only=True)
class Sampling(Validated):
    """How each next word is chosen."""

    temperature: float = 1.0
    """Scores are divided by it: below 1 prefers the likely; 0 always takes the likeliest."""
    top_k: int = 0
    """Draw from so many of the likeliest; 0: from all."""
    top_p: float = 1.0
    """Of these, from as few as hold this share of the probability."""
    repetition_penalty: float = 1.0
    """Of ids that came before, positive scores are divided by it and negative ones multiplied (Keskar et al., "CTRL",
    2019); 1: none."""
    seed: int = 0
    """Row n of a batch is drawn as if it were alone with `seed` + n."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UsageError(f"--temperature must be 0 (always the likeliest) or above, not {self.temperature}")
        if self.top_k < 0:
            raise UsageError(f"--top-k must be 0 (all words) or above, not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"--top-p must lie above 0 and not above 1, not at {self.top_p}")
        if not 0 < self.repetition_penalty < float("inf"):
            raise UsageError(f"--repetition-penalty must be above 0 (1: none), not {self.repetition_penalty}")
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"--seed must be 0 or above and below 2^63, not {self.seed}")


GREEDY = Sampling(temperature=0.0)


def sample(
    writer: NextTokenModel,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling = Sampling(),  # noqa: B008 - frozen
    *,
    tokens: int,
    stop: Collection[int] = (),
    banned: Collection[int] = (),
    ended: Callable[[int, int], bool] | None = None,
    trace: Trace | None = None,
) -> Iterator[list[int]]:
    """Up to `tokens` times an id for each of the prompts, the `banned` never. A row ends after an id of `stop`, or
    where `ended(row, id)` says so: it leaves the batch, and then gives its last id again and again; the last step is
    where all have ended. Prompts of different lengths are written side by side, in a batch for each length."""
    if tokens < 1:
        raise UsageError(f"--tokens must be 1 or more, not {tokens}")
    over = {*stop}

    def ends(row: int, number: int) -> bool:
        return number in over or (ended is not None and ended(row, number))

    return _side_by_side(writer, prompts, sampling, tokens, list(banned), ends, trace)


def _side_by_side(
    writer: NextTokenModel,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    tokens: int,
    banned: list[int],
    ends: Callable[[int, int], bool],
    trace: Trace | None,
) -> Iterator[list[int]]:
    last = [-1] * len(prompts)
    parts = [_drawn(writer, prompts, numbers, sampling, tokens, banned, ends, trace) for numbers in groups(prompts)]
    for step in zip_longest(*parts, fillvalue=()):
        for row, number in (pair for part in step for pair in part):
            last[row] = number
        yield [*last]


@torch.no_grad()
def _drawn(
    writer: NextTokenModel,
    prompts: Sequence[Sequence[int]],
    open_rows: list[int],
    sampling: Sampling,
    tokens: int,
    banned: list[int],
    ends: Callable[[int, int], bool],
    trace: Trace | None,
) -> Iterator[list[tuple[int, int]]]:
    """Rows with their next ids, for rows whose prompts are equally long."""
    ids, state = started(writer, prompts, open_rows)
    read, chances, seen, never = ids[:, 1:], None, None, None
    # On the CPU, and so many numbers at once: the same text on any device, and a longer one begins alike.
    random = [torch.Generator().manual_seed(sampling.seed + row) for row in open_rows]
    for step in range(tokens):
        log_chances = None
        if trace is None:
            scores, state = writer.next(ids, state)
        else:
            scores, state = writer.next(ids, state, trace.record)
            trace.read(open_rows, ids, state)
            log_chances = scores.float().log_softmax(1)
        if sampling.temperature and step % AHEAD == 0:
            numbers = [torch.rand(AHEAD, generator=own, dtype=torch.float64) for own in random]
            chances = torch.stack(numbers).to(scores.device)  # [rows, AHEAD]
        if sampling.repetition_penalty != 1:
            if seen is None:
                seen = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, read.to(scores.device), True)
            scores = penalized(scores, seen, sampling.repetition_penalty)
        if banned:
            never = torch.tensor(banned, device=scores.device) if never is None else never
            scores.index_fill_(1, never, -torch.inf)
        chosen = scores.argmax(1) if chances is None else draw(scores, sampling, chances[:, step % AHEAD])
        numbers = chosen.tolist()
        over = [ends(row, number) for row, number in zip(open_rows, numbers, strict=True)]
        if trace is not None and log_chances is not None:
            trace.drew(open_rows, log_chances, numbers, over, greedy=chances is None)
        yield [*zip(open_rows, numbers, strict=True)]
        still = [place for place, row_ends in enumerate(over) if not row_ends]
        if not still:
            return
        ids = chosen[:, None]
        if seen is not None:
            seen.scatter_(1, ids, True)
        if len(still) < len(open_rows):
            rows = torch.tensor(still, device=scores.device)
            ids, state, open_rows = ids[rows], kept(state, rows, rows), [open_rows[place] for place in still]
            chances, seen = (None if each is None else each[rows] for each in (chances, seen))
            random = [random[place] for place in still]


def penalized(scores: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Scores, those of ids that were seen made worse: s / penalty where s > 0, else s * penalty."""
    return torch.where(seen, torch.where(scores < 0, scores * penalty, scores / penalty), scores)


def draw(scores: Tensor, sampling: Sampling, chances: Tensor) -> Tensor:
    """[rows] an id for each row of scores [rows, vocabulary]: the one at which the sum of probabilities passes the
    row's number from 0 to 1."""
    scores, places = scores.float() / sampling.temperature, None
    if 0 < sampling.top_k < scores.shape[1]:
        scores, places = top_candidates(scores, sampling.top_k)
    shares = scores.softmax(1)
    if sampling.top_p < 1:
        if places is None:
            shares, places = _head(shares, sampling.top_p)
        before = shares.cumsum(1, dtype=torch.float64) - shares
        shares = shares.masked_fill(before >= sampling.top_p, 0)
    found = _passed(shares, chances[:, None])
    return (found if places is None else places.gather(1, found))[:, 0]


def _passed(shares: Tensor, chances: Tensor) -> Tensor:
    """[rows, 1] the place at which the sum of shares [rows, words] passes this part [rows, 1] of all. Of many words
    the sums of blocks are looked at first: torch adds up one number after the other."""
    words = shares.shape[1]
    if words > BLOCK * BLOCK:
        blocks = F.pad(shares, (0, -words % BLOCK)).unflatten(1, (-1, BLOCK))  # [rows, blocks, BLOCK]
        block = _passed(sizes := blocks.sum(2), chances)
        within = chances * sizes.sum(1, keepdim=True, dtype=torch.float64)
        before = (sizes.cumsum(1, dtype=torch.float64) - sizes).gather(1, block)
        part = ((within - before) / sizes.gather(1, block)).clamp(0, 1)
        inside = blocks.gather(1, block[..., None].expand(-1, -1, BLOCK))[:, 0]
        return block * BLOCK + _passed(inside, part)
    sums = shares.cumsum(1, dtype=torch.float64)
    return torch.searchsorted(sums, chances * sums[:, -1:], right=True).clamp(max=words - 1)


def _head(shares: Tensor, enough: float) -> tuple[Tensor, Tensor]:
    """The largest shares, in order, with their ids: at least as many as hold so much of the probability."""
    for count in HEADS:
        if shares.shape[1] > count:
            best, places = top_candidates(shares, count)
            if bool((best.sum(1) > enough).all()):
                return best, places
    return shares.sort(descending=True, stable=True)
