"""Beam search with length penalty.

The score of a text of n tokens, end token included, is log p / ((5 + n) / 6)^alpha (Wu et al., "Google's Neural Machine
Translation System", 2016): without the length penalty alpha, every further token makes a text worse.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from threading import Event
from typing import Annotated, Any, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from keel.config import Count, Ge, Gt, Le, Lt, Validated
from keel.errors import UsageError
from keel.generation.decoding_trace import DecodingTrace
from keel.generation.next_token import decode_step, group_by_length, prompt_batch, select_state, top_candidates
from keel.nn.inference_loop import eval_mode
from keel.systems.capabilities import CausalLM

MAX_BEAMS = 1000
CPU_CHUNK = 4
"""Sequences whose scores are ranked together on a CPU, so that they stay in its cache."""


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """A text found by beam search."""

    ids: list[int]
    """Token ids without the end token."""
    ids_with_eos: list[int]
    score: float
    log_prob: float
    """log p of all tokens, end token included."""
    finished: bool
    """Whether it ended, or was cut off at the maximum number of tokens."""


IsFinished = Callable[[int, list[int]], bool]
"""Stopping criterion: (text index, ids) -> whether the text ends with the last id."""


class SearchInterrupted(KeyboardInterrupt):
    """A search was interrupted: `found` holds the finished texts (empty lists for the others), `best` the best
    hypotheses so far of those that had started."""

    def __init__(self, found: list[list[Any]], best: dict[int, list[Hypothesis]] | None = None) -> None:
        super().__init__()
        self.found, self.best = found, best or {}


@dataclass(frozen=True, kw_only=True)
class BeamSearch(Validated):
    """Settings of beam search."""

    beams: Annotated[int, Ge(1), Le(MAX_BEAMS)] = 5
    """Beam width; 1 is greedy decoding."""
    length_penalty: Annotated[float, Gt(-math.inf), Lt(math.inf)] = 0.6
    """Length penalty alpha; 0: plain log p."""
    best: Count = 1
    """Number of hypotheses to return."""

    def __post_init__(self) -> None:
        if self.best > self.beams:
            raise UsageError(f"--best must be between 1 and --beam {self.beams}, not {self.best}")

    def length_divisor(self, size: int) -> float:
        """((5 + n) / 6)^alpha."""
        return ((5 + size) / 6) ** self.length_penalty


def beam_search(
    model: CausalLM,
    prompts: Sequence[Sequence[int]],
    search: BeamSearch = BeamSearch(),  # noqa: B008 - frozen
    *,
    max_new_tokens: int | Sequence[int],
    banned: Collection[int] = (),
    is_finished: IsFinished | None = None,
    trace: DecodingTrace | None = None,
    cancelled: Event | None = None,
) -> list[list[Hypothesis]]:
    """The best continuations of each prompt, best first, of at most `max_new_tokens` ids, without the `banned` ones.

    A hypothesis ends where the end token, or an id for which `is_finished`, is among its text's top `beams` candidates;
    another takes its place. Unfinished hypotheses compete at the length limit. A text leaves the batch once no open
    hypothesis can beat its `best` finished ones, which does not change its result. Setting `cancelled` from another
    thread interrupts the search.
    """
    limits = [max_new_tokens] * len(prompts) if isinstance(max_new_tokens, int) else [*max_new_tokens]
    if limits and min(limits) < 1:
        raise UsageError(f"--tokens must be 1 or more, not {min(limits)}")
    found: list[list[Hypothesis]] = [[] for _ in prompts]
    latest: tuple[list[int], _Pool, _Pool] | None = None
    try:
        for indices in group_by_length(prompts):
            with eval_mode(model):
                steps = _search(model, prompts, indices, search, limits, list(banned), is_finished, found, trace)
                for latest in steps:  # noqa: B007
                    if cancelled is not None and cancelled.is_set():
                        raise KeyboardInterrupt
    except KeyboardInterrupt:
        so_far: dict[int, list[Hypothesis]] = {}
        if latest is not None:
            texts, finished, unfinished = latest
            best = finished.merge(unfinished, search.best).hypotheses(texts, model.eos_id, is_finished)
            so_far = {text: each for text, each in zip(texts, best, strict=True) if not found[text]}
        raise SearchInterrupted(found, so_far) from None
    return found


@dataclass(frozen=True)
class _Pool:
    """Hypotheses of each text, best first; empty slots have a score of -inf."""

    scores: Tensor  # [texts, hypotheses]
    log_probs: Tensor  # [texts, hypotheses]
    sizes: Tensor  # [texts, hypotheses]
    ids: Tensor  # [texts, hypotheses, time]

    def merge(self, other: Self, count: int) -> "_Pool":
        """The best `count` of both pools."""
        scores, ranks = torch.cat([self.scores, other.scores], 1).topk(count, dim=1)
        log_probs, sizes = (
            torch.cat(pair, 1).gather(1, ranks)
            for pair in ((self.log_probs, other.log_probs), (self.sizes, other.sizes))
        )
        ids = torch.cat([F.pad(self.ids, (0, other.ids.shape[2] - self.ids.shape[2])), other.ids], 1)
        return _Pool(scores, log_probs, sizes, _gather_ids(ids, ranks))

    def select(self, texts: Tensor) -> "_Pool":
        return _Pool(self.scores[texts], self.log_probs[texts], self.sizes[texts], self.ids[texts])

    def hypotheses(
        self, texts: list[int], eos_id: int | None, is_finished: IsFinished | None
    ) -> list[list[Hypothesis]]:
        listed = zip(*(part.tolist() for part in (self.scores, self.log_probs, self.sizes, self.ids)), strict=True)
        return [
            [
                Hypothesis(
                    ids=ids[: size - (has_eos := ids[size - 1] == eos_id)],
                    ids_with_eos=ids[:size],
                    score=score,
                    log_prob=log_prob,
                    finished=has_eos or (is_finished is not None and is_finished(text, ids[:size])),
                )
                for score, log_prob, size, ids in zip(*parts, strict=True)
                if score > -torch.inf
            ]
            for text, parts in zip(texts, listed, strict=True)
        ]


@torch.no_grad()
def _search(
    model: CausalLM,
    prompts: Sequence[Sequence[int]],
    texts: list[int],
    search: BeamSearch,
    max_new_tokens: list[int],
    banned: list[int],
    is_finished: IsFinished | None,
    found: list[list[Hypothesis]],
    trace: DecodingTrace | None,
) -> Iterator[tuple[list[int], _Pool, _Pool]]:
    """Search the continuations of prompts of equal length; after each step yields the texts that were in the batch,
    their finished and their open hypotheses."""
    beams, limits = search.beams, [max_new_tokens[text] for text in texts]
    scores, state = decode_step(model, texts, *prompt_batch(model, prompts, texts), trace)
    device = scores.device
    log_probs = scores.new_zeros(len(texts), 1, dtype=torch.float32)  # one sequence per text: all beams start alike
    banned_ids = torch.tensor(banned, dtype=torch.int64, device=device)
    written = torch.zeros(len(texts), 1, 0, dtype=torch.int64, device=device)
    last = log_probs.new_tensor([search.length_divisor(limit) for limit in limits])
    empty = log_probs.new_full((len(texts), search.best), -torch.inf)
    pool = _Pool(empty, empty, empty.long(), written.expand(-1, search.best, -1))
    for size in range(1, max(limits) + 1):
        width = log_probs.shape[1]
        log_probs, parents, ids = _candidates(scores, log_probs, 2 * beams, banned_ids)  # [texts, 2 x beams] each
        ends = ids == (-1 if model.eos_id is None else model.eos_id)
        extended = torch.cat([_gather_ids(written, parents), ids[..., None]], 2)  # [texts, 2 x beams, size]
        if is_finished is not None:
            rows = zip(texts, extended.tolist(), strict=True)
            ends |= torch.tensor([[is_finished(text, each) for each in row] for text, row in rows], device=device)
        normalized, sizes = log_probs / search.length_divisor(size), torch.full_like(ids, size)
        ended = (normalized.masked_fill(~ends, -torch.inf), log_probs, sizes, extended)
        pool = pool.merge(_Pool(*(part[:, :beams] for part in ended)), search.best)
        open_log_probs, chosen = log_probs.masked_fill(ends, -torch.inf).topk(beams, dim=1)
        if trace is not None:
            trace.record_beam_search(texts, (log_probs, parents, ids), normalized, ends, chosen)
        parents, ids, written = parents.gather(1, chosen), ids.gather(1, chosen), _gather_ids(extended, chosen)
        log_probs = open_log_probs
        unfinished = _Pool(log_probs / search.length_divisor(size), log_probs, sizes[:, :beams], written)
        step = texts, pool, unfinished
        pool, done = _finish_texts(pool, unfinished, limits, last, search, size)
        stay = None
        if any(done):
            leaving = [position for position, over in enumerate(done) if over]
            left = [texts[position] for position in leaving]
            best = pool.select(torch.tensor(leaving, device=device)).hypotheses(left, model.eos_id, is_finished)
            for text, hypotheses in zip(left, best, strict=True):
                found[text] = hypotheses
            if all(done):
                return
            staying = [position for position, over in enumerate(done) if not over]
            texts, limits = [texts[position] for position in staying], [limits[position] for position in staying]
            stay = torch.tensor(staying, device=device)
            log_probs, parents, ids, written, last = (each[stay] for each in (log_probs, parents, ids, written, last))
            pool = pool.select(stay)
        rows = torch.arange(len(texts), device=device) if stay is None else stay
        state = select_state(state, (rows[:, None] * width + parents).flatten(), stay)
        yield step
        scores, state = decode_step(model, texts, ids.view(-1, 1), state, trace)


def _candidates(scores: Tensor, log_probs: Tensor, count: int, banned: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The best one-token extensions of the hypotheses, best first: log p, parent and new id, each [texts, count].

    From scores [texts x hypotheses, vocab_size] and log p [texts, hypotheses].
    """
    texts, hypotheses = log_probs.shape
    each = min(count, scores.shape[1])
    # The best of a text are among the best of each of its hypotheses; those left by the banned are not renormalised.
    parts = [
        top_candidates(part.float().log_softmax(1).index_fill_(1, banned, -torch.inf), each)
        for part in ([scores] if scores.is_cuda else scores.split(CPU_CHUNK))
    ]
    values, ids = (torch.cat(part).view(texts, hypotheses * each) for part in zip(*parts, strict=True))
    extended = values + log_probs.repeat_interleave(each, 1)
    best, ranks = extended.topk(min(count, hypotheses * each), dim=1)
    ids, parents = ids.gather(1, ranks), ranks // each
    missing = (0, count - best.shape[1])  # of a tiny vocabulary
    return F.pad(best, missing, value=-torch.inf), F.pad(parents, missing), F.pad(ids, missing)


def _finish_texts(
    pool: _Pool, unfinished: _Pool, limits: list[int], last: Tensor, search: BeamSearch, size: int
) -> tuple[_Pool, list[bool]]:
    """The pool with the open hypotheses of texts at their length limit; and which texts are done: these, and those of
    which no open hypothesis can still beat the worst of the pool.

    Its log p can only fall, so its score is bounded by that log p at the most favourable length, the next or the last,
    whose divisors [texts] are `last`.
    """
    at_limit = [limit == size for limit in limits]
    if any(at_limit):
        continuing = ~torch.tensor(at_limit, device=last.device)[:, None]
        pool = pool.merge(
            replace(unfinished, scores=unfinished.scores.masked_fill(continuing, -torch.inf)), search.best
        )
        if all(at_limit):
            return pool, at_limit
    worst, bound = pool.scores[:, -1], unfinished.log_probs[:, 0] / last.clamp(min=search.length_divisor(size + 1))
    decided = worst >= bound
    if search.beams == 1:
        decided |= worst > -torch.inf
    return pool, [one or other for one, other in zip(at_limit, decided.tolist(), strict=True)]  # the only device sync


def _gather_ids(ids: Tensor, ranks: Tensor) -> Tensor:
    """[texts, ranks, time] of each text's ids [texts, hypotheses, time]."""
    return ids.gather(1, ranks[..., None].expand(-1, -1, ids.shape[2]))
