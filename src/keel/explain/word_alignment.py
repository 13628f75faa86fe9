"""Word alignment: cross-attention of a decoder between the words of a source and of its target."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rich.cells import cell_len
from torch import Tensor

from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Encoding, Tokenizer
from keel.errors import KeelError
from keel.explain.text_tokens import TextToken, merge_columns, merge_rows, text_tokens
from keel.nn.encoder import Decoder, Encoder
from keel.nn.inference_loop import eval_mode
from keel.systems.system import System
from keel.text_table import TextLines, pad_left

NAMES = ("alignment", "cross_attention")
"""Names under which decoders record cross-attention: seq2seq, and each layer of a transformer."""


@dataclass(frozen=True, eq=False)
class Alignment(TextLines):
    """Attention of each target word to each source word."""

    source: list[str]
    target: list[str]
    weights: np.ndarray  # [target, source]; each row sums to 1

    def __repr__(self) -> str:
        return f"Alignment({' '.join(self.source)!r:.60}, {' '.join(self.target)!r:.60})"

    def to_dict(self) -> dict[str, Any]:
        return {"source": self.source, "target": self.target, "weights": self.weights.round(4).tolist()}

    def lines(self) -> list[str]:
        """Each target word with the source word of the largest weight."""
        width = max(map(cell_len, self.target), default=0)
        best = self.weights.argmax(1)
        return [
            f"{pad_left(word, width)}  {self.weights[row, best[row]]:.2f}  {self.source[best[row]]}"
            for row, word in enumerate(self.target)
        ]


def align_words(
    system: System,
    encoder: Encoder,
    decoder: Decoder,
    tokenizers: tuple[Tokenizer, Tokenizer],
    source: str,
    target: str,
    *,
    layer: int | None = None,
    head: int | None = None,
    subwords: bool = False,
) -> Alignment:
    """Cross-attention of a decoder that generates `target` from `source`; `tokenizers` are theirs.

    A transformer's layers and heads are averaged, unless one is named. Subwords are merged into words unless `subwords`
    is set: weights of the source's subwords are summed, those of the target's averaged. In Chinese, which has no
    whitespace, each token of whole characters is a word. Texts beyond the maximum length are truncated.
    """
    source_tokenizer, target_tokenizer = tokenizers
    read = source_tokenizer.encode(source).truncate(system.max_text_length(source_tokenizer))
    written = target_tokenizer.encode(target).truncate(system.max_length - 1)
    inputs = system.build_inputs(source_tokenizer, read.ids)
    batch = TokenBatch.pad([inputs.ids]).to(next(decoder.parameters()).device)
    recorded: dict[int, Tensor] = {}

    def record(name: str, number: int, value: Tensor) -> None:
        if name in NAMES:
            recorded[number] = value[0].float().cpu()  # [time, source], of a transformer [heads, time, source]

    with torch.inference_mode(), eval_mode(encoder), eval_mode(decoder):
        memory = decoder.project_source(encoder(batch), batch)
        ids = torch.tensor([[target_tokenizer.cls_id, *written.ids]], device=batch.ids.device)
        decoder(ids, memory, record=record)
    if layer is not None and layer not in recorded:
        raise KeelError(f"there is no layer {layer} with cross-attention: choose from 0 to {len(recorded) - 1}")
    chosen = [recorded[number] for number in (sorted(recorded) if layer is None else [layer])]
    weights = torch.stack([each if each.ndim == 3 else each[None] for each in chosen])  # [layers, heads, ...]
    if head is not None and not 0 <= head < weights.shape[1]:
        raise KeelError(f"there is no head {head}: choose from 0 to {weights.shape[1] - 1}")
    found = (
        (weights if head is None else weights[:, head : head + 1]).mean((0, 1)).numpy()
    )  # [target with its end token, source with its special tokens]
    keys = _aligned_tokens(inputs.ids, inputs.first_start, read, source, source_tokenizer, subwords=subwords)
    end = target_tokenizer.sep_id
    queries = _aligned_tokens([*written.ids, end], 0, written, target, target_tokenizer, subwords=subwords)
    found = merge_rows(merge_columns(found, keys), queries)
    return Alignment([each.name for each in keys], [each.name for each in queries], found)


def _aligned_tokens(
    ids: Sequence[int], first: int, encoding: Encoding, text: str, tokenizer: Tokenizer, *, subwords: bool
) -> list[TextToken]:
    """The words or subwords of a sequence, named by their text; the tokens of the text start at `first`."""
    tokens = text_tokens(ids, [(first, encoding, text)], tokenizer, "none" if subwords else "characters")
    return [each._replace(name=text[each.start : each.end].strip() or each.name) for each in tokens]
