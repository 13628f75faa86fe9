"""The inputs of a network whose attention is recorded: their tokens, and how the network is run."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch

from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.events import OnEvent, note
from keel.explain.text_tokens import SINK, Merge, TextToken, text_tokens
from keel.model import Model
from keel.nn.encoder import Recorder
from keel.nn.multihead_attention import MultiHeadAttention
from keel.systems.capabilities import LanguageModelSystem
from keel.tasks.sequence_to_sequence import SequenceToSequence

AttentionKind = Literal["encoder", "decoder", "cross"]


class AttentionInput(NamedTuple):
    """A network with its input: what it attends with, and how it is run."""

    kind: AttentionKind
    queries: list[TextToken]
    keys: list[TextToken]
    layers: int
    heads: int
    separator: str
    """The token of [SEP]; empty if there is none."""
    run: Callable[[Recorder], object]


def encoder_input(model: Model, texts: tuple[str, str], merge: Merge, on_event: OnEvent) -> AttentionInput:
    """Self-attention of an encoder, or of a decoder-only language model."""
    system, tokenizer, encoder = model.system, model.tokenizer, model.encoder
    modules = [module for module in encoder.modules() if isinstance(module, MultiHeadAttention)]
    if not modules:
        remedy = "use a Transformer such as bert, electra or gpt"
        if isinstance(model.task, SequenceToSequence):
            remedy = "leave out --kind for the cross-attention of its decoder"
        name = system.name if model.title == system.name else f"{model.title} ({system.name})"
        raise UsageError(f"{name} has no self-attention: {remedy}")
    paired, alone = bool(texts[1].strip()), model.task is None and isinstance(system, LanguageModelSystem)
    if paired and (alone or isinstance(model.task, SequenceToSequence)):
        what = "is a causal language model, which reads one text" if alone else "encodes the source only"
        raise UsageError(f"{model.title} {what}: leave out the second text")
    first, second = (tokenizer.encode(text) for text in texts)
    room = system.max_length if alone else system.max_text_length(tokenizer, pair=paired)
    count = len(first.ids) + len(second.ids)
    if count > room:
        kept = max(room - len(second.ids), room // 2) if paired else room
        first = first.truncate(kept)
        second = second.truncate(room - len(first.ids))
        note(on_event, f"the text has {count:,} tokens: truncated to the first {room:,} that the model reads")
    if alone:
        ids, segments, starts = first.ids, [0] * len(first.ids), [0]
    else:
        inputs = system.build_inputs(tokenizer, first.ids, second.ids if paired else None)
        ids, segments = inputs.ids, inputs.segments
        starts = [inputs.first_start, inputs.second_start] if paired else [inputs.first_start]
    if not ids:
        raise UsageError("the text has no tokens: give a text with words")
    tokens = text_tokens(ids, [*zip(starts, (first, second), texts, strict=False)], tokenizer, merge)
    if getattr(encoder, "sink", None) is not None:
        shifted = [each._replace(positions=[1 + position for position in each.positions]) for each in tokens]
        tokens = [TextToken(SINK, [0]), *shifted]
    batch = TokenBatch.pad([ids], [segments]).to(model.device)
    return AttentionInput(
        kind="decoder" if modules[0].causal else "encoder",
        queries=tokens,
        keys=tokens,
        layers=len(encoder.blocks()),
        heads=modules[0].heads,
        separator=_separator(tokenizer),
        run=lambda record: encoder(batch, record=record),
    )


def decoder_input(
    model: Model,
    task: SequenceToSequence,
    kind: AttentionKind,
    texts: tuple[str, str],
    merge: Merge,
    on_event: OnEvent,
) -> AttentionInput:
    """Cross-attention or masked self-attention of an encoder-decoder's decoder, which reads the target."""
    system, encoder, decoder = model.system, model.encoder, task.decoder
    modules = [module for module in decoder.modules() if isinstance(module, MultiHeadAttention)]
    if kind == "decoder" and not modules:
        raise UsageError(f"the decoder of {system.name} has cross-attention only: leave out --kind")
    sides = (task.tokenizer, system.max_text_length(task.tokenizer)), (task.target_tokenizer, system.max_length - 1)
    read, written = (tokenizer.encode(text) for (tokenizer, _), text in zip(sides, texts, strict=True))
    for name, encoding, (_, room) in zip(("source", "target"), (read, written), sides, strict=True):
        if len(encoding.ids) > room:
            note(on_event, f"the {name} has {len(encoding.ids):,} tokens: truncated to the first {room:,}")
    read, written = read.truncate(sides[0][1]), written.truncate(sides[1][1])
    inputs = system.build_inputs(task.tokenizer, read.ids)
    batch = TokenBatch.pad([inputs.ids]).to(model.device)
    ids = [task.target_tokenizer.cls_id, *written.ids]
    predicted = [*written.ids, task.target_tokenizer.sep_id]
    _, target = texts

    def run(record: Recorder) -> None:
        memory = decoder.project_source(encoder(batch), batch)
        decoder(torch.tensor([ids], device=model.device), memory, record=record)

    if kind == "decoder":
        queries = keys = text_tokens(ids, [(1, written, target)], task.target_tokenizer, merge, first=1)
    else:
        queries = text_tokens(predicted, [(0, written, target)], task.target_tokenizer, merge, first=1)
        keys = text_tokens(inputs.ids, [(inputs.first_start, read, texts[0])], task.tokenizer, merge)
    return AttentionInput(
        kind=kind,
        queries=queries,
        keys=keys,
        layers=len(decoder.blocks()) or 1,
        heads=modules[0].heads if modules else 1,
        separator=_separator(task.tokenizer),
        run=run,
    )


def _separator(tokenizer: Tokenizer) -> str:
    return tokenizer.token_of(tokenizer.sep_id) if tokenizer.has_special_token("sep") else ""
