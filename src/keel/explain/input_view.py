"""What an encoder reads: the tokens of a text or pair, with their segments and positions."""

from dataclasses import dataclass
from typing import Any, Literal

from keel.data.input_windows import text_windows
from keel.errors import UsageError
from keel.explain.text_tokens import token_names
from keel.model import Model
from keel.systems.bert import BertEncoder
from keel.systems.gpt import GptEncoder
from keel.systems.transformer import Transformer, TransformerEncoder
from keel.text_table import aligned_lines


@dataclass(frozen=True, kw_only=True)
class InputView:
    """The input embeddings of a text or pair: one vector per token, segment and position, added."""

    tokens: list[str]
    ids: list[int]
    special: list[bool]
    """Whether each token is one of the input template."""
    segments: list[int] | None
    """Segment ids (0: A, 1: B); None for a model without segment embeddings."""
    positions: list[int]
    position_encoding: Literal["learned", "sinusoidal", "none"] = "learned"
    tables: dict[str, tuple[int, int]]
    """Rows and width of each embedding table, by its name; sinusoidal positions have no table."""
    left_out: int = 0
    """Tokens of the texts beyond the maximum length, which further windows would hold."""

    def lines(self) -> list[str]:
        rows = [
            ["token", "id", "position"],
            *zip(self.tokens, map(str, self.ids), map(str, self.positions), strict=True),
        ]
        if self.segments is not None:
            names = ["segment", *map(segment_name, self.segments)]
            rows = [[*row, name] for row, name in zip(rows, names, strict=True)]
        tables = [f"{name}: {count:,} x {width}" for name, (count, width) in self.tables.items()]
        return [*aligned_lines(rows, left=1), "", *tables]

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {"tokens": self.tokens, "ids": self.ids, "positions": self.positions}
        found["position_encoding"] = self.position_encoding
        found |= {} if self.segments is None else {"segments": self.segments}
        return found | {"tables": {name: list(shape) for name, shape in self.tables.items()}, "left_out": self.left_out}


def segment_name(segment: int) -> str:
    """A for the first segment, B for the second."""
    return chr(ord("A") + segment) if segment < 26 else str(segment)


def input_view(model: Model, text: str, second: str = "") -> InputView:
    """The input of a text, or of a pair, as the encoder reads it; of a long one, the first window."""
    system, encoder, tokenizer = model.system, model.encoder, model.tokenizer
    rotary = isinstance(encoder, BertEncoder) and encoder.positions is None
    if rotary or not isinstance(encoder, BertEncoder | GptEncoder | TransformerEncoder):
        what = f"{system.name} adds neither segment nor position embeddings to its tokens"
        raise UsageError(f"{what}: choose a model of bert, electra, gpt or transformer")
    if not text.strip():
        raise UsageError("text is empty: give a text with --text")
    first = tokenizer.encode(text).ids
    other = tokenizer.encode(second).ids if second else None
    window = text_windows(first, other, system.max_text_length(tokenizer, pair=other is not None))[0]
    inputs = system.build_inputs(tokenizer, *window)
    read = sum(len(part) for part in window if part is not None)
    inside = {*range(inputs.first_start, inputs.first_start + len(window[0]))}
    if window[1] is not None:
        inside |= {*range(inputs.second_start, inputs.second_start + len(window[1]))}
    positions = encoder.positions.learned if isinstance(encoder, TransformerEncoder) else encoder.positions
    segments = encoder.segments if isinstance(encoder, BertEncoder) else None
    parts = {"tokens": encoder.words, "segments": segments, "positions": positions}
    tables = {name: (table.num_embeddings, table.embedding_dim) for name, table in parts.items() if table is not None}
    return InputView(
        tokens=token_names(tokenizer, inputs.ids),
        ids=inputs.ids,
        special=[position not in inside for position in range(len(inputs.ids))],
        segments=inputs.segments if "segments" in tables else None,
        positions=[*range(len(inputs.ids))],
        position_encoding=system.position_encoding if isinstance(system, Transformer) else "learned",
        tables=tables,
        left_out=len(first) + len(other or []) - read,
    )
