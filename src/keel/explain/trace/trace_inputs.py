"""Inputs of a trace: texts as a batch, the names of its tokens, and the bounds of both."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn

from keel.data.token_batch import TokenBatch
from keel.errors import UsageError
from keel.explain.text_tokens import SINK, token_names
from keel.explain.trace.transformer_kinds import TOKENS
from keel.model import Model
from keel.nn.multihead_attention import MultiHeadAttention
from keel.systems.bert import Bert

MAX_TOKENS = 128
"""Tokens of all sequences of a trace, padding included."""
PAD = "[PAD]"


class EncoderInput(NamedTuple):
    """A batch as an encoder reads it, and the names of its tokens."""

    batch: TokenBatch
    names: list[list[str]]


def check_size(count: int) -> None:
    """Refuse an input of too many tokens."""
    if count > MAX_TOKENS:
        what = f"there are {count:,} tokens with special tokens and padding, and a trace shows at most {MAX_TOKENS}"
        raise UsageError(f"{what}: give a shorter text")


def plain_input(model: Model, texts: Sequence[str], second: str) -> EncoderInput:
    """Texts in the input template of the system."""
    system, tokenizer = model.system, model.tokenizer
    if second and not isinstance(system, Bert):
        raise UsageError(f"{system.name} reads one text: leave out the second one")
    if model.sentence_pooling is not None and model.sentence_pooling.lowercase:
        texts, second = [text.lower() for text in texts], second.lower()
    *first, other = tokenizer.encode_many([*texts, second], oov_ids=system.uses_subwords)
    inputs = [system.build_inputs(tokenizer, ids, other if second else None) for ids in first]
    if not all(each.ids for each in inputs):
        raise UsageError("the text has no tokens: give a text with words")
    longest = max(len(each.ids) for each in inputs)
    if longest > system.max_length:
        what = (
            f"the text has {longest:,} tokens with special tokens, and this model reads at most {system.max_length:,}"
        )
        raise UsageError(f"{what}: give a shorter one")
    check_size(longest * len(inputs))
    names = [[*token_names(tokenizer, each.ids), *[PAD] * (longest - len(each.ids))] for each in inputs]
    batch = TokenBatch.pad([each.ids for each in inputs], [each.segments for each in inputs])
    return EncoderInput(system.with_subword_units(batch, tokenizer).to(model.device), names)


def sequence_labels(encoder: nn.Module, names: list[list[str]]) -> dict[str, list[list[str]]]:
    """Names along the axes of tokens; those of a GPT with a sink begin with it."""
    sink = [SINK] if getattr(encoder, "sink", None) is not None else []
    rows = [[*sink, *each] for each in names]
    attends = any(isinstance(module, MultiHeadAttention) for module in encoder.modules())
    return dict.fromkeys((TOKENS, "queries", "keys") if attends else (TOKENS,), rows)


def vocabulary_ids(batch: TokenBatch) -> Tensor:
    """The ids of a batch, which may index into the words with subword units; -1 for a word beyond the vocabulary."""
    return batch.ids if batch.subword_units is None else batch.subword_units.word_ids[batch.ids]
