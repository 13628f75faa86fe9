"""Claims about the Transformer."""

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import keel
from keel.claims.claim import Say, Verdict
from keel.claims.measures import (
    accuracy,
    batch_of,
    join_values,
    max_difference,
    minimize,
    shortest_time,
)
from keel.data.token_batch import TokenBatch
from keel.systems.transformer import DecoderBlock, TransformerDecoder, TransformerEncoder, sinusoidal_positions

SMALL = keel.Transformer(layers=2, decoder_layers=2, width=64, head_dim=16, dropout=0.0, max_positions=64)
WORDS, BOS, EOS = 20, 0, 1


def sinusoidal_table(say: Say) -> Verdict:
    """47: wavelengths, and whether a shift is a rotation, with cosines and with sines in odd dimensions."""
    width, length, shift = 64, 200, 7
    table = sinusoidal_positions(length, width, torch.device("cpu")).double()
    angles = 10_000.0 ** (-torch.arange(0, width, 2) / width).double()
    lengths = 2 * math.pi / angles
    shortest = f"{lengths[0]:.2f} (2π), {lengths[1]:.2f}, ... {lengths[-1]:,.0f}"
    say(f"wavelengths: {shortest}; 10000 x 2π is {2e4 * math.pi:,.0f}")
    cosine, sine = angles.mul(shift).cos(), angles.mul(shift).sin()
    even, odd = table[:-shift, 0::2], table[:-shift, 1::2]
    rotated = torch.stack([even * cosine + odd * sine, odd * cosine - even * sine], -1).flatten(1)
    rotation = max_difference(rotated, table[shift:])
    say(f"position t + {shift} against position t rotated by fixed angles: difference {rotation:.0e}")
    positions = torch.arange(length).double()
    printed = torch.stack([(positions[:, None] * angles).sin()] * 2, -1).flatten(1)  # as S1 prints it
    spreads = []
    for name, vectors in (("cosines in odd dimensions", table), ("sines in both, as S1 prints", printed)):
        products = vectors @ vectors.T
        spreads.append(max(products.diagonal(gap).std().item() for gap in range(40)))
        rank = f"the table has rank {torch.linalg.matrix_rank(vectors)} of {width}"
        say(f"{name}: products of positions at one distance vary by {spreads[-1]:.2f} at most; {rank}")
    right, wrong = spreads
    return Verdict(
        rotation < 1e-5 and right < 1e-4 < wrong,
        "the wavelengths range from 2π towards 10000 x 2π; with cosines a shift is the same rotation everywhere, so a "
        f"product depends on the distance only (it varies by {right:.0e}); with sines alone it does not ({wrong:.1f})",
    )


def three_kinds(say: Say) -> Verdict:
    """53: the three attentions of a small Transformer trained to reverse sequences."""
    encoder, decoder, right = _reversing_transformer()
    text = [5, 12, 3, 17, 8, 14]
    batch, ids = batch_of(torch.tensor([text])), torch.tensor([[BOS, *text[::-1]]])
    seen: dict[str, Tensor] = {}

    def record(name: str, layer: int, value: Tensor) -> None:
        seen[name] = value[0].mean(0)  # the last layer's, over its heads

    with torch.inference_mode():
        decoder(ids, decoder.project_source(encoder(batch, record=record), batch), record=record)
    for name, weights in seen.items():
        say(f"{name}, one line per query position:")
        for line in weights.tolist():
            say("   " + " ".join(f"{value:4.2f}" for value in line))
    across, back = seen["cross_attention"], seen["masked_attention"]
    aligned = accuracy(across[:6].argmax(1) == torch.arange(5, -1, -1))
    return Verdict(
        right > 0.9 and aligned > 0.8 and not back.triu(1).any() and bool((seen["attention"] > 0).all()),
        "source words attend to all source words, target words to themselves and earlier ones, and cross-attention to "
        f"the word to copy: {aligned:.0%} of the positions attend most to it ({right:.0%} of new sequences are "
        "correct)",
    )


def masking(say: Say) -> Verdict:
    """54: which positions of decoder and encoder change with the word at one position."""
    encoder, decoder = _random_transformer()
    text, ids = torch.randint(4, 100, (1, 10)), torch.randint(4, 100, (1, 10))

    def change(network: Callable[[Tensor], Tensor], ids: Tensor) -> list[float]:
        """Largest change at each position if the seventh word is replaced."""
        other = ids.clone()
        other[0, 6] = 101
        return (network(ids) - network(other))[0].abs().amax(-1).tolist()

    with torch.inference_mode():
        memory = decoder.project_source(encoder(batch_of(text)), batch_of(text))
        moves = change(lambda ids: decoder(ids, memory)[0], ids)
        free = change(lambda ids: encoder(batch_of(ids)).top, text)
    say(f"decoder, 7th of 10 words replaced: change per position {join_values(moves, '.2g')}")
    say(f"encoder, the same: {join_values(free, '.2g')}")
    return Verdict(
        moves[:6] == [0.0] * 6 and min(moves[6:]) > 1e-3 and min(free) > 1e-3,
        "in the decoder only that position and later ones change, earlier ones by exactly 0; in the encoder all change",
    )


def once_for_all(say: Say) -> Verdict:
    """55: whether K and V are constant over steps and shared by layers, and whether the context changes."""
    encoder, decoder = _random_transformer()
    batch = batch_of(torch.randint(4, 100, (1, 12)))
    contexts: list[Tensor] = []
    with torch.inference_mode():
        memory = decoder.project_source(encoder(batch), batch)
        before = memory.vectors.clone()
        state = decoder.new_state(memory, 1)
        block = decoder.blocks()[0]
        assert isinstance(block, DecoderBlock)
        hook = block.get_submodule("cross.out").register_forward_hook(
            lambda module, inputs, result: contexts.append(inputs[0][0, 0])
        )
        for number in torch.randint(4, 100, (8,)).tolist():
            _, state = decoder(torch.tensor([[number]]), memory, state)
        hook.remove()
    steady = torch.equal(before, memory.vectors)
    layers = max_difference(memory.vectors[:, 0], memory.vectors[:, 1])
    moved = min(max_difference(one, other) for one, other in pairwise(contexts))
    axes = "[texts, layers, K and V, heads, words, head_dim]"
    say(f"K and V of a text of 12 words: {list(memory.vectors.shape)}, {axes}")
    say(f"unchanged after 8 steps: {steady}; difference between layer 1 and layer 2: {layers:.1f}")
    say(f"smallest difference between the contexts of consecutive steps, first layer: {moved:.2f}")
    assert steady
    return Verdict(
        layers < 1e-6 and moved < 1e-6,
        f"K and V are computed once for all steps, but separately in each layer (difference {layers:.1f}): layers "
        f"share the encoder's output. The context changes at every step like Bahdanau's c_i (by {moved:.2f} or more), "
        "since the query changes",
    )


def sequential_decoding(say: Say) -> Verdict:
    """56: 64 tokens through a decoder at once, one by one with a KV cache, and one by one without."""
    system = keel.Transformer(layers=2, decoder_layers=2, width=128, max_positions=64)
    encoder, decoder = _random_transformer(system, 1000)
    batch, ids = batch_of(torch.randint(4, 1000, (1, 20))), torch.randint(4, 1000, (1, 64))

    def at_once() -> Tensor:
        return decoder(ids, memory)[0]

    def step_by_step() -> Tensor:
        state, found = decoder.new_state(memory, 1), []
        for position in range(64):
            vectors, state = decoder(ids[:, position : position + 1], memory, state)
            found.append(vectors)
        return torch.cat(found, 1)

    def without_cache() -> Tensor:
        return torch.cat([decoder(ids[:, : position + 1], memory)[0][:, -1:] for position in range(64)], 1)

    methods: dict[str, Callable[[], Tensor]] = {
        "all tokens at once, as in training": at_once,
        "token by token with a KV cache": step_by_step,
        "token by token without a cache": without_cache,
    }
    with torch.inference_mode():
        memory = decoder.project_source(encoder(batch), batch)
        difference = max(max_difference(at_once(), method()) for method in methods.values())
        times = {name: shortest_time(method) for name, method in methods.items()}
    for name, seconds in times.items():
        say(f"{name}: {1e3 * seconds:.1f} ms for 64 tokens")
    once, kept, again = times.values()
    return Verdict(
        difference < 1e-4 and 2 * once < min(kept, again),
        f"the vectors are equal (difference {difference:.0e}), but token by token takes {kept / once:.0f} times as "
        f"long, and {again / once:.0f} times without a cache: each token must be chosen before the next one",
    )


def unequal_lengths(say: Say) -> Verdict:
    """60: tensor shapes for sentences of different lengths, and the effect and cost of padding."""
    encoder, decoder = _random_transformer()
    lengths = [3, 9, 5, 12]
    texts = [torch.randint(4, 100, (length,)).tolist() for length in lengths]
    batch = TokenBatch.pad(texts)
    ids = torch.randint(4, 100, (4, 7))
    with torch.inference_mode():
        vectors, output = encoder.embed(batch), encoder(batch)
        memory = decoder.project_source(output, batch)
        top, _ = decoder(ids, memory)
        for name, value in {
            "ids, padded": batch.ids,
            "lengths": batch.lengths,
            "embeddings with positions [batch, time, width]": vectors,
            "encoder output": output.top,
            "K and V for the decoder [batch, layers, 2, heads, time, head_dim]": memory.vectors,
            "mask, true for tokens": memory.mask,
            "target ids": ids,
            "decoder output": top,
            "logits": decoder.logits(top),
        }.items():
            say(f"{name}: {list(value.shape) if value is not None else None}")
        difference = 0.0
        for number, text in enumerate(texts):
            alone = TokenBatch.pad([text])
            found = decoder(ids[number : number + 1], decoder.project_source(encoder(alone), alone))[0]
            difference = max(difference, max_difference(found[0], top[number]))
    say(f"each sentence alone against padded in a batch: difference {difference:.0e}")
    sizes = np.random.default_rng(0).lognormal(2.5, 0.6, 6400).astype(int).clip(2, 100)
    say(f"random lengths: {sizes.mean():.0f} words on average, {sizes.max()} at most")
    shares = {}
    for name, order in (("shuffled", sizes), ("sorted by length", np.sort(sizes))):
        rooms = order.reshape(-1, 64).max(1) * 64
        shares[name] = 1 - order.sum() / rooms.sum()
        say(f"{len(sizes):,} sentences in batches of 64, {name}: {shares[name]:.0%} padding")
    mixed, alike = shares.values()
    return Verdict(
        difference < 1e-4 and alike < 0.05 < mixed,
        f"a batch is as long as its longest sentence, and masked padding changes nothing ({difference:.0e}); it takes "
        f"{alike:.0%} of the positions with sentences of similar length together, {mixed:.0%} in random order",
    )


def products(say: Say) -> Verdict:
    """61: dot and matmul of four-dimensional tensors, and the product in attention."""
    rng = np.random.default_rng(0)
    one, other = rng.normal(size=(3, 4, 5, 6)), rng.normal(size=(5, 4, 6, 3))
    dot = np.dot(one, other)
    axes = "last axis of the first with second-to-last of the second"
    say(f"numpy.dot of {one.shape} and {other.shape}: {dot.shape}, {axes}")
    by_sum = np.einsum("abcx,dexf->abcdef", one, other)
    difference = float(np.abs(dot - by_sum).max())
    position, single = (2, 1, 4, 3, 0, 2), float(one[2, 1, 4] @ other[3, 0, :, 2])
    compared = f"difference {difference:.0e}; at {position}: {dot[position]:.4f} and {single:.4f}"
    say(f"sum over x of A[a,b,c,x] B[d,e,x,f]: {compared}")
    try:
        np.matmul(one, other)
        refused = False
    except ValueError as error:
        refused = True
        say(f"numpy.matmul raises: {str(error).partition(':')[0]}")
    queries, keys = rng.normal(size=(3, 4, 5, 6)), rng.normal(size=(3, 4, 5, 6))
    scores = queries @ keys.swapaxes(-1, -2)
    say(f"attention, [batch, heads, time, width] @ [batch, heads, width, time]: {scores.shape}")
    return Verdict(
        dot.shape == (3, 4, 5, 5, 4, 3) and difference < 1e-12 and refused and scores.shape == (3, 4, 5, 5),
        "dot pairs every matrix of one with every matrix of the other, [3,4,5,5,4,3]; attention multiplies each "
        "sentence and head with its own only, which is matmul, [3,4,5,5]",
    )


def _random_transformer(
    system: keel.Transformer = SMALL, vocab_size: int = 110, **settings: bool
) -> tuple[TransformerEncoder, TransformerDecoder]:
    torch.manual_seed(0)
    encoder = system.build_encoder(vocab_size).eval()
    return encoder, system.build_decoder(encoder, vocab_size, **settings).eval()


def _reversing_transformer() -> tuple[TransformerEncoder, TransformerDecoder, float]:
    """A Transformer trained to reverse sequences, and its sequence accuracy."""
    system = keel.Transformer(layers=1, decoder_layers=1, width=64, head_dim=32, dropout=0.0, max_positions=16)
    encoder, decoder = _random_transformer(system, 2 + WORDS, shared_vocabulary=True)

    def batch(size: int) -> tuple[Tensor, Tensor]:
        """Logits [batch, 7, vocab_size] and targets [batch, 7]."""
        text = torch.randint(2, 2 + WORDS, (size, 6))
        source = batch_of(text)
        target = F.pad(F.pad(text.flip(1), (1, 0), value=BOS), (0, 1), value=EOS)
        vectors, _ = decoder(target[:, :-1], decoder.project_source(encoder(source), source))
        return decoder.logits(vectors), target[:, 1:]

    def loss() -> Tensor:
        scores, wanted = batch(64)
        return F.cross_entropy(scores.flatten(0, 1), wanted.flatten())

    minimize(loss, [*encoder.parameters(), *decoder.parameters()], 400, 2e-3, betas=(0.9, 0.98))
    with torch.inference_mode():
        scores, wanted = batch(500)
    return encoder, decoder, accuracy((scores.argmax(-1) == wanted).all(1))
