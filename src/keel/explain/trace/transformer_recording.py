"""What is recorded of Transformers: the embeddings and blocks of BERT, ELECTRA, GPT and the encoder-decoder."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from keel.explain.trace.attention_kinds import AttentionKinds, cross_attention_kinds, rotary_kinds, self_attention_kinds
from keel.explain.trace.tensor_recorder import AttentionCall, TensorRecorder
from keel.explain.trace.transformer_kinds import (
    EMBEDDING_SUM,
    FINAL_NORM,
    NORMED_EMBEDDINGS,
    NORMED_TOKENS,
    POSITION_EMBEDDINGS,
    PROJECTED_EMBEDDINGS,
    SCALED_EMBEDDINGS,
    SCALED_SUM,
    SEGMENT_EMBEDDINGS,
    SEGMENT_IDS,
    SINUSOIDAL_POSITIONS,
    SUMMED_EMBEDDINGS,
    TOKEN_EMBEDDINGS,
    TOKEN_IDS,
    feed_forward_kinds,
    sandwich_kind,
    sublayer_kinds,
)
from keel.nn.encoder import Encoder
from keel.nn.multihead_attention import MultiHeadAttention
from keel.nn.transformer_blocks import DecoderBlock, TransformerBlock, TransformerStack
from keel.systems.bert import BertEncoder
from keel.systems.gpt import GptEncoder
from keel.systems.modernbert import ModernBertBlock, ModernBertEncoder, RotaryAttention
from keel.systems.transformer import (
    PositionEmbedding,
    TransformerDecoder,
    TransformerEncoder,
    sinusoidal_positions,
)


def watch_transformer(recorder: TensorRecorder, network: Encoder | TransformerDecoder) -> bool:
    """Record embeddings and blocks of a Transformer; False if the network is none."""
    if isinstance(network, ModernBertEncoder):
        recorder.watch(network.words, before=TOKEN_IDS, after=TOKEN_EMBEDDINGS)
        recorder.watch(network.norm, after=NORMED_TOKENS)
        _watch_stack(recorder, network.stack, network.final_norm)
    elif isinstance(network, BertEncoder):
        _watch_bert(recorder, network)
    elif isinstance(network, GptEncoder):
        _watch_gpt(recorder, network)
    elif isinstance(network, TransformerEncoder | TransformerDecoder):
        if isinstance(network, TransformerEncoder):
            recorder.watch(network.words, before=TOKEN_IDS)
        recorder.watch_call(network.positions, lambda inputs, output: _record_scaled(recorder, network, inputs, output))
        _watch_stack(recorder, network.stack, network.norm)
    else:
        return False
    return True


def _watch_bert(recorder: TensorRecorder, encoder: BertEncoder) -> None:
    def record_sum(vectors: Tensor) -> None:
        time, segments = vectors.shape[1], encoder.segments
        if segments is not None and not recorder.has(SEGMENT_EMBEDDINGS):  # all tokens are of the first text
            recorder.add(SEGMENT_EMBEDDINGS, segments.weight[0].expand_as(vectors))
        assert encoder.positions is not None
        recorder.add(POSITION_EMBEDDINGS, encoder.positions.weight[:time])
        recorder.add(EMBEDDING_SUM, vectors)

    recorder.watch(encoder.words, before=TOKEN_IDS, after=TOKEN_EMBEDDINGS)
    if encoder.segments is not None:
        recorder.watch(encoder.segments, before=SEGMENT_IDS, after=SEGMENT_EMBEDDINGS)
    recorder.watch(encoder.norm, before=record_sum, after=NORMED_EMBEDDINGS)
    project = getattr(encoder, "project", None)  # of ELECTRA
    if isinstance(project, nn.Linear):
        recorder.watch(project, after=PROJECTED_EMBEDDINGS)
    _watch_stack(recorder, encoder.stack)


def _watch_gpt(recorder: TensorRecorder, encoder: GptEncoder) -> None:
    def record_sum(vectors: Tensor) -> None:
        if not recorder.has(POSITION_EMBEDDINGS):
            recorder.add(POSITION_EMBEDDINGS, encoder.positions.weight[: vectors.shape[1]])
        recorder.add(SUMMED_EMBEDDINGS, vectors)

    recorder.watch(encoder.words, before=TOKEN_IDS, after=TOKEN_EMBEDDINGS)
    recorder.watch(encoder.positions, after=lambda vectors: recorder.add(POSITION_EMBEDDINGS, vectors[0]))
    recorder.watch(encoder.dropout, before=record_sum)
    _watch_stack(recorder, encoder.stack, encoder.norm)


def _record_scaled(
    recorder: TensorRecorder,
    network: TransformerEncoder | TransformerDecoder,
    inputs: tuple[Any, ...],
    output: Tensor,
) -> None:
    """Embeddings of the Transformer from the input and output of their sum."""
    embedding: PositionEmbedding = network.positions
    words: Tensor = inputs[0]
    begin = inputs[1] if inputs[1:] else 0
    end, width = begin + words.shape[1], words.shape[2]
    recorder.add(TOKEN_EMBEDDINGS, words)
    recorder.add(SCALED_EMBEDDINGS, words * width**0.5)
    if embedding.learned is not None:
        recorder.add(POSITION_EMBEDDINGS, embedding.learned.weight[begin:end])
    elif embedding.kind == "sinusoidal":
        table = sinusoidal_positions(embedding.max_positions, width, words.device)
        recorder.add(SINUSOIDAL_POSITIONS, table[begin:end])
    recorder.add(SCALED_SUM, output)


def _watch_stack(recorder: TensorRecorder, stack: TransformerStack, norm: nn.Module | None = None) -> None:
    """Record all blocks and the norm above them."""
    recorder.watch_all_queries(stack)
    for layer, block in enumerate(stack.blocks, 1):
        _watch_block(recorder, block, layer)
    if isinstance(norm, nn.LayerNorm):
        recorder.watch(norm, after=FINAL_NORM)


def _watch_block(recorder: TensorRecorder, block: TransformerBlock, layer: int) -> None:
    cross = block.cross if isinstance(block, DecoderBlock) else None
    cross_norm = block.cross_norm if isinstance(block, DecoderBlock) else None
    sublayers = [
        ("attention", block.attention_norm),
        ("cross-attention", cross_norm),
        ("feed-forward", block.output_norm),
    ]
    present = [(name, norm) for name, norm in sublayers if norm is not None]
    sandwiched: dict[str, nn.Module] = {}
    if isinstance(block, ModernBertBlock) and isinstance(block.after_attention, nn.LayerNorm):
        sandwiched = {"attention": block.after_attention, "feed-forward": block.after_feed_forward}
    before = "stream"
    read: dict[str, str] = {}  # what each sub-layer reads
    for number, (name, norm) in enumerate(present, 1):
        is_last = number == len(present)
        output = f"{name} output norm" if name in sandwiched else f"{name} output"
        kinds = sublayer_kinds(number, name, output, before, pre_norm=block.pre_norm, last=is_last)
        if block.pre_norm:
            if isinstance(norm, nn.LayerNorm):
                read[name] = kinds.norm.name
                recorder.watch(norm, after=kinds.norm, layer=layer)
            else:
                read[name] = before
            if name in sandwiched:
                recorder.watch(sandwiched[name], after=sandwich_kind(name), layer=layer)
            following: nn.Module = block if is_last else present[number][1]
            side = {"after": kinds.residual} if is_last else {"before": kinds.residual}
            recorder.watch(following, layer=layer, **side)
            before = kinds.residual.name
        else:
            read[name] = before
            recorder.watch(norm, before=kinds.residual, after=kinds.norm, layer=layer)
            before = kinds.norm.name
    causal = block.attention.causal
    own = self_attention_kinds(causal=causal, source=read["attention"])
    cached = self_attention_kinds(causal=causal, source=read["attention"], cached=True)
    if isinstance(block.attention, RotaryAttention):
        own = rotary_kinds(own, block.attention.window)
    _watch_attention(recorder, block.attention, [own, cached], layer)
    if cross is not None:
        _watch_attention(recorder, cross, [cross_attention_kinds(read["cross-attention"])], layer)
    hidden, activated, output = feed_forward_kinds(block, read["feed-forward"])
    recorder.watch(block.expand, after=hidden, layer=layer)
    recorder.watch(block.contract, before=activated, after=output, layer=layer)


def _watch_attention(
    recorder: TensorRecorder, module: MultiHeadAttention, variants: Sequence[AttentionKinds], layer: int
) -> None:
    """Record an attention layer; the variants are without and with a KV cache, or that of cross-attention alone, whose
    keys and values are recorded where they are computed."""

    def record(call: AttentionCall) -> None:
        is_cached = call.key.shape[2] > call.query.shape[2]
        kinds = variants[is_cached] if variants[1:] else variants[0]
        recorder.add(kinds.query, call.query, layer)
        if variants[1:]:
            recorder.add(kinds.key, call.key, layer)
            recorder.add(kinds.value, call.value, layer)
        scores = call.scores()
        recorder.add(kinds.scores, scores, layer)
        recorder.add(kinds.weights, scores.softmax(-1), layer)

    recorder.watch_attention(module, record)
    recorder.watch(module.out, before=variants[0].heads, after=variants[0].output, layer=layer)
