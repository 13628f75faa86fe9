"""Claims about the Transformer and questions that its readers ask."""

import math
import time
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from keel.claims.claim import Finding, Say
from keel.data.token_batch import TokenBatch
from keel.nn.transformer_blocks import MultiHeadAttention
from keel.systems.transformer import (
    DecoderBlock,
    Transformer,
    TransformerDecoder,
    TransformerEncoder,
    sinusoidal_positions,
)

SMALL = Transformer(layers=2, decoder_layers=2, width=64, head_dim=16, dropout=0.0, max_positions=64)
LETTERS, OPENING, CLOSING = 20, 0, 1
"""Of a language of 20 words, written between two marks."""


def many_heads(say: Say) -> Finding:
    """44: eight heads at once, one by one with weights of their own, and one head eight times as wide."""
    torch.manual_seed(0)
    attention, x = MultiHeadAttention(512, 8, 0.0).eval(), torch.randn(4, 100, 512)
    weight, bias = attention.qkv.weight.view(3, 8, 64, 512), attention.qkv.bias.view(3, 8, 64)

    def one_by_one() -> Tensor:
        heads = []
        for head in range(8):
            q, k, v = (F.linear(x, weight[part, head], bias[part, head]) for part in range(3))
            heads.append((q @ k.transpose(1, 2) / 64**0.5).softmax(-1) @ v)  # z_0 to z_7, [4, 100, 64] each
        return attention.out(torch.cat(heads, -1))

    with torch.inference_mode():
        apart = _apart(attention(x, None), one_by_one())
        say(f"8 heads at once and 8 after each other, side by side and through W^o: they differ by {apart:.1e}")
        q, k, _ = attention.split_heads(attention.qkv(x))
        maps = MultiHeadAttention.weights(q, k, None).transpose(0, 1).flatten(1)  # [8, ...]
        likeness = torch.corrcoef(maps).masked_fill(torch.eye(8, dtype=torch.bool), 0).abs().max().item()
    count = [sum(w.numel() for w in MultiHeadAttention(512, heads, 0.0).parameters()) for heads in (8, 1)]
    say(f"no two heads look alike: their maps correlate by {likeness:.2f} at most")
    say(f"8 heads of 64 have {count[0]:,} weights, one of 512 has {count[1]:,}")
    return Finding(
        apart < 1e-5 and likeness < 0.2 and count[0] == count[1],
        f"eight heads are eight attentions with weights of their own, computed at once ({apart:.0e} apart), and have "
        f"no more weights than one wide head",
    )


def places_by_waves(say: Say) -> Finding:
    """47: wavelengths of the table, and whether a shift is a rotation, with cosines in odd places and with sines."""
    width, length, shift = 64, 200, 7
    table = sinusoidal_positions(length, width, torch.device("cpu")).double()
    angles = 10_000.0 ** (-torch.arange(0, width, 2) / width).double()
    lengths = 2 * math.pi / angles
    say(
        f"wavelengths: {lengths[0]:.2f} (2π), {lengths[1]:.2f}, ... {lengths[-1]:,.0f}; "
        f"10000 x 2π is {2e4 * math.pi:,.0f}"
    )
    cosine, sine = angles.mul(shift).cos(), angles.mul(shift).sin()
    even, odd = table[:-shift, 0::2], table[:-shift, 1::2]
    turned = torch.stack([even * cosine + odd * sine, odd * cosine - even * sine], -1).flatten(1)
    rotation = _apart(turned, table[shift:])
    say(f"place t + {shift} is place t turned by fixed angles, to {rotation:.0e}")
    places = torch.arange(length).double()
    printed = torch.stack([(places[:, None] * angles).sin()] * 2, -1).flatten(1)  # as S1 prints it
    found = {}
    for name, vectors in (("cosines in odd places", table), ("sines in both, as S1 prints", printed)):
        products = vectors @ vectors.T
        spread = max(products.diagonal(gap).std().item() for gap in range(40))
        found[name] = spread
        say(
            f"{name}: products of places at one distance vary by {spread:.2f} at most; "
            f"the table has rank {torch.linalg.matrix_rank(vectors)} of {width}"
        )
    right, wrong = found.values()
    return Finding(
        rotation < 1e-5 and right < 1e-4 < wrong,
        f"the wavelengths go from 2π towards 10000 x 2π, and with cosines a shift turns every place alike, so that a "
        f"product tells the distance (it varies by {right:.0e}); with sines alone it does not ({wrong:.1f})",
    )


def three_kinds(say: Say) -> Finding:
    """53: what the three attentions of a small Transformer look at once it has learned to turn rows of words round."""
    encoder, decoder, right = _learned(say)
    text = [5, 12, 3, 17, 8, 14]
    rows, ids = TokenBatch.pad([text]), torch.tensor([[OPENING, *text[::-1]]])
    seen: dict[str, Tensor] = {}

    def record(name: str, layer: int, value: Tensor) -> None:
        seen[name] = value[0].mean(0)  # the last layer's, over its heads

    with torch.inference_mode():
        decoder(ids, decoder.project_source(encoder(rows, record=record), rows), record=record)
    for name, weights in seen.items():
        say(f"{name}, a line for each place that asks:")
        for line in weights.tolist():
            say("   " + " ".join(f"{value:4.2f}" for value in line))
    across, back = seen["cross_attention"], seen["masked_attention"]
    aligned = (across[:6].argmax(1) == torch.arange(5, -1, -1)).float().mean().item()
    return Finding(
        right > 0.9 and aligned > 0.8 and not back.triu(1).any() and bool((seen["attention"] > 0).all()),
        f"words see all words, what is written sees itself and what came before, and asks the text for the word that "
        f"comes next: {aligned:.0%} of the places look most at the one to be copied ({right:.0%} of new rows right)",
    )


def masking(say: Say) -> Finding:
    """54: which places of decoder and encoder move when the word at one place changes."""
    encoder, decoder = _made()
    text, ids = torch.randint(4, 100, (1, 10)), torch.randint(4, 100, (1, 10))
    rows = TokenBatch(ids=text, lengths=torch.tensor([10]))
    changed = ids.clone()
    changed[0, 6] = 101
    with torch.inference_mode():
        memory = decoder.project_source(encoder(rows), rows)
        moves = _moves(decoder(ids, memory)[0], decoder(changed, memory)[0])
        other = text.clone()
        other[0, 6] = 101
        free = _moves(encoder(rows).top, encoder(TokenBatch(ids=other, lengths=rows.lengths)).top)
    say(f"decoder, the 7th word of 10 changed: its places move by {_listed(moves)}")
    say(f"encoder, the same: {_listed(free)}")
    return Finding(
        moves[:6] == [0.0] * 6 and min(moves[6:]) > 1e-3 and min(free) > 1e-3,
        "of what is written only that place and those after it move, those before it by exactly 0; of what is read all",
    )


def once_for_all(say: Say) -> Finding:
    """55: how often each layer projects what was read, whether layers share it, and whether the context changes."""
    encoder, decoder = _made()
    rows = TokenBatch.pad([torch.randint(4, 100, (12,)).tolist()])
    contexts: list[Tensor] = []
    with torch.inference_mode():
        output = encoder(rows)
        memory = decoder.project_source(output, rows)
        before = memory.vectors.clone()
        state = decoder.new_state(memory, 1)
        block = decoder.blocks()[0]
        assert isinstance(block, DecoderBlock)
        hook = block.cross.out.register_forward_hook(lambda module, inputs, result: contexts.append(inputs[0][0, 0]))
        for number in torch.randint(4, 100, (8,)).tolist():
            _, state = decoder(torch.tensor([[number]]), memory, state)
        hook.remove()
    steady = torch.equal(before, memory.vectors)
    layers = _apart(memory.vectors[:, 0], memory.vectors[:, 1])
    moved = min(_apart(one, other) for one, other in pairwise(contexts))
    say(
        f"K and V of a text of 12 words: {list(memory.vectors.shape)}, "
        "[texts, layers, K and V, heads, words, head width]"
    )
    say(f"after 8 steps they are the same numbers: {steady}; those of layer 1 and layer 2 differ by {layers:.1f}")
    say(f"the context of a step and of the next one, first layer: they differ by {moved:.2f} or more")
    assert steady
    return Finding(
        layers < 1e-6 and moved < 1e-6,
        f"K and V are computed once for all steps, but by each layer for itself (they differ by {layers:.1f}): what "
        f"layers share is the encoder's output. And the context changes at every step as Bahdanau's c_i does (by "
        f"{moved:.2f} or more), as another word asks",
    )


def writing_takes_turns(say: Say) -> Finding:
    """56: the same 64 words through a decoder at once, one by one with what was kept, one by one without."""
    torch.manual_seed(0)
    system = Transformer(layers=2, decoder_layers=2, width=128, max_positions=64)
    encoder = system.build_encoder(1000).eval()
    decoder = system.build_decoder(encoder, 1000).eval()
    rows, ids = TokenBatch.pad([torch.randint(4, 1000, (20,)).tolist()]), torch.randint(4, 1000, (1, 64))

    def at_once() -> Tensor:
        return decoder(ids, memory)[0]

    def step_by_step() -> Tensor:
        state, found = decoder.new_state(memory, 1), []
        for place in range(64):
            vectors, state = decoder(ids[:, place : place + 1], memory, state)
            found.append(vectors)
        return torch.cat(found, 1)

    def all_again() -> Tensor:
        return torch.cat([decoder(ids[:, : place + 1], memory)[0][:, -1:] for place in range(64)], 1)

    ways: dict[str, Callable[[], Tensor]] = {
        "all words at once, as in training": at_once,
        "word by word, keys and values kept": step_by_step,
        "word by word, all again each time": all_again,
    }
    with torch.inference_mode():
        memory = decoder.project_source(encoder(rows), rows)
        apart = max(_apart(at_once(), way()) for way in ways.values())
        times = {name: _seconds(way) for name, way in ways.items()}
    for name, seconds in times.items():
        say(f"{name}: {1e3 * seconds:.1f} ms for 64 words")
    once, kept, again = times.values()
    return Finding(
        apart < 1e-4 and 2 * once < min(kept, again),
        f"the same vectors ({apart:.0e} apart), but written word by word they take {kept / once:.0f} times as long, "
        f"and {again / once:.0f} times if nothing is kept: the next word is not known before the last one is chosen",
    )


def unequal_lengths(say: Say) -> Finding:
    """60: the shape of every tensor for sentences of unequal length, what padding changes and what it costs."""
    encoder, decoder = _made()
    lengths = [3, 9, 5, 12]
    texts = [torch.randint(4, 100, (length,)).tolist() for length in lengths]
    rows = TokenBatch.pad(texts)
    ids = torch.randint(4, 100, (4, 7))
    with torch.inference_mode():
        vectors = encoder.embed(rows)
        output = encoder(rows)
        memory = decoder.project_source(output, rows)
        top, _ = decoder(ids, memory)
        for name, value in {
            "ids, shorter ones filled up": rows.ids,
            "lengths": rows.lengths,
            "words with places [batch, time, width]": vectors,
            "after the encoder": output.top,
            "K and V for the decoder [batch, layers, 2, heads, time, head width]": memory.vectors,
            "mask, true inside": memory.inside,
            "answers so far": ids,
            "after the decoder": top,
            "scores of next words": decoder.logits(top),
        }.items():
            say(f"{name}: {list(value.shape) if value is not None else None}")
        apart = 0.0
        for number, text in enumerate(texts):
            alone = TokenBatch.pad([text])
            found = decoder(ids[number : number + 1], decoder.project_source(encoder(alone), alone))[0]
            apart = max(apart, _apart(found[0], top[number]))
    say(f"each sentence alone and filled up beside longer ones: they differ by {apart:.0e}")
    sizes = np.random.default_rng(0).lognormal(2.5, 0.6, 6400).astype(int).clip(2, 100)
    say(f"lengths are drawn: {sizes.mean():.0f} words on average, {sizes.max()} at most")
    shares = {}
    for name, order in (("as they come", sizes), ("sorted by length", np.sort(sizes))):
        rooms = order.reshape(-1, 64).max(1) * 64
        shares[name] = 1 - order.sum() / rooms.sum()
        say(f"{len(sizes):,} sentences in batches of 64, {name}: {shares[name]:.0%} of the places are padding")
    mixed, alike = shares.values()
    return Finding(
        apart < 1e-4 and alike < 0.05 < mixed,
        f"a batch is as long as its longest sentence, a mask hides the rest, which changes nothing ({apart:.0e}); "
        f"sentences of like length together waste {alike:.0%} of the places, as they come {mixed:.0%}",
    )


def products(say: Say) -> Finding:
    """61: what dot and matmul make of tensors of four dimensions, and which one attention is."""
    draw = np.random.default_rng(0)
    one, other = draw.normal(size=(3, 4, 5, 6)), draw.normal(size=(5, 4, 6, 3))
    dot = np.dot(one, other)
    say(f"numpy.dot of {one.shape} and {other.shape}: {dot.shape}, last of the first with next to last of the second")
    by_sum = np.einsum("abcx,dexf->abcdef", one, other)
    apart = float(np.abs(dot - by_sum).max())
    place = (2, 1, 4, 3, 0, 2)
    single = float(one[2, 1, 4] @ other[3, 0, :, 2])
    say(f"it is sum over x of A[a,b,c,x] B[d,e,x,f], to {apart:.0e}; at {place}: {dot[place]:.4f} and {single:.4f}")
    try:
        np.matmul(one, other)
        refused = False
    except ValueError as error:
        refused = True
        say(f"numpy.matmul refuses them: {str(error).partition(':')[0]}")
    queries, keys = draw.normal(size=(3, 4, 5, 6)), draw.normal(size=(3, 4, 5, 6))
    scores = queries @ keys.swapaxes(-1, -2)
    say(f"what attention needs, [batch, heads, time, width] @ [batch, heads, width, time]: {scores.shape}")
    return Finding(
        dot.shape == (3, 4, 5, 5, 4, 3) and apart < 1e-12 and refused and scores.shape == (3, 4, 5, 5),
        "dot pairs every matrix of one with every matrix of the other, [3,4,5,5,4,3]; attention wants the product of "
        "each sentence and head with its own alone, which is matmul's, [3,4,5,5]",
    )


def _made() -> tuple[TransformerEncoder, TransformerDecoder]:
    """A random one; its norms do not hide what moves."""
    torch.manual_seed(0)
    encoder = SMALL.build_encoder(110).eval()
    return encoder, SMALL.build_decoder(encoder, 110).eval()


def _learned(say: Say) -> tuple[TransformerEncoder, TransformerDecoder, float]:
    """One that writes rows of words in reverse, and the share of new rows that it writes rightly from end to end."""
    torch.manual_seed(0)
    system = Transformer(
        layers=1,
        decoder_layers=1,
        width=64,
        head_dim=32,
        dropout=0.0,
        max_positions=16,
        shared_vocabulary=True,
        label_smoothing=0.0,
    )
    encoder = system.build_encoder(2 + LETTERS)
    decoder = system.build_decoder(encoder, 2 + LETTERS)
    weights = [*encoder.parameters(), *decoder.parameters()]
    optimizer = torch.optim.Adam(weights, lr=2e-3, betas=(0.9, 0.98))

    def answers(rows: int) -> tuple[Tensor, Tensor]:
        """[rows, 7, vocabulary] scores of the words that were to be written, and these."""
        text = torch.randint(2, 2 + LETTERS, (rows, 6))
        source = TokenBatch(ids=text, lengths=torch.full((rows,), 6))
        turned = F.pad(F.pad(text.flip(1), (1, 0), value=OPENING), (0, 1), value=CLOSING)
        vectors, _ = decoder(turned[:, :-1], decoder.project_source(encoder(source), source))
        return decoder.logits(vectors), turned[:, 1:]

    for step in range(400):
        scores, wanted = answers(64)
        loss = F.cross_entropy(scores.flatten(0, 1), wanted.flatten())
        for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            weight.grad = gradient
        optimizer.step()
        if step % 200 == 199:
            say.progress(f"step {step + 1}: loss {loss.item():.3f}")
    with torch.inference_mode():
        scores, wanted = answers(500)
    right = (scores.argmax(-1) == wanted).all(1).float().mean().item()
    return encoder.eval(), decoder.eval(), right


def _seconds(run: Callable[[], Tensor]) -> float:
    """The shortest of some runs."""
    found = []
    for _ in range(5):
        start = time.perf_counter()
        run()
        found.append(time.perf_counter() - start)
    return min(found)


def _apart(one: Tensor, other: Tensor) -> float:
    return (one - other).abs().max().item()


def _moves(one: Tensor, other: Tensor) -> list[float]:
    """By how much each place of the only row differs."""
    return (one - other)[0].abs().amax(-1).tolist()


def _listed(moves: list[float]) -> str:
    return ", ".join(f"{move:.2g}" for move in moves)
