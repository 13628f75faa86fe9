"""Claims about language models."""

import math
import tempfile
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import keel
from keel.claims.claim import Finding, Say
from keel.claims.small_models import read_docstrings
from keel.data.tokenizer import Tokenizer
from keel.events import Event
from keel.nn.recurrent import RecurrentLayers
from keel.systems.ngram import NgramEncoder
from keel.systems.nnlm import Nnlm
from keel.systems.rnn import Rnn


def growth_of_ngrams(say: Say) -> Finding:
    """27: possible and observed n-grams of each order, and held-out perplexity by order."""
    text = keel.Corpus.of("\n".join(docstring.sentences) for docstring in read_docstrings(say))
    losses: list[float] = []

    def record_loss(event: Event) -> None:
        if event["event"] == "evaluation":
            losses.append(event["loss"])

    with tempfile.TemporaryDirectory() as folder:
        settings = {"vocabulary": 5000, "held_out": 0.05, "threads": 1}
        model = keel.pretrain(keel.Ngram(order=5), text, out=f"{folder}/model", on_event=record_loss, **settings)
    assert isinstance(model.encoder, NgramEncoder)
    words, *found = model.encoder.sizes
    for order, (count, loss) in enumerate(zip([words, *found], losses[1:], strict=True), 1):
        say(
            f"order {order}: {float(words) ** order:.1e} possible, {count:,} observed (one in "
            f"{float(words) ** order / count:,.0f}), held-out perplexity {math.exp(loss):.1f}"
        )
    shares = [count / float(words) ** order for order, count in enumerate([words, *found], 1)]
    thinner = min(one / other for one, other in pairwise(shares))
    return Finding(
        thinner > 10 and all(one < other for one, other in pairwise(found)),
        f"a full table grows by a factor of {words:,} per order, but each order is at least {thinner:,.0f} times "
        f"sparser; only observed n-grams are stored, and order 5 lowers the perplexity from {math.exp(losses[4]):.1f} "
        f"to {math.exp(losses[5]):.1f}",
    )


def weights_and_steps(say: Say) -> Finding:
    """29: parameters of a network with a context of 4 to 256 words, by a window and by a recurrent state."""
    width, words, tokenizer = 64, 1000, Tokenizer.from_words(["word"])
    found: dict[str, list[int]] = {"window": [], "state": []}
    for steps in (4, 16, 64, 256):
        systems = {"window": Nnlm(width=width, hidden=width, order=steps + 1), "state": Rnn(width=width, bptt=steps)}
        for name, system in systems.items():
            objective = system.build_objective(system.build_encoder(words), tokenizer)
            found[name].append(sum(weight.numel() for weight in objective.parameters()))
        window, state = found["window"][-1], found["state"][-1]
        say(f"context of {steps} words: {window:,} parameters with a window (nnlm), {state:,} with a state (rnn)")
    return Finding(
        len(set(found["state"])) == 1 and found["window"] == sorted(set(found["window"])),
        f"the recurrent network has {found['state'][0]:,} parameters for any number of steps, the window's grow from "
        f"{found['window'][0]:,} to {found['window'][-1]:,}",
    )


def depth_of_lstms(say: Say) -> Finding:
    """33: LSTM language models of 1 to 4 layers with the same steps and learning rate, two seeds each."""
    text = keel.Corpus.of("\n".join(docstring.sentences) for docstring in read_docstrings(say))
    means: list[float] = []
    for layers in (1, 2, 3, 4):
        losses: list[float] = []
        for seed in (0, 1):
            with tempfile.TemporaryDirectory() as folder:
                events: list[float] = []

                def record_loss(event: Event, events: list[float] = events) -> None:
                    if event["event"] == "evaluation":
                        events.append(event["loss"])

                settings = {"steps": 600, "batch": 16, "lr": 3e-3, "evaluate_every": 0, "threads": 1, "device": "cpu"}
                system = Rnn(width=64, layers=layers, dropout=0.0, bptt=20)
                text_settings = {"vocabulary": 2000, "tokenizer": "words", "held_out": 0.05, "seed": seed}
                keel.pretrain(system, text, out=f"{folder}/model", on_event=record_loss, **settings, **text_settings)
                losses.append(events[-1])
        means.append(sum(losses) / len(losses))
        listed = ", ".join(f"{loss:.3f}" for loss in losses)
        say(f"{layers} layers: held-out loss {listed}, perplexity {math.exp(means[-1]):.1f} on average")
    return Finding(
        means[2] > min(means[:2]),
        f"held-out loss after 600 steps: {means[0]:.3f} with one layer, {means[1]:.3f} with two, {means[2]:.3f} with "
        f"three, {means[3]:.3f} with four",
    )


def distant_words(say: Say) -> Finding:
    """31: recall of the first word at the end of a sequence, by an RNN, an LSTM and one attention layer."""
    found: dict[str, list[float]] = {}
    distances = (5, 20, 80)
    for name in ("rnn", "lstm", "attention"):
        found[name] = [_first_word(name, distance) for distance in distances]
        listed = ", ".join(
            f"{right:.0%} at distance {distance}" for right, distance in zip(found[name], distances, strict=True)
        )
        say(f"{name}: accuracy for the first word {listed}")
    rnn, _, attention = found.values()
    return Finding(
        rnn[0] > 0.9 and rnn[-1] < 0.5 < 0.9 < attention[-1],
        f"at a distance of 5 the RNN recalls {rnn[0]:.0%} of the first words, at 80 {rnn[-1]:.0%} (chance: 10%), "
        f"attention {attention[-1]:.0%}: a state must carry the word through every step, attention looks it up",
    )


def _first_word(kind: str, distance: int) -> float:
    """Accuracy on new sequences after 500 training steps on sequences of that length."""
    torch.manual_seed(0)
    words, width = 10, 64
    embed, head = nn.Embedding(words, width), nn.Linear(width, words)
    positions = nn.Parameter(torch.randn(distance + 1, width))
    network = nn.MultiheadAttention(width, 1, batch_first=True) if kind == "attention" else None
    recurrent = None if network else RecurrentLayers("rnn" if kind == "rnn" else "lstm", width, width, 1)
    parts = [part for part in (embed, head, network, recurrent) if part is not None]
    weights = [positions, *(weight for part in parts for weight in part.parameters())]
    optimizer = torch.optim.Adam(weights, lr=3e-3)

    def answers(ids: Tensor) -> Tensor:
        x = embed(ids)
        if recurrent:
            return head(recurrent(x)[0][-1][:, -1])
        assert network
        x = x + positions
        return head(network(x[:, -1:], x, x, need_weights=False)[0][:, 0])

    for _ in range(500):
        ids = torch.randint(words, (64, distance + 1))
        gradients = torch.autograd.grad(
            F.cross_entropy(answers(ids), ids[:, 0]), used := weights[kind != "attention" :]
        )
        for weight, gradient in zip(used, gradients, strict=True):
            weight.grad = gradient
        nn.utils.clip_grad_norm_(used, 1.0)
        optimizer.step()
    ids = torch.randint(words, (1000, distance + 1))
    with torch.inference_mode():
        return (answers(ids).argmax(1) == ids[:, 0]).float().mean().item()
