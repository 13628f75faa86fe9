"""Claims that set readers beside each other: attention, recurrent networks, word vectors."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import torch

import keel
from keel.claims.claim import Finding, Say
from keel.claims.small_models import learn_words, read_docstrings
from keel.data.token_batch import TokenBatch
from keel.demo.docstrings import balanced, questions
from keel.nn.encoder import Encoder
from keel.systems.rnn import Rnn
from keel.systems.system import System
from keel.systems.transformer import Transformer

SMALL = Transformer(layers=2, decoder_layers=1, width=64, head_dim=16, dropout=0.1, max_positions=256)
WORDS = ("boat", "anchor", "sail", "bread", "oven", "soup", "judge", "court", "law", "rose", "field", "tree")
SETTINGS: dict[str, Any] = {"dev": None, "threads": 1, "device": "cpu", "log_every": 1000}


def word_order(say: Say) -> Finding:
    """49: a label by which words there are, tags by the words before, by attention of three kinds and by an LSTM."""
    random = Random(0)
    rows = [random.choices(WORDS, k=random.randint(6, 10)) for _ in range(1200)]
    texts = [(" ".join(row), "yes" if row.count("boat") else "no") for row in rows]
    tagged = [(row, ["O", *("AFTER" if word < "m" else "OTHER" for word in row[:-1])]) for row in rows]
    last = Counter(tag for _, tags in tagged[1000:] for tag in tags)
    usual = max(last.values()) / last.total()
    readers: dict[str, System] = {
        "attention without positions": replace(SMALL, position_encoding="none"),
        "attention with sines and cosines": SMALL,
        "attention with learned positions": replace(SMALL, position_encoding="learned"),
        "LSTM, both ways": Rnn(width=64, layers=1, bidirectional=True, dropout=0.1),
    }
    found: dict[str, tuple[float, float]] = {}
    for name, system in readers.items():
        learning = SETTINGS | {"epochs": 12, "batch": 32, "lr": 3e-3, "warmup": 0.1, "schedule": "linear"}
        one = keel.finetune(system, texts[:1000], **learning)
        other = keel.finetune(system, tagged[:1000], task="tag", **learning)
        said = [answer.tags for answer in other.predict([row for row, _ in tagged[1000:]])]
        pairs = [
            pair for (_, tags), mine in zip(tagged[1000:], said, strict=True) for pair in zip(tags, mine, strict=True)
        ]
        found[name] = (
            keel.evaluate(one, texts[1000:]).values["accuracy"].value,
            sum(wanted == mine for wanted, mine in pairs) / len(pairs),
        )
        say(f"{name}: which words there are {found[name][0]:.0%} right, what stood before each {found[name][1]:.0%}")
    bare, sincos, placed, lstm = found.values()
    return Finding(
        min(label for label, _ in found.values()) > 0.95 and bare[1] < 0.7 < 0.9 < lstm[1],
        f"all know which words there are ({bare[0]:.0%} right without positions); what stood before each word "
        f"attention alone does not ({bare[1]:.0%}, where one guess for all gets {usual:.0%}), an LSTM does "
        f"({lstm[1]:.0%}), and so does attention with sines and cosines ({sincos[1]:.0%}); positions that are to be "
        f"learned from these labels too get {placed[1]:.0%}",
    )


def ready_vectors(say: Say) -> Finding:
    """59: a Transformer whose words start as word2vec's vectors, scaled to the size that it expects, and at random."""
    docstrings = read_docstrings(say)
    text = ["\n".join(docstring.sentences) for docstring in docstrings if not docstring.held_out]
    learned = balanced(questions(docstring for docstring in docstrings if not docstring.held_out), 60)
    test = balanced(questions(docstring for docstring in docstrings if docstring.held_out), 60)
    say(f"which of ten packages is a sentence from? {len(learned)} labels, {len(test)} new sentences")
    words = learn_words(text, keel.Word2vec(width=SMALL.width), epochs=3, say=say)
    found = {}
    for name in ("random", "ready"):
        torch.manual_seed(0)
        encoder = SMALL.build_encoder(len(words.tokenizer))
        if name == "ready":
            ready = words.encoder.get_parameter("words.weight").detach()
            with torch.no_grad():
                encoder.words.weight.copy_(ready * (encoder.words.weight.std() / ready.std()))
        start = keel.Model(system=SMALL, encoder=encoder, tokenizer=words.tokenizer)
        model = keel.finetune(start, learned, epochs=15, batch=16, **SETTINGS)
        score = found[name] = keel.evaluate(model, test).values["accuracy"]
        say(f"{name} word vectors: {score:.1%} of new sentences right")
    return Finding(
        found["ready"].value > found["random"].value,
        f"they are copied into `encoder.words.weight`, scaled to its size; with {len(learned)} labels "
        f"{found['ready'].value:.1%} of new sentences are right, {found['random'].value:.1%} from random ones",
    )


def features(say: Say) -> Finding:
    """62: sentences told apart by Transformers and LSTMs of 1, 2 and 4 layers, and the time that long rows take."""
    docstrings = read_docstrings(say)
    learned = balanced(questions(docstring for docstring in docstrings if not docstring.held_out), 100)
    test = balanced(questions(docstring for docstring in docstrings if docstring.held_out), 60)
    say(f"which of ten packages is a sentence from? {len(learned)} labels, no other text, {len(test)} new sentences")
    makers: dict[str, Callable[[int], System]] = {
        "Transformer": lambda layers: replace(SMALL, layers=layers),
        "LSTM": lambda layers: Rnn(width=64, layers=layers, bidirectional=True, dropout=0.1),
    }
    best: dict[str, float] = {}
    for name, make in makers.items():
        for layers in (1, 2, 4):
            scores = []
            for rate in (1e-3, 3e-3):
                learning = SETTINGS | {"epochs": 10, "batch": 16, "lr": rate, "schedule": "linear", "warmup": 0.1}
                model = keel.finetune(make(layers), learned, **learning)
                scores.append(keel.evaluate(model, test).values["accuracy"].value)
            best[name] = max(best.get(name, 0.0), *scores)
            say(f"{name}, {layers} layers: {scores[0]:.1%} right at a rate of 0.001, {scores[1]:.1%} at 0.003")
    growth = {}
    for name, make in makers.items():
        encoder = make(2).build_encoder(1000).eval()
        times = [_seconds(encoder, length) for length in (16, 64, 256)]
        growth[name] = times[-1] / times[0]
        say(f"{name}, 2 layers: a row of 16, 64, 256 words takes {', '.join(f'{1e3 * each:.1f}' for each in times)} ms")
    return Finding(
        best["Transformer"] > best["LSTM"] + 0.04,
        f"from these labels alone the Transformer gets {best['Transformer']:.1%} at its best depth, the LSTM "
        f"{best['LSTM']:.1%}; 16 times as many words take {growth['Transformer']:.1f} and {growth['LSTM']:.1f} times "
        "as long",
    )


@torch.inference_mode()
def _seconds(encoder: Encoder, length: int) -> float:
    """To read one row of so many words: the shortest of five times."""
    rows = TokenBatch(ids=torch.randint(1000, (1, length)), lengths=torch.tensor([length]))
    found = []
    for _ in range(5):
        start = time.perf_counter()
        encoder(rows)
        found.append(time.perf_counter() - start)
    return min(found)
