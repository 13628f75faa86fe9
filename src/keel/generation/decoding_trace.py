"""Trace of decoding: the tree of hypotheses, the attention of each, and the cost of each step."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from keel.nn.encoder import DecodingState

Outcome = Literal["kept", "ended", "dropped"]


@dataclass(frozen=True, kw_only=True)
class TraceNode:
    """A hypothesis, extended by one token."""

    step: int
    """Length in tokens."""
    parent: int
    """Index of the hypothesis that it extends; -1 for the prompt."""
    id: int
    probability: float
    """p of its last token."""
    log_probability: float
    """log p of all its tokens."""
    score: float
    """Score if it ended here."""
    outcome: Outcome
    reason: str
    attention: dict[str, list[list[float]]] = field(default_factory=dict)
    """Attention weights behind this token, averaged over heads: name -> [layers, positions]."""


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """Computation of one decoding step."""

    sequences: int
    computed: int
    """Tokens read: the newest of each sequence, or the prompt in the first step."""
    cached: int
    """Tokens that the state saves from being read again."""
    state_bytes: int
    source_bytes: int
    """Size of the encoded sources, which all hypotheses of a text share."""


class DecodingTrace:
    """Filled by `beam_search` and `sample`, at the cost of extra computation and copies."""

    def __init__(self, top_k: int = 10) -> None:
        self.top_k = top_k
        """Candidates recorded per step of sampling."""
        self.nodes: dict[int, list[TraceNode]] = {}
        """All candidates of each text, in order."""
        self.costs: list[StepCost] = []
        self._active: dict[int, list[int]] = {}  # text -> node of each of its sequences
        self._read: dict[int, int] = {}
        self._attention: list[tuple[str, Tensor]] = []

    def record_attention(self, name: str, layer: int, value: Tensor) -> None:
        """A `Recorder` of attention [batch, heads, time, positions] or [batch, time, positions]."""
        if name.endswith(("attention", "alignment")):
            newest = value[..., -1, :].float().cpu()
            self._attention.append((name, newest.mean(1) if newest.dim() == 3 else newest))

    def record_step(self, texts: list[int], ids: Tensor, state: Any) -> None:
        """Record the input ids [batch, time] of these texts and the state after them."""
        batch, time = ids.shape
        own, source = (state.own, state.source) if isinstance(state, DecodingState) else (state, None)
        before = self._read.get(texts[0], 0)
        self._read.update(dict.fromkeys(texts, before + time))
        self.costs.append(
            StepCost(
                sequences=batch,
                computed=batch * time,
                cached=batch * before,
                state_bytes=0 if own is None else own.nbytes(),
                source_bytes=0 if source is None else source.nbytes(),
            )
        )

    def record_beam_search(
        self, texts: list[int], candidates: tuple[Tensor, Tensor, Tensor], scores: Tensor, ends: Tensor, chosen: Tensor
    ) -> None:
        """Record a step of beam search: log p, parents and new ids of the candidates [texts, candidates] in descending
        order, their scores if they end, whether they end, and the ranks of those that continue [texts, beams]."""
        beams = chosen.shape[1]

        def outcome(rank: int, closes: bool, ranks: list[int]) -> tuple[Outcome, str]:
            if closes and rank < beams:
                return "ended", "end of text"
            if closes:
                return "dropped", f"end of text, but not among the top {beams}"
            if rank in ranks:
                return "kept", f"among the top {beams} that continue"
            return "dropped", f"{beams} others are more probable"

        parts = (part.tolist() for part in (*candidates, scores, ends, chosen))
        for position, (text, *listed, closing, ranks) in enumerate(zip(texts, *parts, strict=True)):
            parents, numbers = self._active.get(text, [-1]), []
            for rank, (total, beam, id, score, closes) in enumerate(zip(*listed, closing, strict=True)):
                if total == -math.inf:  # the vocabulary is smaller than the beam
                    numbers.append(-1)
                    continue
                row = position * len(parents) + beam
                kept, reason = outcome(rank, closes, ranks)
                numbers.append(self._add_node(text, row, parents[beam], id, total, score, kept, reason))
            self._active[text] = [numbers[rank] for rank in ranks]
        self._attention.clear()

    def record_sampling(
        self, texts: list[int], log_probs: Tensor, chosen: list[int], ends: list[bool], *, greedy: bool
    ) -> None:
        """Record a step of sampling: log p [batch, vocab_size], the sampled ids, and which of them end their texts."""
        values, ids = log_probs.topk(min(self.top_k, log_probs.shape[1]), dim=1)
        for position, (text, sampled, over) in enumerate(zip(texts, chosen, ends, strict=True)):
            listed = dict(zip(ids[position].tolist(), values[position].tolist(), strict=True))
            listed[sampled] = float(log_probs[position, sampled])
            (parent,) = self._active.get(text, [-1])
            before = 0.0 if parent < 0 else self.nodes[text][parent].log_probability
            reason = "most probable" if greedy else "sampled"
            for id, log_prob in listed.items():
                total = before + log_prob
                if id == sampled:
                    outcome: Outcome = "ended" if over else "kept"
                    self._active[text] = [self._add_node(text, position, parent, id, total, total, outcome, reason)]
                elif total > -math.inf:
                    self._add_node(text, position, parent, id, total, total, "dropped", f"not {reason}")
        self._attention.clear()

    def _add_node(
        self, text: int, row: int, parent: int, id: int, total: float, score: float, outcome: Outcome, reason: str
    ) -> int:
        """Add the hypothesis of log p `total` that extends the one in this row of the batch; returns its index."""
        nodes = self.nodes.setdefault(text, [])
        attention: dict[str, list[list[float]]] = {}
        for name, value in self._attention if outcome != "dropped" else ():
            attention.setdefault(name, []).append(value[row].tolist())
        step, before = (0, 0.0) if parent < 0 else (nodes[parent].step, nodes[parent].log_probability)
        node = TraceNode(
            step=step + 1,
            parent=parent,
            id=id,
            probability=math.exp(total - before),
            log_probability=total,
            score=score,
            outcome=outcome,
            reason=reason,
            attention=attention,
        )
        nodes.append(node)
        return len(nodes) - 1
