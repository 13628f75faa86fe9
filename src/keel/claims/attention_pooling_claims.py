"""Claims about attention as a weighted mean of values."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from keel.claims.claim import Say, Verdict
from keel.claims.measures import join_values, max_difference, minimize, shortest_time
from keel.claims.small_models import picture_path
from keel.report.charts import heat_map, lines
from keel.report.html_page import Page


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
    page = Page("Attention pooling")
    page.figure(lines(points, across="x", upward="y"), "Prediction of attention pooling, and the true curve.")
    page.figure(grid, "Weight of each key (columns) for each query (rows).")
    say.progress(f"picture: {page.write(picture_path('038.html'))}")
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
    return Verdict(
        aligned.shape == q.shape and both > 0.9 > 0.6 > alone,
        "one formula for both: with Q the passage and K = V the question, every passage word gets a vector of the "
        f"question, and a probe finds {both:.0%} of the words whose synonym is in the question ({alone:.0%} without)",
    )


def _balanced_accuracy(features: Tensor, truth: Tensor) -> float:
    """Balanced accuracy of a linear probe trained on every second example."""
    inputs, answers = F.pad(features, (0, 1), value=1.0), truth.float() * 2 - 1
    balance = torch.where(truth, 1 / truth.float().mean(), 1 / (1 - truth.float().mean())).sqrt()
    x, y = inputs * balance[..., None], answers * balance
    weights = torch.linalg.lstsq(x[::2].flatten(0, 1), y[::2].flatten()[:, None]).solution
    right = ((inputs[1::2] @ weights)[..., 0] > 0) == truth[1::2]
    return (right[truth[1::2]].float().mean().item() + right[~truth[1::2]].float().mean().item()) / 2
