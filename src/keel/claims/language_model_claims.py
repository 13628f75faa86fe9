"""Claims about language models."""

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import keel
from keel.claims.claim import Say, Verdict
from keel.claims.measures import accuracy, join_values, minimize, parameter_count, show_figure
from keel.claims.small_models import pretrain_tiny, read_docstrings
from keel.events import Event
from keel.nn.recurrent import RecurrentLayers
from keel.systems.ngram import NgramEncoder
from keel.systems.system import System


def growth_of_ngrams(say: Say) -> Verdict:
    """27: possible and observed n-grams of each order, and held-out perplexity by order."""
    texts = [docstring.text for docstring in read_docstrings(say)]
    model, losses = _pretrain(keel.Ngram(order=5), texts, vocabulary=5000, evaluate_every=1)
    assert isinstance(model.encoder, NgramEncoder)
    words, *found = sizes = model.encoder.sizes
    shares = [count / float(words) ** order for order, count in enumerate(sizes, 1)]
    for order, (count, share, loss) in enumerate(zip(sizes, shares, losses[1:], strict=True), 1):
        say(
            f"order {order}: {float(words) ** order:.1e} possible, {count:,} observed (one in {1 / share:,.0f}), "
            f"held-out perplexity {math.exp(loss):.1f}"
        )
    thinner = min(one / other for one, other in pairwise(shares))
    return Verdict(
        thinner > 10 and all(one < other for one, other in pairwise(found)),
        f"a full table grows by a factor of {words:,} per order, but each order is at least {thinner:,.0f} times "
        f"sparser; only observed n-grams are stored, and order 5 lowers the perplexity from {math.exp(losses[4]):.1f} "
        f"to {math.exp(losses[5]):.1f}",
    )


def weights_and_steps(say: Say) -> Verdict:
    """29: parameters of a network with a context of 4 to 256 words, by a window and by a recurrent state."""
    tokenizer = keel.Tokenizer.from_words(["word"])
    windows, states = list[int](), list[int]()
    for steps in (4, 16, 64, 256):
        systems: list[System] = [keel.Nnlm(width=64, hidden=64, order=steps + 1), keel.Rnn(width=64, bptt=steps)]
        for counts, system in zip((windows, states), systems, strict=True):
            counts.append(parameter_count(system.build_objective(system.build_encoder(1000), tokenizer)))
        counted = f"{windows[-1]:,} parameters with a window (nnlm), {states[-1]:,} with a state (rnn)"
        say(f"context of {steps} words: {counted}")
    show_figure(say, "rnn")
    return Verdict(
        len(set(states)) == 1 and windows == sorted(set(windows)),
        f"the recurrent network has {states[0]:,} parameters for any number of steps, the window's grow from "
        f"{windows[0]:,} to {windows[-1]:,}",
    )


def depth_of_lstms(say: Say) -> Verdict:
    """33: LSTM language models of 1 to 4 layers with the same steps and learning rate, two seeds each."""
    texts = [docstring.text for docstring in read_docstrings(say)]
    means: list[float] = []
    for layers in (1, 2, 3, 4):
        system = keel.Rnn(width=64, layers=layers, dropout=0.0, bptt=20)
        settings = {"steps": 600, "batch": 16, "lr": 3e-3, "vocabulary": 2000}
        losses = [_pretrain(system, texts, seed=seed, **settings)[1][-1] for seed in (0, 1)]
        means.append(sum(losses) / len(losses))
        perplexity = math.exp(means[-1])
        say(f"{layers} layers: held-out loss {join_values(losses, '.3f')}, perplexity {perplexity:.1f} on average")
    return Verdict(
        means[2] > min(means[:2]),
        f"held-out loss after 600 steps: {means[0]:.3f} with one layer, {means[1]:.3f} with two, {means[2]:.3f} with "
        f"three, {means[3]:.3f} with four",
    )


def distant_words(say: Say) -> Verdict:
    """31: recall of the first word at the end of a sequence, by an RNN, an LSTM and one attention layer."""
    found: dict[str, list[float]] = {}
    distances = (5, 20, 80)
    for name in ("rnn", "lstm", "attention"):
        found[name] = [_first_word(name, distance) for distance in distances]
        recalled = zip(found[name], distances, strict=True)
        shares = ", ".join(f"{right:.0%} at distance {distance}" for right, distance in recalled)
        say(f"{name}: accuracy for the first word {shares}")
    rnn, _, attention = found.values()
    return Verdict(
        rnn[0] > 0.9 and rnn[-1] < 0.5 < 0.9 < attention[-1],
        f"at a distance of 5 the RNN recalls {rnn[0]:.0%} of the first words, at 80 {rnn[-1]:.0%} (chance: 10%), "
        f"attention {attention[-1]:.0%}: a state must carry the word through every step, attention looks it up",
    )


def _pretrain(system: System, texts: list[str], **settings: float) -> tuple[keel.Model, list[float]]:
    """A language model, and its losses on held-out text in the order of evaluation."""
    losses: list[float] = []

    def record_loss(event: Event) -> None:
        if event["event"] == "evaluation":
            losses.append(event["loss"])

    return pretrain_tiny(system, texts, Say(record_loss), held_out=0.05, **settings), losses


def _first_word(kind: str, distance: int) -> float:
    """Accuracy on new sequences after 500 training steps on sequences of that length."""
    torch.manual_seed(0)
    words, width = 10, 64
    embed, head = nn.Embedding(words, width), nn.Linear(width, words)
    positions = torch.randn(distance + 1, width)
    if kind == "attention":
        layer, weights = nn.MultiheadAttention(width, 1, batch_first=True), [positions]
    else:
        layer, weights = RecurrentLayers("rnn" if kind == "rnn" else "lstm", width, width, 1), []
    weights += nn.ModuleList([embed, head, layer]).parameters()

    def logits(ids: Tensor) -> Tensor:
        x = embed(ids)
        if isinstance(layer, RecurrentLayers):
            return head(layer(x)[0][-1][:, -1])
        x = x + positions
        return head(layer(x[:, -1:], x, x, need_weights=False)[0][:, 0])

    def loss() -> Tensor:
        ids = torch.randint(words, (64, distance + 1))
        return F.cross_entropy(logits(ids), ids[:, 0])

    minimize(loss, weights, 500, 3e-3, clip=1.0)
    ids = torch.randint(words, (1000, distance + 1))
    with torch.inference_mode():
        return accuracy(logits(ids).argmax(1) == ids[:, 0])
