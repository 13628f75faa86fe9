"""Which words of a text a decoder looked at when it wrote each of its own: the alignment of the two texts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from keel.data.sentence_splitting import CHINESE
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Encoding, Tokenizer
from keel.errors import KeelError
from keel.nn.encoder import Decoder, Encoder
from keel.systems.system import System

NAMES = ("alignment", "cross_attention")
"""Under which decoders show where they look: seq2seq, and each layer of a transformer."""


@dataclass(frozen=True, eq=False)
class Alignment:
    """Of each written word, how much of the look went to each word that it was written from."""

    source: list[str]
    target: list[str]
    weights: np.ndarray  # [target, source]; each row sums to 1

    def to_dict(self) -> dict[str, Any]:
        return {"source": self.source, "target": self.target, "weights": self.weights.round(4).tolist()}

    def lines(self) -> list[str]:
        """Each written word with the word that it looked at most."""
        width = max(map(len, self.target), default=0)
        best = self.weights.argmax(1)
        return [
            f"{word:>{width}}  {self.weights[row, best[row]]:.2f}  {self.source[best[row]]}"
            for row, word in enumerate(self.target)
        ]


def align(
    system: System,
    encoder: Encoder,
    decoder: Decoder,
    tokenizers: tuple[Tokenizer, Tokenizer],
    source: str,
    target: str,
    *,
    layer: int | None = None,
    head: int | None = None,
    pieces: bool = False,
) -> Alignment:
    """How a decoder looks at `source` when it writes `target`; `tokenizers` are theirs.

    A transformer has a look for each layer and head: the mean is taken, of all or of the one named. Words that were cut
    into pieces are put together again unless `pieces` are asked for: what goes to the pieces of a word is added up, and
    its own pieces' looks are averaged. Chinese has no blanks to tell its words by: there a piece stays alone unless it
    holds a part of a character. Of a text that is too long, what the model reads is shown.
    """
    reads, writes = tokenizers
    read = reads.encode(source).truncate(system.max_length - len(system.build_inputs(reads, []).ids))
    written = writes.encode(target).truncate(system.max_length - 1)
    framed = system.build_inputs(reads, read.ids)
    rows = TokenBatch.pad([framed.ids]).to(next(decoder.parameters()).device)
    looks: dict[int, Tensor] = {}

    def record(name: str, number: int, value: Tensor) -> None:
        if name in NAMES:
            looks[number] = value[0].float().cpu()  # [time, source], of a transformer [heads, time, source]

    was_training = encoder.training, decoder.training
    encoder.eval()
    decoder.eval()
    try:
        with torch.inference_mode():
            memory = decoder.project_source(encoder(rows), rows)
            decoder(torch.tensor([[writes.cls_id, *written.ids]], device=rows.ids.device), memory, record=record)
    finally:
        encoder.train(was_training[0])
        decoder.train(was_training[1])
    if layer is not None and layer not in looks:
        raise KeelError(f"there is no layer {layer} that looks at the source: choose from 0 to {len(looks) - 1}")
    chosen = [looks[number] if looks[number].ndim == 3 else looks[number][None] for number in sorted(looks)]
    weights = torch.stack(chosen if layer is None else [looks[layer].reshape(chosen[0].shape)])  # [layers, heads, ...]
    if head is not None and not 0 <= head < weights.shape[1]:
        raise KeelError(f"there is no head {head}: choose from 0 to {weights.shape[1] - 1}")
    weights = weights if head is None else weights[:, head : head + 1]
    found = weights.mean((0, 1)).numpy()  # [target and its end, source with its marks]
    across = _grouped(framed.ids, framed.first_start, read, source, reads, apart=pieces)
    down = _grouped([*written.ids, writes.sep_id], 0, written, target, writes, apart=pieces)
    found = np.stack([found[:, places].sum(1) for _, places in across], 1)
    found = np.stack([found[places].mean(0) for _, places in down])
    return Alignment([name for name, _ in across], [name for name, _ in down], found)


def _grouped(
    ids: Sequence[int], first: int, pieces: Encoding, text: str, tokenizer: Tokenizer, *, apart: bool
) -> list[tuple[str, list[int]]]:
    """The words of a row, each with its places, or its pieces if they stay apart; the marks around the text, whose
    pieces start at `first`, are words of their own."""
    last = first + len(pieces.ids)
    marks = [[place] for place in range(len(ids))]
    words = [[first + place for place in group] for group in _words(pieces, text)]
    grouped = [*marks[:first], *(marks[first:last] if apart else words), *marks[last:]]

    def name(places: list[int]) -> str:
        if not first <= places[0] < last:
            return tokenizer.token_of(ids[places[0]])
        start, end = pieces.offsets[places[0] - first][0], pieces.offsets[places[-1] - first][1]
        return text[start:end].strip() or tokenizer.token_of(ids[places[0]])

    return [(name(places), places) for places in grouped]


def _words(pieces: Encoding, text: str) -> Iterator[list[int]]:
    """The places of the pieces of each word; next to a Chinese character each piece of whole characters is a word."""
    for _, word in groupby(range(len(pieces.ids)), pieces.word_ids.__getitem__):
        group: list[int] = []
        for place in word:
            start, end = pieces.offsets[place]
            before = text[pieces.offsets[group[0]][0] : pieces.offsets[group[-1]][1]] if group else ""
            whole = before.strip() and start >= pieces.offsets[group[-1]][1]
            if whole and (CHINESE.match(before[-1]) or CHINESE.match(text[start:end])):
                yield group
                group = []
            group.append(place)
        yield group
