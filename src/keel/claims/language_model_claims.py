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
    """27: how many n-grams of each order there could be and there are, and what each order is worth."""
    text = keel.Corpus.of("\n".join(docstring.sentences) for docstring in read_docstrings(say))
    losses: list[float] = []

    def hear(event: Event) -> None:
        if event["event"] == "evaluation":
            losses.append(event["loss"])

    with tempfile.TemporaryDirectory() as folder:
        settings = {"vocabulary": 5000, "held_out": 0.05, "threads": 1}
        model = keel.pretrain(keel.Ngram(order=5), text, out=f"{folder}/model", on_event=hear, **settings)
    assert isinstance(model.encoder, NgramEncoder)
    words, *found = model.encoder.sizes
    for order, (count, loss) in enumerate(zip([words, *found], losses[1:], strict=True), 1):
        say(
            f"order {order}: {float(words) ** order:.1e} could come up, {count:,} do "
            f"(one in {float(words) ** order / count:,.0f}), held-out perplexity {math.exp(loss):.1f}"
        )
    shares = [count / float(words) ** order for order, count in enumerate([words, *found], 1)]
    thinner = min(one / other for one, other in pairwise(shares))
    return Finding(
        thinner > 10 and all(one < other for one, other in pairwise(found)),
        f"a table for {words:,} words has {words:,} times as many entries for each word more, but a text fills few of "
        f"them: at each order it is {thinner:,.0f} times emptier or more. Only what came up is kept, and the fifth "
        f"word brings the perplexity from {math.exp(losses[4]):.1f} to {math.exp(losses[5]):.1f}",
    )


def weights_and_steps(say: Say) -> Finding:
    """29: the weights of a network that sees 4, 16, 64 or 256 words before, by a window or by a state."""
    width, words, tokenizer = 64, 1000, Tokenizer.from_words(["word"])
    found: dict[str, list[int]] = {"window": [], "state": []}
    for steps in (4, 16, 64, 256):
        systems = {"window": Nnlm(width=width, hidden=width, order=steps + 1), "state": Rnn(width=width, bptt=steps)}
        for name, system in systems.items():
            objective = system.build_objective(system.build_encoder(words), tokenizer)
            found[name].append(sum(weight.numel() for weight in objective.parameters()))
        window, state = found["window"][-1], found["state"][-1]
        say(f"{steps} words: {window:,} weights by a window (nnlm), {state:,} by a state (rnn)")
    return Finding(
        len(set(found["state"])) == 1 and found["window"] == sorted(set(found["window"])),
        f"the state's {found['state'][0]:,} weights are the same for any number of steps, the window's grow from "
        f"{found['window'][0]:,} to {found['window'][-1]:,}",
    )


def depth_of_lstms(say: Say) -> Finding:
    """33: LSTM language models of 1 to 4 layers, the same steps and rate, two seeds each."""
    text = keel.Corpus.of("\n".join(docstring.sentences) for docstring in read_docstrings(say))
    means: list[float] = []
    for layers in (1, 2, 3, 4):
        losses: list[float] = []
        for seed in (0, 1):
            with tempfile.TemporaryDirectory() as folder:
                heard: list[float] = []

                def hear(event: Event, heard: list[float] = heard) -> None:
                    if event["event"] == "evaluation":
                        heard.append(event["loss"])

                settings = {"steps": 600, "batch": 16, "lr": 3e-3, "evaluate_every": 0, "threads": 1, "device": "cpu"}
                system = Rnn(width=64, layers=layers, dropout=0.0, bptt=20)
                text_settings = {"vocabulary": 2000, "tokenizer": "words", "held_out": 0.05, "seed": seed}
                keel.pretrain(system, text, out=f"{folder}/model", on_event=hear, **settings, **text_settings)
                losses.append(heard[-1])
        means.append(sum(losses) / len(losses))
        listed = ", ".join(f"{loss:.3f}" for loss in losses)
        say(f"{layers} layers: held-out loss {listed}, perplexity {math.exp(means[-1]):.1f} on average")
    return Finding(
        means[2] > min(means[:2]),
        f"after 600 steps three layers stand at {means[2]:.3f} nats, two at {means[1]:.3f}, one at {means[0]:.3f} and "
        f"four at {means[3]:.3f}",
    )


def distant_words(say: Say) -> Finding:
    """31: after a row of words, which was the first? By an RNN, an LSTM and a layer of attention, taught alike."""
    found: dict[str, list[float]] = {}
    distances = (5, 20, 80)
    for name in ("rnn", "lstm", "attention"):
        found[name] = [_first_word(name, distance) for distance in distances]
        listed = ", ".join(
            f"{right:.0%} after {distance}" for right, distance in zip(found[name], distances, strict=True)
        )
        say(f"{name}: the first of 10 words named after 500 steps, {listed} words")
    rnn, _, attention = found.values()
    return Finding(
        rnn[0] > 0.9 and rnn[-1] < 0.5 < 0.9 < attention[-1],
        f"the RNN names {rnn[0]:.0%} of the first words after 5 more and {rnn[-1]:.0%} after 80 (guessing: 10%), "
        f"attention {attention[-1]:.0%}: a state must carry the word through every step, attention looks it up",
    )


def _first_word(kind: str, distance: int) -> float:
    """The share of new rows whose first word a network names at their end, after 500 steps on rows of that length."""
    torch.manual_seed(0)
    words, width = 10, 64
    embed, head = nn.Embedding(words, width), nn.Linear(width, words)
    places = nn.Parameter(torch.randn(distance + 1, width))
    network = nn.MultiheadAttention(width, 1, batch_first=True) if kind == "attention" else None
    recurrent = None if network else RecurrentLayers("rnn" if kind == "rnn" else "lstm", width, width, 1)
    parts = [part for part in (embed, head, network, recurrent) if part is not None]
    weights = [places, *(weight for part in parts for weight in part.parameters())]
    optimizer = torch.optim.Adam(weights, lr=3e-3)

    def answers(ids: Tensor) -> Tensor:
        x = embed(ids)
        if recurrent:
            return head(recurrent(x)[0][-1][:, -1])
        assert network
        x = x + places
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
