"""Claims about the networks of trained Transformers: their input, their blocks, and what other networks share."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import keel
from keel.claims.claim import Say, Verdict
from keel.claims.example_texts import PARAGRAPHS, Language, model_and_language
from keel.claims.measures import batch_of, max_difference, parameter_count, show_figure
from keel.claims.small_models import TINY_ELMO
from keel.data.token_batch import TokenBatch
from keel.errors import UsageError
from keel.explain.input_view import input_view, segment_name
from keel.nn.encoder import Encoder
from keel.nn.multihead_attention import MultiHeadAttention
from keel.nn.transformer_blocks import TransformerBlock
from keel.systems.bert import BertEncoder

PAIRS: dict[Language, tuple[str, str]] = {
    "en": ("my dog is cute", "he likes playing"),
    "zh": ("我的狗很可爱", "它喜欢玩"),
}


def input_sum(say: Say, model: keel.Model | None = None) -> Verdict:
    """94: token, segment and position embeddings of a pair, added and normalised, against the network's input."""
    model, encoder, language = _bert(model, say)
    first, second = PAIRS[language]
    view = input_view(model, first, second)
    assert encoder.segments is not None
    assert encoder.positions is not None
    assert view.segments is not None
    say("token     " + " ".join(view.tokens))
    say("segment   " + " ".join(map(segment_name, view.segments)))
    say("position  " + " ".join(map(str, view.positions)))
    parts = {
        "token": encoder.words.weight[view.ids],
        "segment": encoder.segments.weight[view.segments],
        "position": encoder.positions.weight[: len(view.ids)],
    }
    with torch.inference_mode():
        expected = encoder.embed(TokenBatch.pad([view.ids], [view.segments]))[0]
        total = torch.stack([*parts.values()]).sum(0)
        difference = max_difference(encoder.norm(total), expected)
        say(f"layer norm of the sum against the network's input: difference {difference:.0e}")
        share = {name: float(part.norm(dim=-1).mean() / total.norm(dim=-1).mean()) for name, part in parts.items()}
        for name, part in parts.items():
            without = F.cosine_similarity(encoder.norm(total - part), expected, dim=-1).mean()
            say(f"{name}: mean length {share[name]:.2f} of the sum's; cosine of the input without it {without:.2f}")
        alone = input_view(model, first)
    assert alone.segments is not None
    say(f"a single text has segment {segment_name(max(alone.segments))} only: {set(alone.segments) == {0}}")
    show_figure(say, "input", model=model, text=first, second=second)
    return Verdict(
        difference < 1e-4 and set(view.segments) == {0, 1} and set(alone.segments) == {0},
        "the input of every token is the layer norm of the sum of its token, segment and position embedding "
        f"(difference {difference:.0e}), of lengths {', '.join(f'{each:.2f}' for each in share.values())} relative to "
        "the sum",
    )


def stack_by_formulas(say: Say, model: keel.Model | None = None) -> Verdict:
    """51: every block of a trained encoder by its formulas: heads, concatenation, residual connections, layer norms."""
    model, encoder, language = _bert(model, say)
    view = input_view(model, *PAIRS[language])
    batch = TokenBatch.pad([view.ids], [view.segments or [0] * len(view.ids)])
    gaps: list[float] = []
    shapes: dict[str, list[int]] = {}
    with torch.inference_mode():
        layers = [each[0] for each in encoder(batch, all_layers=True).layers]
        say("layer   attention / input   feed-forward / its input   cosine of input and output   difference")
        for number, block in enumerate(encoder.blocks()):
            assert isinstance(block, TransformerBlock)
            x = layers[number]
            heads, mixed = _heads_by_formula(block.attention, x)
            y = block.attention_norm(x + mixed)
            ffn = F.linear(block.activation(F.linear(y, block.expand.weight, block.expand.bias)), block.contract.weight)
            ffn = ffn + block.contract.bias
            gaps.append(max_difference(block.output_norm(y + ffn), layers[number + 1]))
            ratios = [float((new.norm(dim=-1) / old.norm(dim=-1)).mean()) for new, old in ((mixed, x), (ffn, y))]
            alike = F.cosine_similarity(x, layers[number + 1], dim=-1).mean()
            say(f"{number + 1:5}   {ratios[0]:17.2f}   {ratios[1]:24.2f}   {alike:26.2f}   {gaps[-1]:10.0e}")
            q_to_z = f"Q, K, V and Z of each of {len(heads)} heads"
            shapes = {"X": list(x.shape), q_to_z: list(heads[0].shape), "Concat(Z) W^O": list(mixed.shape)}
    say(f"shapes: {'; '.join(f'{name} {shape}' for name, shape in shapes.items())}")
    show_figure(say, "block", model=model)
    return Verdict(
        max(gaps) < 1e-4,
        f"all {len(gaps)} blocks are LayerNorm(x + MultiHead(x)), then LayerNorm(y + FFN(y)), with softmax(QKᵀ/√d)V in "
        f"each head (largest difference {max(gaps):.0e}); the next block reads what the one below gives",
    )


def _heads_by_formula(attention: MultiHeadAttention, x: Tensor) -> tuple[list[Tensor], Tensor]:
    """Z of every head, [time, head_dim] each, and Concat(Z) W^O [time, width]."""
    size, count = attention.head_dim, attention.heads
    weight = attention.qkv.weight.view(3, count, size, -1)
    bias = attention.qkv.bias.view(3, count, size)
    heads = []
    for head in range(count):
        q, k, v = (x @ weight[part, head].T + bias[part, head] for part in range(3))
        heads.append((q @ k.T / size**0.5).softmax(-1) @ v)
    return heads, torch.cat(heads, -1) @ attention.out.weight.T + attention.out.bias


def many_heads(say: Say, model: keel.Model | None = None) -> Verdict:
    """44: the heads of a trained layer at once and separately, how different their maps are, and their parameters."""
    model, encoder, language = _bert(model, say)
    block = encoder.blocks()[0]
    assert isinstance(block, TransformerBlock)
    attention = block.attention
    ids = input_view(model, *PAIRS[language]).ids
    with torch.inference_mode():
        x = encoder.embed(batch_of(torch.tensor([ids])))
        _, separate = _heads_by_formula(attention, x[0])
        difference = max_difference(attention(x, None)[0], separate)
    count, size = attention.heads, attention.head_dim
    compared = f"{count} heads of {size} at once against {count} attentions, concatenated and projected by W^o"
    say(f"layer 1: {compared}: difference {difference:.0e}")
    alike = _head_correlations(model, PARAGRAPHS[language])
    spread = f"mean {alike.mean():.2f}, from {alike.min():.2f} to {alike.max():.2f}"
    say(f"correlation of what two heads of a layer attend to, without special tokens, in 4 paragraphs: {spread}")
    sizes = [parameter_count(MultiHeadAttention(512, heads, 0.0)) for heads in (8, 1)]
    say(f"8 heads of 64, as published, have {sizes[0]:,} parameters, one head of 512 has {sizes[1]:,}")
    return Verdict(
        difference < 1e-4 and alike.mean() < 0.5 and sizes[0] == sizes[1],
        f"{count} heads equal {count} attentions with separate weights (difference {difference:.0e}) and have no more "
        f"parameters than one wide head; what two heads of a trained layer attend to correlates by {alike.mean():.2f}",
    )


def _head_correlations(model: keel.Model, texts: Sequence[str]) -> np.ndarray:
    """Correlation of the attention maps of every two heads of a layer over these texts, without special tokens."""
    weights = [keel.attention(text, model=model).weights[..., 1:-1, 1:-1] for text in texts]
    maps = np.concatenate([each.reshape(*each.shape[:2], -1) for each in weights], -1)  # [layers, heads, cells]
    pairs = np.triu_indices(maps.shape[1], 1)
    return np.concatenate([np.corrcoef(layer)[pairs] for layer in maps])


def same_blocks(say: Say, model: keel.Model | None = None) -> Verdict:
    """87: the blocks of a trained BERT in a GPT, with and without the causal mask, and what a position sees."""
    model, encoder, language = _bert(model, say)
    system = model.system
    assert isinstance(system, keel.Bert)
    if system.embedding_width != system.width:
        what = f"its embeddings have width {system.embedding_width} and its blocks {system.width}, which GPT has not"
        raise UsageError(f"{what}: choose a model of bert")
    shape = {name: getattr(system, name) for name in ("layers", "width", "head_dim", "mlp_ratio", "norm_epsilon")}
    gpt = keel.Gpt(**shape, activation=system.activation, pre_norm=False, sequence_length=32, max_positions=32)
    decoder = gpt.build_encoder(encoder.vocab_size).eval()
    for ours, theirs in zip(decoder.blocks(), encoder.blocks(), strict=True):
        ours.load_state_dict(theirs.state_dict())
    view = input_view(model, *PAIRS[language])
    batch = TokenBatch.pad([view.ids], [view.segments or [0] * len(view.ids)])
    with torch.inference_mode():
        vectors = encoder.embed(batch)
        bert = {causal: _with_mask(encoder, causal).contextualize(vectors, batch).top for causal in (False, True)}
        gpts = {causal: _with_mask(decoder, causal).contextualize(vectors, batch).top for causal in (False, True)}
    _with_mask(encoder, False)
    unmasked, masked = (max_difference(bert[causal], gpts[causal]) for causal in (False, True))
    moved = max_difference(bert[False], bert[True])
    per_block = [parameter_count(network.blocks()[0]) for network in (encoder, decoder)]
    say(f"parameters of a block: BERT {per_block[0]:,}, GPT (2018) {per_block[1]:,}")
    say(f"GPT with the blocks of {model.card.title or 'BERT'} and no mask, against BERT: difference {unmasked:.0e}")
    say(f"BERT with a causal mask, against this GPT: difference {masked:.0e}")
    say(f"BERT with a causal mask against BERT: vectors differ by up to {moved:.1f}")
    elmo = TINY_ELMO.build_encoder(100).eval()
    seen = {
        "ELMo, left to right": _seen_positions(elmo, slice(None, elmo.width // 2)),
        "ELMo, right to left": _seen_positions(elmo, slice(elmo.width // 2, None)),
        "GPT": _seen_positions(_with_mask(decoder, True), slice(None)),
        "BERT": _seen_positions(encoder, slice(None)),
    }
    for name, (left, right) in seen.items():
        say(f"{name}: the middle of 9 positions sees {left} on its left and {right} on its right")
    show_figure(say, "networks", model=model)
    return Verdict(
        max(unmasked, masked) < 1e-4 < moved and [*seen.values()] == [(4, 0), (0, 4), (4, 0), (4, 4)],
        f"with equal blocks, a GPT without its mask is BERT (difference {unmasked:.0e}) and BERT with a causal mask is "
        f"GPT ({masked:.0e}); ELMo's two stacks see one side each, GPT the left one, BERT both in every layer",
    )


def _with_mask(encoder: Encoder, causal: bool) -> Encoder:
    """The encoder, whose attention now sees earlier positions only, or all."""
    for module in encoder.modules():
        if isinstance(module, MultiHeadAttention):
            module.causal = causal
    return encoder


def _seen_positions(encoder: Encoder, part: slice) -> tuple[int, int]:
    """The number of positions on the left and on the right of the middle of nine that its output depends on."""
    torch.manual_seed(0)
    vectors = torch.randn(1, 9, encoder.width, requires_grad=True)
    top = encoder.contextualize(vectors, batch_of(torch.zeros(1, 9).long())).top[0, 4, part]
    (gradient,) = torch.autograd.grad(top[0], vectors)  # sums over a normed vector hardly change
    sees = gradient[0].abs().sum(-1) > 0
    return int(sees[:4].sum()), int(sees[5:].sum())


def _bert(model: keel.Model | None, say: Say) -> tuple[keel.Model, BertEncoder, Language]:
    """The model of an experiment on the parts of a BERT."""
    model, language = model_and_language(model, say)
    if not isinstance(model.encoder, BertEncoder) or model.encoder.segments is None:
        raise UsageError(f"this experiment is about BERT, and the model is {model.system.name}: choose bert or electra")
    return model, model.encoder, language
