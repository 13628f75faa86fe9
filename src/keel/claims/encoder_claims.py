"""Claims that compare encoders: attention, recurrent networks, word vectors."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import torch

import keel
from keel.claims.claim import Finding, Say
from keel.claims.measures import shortest_time
from keel.claims.small_models import learn_words, read_docstrings
from keel.data.token_batch import TokenBatch
from keel.demo.docstrings import balanced, labelled_sentences
from keel.nn.encoder import Encoder
from keel.systems.rnn import Rnn
from keel.systems.system import System
from keel.systems.transformer import Transformer

SMALL = Transformer(layers=2, decoder_layers=1, width=64, head_dim=16, dropout=0.1, max_positions=256)
WORDS = ("boat", "anchor", "sail", "bread", "oven", "soup", "judge", "court", "law", "rose", "field", "tree")
SETTINGS: dict[str, Any] = {"dev": None, "threads": 1, "device": "cpu", "log_every": 1000}


def word_order(say: Say) -> Finding:
    """49: labels for word content and tags for the previous word, for attention with various positions and an LSTM."""
    random = Random(0)
    rows = [random.choices(WORDS, k=random.randint(6, 10)) for _ in range(1200)]
    texts = [(" ".join(row), "yes" if row.count("boat") else "no") for row in rows]
    tagged = [(row, ["O", *("AFTER" if word < "m" else "OTHER" for word in row[:-1])]) for row in rows]
    last = Counter(tag for _, tags in tagged[1000:] for tag in tags)
    usual = max(last.values()) / last.total()
    encoders: dict[str, System] = {
        "attention without positions": replace(SMALL, position_encoding="none"),
        "attention with sinusoidal positions": SMALL,
        "attention with learned positions": replace(SMALL, position_encoding="learned"),
        "bidirectional LSTM": Rnn(width=64, layers=1, bidirectional=True, dropout=0.1),
    }
    found: dict[str, tuple[float, float]] = {}
    for name, system in encoders.items():
        training = SETTINGS | {"epochs": 12, "batch": 32, "lr": 3e-3, "warmup": 0.1, "schedule": "linear"}
        one = keel.finetune(system, texts[:1000], **training)
        other = keel.finetune(system, tagged[:1000], task="tag", **training)
        predicted = [answer.tags for answer in other.predict([row for row, _ in tagged[1000:]])]
        pairs = [
            pair
            for (_, tags), mine in zip(tagged[1000:], predicted, strict=True)
            for pair in zip(tags, mine, strict=True)
        ]
        found[name] = (
            keel.evaluate(one, texts[1000:]).values["accuracy"].value,
            sum(wanted == mine for wanted, mine in pairs) / len(pairs),
        )
        say(f"{name}: accuracy for word content {found[name][0]:.0%}, for the previous word {found[name][1]:.0%}")
    bare, sincos, learned, lstm = found.values()
    return Finding(
        min(label for label, _ in found.values()) > 0.95 and bare[1] < 0.7 < 0.9 < lstm[1],
        f"all find which words occur ({bare[0]:.0%} without positions); the previous word is not found by attention "
        f"alone ({bare[1]:.0%}; majority class {usual:.0%}), but by an LSTM ({lstm[1]:.0%}) and by attention with "
        f"sinusoidal positions ({sincos[1]:.0%}); positions learned from the same labels reach {learned[1]:.0%}",
    )


def pretrained_vectors(say: Say) -> Finding:
    """59: a Transformer with embeddings initialised from word2vec, rescaled, and at random."""
    docstrings = read_docstrings(say)
    text = ["\n".join(docstring.sentences) for docstring in docstrings if not docstring.held_out]
    learned = balanced(labelled_sentences(docstring for docstring in docstrings if not docstring.held_out), 60)
    test = balanced(labelled_sentences(docstring for docstring in docstrings if docstring.held_out), 60)
    say(f"which of ten packages is a sentence from? {len(learned)} labels, {len(test)} test sentences")
    words = learn_words(text, keel.Word2vec(width=SMALL.width), epochs=3, say=say)
    found = {}
    for name in ("random", "pre-trained"):
        torch.manual_seed(0)
        encoder = SMALL.build_encoder(len(words.tokenizer))
        if name == "pre-trained":
            vectors = words.encoder.get_parameter("words.weight").detach()
            with torch.no_grad():
                encoder.words.weight.copy_(vectors * (encoder.words.weight.std() / vectors.std()))
        start = keel.Model(system=SMALL, encoder=encoder, tokenizer=words.tokenizer)
        model = keel.finetune(start, learned, epochs=15, batch=16, **SETTINGS)
        score = found[name] = keel.evaluate(model, test).values["accuracy"]
        say(f"{name} embeddings: accuracy {score:.1%}")
    return Finding(
        found["pre-trained"].value > found["random"].value,
        f"they are copied into `encoder.words.weight` and rescaled; with {len(learned)} labels the accuracy is "
        f"{found['pre-trained'].value:.1%}, {found['random'].value:.1%} from random embeddings",
    )


def features(say: Say) -> Finding:
    """62: classification by Transformers and LSTMs of 1, 2 and 4 layers, and encoding time by length."""
    docstrings = read_docstrings(say)
    learned = balanced(labelled_sentences(docstring for docstring in docstrings if not docstring.held_out), 100)
    test = balanced(labelled_sentences(docstring for docstring in docstrings if docstring.held_out), 60)
    say(f"which of ten packages is a sentence from? {len(learned)} labels, no pre-training, {len(test)} test sentences")
    makers: dict[str, Callable[[int], System]] = {
        "Transformer": lambda layers: replace(SMALL, layers=layers),
        "LSTM": lambda layers: Rnn(width=64, layers=layers, bidirectional=True, dropout=0.1),
    }
    best: dict[str, float] = {}
    for name, make in makers.items():
        for layers in (1, 2, 4):
            scores = []
            for lr in (1e-3, 3e-3):
                training = SETTINGS | {"epochs": 10, "batch": 16, "lr": lr, "schedule": "linear", "warmup": 0.1}
                model = keel.finetune(make(layers), learned, **training)
                scores.append(keel.evaluate(model, test).values["accuracy"].value)
            best[name] = max(best.get(name, 0.0), *scores)
            say(
                f"{name}, {layers} layers: accuracy {scores[0]:.1%} with learning rate 0.001, {scores[1]:.1%} with "
                "0.003"
            )
    growth = {}
    for name, make in makers.items():
        encoder = make(2).build_encoder(1000).eval()
        times = [_reading_time(encoder, length) for length in (16, 64, 256)]
        growth[name] = times[-1] / times[0]
        say(f"{name}, 2 layers: 16, 64, 256 words take {', '.join(f'{1e3 * each:.1f}' for each in times)} ms")
    return Finding(
        best["Transformer"] > best["LSTM"] + 0.04,
        f"without pre-training the Transformer reaches {best['Transformer']:.1%} at its best depth, the LSTM "
        f"{best['LSTM']:.1%}; 16 times as many words take {growth['Transformer']:.1f} and {growth['LSTM']:.1f} times "
        "as long",
    )


@torch.inference_mode()
def _reading_time(encoder: Encoder, length: int) -> float:
    """Seconds to encode one sequence of this length."""
    rows = TokenBatch(ids=torch.randint(1000, (1, length)), lengths=torch.tensor([length]))
    return shortest_time(lambda: encoder(rows))
