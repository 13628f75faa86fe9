"""Claims about attention and positions."""

import torch
from torch import Tensor
from torch.nn import functional as F

import keel
from keel.claims.claim import Finding, Say
from keel.claims.small_models import TINY, learn_sentences
from keel.data.token_batch import TokenBatch
from keel.nn.transformer_blocks import MultiHeadAttention, TransformerBlock
from keel.systems.bert import BertEncoder

CAPITALS = {
    "paris": "france", "rome": "italy", "madrid": "spain", "berlin": "germany",
    "vienna": "austria", "athens": "greece", "lisbon": "portugal", "warsaw": "poland",
}  # fmt: skip


def scaling(say: Say) -> Finding:
    """41: the variance of a product of two random vectors, and what softmax makes of it."""
    torch.manual_seed(0)
    off = 0.0
    say("   d   variance of q·k   of q·k/√d   largest of 32 weights: unscaled   scaled")
    for width in (16, 64, 256, 1024):
        q, k = torch.randn(4000, 1, width), torch.randn(4000, 32, width)
        products = q @ k.transpose(1, 2)  # [4000, 1, 32]
        plain, scaled = products.var().item(), (products / width**0.5).var().item()
        off = max(off, abs(scaled - 1))
        sharp, soft = (
            it.max(-1).values.mean().item() for it in (products.softmax(-1), MultiHeadAttention.weights(q, k, None))
        )
        say(f"{width:4}   {plain:15.1f}   {scaled:9.3f}   {sharp:31.2f}   {soft:6.2f}")
    return Finding(
        off < 0.05,
        f"scaled variance is within {off:.3f} of 1; unscaled, at d = 1024 one key takes {sharp:.0%} of the weight",
    )


def bag_of_words(say: Say) -> Finding:
    """45: rows of K and V in another order, then the words of a whole BERT with and without positions."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 10, 64)
    order = torch.randperm(10)
    apart = _apart(F.scaled_dot_product_attention(q, k, v), F.scaled_dot_product_attention(q, k[:, order], v[:, order]))
    say(f"attention, rows of K and V shuffled: the result moves by {apart:.1e}")
    ids = torch.randperm(100)[None, :10]
    moved = {}
    for positions in (False, True):
        encoder = _encoder(positions)
        moved[positions] = _apart(_top(encoder, ids)[:, order], _top(encoder, ids[:, order]))
        name = "with" if positions else "without"
        say(f"BERT {name} positions, words shuffled: their vectors move by {moved[positions]:.1e}")
    return Finding(
        max(apart, moved[False]) < 1e-4 < moved[True],
        f"without positions order changes nothing ({moved[False]:.0e}, rounding), with them much ({moved[True]:.2f})",
    )


def adding_positions(say: Say) -> Finding:
    """46: adding is concatenating with one shared matrix, and word and place can be told apart in the sum."""
    torch.manual_seed(0)
    word, place, matrix = torch.randn(500, 64), torch.randn(500, 64), torch.randn(128, 64)
    joined = torch.cat([word, place], 1) @ matrix
    apart = _apart(joined, word @ matrix[:64] + place @ matrix[64:])
    shared = _apart((word + place) @ matrix[:64], torch.cat([word, place], 1) @ torch.cat([matrix[:64], matrix[:64]]))
    say(f"W[x; p] against Wx x + Wp p: they differ by {apart:.1e}; with Wx = Wp it is W(x + p): {shared:.1e}")
    found = (0.0, 0.0)
    say("width   |cosine| of a word and a place   a linear probe of the sum names the place   the word")
    for width in (8, 32, 128, 512):
        words, places = torch.randn(200, width), torch.randn(50, width)
        cosine = F.cosine_similarity(words[:, None], places[None], dim=-1).abs().mean().item()
        x, y = torch.randint(200, (8000,)), torch.randint(50, (8000,))
        sums = words[x] + places[y]
        found = (_probe(sums, y, 50), _probe(sums, x, 200))
        say(f"{width:5}   {cosine:30.3f}   {found[0]:39.0%}   {found[1]:8.0%}")
    return Finding(
        apart < 1e-3 and min(found) > 0.99,
        f"adding is concatenation with one matrix for both, and at width 512 a linear probe of the sum names "
        f"{found[0]:.0%} of the places and {found[1]:.0%} of the words",
    )


def place_of_cls(say: Say) -> Finding:
    """93: the vector of [CLS], first or last in the row."""
    torch.manual_seed(0)
    cls, words = torch.tensor([[0]]), torch.randperm(99)[None, :10] + 1
    apart = {}
    for positions in (False, True):
        encoder = _encoder(positions)
        first = _top(encoder, torch.cat([cls, words], 1))[:, 0]
        last = _top(encoder, torch.cat([words, cls], 1))[:, -1]
        apart[positions] = _apart(first, last)
        name = "with" if positions else "without"
        say(f"{name} positions: [CLS] first and [CLS] last differ by {apart[positions]:.1e}")
    return Finding(
        max(apart.values()) < 1e-4,
        f"the place of [CLS] is free without positions ({apart[False]:.0e}), but BERT has positions, and there it is "
        f"not ({apart[True]:.2f}): a trained model needs [CLS] where it stood in training",
    )


def who_asks_whom(say: Say) -> Finding:
    """99: the blank's own vector gives the query; keys and values come from every word, the blank among them."""
    model = learn_sentences(
        [f"{city} is the capital of {country} ." for city, country in CAPITALS.items()],
        TINY,
        steps=500,
    )
    text = "[MASK] is the capital of italy ."
    framed = model.system.build_inputs(model.tokenizer, model.tokenizer.encode(text).ids)
    words = [model.tokenizer.token_of(number) for number in framed.ids]
    rows = TokenBatch.pad([framed.ids])
    seen: dict[str, Tensor] = {}
    encoder = model.encoder.eval()
    (block,) = encoder.blocks()
    assert isinstance(block, TransformerBlock)
    with torch.inference_mode():
        vectors = encoder.embed(rows)
        encoder.contextualize(vectors, rows, record=lambda name, layer, value: seen.update({name: value}))
        q, k, v = block.attention.qkv(vectors)[0].view(len(words), 3, 32).unbind(1)  # [time, 32] each
    blank = framed.first_start
    say(f"{text} is a row of {len(words)} vectors; Q, K and V are {list(q.shape)}, {list(k.shape)}, {list(v.shape)}")
    say(f"the query of [MASK] starts {_numbers(q[blank])}: made of the blank's own vector alone")
    say("word        key starts                value starts              q·k/√d   weight")
    weights, scores = seen["attention"][0, 0, blank], k @ q[blank] / 32**0.5
    for number, word in enumerate(words):
        say(f"{word:10}  {_numbers(k[number])}  {_numbers(v[number])}  {scores[number]:6.2f}   {weights[number]:.2f}")
    equal = _apart(weights, scores.softmax(0)) < 1e-5
    guess, chance = model.fill(text, top=1)[0][0]
    asked = words[int(weights.argmax())]
    say(f"the weighted sum of the values leads to {guess!r} ({chance:.0%}); the blank looks most at {asked!r}")
    return Finding(
        equal and guess == "rome",
        f"Q is the blank's, K and V are every word's; the recorded weights are softmax(q·k/√d), and {asked!r} gets "
        f"{weights.max():.0%} of them",
    )


def _encoder(positions: bool) -> BertEncoder:
    """A random BERT of two layers; its vectors are large enough to tell words apart as a trained one does."""
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
    return encoder(TokenBatch(ids=ids, lengths=torch.tensor([ids.shape[1]] * len(ids)))).top


def _probe(vectors: Tensor, classes: Tensor, count: int) -> float:
    """How often a linear map, fitted to half of the vectors, names the class of the others."""
    half = len(vectors) // 2
    weights = torch.linalg.lstsq(vectors[:half], F.one_hot(classes[:half], count).float(), driver="gelsd").solution
    return ((vectors[half:] @ weights).argmax(1) == classes[half:]).float().mean().item()


def _apart(one: Tensor, other: Tensor) -> float:
    return (one - other).abs().max().item()


def _numbers(vector: Tensor) -> str:
    return "[" + ", ".join(f"{value:+.2f}" for value in vector[:3].tolist()) + ", ...]"
