"""Attention weights of a text in all layers and heads: self-attention, masked self-attention and cross-attention.

Layers and heads are numbered from 1, as in papers and by `--layer` elsewhere, where 0 are the embeddings.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
import torch
from rich.cells import cell_len
from torch import Tensor

from keel.errors import UsageError
from keel.events import OnEvent, ignore, note, pluralize
from keel.explain.attention_inputs import AttentionInput, AttentionKind, decoder_input, encoder_input
from keel.explain.text_tokens import Merge, find_word, merge_columns, merge_rows
from keel.model import Model
from keel.nn.encoder import SelectedLayers
from keel.nn.inference_loop import eval_mode
from keel.tasks.sequence_to_sequence import SequenceToSequence
from keel.text_table import TextLines, cut_text, pad_left

RECORDED: dict[AttentionKind, tuple[str, ...]] = {
    "encoder": ("attention",),
    "decoder": ("attention", "masked_attention"),
    "cross": ("cross_attention", "alignment"),
}
"""The names under which networks record each kind."""
TITLES: dict[AttentionKind, str] = {
    "encoder": "self-attention of the encoder",
    "decoder": "masked self-attention of the decoder",
    "cross": "cross-attention of the decoder to the source",
}
TOP = 3
"""Tokens that a line shows for one token."""
MAX_LINES = 40
"""Tokens that the lines of one head show."""
HEADS_PER_LINE = 16
NAME_WIDTH = 16
"""Columns of a terminal for a token."""
STRONGEST = 5
"""Heads that are listed for two words."""


@dataclass(frozen=True, eq=False)
class Attention(TextLines):
    """Attention weights: how much each token (query) attends to each token (key)."""

    model: str
    kind: AttentionKind
    queries: list[str]
    """Tokens or words that attend; with cross-attention, the target tokens that the decoder predicts."""
    keys: list[str]
    """Tokens or words that are attended to."""
    layers: list[int]
    """Numbers of the layers, from 1."""
    heads: list[int]
    """Numbers of the heads, from 1."""
    weights: np.ndarray  # [layers, heads, queries, keys] float32
    """Each row sums to 1; words get the sum of the weights of their subwords, and give the mean."""
    uniform: np.ndarray  # [queries, keys]
    """The same if each token attended equally to all that it can attend to."""
    separators: list[int]
    """Positions of [SEP] among the keys."""
    merge: Merge = "none"
    from_word: str = ""
    from_positions: Sequence[int] = ()
    """Positions of `from_word` among the queries."""
    to_word: str = ""
    to_positions: Sequence[int] = ()
    """Positions of `to_word` among the keys."""

    def __repr__(self) -> str:
        sizes = f"{pluralize(len(self.layers), 'layer')} x {pluralize(len(self.heads), 'head')}"
        unit = "tokens" if self.merge == "none" else "words"
        return f"Attention({self.model!r}, {self.kind}, {sizes}, {len(self.queries)} x {len(self.keys)} {unit})"

    @property
    def title(self) -> str:
        """The kind of attention."""
        return TITLES[self.kind]

    @cached_property
    def first_token_shares(self) -> np.ndarray:
        """[layers, heads] share of attention to the first token, the mean over all other tokens."""
        return self._shares(self.weights, [0])

    @cached_property
    def separator_shares(self) -> np.ndarray:
        """[layers, heads] share of attention to all [SEP], the mean over all other tokens; zeros without any."""
        return self._shares(self.weights, self.separators)

    @property
    def uniform_shares(self) -> tuple[float, float]:
        """The shares of the first token and of [SEP] if attention were uniform."""
        first, separator = (self._shares(self.uniform, positions) for positions in ([0], self.separators))
        return float(first), float(separator)

    def between(self) -> np.ndarray:
        """[layers, heads] attention from `from_word` to `to_word`: the mean over its tokens, of the sum over those of
        the other; all tokens where no word is named for the queries."""
        chosen = self.weights[:, :, self.from_positions] if self.from_word else self.weights
        return chosen[..., list(self.to_positions)].sum(-1).mean(-1)

    def head(self, layer: int, head: int) -> np.ndarray:
        """[queries, keys] weights of one head."""
        return self.weights[self.layers.index(layer), self.heads.index(head)]

    def strongest(self, values: np.ndarray, count: int = STRONGEST) -> list[tuple[int, int, float]]:
        """(layer, head, value) of the largest values [layers, heads], in descending order."""
        order = np.argsort(-values, axis=None, kind="stable")[:count]
        found = [(*divmod(int(index), len(self.heads)), float(values.flat[index])) for index in order]
        return [(self.layers[row], self.heads[column], value) for row, column, value in found]

    def _shares(self, weights: np.ndarray, positions: Sequence[int]) -> np.ndarray:
        """[...] mean share of these keys in weights [..., queries, keys]; a token's attention to itself is left out, as
        the first token of a decoder attends to nothing else."""
        own = set(positions) if self.kind != "cross" else set()
        others = [query for query in range(len(self.queries)) if query not in own] or [*range(len(self.queries))]
        return weights[..., others, :][..., list(positions)].sum(-1).mean(-1)

    def lines(self) -> list[str]:
        """Text of at most 80 columns: two named words through all heads, one head by its tokens, or the shares of the
        first token and of [SEP] in all heads."""
        sizes = f"{pluralize(len(self.layers), 'layer')} x {pluralize(len(self.heads), 'head')}"
        over = f"{len(self.queries)} x {len(self.keys)}" if self.kind == "cross" else str(len(self.keys))
        head = [
            f"{cut_text(self.model, 30)}: {self.title}",
            f"{sizes}, {over} {'tokens' if self.merge == 'none' else 'words'}",
            "",
        ]
        if self.from_word and self.to_word:
            return [*head, *self._pair_lines()]
        if self.from_word or self.to_word:
            return [*head, *self._word_lines()]
        if self.weights.shape[:2] == (1, 1):
            return [*head, *self._head_lines()]
        return [*head, *self._share_lines()]

    def _pair_lines(self) -> list[str]:
        found = self.between()
        strongest = [f"layer {layer} head {head}: {value:.3f}" for layer, head, value in self.strongest(found)]
        title = f"attention from {_cut(self.from_word)!r} to {_cut(self.to_word)!r}, in percent"
        return [title, *self._grid_lines(found), "", "strongest", *(f"  {line}" for line in strongest)]

    def _word_lines(self) -> list[str]:
        mean = self.weights.mean((0, 1))
        if self.from_word:
            names, shares = self.keys, mean[list(self.from_positions)].mean(0)
            title = f"attention from {_cut(self.from_word)!r}"
        else:
            names, shares = self.queries, mean[:, list(self.to_positions)].sum(1)
            title = f"attention to {_cut(self.to_word)!r}"
        order = np.argsort(-shares, kind="stable")[: 4 * TOP]
        return [f"{title}, mean over heads", *(f"{shares[n]:.3f}  {cut_text(names[n], 60)}" for n in order)]

    def _head_lines(self) -> list[str]:
        shown = [*map(_cut, self.queries[:MAX_LINES])]
        width = max(map(cell_len, shown))
        lines = [f"layer {self.layers[0]}, head {self.heads[0]}: the tokens that each attends to most"]
        for name, row in zip(shown, self.weights[0, 0], strict=False):
            best = np.argsort(-row, kind="stable")[:TOP]
            cells = "  ".join(f"{row[key]:.2f} {_cut(self.keys[key])}" for key in best if row[key] > 0)
            lines.append(f"{pad_left(name, width)}  {cells}")
        if len(self.queries) > MAX_LINES:
            lines.append(f"showing {MAX_LINES} of {len(self.queries):,}: --json and --out show all")
        return lines

    def _share_lines(self) -> list[str]:
        first, separator = self.uniform_shares
        title = f"attention to the first token, {_cut(self.keys[0])}, in percent (uniform: {percent_text(first)})"
        lines = [title, *self._grid_lines(self.first_token_shares)]
        if self.separators:
            title = f"attention to {self.keys[self.separators[0]]}, in percent (uniform: {percent_text(separator)})"
            lines += ["", title, *self._grid_lines(self.separator_shares)]
        return lines

    def _grid_lines(self, values: np.ndarray) -> list[str]:
        """Percentages [layers, heads], at most 16 heads in a line."""
        lines: list[str] = []
        for start in range(0, len(self.heads), HEADS_PER_LINE):
            part = slice(start, start + HEADS_PER_LINE)
            lines.append("  head" + "".join(f"{number:4}" for number in self.heads[part]))
            for layer, row in zip(self.layers, values, strict=True):
                lines.append(f"{layer:6}" + "".join(f"{100 * value:4.0f}" for value in row[part]))
        return lines

    def to_dict(self, *, weights: bool = True) -> dict[str, Any]:
        """Plain data for JSON; the weights may be left out."""
        named = {"from": self.from_word, "to": self.to_word}
        first, separator = self.uniform_shares
        found = {
            "model": self.model,
            "kind": self.kind,
            "merge": self.merge,
            "layers": self.layers,
            "heads": self.heads,
            "queries": self.queries,
            "keys": self.keys,
            "first_token_share": rounded(self.first_token_shares),
            "separator_share": rounded(self.separator_shares) if self.separators else None,
            "uniform_share": {"first_token": round(first, 6), "separator": round(separator, 6)},
            **{name: word for name, word in named.items() if word},
        }
        if self.to_word:
            found["between"] = rounded(self.between())
        return {**found, "weights": rounded(self.weights)} if weights else found


def attention_weights(
    model: Model,
    text: str,
    second: str = "",
    *,
    kind: AttentionKind | Literal["auto"] = "auto",
    layers: Sequence[int] = (),
    heads: Sequence[int] = (),
    merge: Merge = "none",
    from_word: str = "",
    to_word: str = "",
    on_event: OnEvent = ignore,
) -> Attention:
    """Attention weights of a text or a pair; of an encoder-decoder, `second` is the target, by default the model's own.

    Only the chosen `layers` and `heads` are recorded, by default all; -1 is the last one. A causal language model
    without a task reads the text alone, without special tokens. Texts beyond the maximum length are truncated with a
    note.
    """
    for value, choices, flag in ((merge, get_args(Merge), "--merge"), (kind, ("auto", *RECORDED), "--kind")):
        if value not in choices:
            raise UsageError(f"{flag} must be one of {', '.join(choices)}, not {value!r}")
    if not text.strip():
        raise UsageError("the text is empty: give a text")
    task = model.task
    if isinstance(task, SequenceToSequence) and kind != "encoder":
        if not second.strip():
            second = str(model.predict(text))
            note(on_event, f"target: {second}")
        given = decoder_input(model, task, "cross" if kind == "auto" else kind, (text, second), merge, on_event)
    else:
        given = encoder_input(model, (text, second), merge, on_event)
        if kind not in ("auto", given.kind):
            raise UsageError(f"{model.title} has {TITLES[given.kind]} only: leave out --kind")
    rows, columns = _numbers(layers, given.layers, "layer"), _numbers(heads, given.heads, "head")
    weights = record_weights(model, given, rows, columns)
    queries, keys = given.queries, given.keys
    uniform = np.ones(weights.shape[-2:], np.float32)
    uniform = np.tril(uniform) if given.kind == "decoder" else uniform
    uniform /= uniform.sum(1, keepdims=True)
    if merge != "none":
        weights, uniform = (merge_rows(merge_columns(each, keys), queries) for each in (weights, uniform))
    texts = text, second
    return Attention(
        model=model.title,
        kind=given.kind,
        queries=[each.name for each in queries],
        keys=[each.name for each in keys],
        layers=rows,
        heads=columns,
        weights=weights,
        uniform=uniform,
        separators=[number for number, each in enumerate(keys) if each.text < 0 and each.name == given.separator],
        merge=merge,
        from_word=from_word,
        from_positions=find_word(queries, texts, from_word, "from") if from_word else (),
        to_word=to_word,
        to_positions=find_word(keys, texts, to_word, "to") if to_word else (),
    )


def record_weights(model: Model, given: AttentionInput, layers: Sequence[int], heads: Sequence[int]) -> np.ndarray:
    """[layers, heads, queries, keys] weights of an input in these layers and heads, numbered from 1."""
    recorded: dict[int, np.ndarray] = {}

    def record(name: str, layer: int, value: Tensor) -> None:
        if name in RECORDED[given.kind]:
            weights = value[0] if value.ndim == 4 else value  # seq2seq has one head: [1, target, source]
            recorded[layer] = weights[[head - 1 for head in heads]].float().cpu().numpy()

    with torch.inference_mode(), eval_mode(model.encoder), eval_mode(model.task):
        given.run(SelectedLayers(record, {layer - 1 for layer in layers}))
    return np.stack([recorded[layer - 1] for layer in layers])


def _numbers(chosen: Sequence[int], count: int, name: str) -> list[int]:
    """The chosen numbers from 1 to `count` in ascending order, by default all; -1 is the last one."""
    found = {number + count + 1 if number < 0 else number for number in chosen}
    if wrong := [
        number for number in chosen if (number + count + 1 if number < 0 else number) not in range(1, count + 1)
    ]:
        raise UsageError(f"there is no {name} {wrong[0]} with attention: choose from 1 to {count}")
    return sorted(found) or [*range(1, count + 1)]


def rounded(values: np.ndarray) -> list[Any]:
    """Numbers with six decimals, as nested lists."""
    return values.astype(np.float64).round(6).tolist()


def _cut(name: str) -> str:
    return cut_text(name, NAME_WIDTH)


def percent_text(share: float) -> str:
    """A share in percent: a whole number, or two digits of a small one."""
    return f"{100 * share:.0f}" if share >= 0.0995 else f"{100 * share:.2g}"
