"""Beam search: the best texts of a writer that can be found by keeping a few open at each step.

The score of a text of n ids, its closing mark counted, is its log p / ((5 + n) / 6)^alpha (Wu et al., "Google's Neural
Machine Translation System", 2016): without the length penalty alpha every id more makes a text worse.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from threading import Event
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from keel.config import Validated
from keel.errors import UsageError
from keel.generation.decoding_trace import Trace
from keel.generation.next_token import NextTokenModel, groups, kept, started, top_candidates
from keel.training.objective import State, Tensors

MOST = 1000
"""Hypotheses of a text that may be open."""
NEAR = 4
"""Rows of scores that are looked at together on a CPU."""


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """A text that a search found."""

    ids: list[int]
    """Without the closing mark."""
    closed: list[int]
    """With it, if it has one."""
    score: float
    log_probability: float
    """Of all ids, its closing mark counted."""
    ended: bool
    """Whether it came to an end, or was only cut off where the tokens were used up."""


Ended = Callable[[int, list[int]], bool]
"""Whether the text of this number has come to its end with the last of these ids."""


class Stopped(KeyboardInterrupt):
    """The user interrupted a search; `found` has what each text became, nothing where its search was not over, and
    `best` for such a text the best hypotheses so far, if it had begun."""

    def __init__(self, found: list[list[Any]], best: dict[int, list[Hypothesis]] | None = None) -> None:
        super().__init__()
        self.found, self.best = found, best or {}


@dataclass(frozen=True, kw_only=True)
class BeamSearch(Validated):
    """How texts are searched for."""

    beams: int = 5
    """Hypotheses of a text that are open at each step; 1 is greedy: the first to close is the answer."""
    length_penalty: float = 0.6
    """Alpha; 0 leaves the plain log p."""
    best: int = 1
    """Texts to give."""

    def __post_init__(self) -> None:
        if self.beams < 1:
            raise UsageError(f"--beam must be 1 (greedy) or more, not {self.beams}")
        if self.beams > MOST:
            raise UsageError(f"--beam must be {MOST:,} or less, not {self.beams:,}: more finds nothing better")
        if not 1 <= self.best <= self.beams:
            raise UsageError(f"--best must lie between 1 and --beam {self.beams}, not at {self.best}")
        if not abs(self.length_penalty) < float("inf"):
            raise UsageError(f"--length-penalty must be a number, not {self.length_penalty}")

    def divisor(self, size: int) -> float:
        return ((5 + size) / 6) ** self.length_penalty


def beam_search(
    writer: NextTokenModel,
    prompts: Sequence[Sequence[int]],
    search: BeamSearch = BeamSearch(),  # noqa: B008 - frozen
    *,
    tokens: int | Sequence[int],
    banned: Collection[int] = (),
    ended: Ended | None = None,
    trace: Trace | None = None,
    halted: Event | None = None,
) -> list[list[Hypothesis]]:
    """For each prompt the best continuations that were found, the best first, of at most `tokens` ids, or so many for
    each prompt, the `banned` never.

    A hypothesis ends where the closing mark, or an id with which it has `ended`, is among its text's `beams` likeliest
    candidates; others take its place. What is open when the tokens are used up competes as it is. A text leaves the
    batch when no open hypothesis can still come before its `best` ended ones, so that it has what it would have without
    leaving. Once another thread says `halted`, the search breaks off as if it were interrupted.
    """
    limits = [tokens] * len(prompts) if isinstance(tokens, int) else [*tokens]
    if limits and min(limits) < 1:
        raise UsageError(f"--tokens must be 1 or more, not {min(limits)}")
    found: list[list[Hypothesis]] = [[] for _ in prompts]
    latest: _Step | None = None
    try:
        for numbers in groups(prompts):
            for latest in _search(writer, prompts, numbers, search, limits, list(banned), ended, found, trace):  # noqa: B007
                if halted is not None and halted.is_set():
                    raise KeyboardInterrupt
    except KeyboardInterrupt:
        so_far = latest.hypotheses() if latest else ()
        raise Stopped(found, {text: best for text, best in so_far if not found[text]}) from None
    return found


@dataclass(frozen=True)
class _Pool:
    """Hypotheses of each text, the best first; a score of -inf where there is none."""

    scores: Tensor  # [texts, hypotheses]
    sums: Tensor  # [texts, hypotheses] log p
    sizes: Tensor  # [texts, hypotheses]
    ids: Tensor  # [texts, hypotheses, time]

    def with_others(self, other: Self, count: int) -> "_Pool":
        """The best of both."""
        scores, places = torch.cat([self.scores, other.scores], 1).topk(count, dim=1)
        sums, sizes = (
            torch.cat(pair, 1).gather(1, places) for pair in ((self.sums, other.sums), (self.sizes, other.sizes))
        )
        ids = torch.cat([F.pad(self.ids, (0, other.ids.shape[2] - self.ids.shape[2])), other.ids], 1)
        return _Pool(scores, sums, sizes, _taken(ids, places))

    def of(self, texts: Tensor) -> "_Pool":
        return _Pool(self.scores[texts], self.sums[texts], self.sizes[texts], self.ids[texts])

    def hypotheses(self, texts: list[int], closing: int, ended: Ended | None) -> list[list[Hypothesis]]:
        listed = zip(*(part.tolist() for part in (self.scores, self.sums, self.sizes, self.ids)), strict=True)
        return [
            [
                Hypothesis(
                    ids=ids[: size - (marked := ids[size - 1] == closing)],
                    closed=ids[:size],
                    score=score,
                    log_probability=total,
                    ended=marked or (ended is not None and ended(text, ids[:size])),
                )
                for score, total, size, ids in zip(*parts, strict=True)
                if score > -torch.inf
            ]
            for text, parts in zip(texts, listed, strict=True)
        ]


@dataclass(frozen=True)
class _Step:
    """Where a search stands: what has ended and what is open of each text."""

    texts: list[int]
    ended: _Pool
    open: _Pool
    closing: int
    ends: Ended | None

    def hypotheses(self) -> Iterator[tuple[int, list[Hypothesis]]]:
        """The best of both, as if nothing more could be written."""
        whole = self.ended.with_others(self.open, self.ended.scores.shape[1])
        return zip(self.texts, whole.hypotheses(self.texts, self.closing, self.ends), strict=True)


@torch.no_grad()
def _search(
    writer: NextTokenModel,
    prompts: Sequence[Sequence[int]],
    texts: list[int],
    search: BeamSearch,
    tokens: list[int],
    banned: list[int],
    ended: Ended | None,
    found: list[list[Hypothesis]],
    trace: Trace | None,
) -> Iterator["_Step"]:
    """Search for the texts of these numbers, whose prompts are equally long; gives what each step leaves open."""
    beams, closing = search.beams, -1 if writer.closing is None else writer.closing
    limits = [tokens[text] for text in texts]

    def read(ids: Tensor, state: State | None) -> tuple[Tensor, Tensors]:
        if trace is None:
            return writer.next(ids, state)
        scores, after = writer.next(ids, state, trace.record)
        trace.read(texts, ids, after)
        return scores, after

    scores, state = read(*started(writer, prompts, texts))
    sums = scores.new_zeros(len(texts), 1, dtype=torch.float32)  # one row for each, as all hypotheses begin alike
    never = torch.tensor(banned, dtype=torch.int64, device=scores.device)
    written = torch.zeros(len(texts), 1, 0, dtype=torch.int64, device=scores.device)
    last = sums.new_tensor([search.divisor(limit) for limit in limits])
    empty = sums.new_full((len(texts), search.best), -torch.inf)
    pool = _Pool(empty, empty, empty.long(), written.expand(-1, search.best, -1))
    for size in range(1, max(limits) + 1):
        before = sums.shape[1]
        sums, parents, words = _candidates(scores, sums, 2 * beams, never)  # [texts, 2 x beams] each, the best first
        device, ends = sums.device, words == closing
        reached = torch.cat([_taken(written, parents), words[..., None]], 2)  # [texts, 2 x beams, size]
        if ended is not None:
            over = [[ended(text, each) for each in rows] for text, rows in zip(texts, reached.tolist(), strict=True)]
            ends |= torch.tensor(over, device=device)
        divisor = search.divisor(size)
        closed = _Pool((sums / divisor).masked_fill(~ends, -torch.inf), sums, torch.full_like(words, size), reached)
        pool = pool.with_others(_first(closed, beams), search.best)
        open_sums, chosen = sums.masked_fill(ends, -torch.inf).topk(beams, dim=1)
        if trace is not None:
            trace.searched(texts, (sums, parents, words), sums / divisor, ends, chosen)
        parents, words, written = parents.gather(1, chosen), words.gather(1, chosen), _taken(reached, chosen)
        sums = open_sums
        step = _Step(texts, pool, _Pool(sums / divisor, sums, torch.full_like(words, size), written), closing, ended)
        pool, done = _over(step, limits, last, search, size)
        if any(done):
            gone = [place for place, over in enumerate(done) if over]
            left = [texts[place] for place in gone]
            best = pool.of(torch.tensor(gone, device=device)).hypotheses(left, closing, ended)
            for text, hypotheses in zip(left, best, strict=True):
                found[text] = hypotheses
            stay = [place for place, over in enumerate(done) if not over]
            if not stay:
                return
            still = torch.tensor(stay, device=device)
            texts, limits = [texts[place] for place in stay], [limits[place] for place in stay]
            rows = still[:, None] * before + parents[still]
            sums, words, written, pool, last = sums[still], words[still], written[still], pool.of(still), last[still]
            state = kept(state, rows.flatten(), still)
        else:
            rows = torch.arange(len(texts), device=device)[:, None] * before + parents
            state = kept(state, rows.flatten())
        yield step
        scores, state = read(words.view(-1, 1), state)


def _candidates(scores: Tensor, sums: Tensor, count: int, banned: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[texts, count] log p of the best hypotheses that are one id longer, the best first, which one each goes on from,
    and its new id; from scores [texts x hypotheses, vocabulary] and log p [texts, hypotheses]."""
    texts, hypotheses = sums.shape
    each = min(count, scores.shape[1])
    # The best of a text are among the best of its rows. On a CPU a few rows at a time: they stay in its cache.
    parts = [_likeliest(part, each, banned) for part in ([scores] if scores.is_cuda else scores.split(NEAR))]
    values, words = (torch.cat(part).view(texts, hypotheses * each) for part in zip(*parts, strict=True))
    longer = values + sums.repeat_interleave(each, 1)
    best, places = longer.topk(min(count, hypotheses * each), dim=1)
    words, parents = words.gather(1, places), places // each
    missing = (0, count - best.shape[1])  # of a tiny vocabulary
    return F.pad(best, missing, value=-torch.inf), F.pad(parents, missing), F.pad(words, missing)


def _likeliest(scores: Tensor, count: int, banned: Tensor) -> tuple[Tensor, Tensor]:
    """[rows, count] log p of the likeliest words but the banned, and their ids; they are no likelier without these."""
    return top_candidates(scores.float().log_softmax(1).index_fill_(1, banned, -torch.inf), count)


def _over(step: _Step, limits: list[int], last: Tensor, search: BeamSearch, size: int) -> tuple[_Pool, list[bool]]:
    """The pool, into which goes what is still open where a text has no token left, and which texts are over."""
    pool, spent = step.ended, [limit == size for limit in limits]
    if any(spent):
        going = ~torch.tensor(spent, device=last.device)[:, None]
        cut = replace(step.open, scores=step.open.scores.masked_fill(going, -torch.inf))
        pool = pool.with_others(cut, search.best)
        if all(spent):
            return pool, spent
    settled = _settled(pool, step.open.sums[:, 0], search, size, last).tolist()  # the step's one wait for the device
    return pool, [one or other for one, other in zip(spent, settled, strict=True)]


def _settled(pool: _Pool, likeliest_open: Tensor, search: BeamSearch, size: int, last: Tensor) -> Tensor:
    """[texts] whether nothing that is open can still come before the worst of the pool: its log p can only fall, so
    that its score can at best be that of the same log p at the length which is best for it, the next or the `last`,
    whose divisors [texts] these are."""
    worst = pool.scores[:, -1]
    reachable = likeliest_open / last.clamp(min=search.divisor(size + 1))
    settled = worst >= reachable
    return settled | (worst > -torch.inf) if search.beams == 1 else settled


def _first(pool: _Pool, count: int) -> _Pool:
    return _Pool(pool.scores[:, :count], pool.sums[:, :count], pool.sizes[:, :count], pool.ids[:, :count])


def _taken(ids: Tensor, places: Tensor) -> Tensor:
    """[texts, places, time] these rows of each text's ids [texts, rows, time]."""
    return ids.gather(1, places[..., None].expand(-1, -1, ids.shape[2]))
