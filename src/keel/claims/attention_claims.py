"""Claims about attention and positions."""

import torch
from torch import Tensor
from torch.nn import functional as F

import keel
from keel.claims.claim import Say, Verdict
from keel.claims.measures import accuracy, join_values, linear_probe, max_difference, token_batch
from keel.claims.small_models import TINY, learn_sentences
from keel.nn.multihead_attention import MultiHeadAttention
from keel.nn.transformer_blocks import TransformerBlock
from keel.systems.bert import BertEncoder

CAPITALS = {
    "paris": "france", "rome": "italy", "madrid": "spain", "berlin": "germany",
    "vienna": "austria", "athens": "greece", "lisbon": "portugal", "warsaw": "poland",
}  # fmt: skip
CAPITAL_SENTENCES = [f"{city} is the capital of {country} ." for city, country in CAPITALS.items()]


def scaling(say: Say) -> Verdict:
    """41: variance of the dot product of random vectors, and the softmax of scaled and unscaled scores."""
    torch.manual_seed(0)
    off = 0.0
    say("   d   variance of q·k   of q·k/√d   largest of 32 weights, unscaled   scaled")
    for width in (16, 64, 256, 1024):
        q, k = torch.randn(4000, 1, width), torch.randn(4000, 32, width)
        products = q @ k.transpose(1, 2)  # [4000, 1, 32]
        plain, scaled = products.var().item(), (products / width**0.5).var().item()
        off = max(off, abs(scaled - 1))
        weights = products.softmax(-1), MultiHeadAttention.weights(q, k, None)
        sharp, soft = (each.max(-1).values.mean().item() for each in weights)
        say(f"{width:4}   {plain:15.1f}   {scaled:9.3f}   {sharp:31.2f}   {soft:6.2f}")
    return Verdict(
        off < 0.05,
        f"the scaled variance is within {off:.3f} of 1; unscaled, at d = 1024 one key gets {sharp:.0%} of the weight",
    )


def bag_of_words(say: Say) -> Verdict:
    """45: permuted keys and values, then permuted words of a BERT with and without positions."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 10, 64)
    order = torch.randperm(10)
    permuted = F.scaled_dot_product_attention(q, k[:, order], v[:, order])
    difference = max_difference(F.scaled_dot_product_attention(q, k, v), permuted)
    say(f"attention with permuted K and V: the output changes by {difference:.1e}")
    ids = torch.randperm(100)[None, :10]
    moved = {}
    for positions in (False, True):
        encoder = _encoder(positions)
        moved[positions] = max_difference(_top(encoder, ids)[:, order], _top(encoder, ids[:, order]))
        name = "with" if positions else "without"
        say(f"BERT {name} positions, words permuted: their vectors change by {moved[positions]:.1e}")
    return Verdict(
        max(difference, moved[False]) < 1e-4 < moved[True],
        f"without positions the order changes nothing ({moved[False]:.0e}, rounding), with them it does "
        f"({moved[True]:.2f})",
    )


def adding_positions(say: Say) -> Verdict:
    """46: adding equals concatenating with one shared matrix, and both parts can be decoded from the sum."""
    torch.manual_seed(0)
    word, position, matrix = torch.randn(500, 64), torch.randn(500, 64), torch.randn(128, 64)
    both = torch.cat([word, position], 1)
    difference = max_difference(both @ matrix, word @ matrix[:64] + position @ matrix[64:])
    shared = max_difference((word + position) @ matrix[:64], both @ torch.cat([matrix[:64], matrix[:64]]))
    say(f"W[x; p] against Wx x + Wp p: difference {difference:.1e}; with Wx = Wp against W(x + p): {shared:.1e}")
    found = (0.0, 0.0)
    say("width   mean |cosine| of word and position   linear probe of the sum: position   word")
    for width in (8, 32, 128, 512):
        words, positions = torch.randn(200, width), torch.randn(50, width)
        cosine = F.cosine_similarity(words[:, None], positions[None], dim=-1).abs().mean().item()
        x, y = torch.randint(200, (8000,)), torch.randint(50, (8000,))
        sums = words[x] + positions[y]
        found = accuracy(linear_probe(sums, y, slice(4000))), accuracy(linear_probe(sums, x, slice(4000)))
        say(f"{width:5}   {cosine:34.3f}   {found[0]:33.0%}   {found[1]:4.0%}")
    return Verdict(
        difference < 1e-3 and min(found) > 0.99,
        "adding is concatenation with a shared matrix, and at width 512 a linear probe of the sum recovers "
        f"{found[0]:.0%} of the positions and {found[1]:.0%} of the words",
    )


def position_of_cls(say: Say) -> Verdict:
    """93: the vector of [CLS] at the first and at the last position."""
    torch.manual_seed(0)
    cls, words = torch.tensor([[0]]), torch.randperm(99)[None, :10] + 1
    difference = {}
    for positions in (False, True):
        encoder = _encoder(positions)
        first = _top(encoder, torch.cat([cls, words], 1))[:, 0]
        last = _top(encoder, torch.cat([words, cls], 1))[:, -1]
        difference[positions] = max_difference(first, last)
        name = "with" if positions else "without"
        say(f"{name} positions: difference between [CLS] first and [CLS] last {difference[positions]:.1e}")
    return Verdict(
        max(difference.values()) < 1e-4,
        f"without positions the place of [CLS] does not matter ({difference[False]:.0e}), but BERT has positions "
        f"({difference[True]:.2f}): a trained model needs [CLS] where it was in training",
    )


def masked_word_attention(say: Say) -> Verdict:
    """99: the masked position gives the query; keys and values come from all positions."""
    model = learn_sentences(CAPITAL_SENTENCES, TINY, steps=500)
    text = "[MASK] is the capital of italy ."
    inputs = model.system.build_inputs(model.tokenizer, model.tokenizer.encode(text).ids)
    words = [model.tokenizer.token_of(number) for number in inputs.ids]
    batch = token_batch(torch.tensor([inputs.ids]))
    seen: dict[str, Tensor] = {}
    encoder = model.encoder
    (block,) = encoder.blocks()
    assert isinstance(block, TransformerBlock)
    with torch.inference_mode():
        vectors = encoder.embed(batch)
        encoder(batch, record=lambda name, layer, value: seen.update({name: value}))
        q, k, v = block.attention.qkv(vectors)[0].view(len(words), 3, 32).unbind(1)  # [time, 32] each
    masked = inputs.first_start
    say(f"{text}: {len(words)} tokens; Q, K and V are {list(q.shape)}, {list(k.shape)}, {list(v.shape)}")
    say(f"query of [MASK]: {_numbers(q[masked])}, from its own vector only")
    say("token       key                       value                     q·k/√d   weight")
    weights, scores = seen["attention"][0, 0, masked], k @ q[masked] / 32**0.5
    for number, word in enumerate(words):
        say(f"{word:10}  {_numbers(k[number])}  {_numbers(v[number])}  {scores[number]:6.2f}   {weights[number]:.2f}")
    equal = max_difference(weights, scores.softmax(0)) < 1e-5
    guess, probability = model.fill(text, top=1)[0][0]
    top = words[int(weights.argmax())]
    say(f"prediction {guess!r} ({probability:.0%}); [MASK] attends most to {top!r}")
    return Verdict(
        equal and guess == "rome",
        "the query is that of [MASK], K and V are those of all tokens; the recorded weights equal softmax(q·k/√d), and "
        f"{top!r} gets {weights.max():.0%}",
    )


def _encoder(positions: bool) -> BertEncoder:
    """A random BERT of two layers, scaled so that its vectors differ like those of a trained one."""
    torch.manual_seed(1)
    encoder = keel.Bert(layers=2, width=64, max_positions=32, sequence_length=32).build_encoder(100).eval()
    with torch.no_grad():
        for weights in encoder.parameters():
            weights.mul_(5.0 if weights.dim() > 1 else 1.0)
        if not positions:
            encoder.positions.weight.zero_()
    return encoder


@torch.inference_mode()
def _top(encoder: BertEncoder, ids: Tensor) -> Tensor:
    return encoder(token_batch(ids)).top


def _numbers(vector: Tensor) -> str:
    return f"[{join_values(vector[:3].tolist(), '+.2f')}, ...]"
