"""Claims about attention: a weighted mean of values, and positions."""

from collections.abc import Callable
from statistics import fmean

import torch
from torch import Tensor
from torch.nn import functional as F

import keel
from keel.claims.answer_claims import reader_scores
from keel.claims.claim import Say, Verdict
from keel.claims.measures import accuracy, batch_of, join_values, linear_probe, max_difference, minimize, shortest_time
from keel.claims.small_models import TINY, learn_sentences
from keel.nn.multihead_attention import MultiHeadAttention
from keel.nn.transformer_blocks import TransformerBlock
from keel.report.charts import heat_map, lines
from keel.systems.bert import BertEncoder


def kernel_regression(say: Say) -> Verdict:
    """38: kernel regression as attention: queries are positions, keys and values are noisy points."""
    torch.manual_seed(0)
    keys = (torch.rand(50) * 5).sort().values
    queries = torch.arange(0, 5, 0.1)

    def curve(x: Tensor) -> Tensor:
        return 2 * x.sin() + x**0.8

    values = curve(keys) + torch.randn(50) * 0.5
    width = torch.ones(1)

    def scores(queries: Tensor) -> Tensor:
        return -0.5 * ((queries[:, None] - keys) * width) ** 2

    def squared_error(predicted: Tensor) -> float:
        return (predicted - curve(queries)).square().mean().item()

    mean = squared_error(values.mean().expand(50))
    plain_weights = scores(queries).softmax(1)
    plain = squared_error(plain_weights @ values)
    own = torch.eye(50, dtype=torch.bool)  # a point does not attend to itself, otherwise it would only copy its value

    def leave_one_out() -> Tensor:
        return (scores(keys).masked_fill(own, -torch.inf).softmax(1) @ values - values).square().mean()

    minimize(leave_one_out, [width], 300, 0.05)
    width.requires_grad_(False)
    learned_weights = scores(queries).softmax(1)
    learned = squared_error(learned_weights @ values)
    say(f"uniform weights (mean of all points): mean squared error {mean:.3f}")
    say(f"softmax(-(q - k)² / 2) over the keys (Nadaraya 1964, Watson 1964): {plain:.3f}")
    say(f"the same with a learned scale ({width.item():.2f}): {learned:.3f}")
    near = (queries[:, None] - keys).abs().topk(10, largest=False).indices
    shares = [weights.gather(1, near).sum(1).mean().item() for weights in (plain_weights, learned_weights)]
    say(f"weight of the ten nearest keys: {shares[0]:.0%}, with the learned scale {shares[1]:.0%}")
    curves = {"prediction": learned_weights @ values, "truth": curve(queries)}
    points = {name: list(zip(queries.tolist(), y.tolist(), strict=True)) for name, y in curves.items()}
    across, down = ([f"{x:.1f}" for x in positions[::2].tolist()] for positions in (keys, queries))
    grid = heat_map(across, down, (learned_weights / learned_weights.max())[::2, ::2].numpy())
    say.picture(lines(points, across="x", upward="y"), "Prediction of attention pooling, and the true curve.", "curve")
    say.picture(grid, "Weight of each key (columns) for each query (rows).", "weights")
    return Verdict(
        learned < plain < mean,
        f"the error is {mean:.2f} with uniform weights, {plain:.2f} with weights by distance to the query and "
        f"{learned:.2f} with a learned scale",
    )


def weighted_values(say: Say) -> Verdict:
    """39: f(q, (k, v)) by definition for three scores, and against the fused kernel."""
    torch.manual_seed(0)
    query, keys, values = torch.randn(8), torch.randn(6, 8), torch.randn(6, 3)
    matrix = torch.randn(8, 8)
    kinds: dict[str, Callable[[Tensor], Tensor]] = {
        "q·k/√d": lambda key: query @ key / 8**0.5,
        "q·Wk": lambda key: query @ matrix @ key,
        "-|q - k|²/2": lambda key: -0.5 * (query - key).square().sum(),
    }
    inside = True
    for name, score in kinds.items():
        alpha = torch.stack([score(key) for key in keys]).softmax(0)
        value = (alpha[:, None] * values).sum(0)
        inside &= bool((alpha > 0).all()) and abs(alpha.sum().item() - 1) < 1e-6
        inside &= bool(((value >= values.amin(0)) & (value <= values.amax(0))).all())
        say(f"score {name:12} weights {join_values(alpha.tolist())}; sum {alpha.sum():.2f}")
    alpha = torch.stack([kinds["q·k/√d"](key) for key in keys]).softmax(0)
    fused = F.scaled_dot_product_attention(query[None, None], keys[None], values[None])[0, 0]
    difference = max_difference(alpha @ values, fused)
    say(f"sum over i of α(q, k_i) v_i against torch's fused attention: difference {difference:.0e}")
    return Verdict(
        inside and difference < 1e-5,
        "for any score the weights are positive and sum to 1, so the result is a weighted mean of the values; fused "
        f"kernels compute the same (difference {difference:.0e})",
    )


def in_batches(say: Say) -> Verdict:
    """42: softmax(Q K^T / √d) V for n queries and m keys and values is n x v."""
    torch.manual_seed(0)
    n, m, d, v = 300, 400, 64, 48
    queries, keys, values = torch.randn(n, d), torch.randn(m, d), torch.randn(m, v)

    def one_by_one() -> Tensor:
        return torch.stack([(keys @ query / d**0.5).softmax(0) @ values for query in queries])

    def at_once() -> Tensor:
        return (queries @ keys.T / d**0.5).softmax(1) @ values

    difference = max_difference(one_by_one(), at_once())
    times = [shortest_time(method) for method in (one_by_one, at_once)]
    say(f"Q {n} x {d}, K {m} x {d}, V {m} x {v}: the result is {' x '.join(map(str, at_once().shape))}")
    say(f"one query at a time against all at once: difference {difference:.0e}")
    say(f"all at once is {times[0] / times[1]:.0f} times as fast")
    return Verdict(
        at_once().shape == (n, v) and difference < 1e-5,
        f"the result is n x v for any m and d, and equals one query at a time (difference {difference:.0e})",
    )


def aligned_question(say: Say) -> Verdict:
    """43: Attention(X, X, X), and the aligned question embedding: does the question contain a synonym of a word?"""
    torch.manual_seed(0)
    words, width, passage, question, count = 400, 64, 20, 6, 500
    base = torch.randn(words // 2, width)
    table = F.normalize(base.repeat_interleave(2, 0) + 0.5 * torch.randn(words, width), dim=1)  # 2n, 2n + 1: synonyms
    x = table[torch.randint(words, (1, passage))]
    own = F.scaled_dot_product_attention(x, x, x)
    say(f"self-attention, Attention(X, X, X): X {list(x.shape[1:])}, result {list(own.shape[1:])}")
    chosen = [torch.randperm(words // 2)[:question] * 2 + torch.randint(2, (question,)) for _ in range(count)]
    queried = torch.stack(chosen)
    texts = torch.randint(words, (count, passage))
    known = torch.rand(count, passage) < 0.3
    picked = queried.gather(1, torch.randint(question, (count, passage)))
    texts = torch.where(known, picked ^ 1, texts)  # the synonym, not the word itself
    truth = (texts[:, :, None] // 2 == queried[:, None] // 2).any(2)
    q, k = table[texts], table[queried]
    aligned = ((q @ k.mT) * 10).softmax(-1) @ k  # Q = passage, K = V = question
    say(f"aligned question: Q {list(q.shape[1:])}, K = V {list(k.shape[1:])}, result {list(aligned.shape[1:])}")
    alone, both = _balanced_accuracy(q, truth), _balanced_accuracy(q * aligned, truth)
    say(f"balanced accuracy of a linear probe on the word: {alone:.0%}")
    say(f"balanced accuracy of a linear probe on word times aligned question: {both:.0%}")
    without, extended = reader_scores(say)
    return Verdict(
        aligned.shape == q.shape and both > 0.9 > 0.6 > alone and min(extended) > max(without) + 10,
        "one formula for both: with Q the passage and K = V the question, every passage word gets a vector of the "
        f"question, and a probe finds {both:.0%} of the words whose synonym is in the question ({alone:.0%} without); "
        f"a reader of word vectors reaches F1 {fmean(extended):.0f} with it and {fmean(without):.0f} without",
    )


def _balanced_accuracy(features: Tensor, truth: Tensor) -> float:
    """Balanced accuracy of a linear probe trained on every second example."""
    inputs, answers = F.pad(features, (0, 1), value=1.0), truth.float() * 2 - 1
    balance = torch.where(truth, 1 / truth.float().mean(), 1 / (1 - truth.float().mean())).sqrt()
    x, y = inputs * balance[..., None], answers * balance
    weights = torch.linalg.lstsq(x[::2].flatten(0, 1), y[::2].flatten()[:, None]).solution
    right = ((inputs[1::2] @ weights)[..., 0] > 0) == truth[1::2]
    return (right[truth[1::2]].float().mean().item() + right[~truth[1::2]].float().mean().item()) / 2


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
    batch = batch_of(torch.tensor([inputs.ids]))
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
            assert encoder.positions is not None
            encoder.positions.weight.zero_()
    return encoder


@torch.inference_mode()
def _top(encoder: BertEncoder, ids: Tensor) -> Tensor:
    return encoder(batch_of(ids)).top


def _numbers(vector: Tensor) -> str:
    return f"[{join_values(vector[:3].tolist(), '+.2f')}, ...]"
