"""What a writer's next words were chosen from: a tree of hypotheses, what each looked at, and what was computed."""

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from keel.nn.encoder import DecodingState

Fate = Literal["kept", "ended", "dropped"]


@dataclass(frozen=True, kw_only=True)
class Node:
    """A hypothesis, made longer by one id."""

    step: int
    """Ids that it has."""
    parent: int
    """The number of the one that it goes on from; -1 for the prompt."""
    id: int
    sum: float
    """log p of all its ids."""
    score: float
    """What it is compared by when it ends."""
    fate: Fate
    why: str
    looked: dict[str, list[list[float]]] = field(default_factory=dict)
    """By kind of attention and then layer, the mean over heads: how much was looked at each place to find this id."""


@dataclass(frozen=True, kw_only=True)
class ComputeUse:
    """What one step computed, and what it found in the writer's state."""

    rows: int
    computed: int
    """Ids that were read: for each row its newest, or at first the prompt."""
    remembered: int
    """Ids that need not be read again."""
    bytes: int
    """Of the state of what was written."""
    source_bytes: int
    """Of what is kept of the texts to write from, once for all hypotheses of a text."""


class Trace:
    """Is filled by `beam` and `sample`, which then compute and copy more than they need."""

    def __init__(self, shown: int = 10) -> None:
        self.shown = shown
        """Words to show of those that might have been drawn."""
        self.nodes: dict[int, list[Node]] = {}
        """By the number of the text; all that were considered, in their order."""
        self.uses: list[ComputeUse] = []
        self._open: dict[int, list[int]] = {}  # the node of each row of a text
        self._read: dict[int, int] = {}
        self._looked: list[tuple[str, int, Tensor]] = []

    def record(self, name: str, layer: int, value: Tensor) -> None:
        """A `Recorder`; attention is [rows, heads, time, places] or [rows, time, places]."""
        if name.endswith(("attention", "alignment")):
            newest = value[..., -1, :].float().cpu()  # what was looked at to find the next id
            self._looked.append((name, layer, newest.mean(1) if newest.dim() == 3 else newest))

    def read(self, texts: list[int], ids: Tensor, state: Any) -> None:
        """Hear what the rows of these texts have read, and the state after it."""
        rows, time = ids.shape
        own, source = (state.own, state.source) if isinstance(state, DecodingState) else (state, None)
        before = self._read.get(texts[0], 0)
        self._read.update(dict.fromkeys(texts, before + time))
        self.uses.append(
            ComputeUse(
                rows=rows,
                computed=rows * time,
                remembered=rows * before,
                bytes=0 if own is None else own.nbytes(),
                source_bytes=0 if source is None else source.nbytes(),
            )
        )

    def searched(
        self,
        texts: list[int],
        candidates: tuple[Tensor, Tensor, Tensor],
        scores: Tensor,
        ends: Tensor,
        chosen: Tensor,
    ) -> None:
        """Hear a step of a beam search: log p, rows and new ids of the candidates [texts, candidates], the best first,
        their scores if they ended now, which of them close, and the places of those that go on [texts, beams]."""
        beams = chosen.shape[1]
        sums, rows, words = (part.tolist() for part in candidates)
        parts = zip(texts, sums, rows, words, scores.tolist(), ends.tolist(), chosen.tolist(), strict=True)
        for place, (text, *listed, places) in enumerate(parts):
            fates: list[tuple[Fate, str]] = []
            for rank, closes in enumerate(listed[-1]):
                if closes:
                    inside = rank < beams
                    why = "its end" if inside else f"an end, but not among the {beams} likeliest"
                    fates.append(("ended" if inside else "dropped", why))
                elif rank in places:
                    fates.append(("kept", f"one of the {beams} likeliest that go on"))
                else:
                    fates.append(("dropped", f"{beams} others are likelier"))
            self._grow(text, place * len(self._open.get(text, [-1])), [*zip(*listed[:4], fates, strict=True)], places)
        self._looked.clear()

    def drew(self, texts: list[int], chances: Tensor, chosen: list[int], ends: list[bool], *, greedy: bool) -> None:
        """Hear a step of drawing: log p [rows, vocabulary] and the ids that were taken, which may end their rows."""
        count = min(self.shown, chances.shape[1])
        values, words = chances.topk(count, dim=1)
        for place, (text, number, over) in enumerate(zip(texts, chosen, ends, strict=True)):
            listed = dict(zip(words[place].tolist(), values[place].tolist(), strict=True))
            listed |= {number: float(chances[place, number])}
            before = self._before(text, 0)
            taken = "the likeliest" if greedy else "drawn"
            rows = [
                (before + chance, 0, word, before + chance,
                 ("ended" if over else "kept", taken) if word == number else ("dropped", f"not {taken}"))
                for word, chance in listed.items()
            ]  # fmt: skip
            self._grow(text, place, rows, [[*listed].index(number)])
        self._looked.clear()

    def _before(self, text: int, row: int) -> float:
        parent = self._open.get(text, [-1])[row]
        return 0.0 if parent < 0 else self.nodes[text][parent].sum

    def _grow(self, text: int, first: int, listed: list[Any], places: list[int]) -> None:
        """Add the candidates of a text whose rows start at `first` in the batch; those at `places` are its new rows."""
        nodes, parents = self.nodes.setdefault(text, []), self._open.get(text, [-1])
        numbers: list[int] = []
        for total, row, word, score, (fate, why) in listed:
            numbers.append(len(nodes) if total > -math.inf else -1)
            if total == -math.inf:  # of a vocabulary that is smaller than the beam
                continue
            looked: dict[str, list[list[float]]] = {}
            for name, _, value in self._looked if fate != "dropped" else ():
                looked.setdefault(name, []).append(value[first + row].tolist())
            step = 1 if parents[row] < 0 else nodes[parents[row]].step + 1
            node = Node(
                step=step, parent=parents[row], id=word, sum=total, score=score, fate=fate, why=why, looked=looked
            )
            nodes.append(node)
        self._open[text] = [numbers[place] for place in places]
