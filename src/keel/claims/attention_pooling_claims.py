"""Claims about attention as such: a mean of values, weighted by how well query and keys go together."""

import time
from collections.abc import Callable
from pathlib import Path
from xml.etree.ElementTree import Element

import torch
from torch import Tensor
from torch.nn import functional as F

from keel.claims.claim import Finding, Say
from keel.claims.network_claims import learn
from keel.claims.small_models import pictures
from keel.report import Page, lines
from keel.report.heatmap import draw_grid


def kernel_regression(say: Say) -> Finding:
    """38: a curve through noisy points, by attention: the query is where one asks, keys and values are the points."""
    torch.manual_seed(0)
    keys = (torch.rand(50) * 5).sort().values
    queries = torch.arange(0, 5, 0.1)

    def curve(x: Tensor) -> Tensor:
        return 2 * x.sin() + x**0.8

    values = curve(keys) + torch.randn(50) * 0.5
    width = torch.ones(1)

    def weights(asked: Tensor, known: Tensor) -> Tensor:
        return (-0.5 * ((asked[:, None] - known) * width) ** 2).softmax(1)

    def miss(told: Tensor) -> float:
        return (told - curve(queries)).square().mean().item()

    mean = miss(values.mean().expand(50))
    plain_weights = weights(queries, keys)
    plain = miss(plain_weights @ values)
    others = ~torch.eye(50, dtype=torch.bool)  # a point may not look at itself, or it would learn nothing else

    def own() -> Tensor:
        scores = -0.5 * ((keys[:, None] - keys) * width) ** 2
        return (scores.masked_fill(~others, -torch.inf).softmax(1) @ values - values).square().mean()

    learn(own, [width], 300, 0.05)
    width.requires_grad_(False)
    learned_weights = weights(queries, keys)
    learned = miss(learned_weights @ values)
    say("all points alike, whoever asks (no cue): mean squared error " + f"{mean:.3f}")
    say(f"by nearness, softmax(-(q - k)² / 2) over the keys (Nadaraya 1964, Watson 1964): {plain:.3f}")
    say(f"by nearness times a weight that was learned ({width.item():.2f}): {learned:.3f}")
    say(f"the ten nearest keys get {_nearest(plain_weights, queries, keys):.0%}, with the learned weight "
        f"{_nearest(learned_weights, queries, keys):.0%}")  # fmt: skip
    truth = list(zip(queries.tolist(), curve(queries).tolist(), strict=True))
    told = list(zip(queries.tolist(), (learned_weights @ values).tolist(), strict=True))
    grid = draw_grid([f"{x:.1f}" for x in keys[::2].tolist()], [f"{x:.1f}" for x in queries[::2].tolist()],
                     (learned_weights / learned_weights.max())[::2, ::2].numpy())  # fmt: skip
    path = _page(
        "038.html",
        "Attention pooling",
        {
            "What attention tells (first) and the curve that the points were drawn from.": lines(
                {"told": told, "truth": truth}, across="x", upward="y"
            ),
            "How much each point (across) weighs for each question (down).": grid,
        },
    )
    say.progress(f"the picture: {path}")
    return Finding(
        learned < plain < mean,
        f"a cue makes the difference: the error is {mean:.2f} where all points weigh alike, {plain:.2f} by nearness to "
        f"the query and {learned:.2f} where nearness is learned",
    )


def weighted_values(say: Say) -> Finding:
    """39: f(q, (k, v)) by its definition, for scores of several kinds, against the fused kernel for one of them."""
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
        value = sum(alpha[i] * values[i] for i in range(6))
        assert isinstance(value, Tensor)
        inside &= bool((alpha > 0).all()) and abs(alpha.sum().item() - 1) < 1e-6
        inside &= bool(((value >= values.amin(0)) & (value <= values.amax(0))).all())
        say(f"score {name:12} weights {', '.join(f'{share:.2f}' for share in alpha.tolist())}; sum {alpha.sum():.2f}")
    alpha = torch.stack([kinds["q·k/√d"](key) for key in keys]).softmax(0)
    fused = F.scaled_dot_product_attention(query[None, None], keys[None], values[None])[0, 0]
    apart = (alpha @ values - fused).abs().max().item()
    say(f"the sum over i of α(q, k_i) v_i against torch's own attention: {apart:.0e}")
    return Finding(
        inside and apart < 1e-5,
        "whatever scores, the weights are positive and sum to 1, so that the result is a mean of the values and lies "
        f"between them; the definition is what fused kernels compute (to {apart:.0e})",
    )


def in_batches(say: Say) -> Finding:
    """42: n queries, m keys and values at once: softmax(Q K^T / √d) V is n x v."""
    torch.manual_seed(0)
    n, m, d, v = 300, 400, 64, 48
    queries, keys, values = torch.randn(n, d), torch.randn(m, d), torch.randn(m, v)

    def one_by_one() -> Tensor:
        return torch.stack([(keys @ query / d**0.5).softmax(0) @ values for query in queries])

    def at_once() -> Tensor:
        return (queries @ keys.T / d**0.5).softmax(1) @ values

    apart = (one_by_one() - at_once()).abs().max().item()
    times = [min(_seconds(way) for _ in range(5)) for way in (one_by_one, at_once)]
    say(f"Q {n} x {d}, K {m} x {d}, V {m} x {v}: the result is {' x '.join(map(str, at_once().shape))}")
    say(f"query by query and all at once differ by {apart:.0e}")
    say(f"the three products at once take 1/{times[0] / times[1]:.0f} of the time")
    return Finding(
        at_once().shape == (n, v) and apart < 1e-5,
        f"the result is n x v whatever m and d are, and the same as query by query (to {apart:.0e})",
    )


def aligned_question(say: Say) -> Finding:
    """43: Attention(X, X, X), and a passage whose words look at the question: is a synonym of this word asked for?"""
    torch.manual_seed(0)
    words, width, passage, question, count = 400, 64, 20, 6, 500
    base = torch.randn(words // 2, width)
    table = F.normalize(base.repeat_interleave(2, 0) + 0.5 * torch.randn(words, width), dim=1)  # 2n, 2n + 1: synonyms
    x = table[torch.randint(words, (1, passage))]
    own = F.scaled_dot_product_attention(x, x, x)
    say(f"self-attention, Attention(X, X, X): X {list(x.shape[1:])}, result {list(own.shape[1:])}")
    asked = torch.stack(
        [torch.randperm(words // 2)[:question] * 2 + torch.randint(2, (question,)) for _ in range(count)]
    )
    texts = torch.randint(words, (count, passage))
    known = torch.rand(count, passage) < 0.3
    picked = asked.gather(1, torch.randint(question, (count, passage)))
    texts = torch.where(known, picked ^ 1, texts)  # the other word of the pair: equal letters would be no test
    truth = (texts[:, :, None] // 2 == asked[:, None] // 2).any(2)
    q, k = table[texts], table[asked]
    aligned = ((q @ k.mT) * 10).softmax(-1) @ k  # Q = passage, K = V = question
    say(f"aligned question: Q {list(q.shape[1:])}, K = V {list(k.shape[1:])}, result {list(aligned.shape[1:])}")
    named = {}
    for name, features in (("the word alone", q), ("word times aligned question", q * aligned)):
        named[name] = _linear(features, truth)
        say(f"a linear rule on {name}: {named[name]:.0%} of the words told (of the asked and the others half each)")
    alone, both = named.values()
    return Finding(
        aligned.shape == q.shape and both > 0.9 > 0.6 > alone,
        f"one formula, and who asks whom is free: with Q the passage and K = V the question every word of the passage "
        f"has a vector of the question beside it, by which {both:.0%} are told that are asked for in other words "
        f"({alone:.0%} without)",
    )


def _nearest(weights: Tensor, queries: Tensor, keys: Tensor) -> float:
    """The share of the weight that goes to the ten keys nearest to a query."""
    near = (queries[:, None] - keys).abs().topk(10, largest=False).indices
    return weights.gather(1, near).sum(1).mean().item()


def _linear(features: Tensor, truth: Tensor) -> float:
    """The share, yes and no weighing alike, that a linear rule tells rightly, learned from every second row."""
    inputs, answers = F.pad(features, (0, 1), value=1.0), truth.float() * 2 - 1
    balance = torch.where(truth, 1 / truth.float().mean(), 1 / (1 - truth.float().mean())).sqrt()
    rule = torch.linalg.lstsq(
        (inputs * balance[..., None])[::2].flatten(0, 1), (answers * balance)[::2].flatten()[:, None]
    ).solution
    told = (inputs[1::2] @ rule)[..., 0] > 0
    right = told == truth[1::2]
    return (right[truth[1::2]].float().mean().item() + right[~truth[1::2]].float().mean().item()) / 2


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _page(name: str, title: str, figures: dict[str, Element]) -> Path:
    page = Page(title)
    for caption, picture in figures.items():
        page.figure(picture, caption)
    return page.write(pictures() / name)
