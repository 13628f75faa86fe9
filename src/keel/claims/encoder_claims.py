"""Claims that compare encoders by fine-tuning: attention, recurrent networks, characters, word vectors."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import torch

import keel
from keel.claims.claim import Say, Verdict
from keel.claims.measures import join_values, shortest_time, token_batch
from keel.claims.small_models import finetuned_scores, package_sentences, pretrain_tiny, read_docstrings
from keel.demo.docstrings import training_texts
from keel.systems.system import System

SMALL = keel.Transformer(layers=2, decoder_layers=1, width=64, head_dim=16, dropout=0.1, max_positions=256)
WORDS = ("boat", "anchor", "sail", "bread", "oven", "soup", "judge", "court", "law", "rose", "field", "tree")
SETTINGS: dict[str, Any] = {"dev": None, "threads": 1, "device": "cpu", "log_every": 1000}


def characters_only(say: Say) -> Verdict:
    """18: classification by characters, by words, and by words with pre-trained vectors."""
    docstrings = read_docstrings(say)
    train, test = package_sentences(docstrings, 100, say)
    words = pretrain_tiny(keel.Word2vec(width=64), training_texts(docstrings), say, epochs=8)
    shape = {"width": 64, "filters": 50, "dropout": 0.5}
    methods: dict[str, tuple[Any, dict[str, Any]]] = {
        "CNN over characters": ("cnn", {"units": "characters", **shape}),
        "CNN over words": ("cnn", shape),
        "CNN over words with pre-trained vectors": (words, {"network": "cnn", "network_width": 50}),
    }
    characters, plain, pretrained = finetuned_scores(methods, train, test, say, device="cpu", epochs=15, batch=20)
    return Verdict(
        characters.value < pretrained.value if characters.differs_from(pretrained) else None,
        f"characters reach {characters.value:.1%}, words {plain.value:.1%}, words with pre-trained vectors "
        f"{pretrained.value:.1%}",
    )


def word_order(say: Say) -> Verdict:
    """49: labels for word content and tags for the previous word, for attention with various positions and an LSTM."""
    random = Random(0)
    texts = [random.choices(WORDS, k=random.randint(6, 10)) for _ in range(1200)]
    labelled = [(" ".join(words), "yes" if words.count("boat") else "no") for words in texts]
    tagged = [(words, ["O", *("AFTER" if word < "m" else "OTHER" for word in words[:-1])]) for words in texts]
    wanted = [tag for _, tags in tagged[1000:] for tag in tags]
    usual = max(Counter(wanted).values()) / len(wanted)
    encoders: dict[str, System] = {
        "attention without positions": replace(SMALL, position_encoding="none"),
        "attention with sinusoidal positions": SMALL,
        "attention with learned positions": replace(SMALL, position_encoding="learned"),
        "bidirectional LSTM": keel.Rnn(width=64, layers=1, bidirectional=True, dropout=0.1),
    }
    found: list[tuple[float, float]] = []
    for name, system in encoders.items():
        training = SETTINGS | {"epochs": 12, "batch": 32, "lr": 3e-3, "warmup": 0.1, "schedule": "linear"}
        classifier = keel.finetune(system, labelled[:1000], **training)
        content = keel.evaluate(classifier, labelled[1000:]).values["accuracy"].value
        tagger = keel.finetune(system, tagged[:1000], task="tag", **training)
        predicted = [tag for answer in tagger.predict(texts[1000:]) for tag in answer.tags]
        previous = sum(one == other for one, other in zip(predicted, wanted, strict=True)) / len(wanted)
        found.append((content, previous))
        say(f"{name}: accuracy for word content {content:.0%}, for the previous word {previous:.0%}")
    bare, sincos, learned, lstm = found
    return Verdict(
        min(content for content, _ in found) > 0.95 and bare[1] < 0.7 < 0.9 < lstm[1],
        f"all find which words occur ({bare[0]:.0%} without positions); the previous word is not found by attention "
        f"alone ({bare[1]:.0%}; majority class {usual:.0%}), but by an LSTM ({lstm[1]:.0%}) and by attention with "
        f"sinusoidal positions ({sincos[1]:.0%}); positions learned from the same labels reach {learned[1]:.0%}",
    )


def pretrained_vectors(say: Say) -> Verdict:
    """59: a Transformer with embeddings initialised from word2vec, rescaled, and at random."""
    docstrings = read_docstrings(say)
    train, test = package_sentences(docstrings, 60, say)
    words = pretrain_tiny(keel.Word2vec(width=SMALL.width), training_texts(docstrings), say, epochs=3)
    methods: dict[str, tuple[keel.Model, dict[str, Any]]] = {}
    for name in ("random", "pre-trained"):
        torch.manual_seed(0)
        encoder = SMALL.build_encoder(len(words.tokenizer))
        if name == "pre-trained":
            vectors = words.encoder.get_parameter("words.weight").detach()
            with torch.no_grad():
                encoder.words.weight.copy_(vectors * (encoder.words.weight.std() / vectors.std()))
        start = keel.Model(system=SMALL, encoder=encoder, tokenizer=words.tokenizer)
        methods[f"{name} embeddings"] = start, {}
    random, pretrained = finetuned_scores(methods, train, test, say, epochs=15, batch=16, **SETTINGS)
    return Verdict(
        pretrained.value > random.value,
        f"they are copied into `encoder.words.weight` and rescaled; with {len(train)} labels the accuracy is "
        f"{pretrained.value:.1%}, {random.value:.1%} from random embeddings",
    )


def features(say: Say) -> Verdict:
    """62: classification by Transformers and LSTMs of 1, 2 and 4 layers, and encoding time by length."""
    train, test = package_sentences(read_docstrings(say), 100, say, ", no pre-training")
    makers: dict[str, Callable[[int], System]] = {
        "Transformer": lambda layers: replace(SMALL, layers=layers),
        "LSTM": lambda layers: keel.Rnn(width=64, layers=layers, bidirectional=True, dropout=0.1),
    }
    best, growth = [], []
    for name, make in makers.items():
        found: list[float] = []
        for layers in (1, 2, 4):
            for lr in (1e-3, 3e-3):
                training = SETTINGS | {"epochs": 10, "batch": 16, "lr": lr, "schedule": "linear", "warmup": 0.1}
                model = keel.finetune(make(layers), train, **training)
                found.append(keel.evaluate(model, test).values["accuracy"].value)
            low, high = found[-2:]
            say(f"{name}, {layers} layers: accuracy {low:.1%} with learning rate 0.001, {high:.1%} with 0.003")
        best.append(max(found))
    for name, make in makers.items():
        encoder = make(2).build_encoder(1000).eval()
        with torch.inference_mode():
            batches = [token_batch(torch.randint(1000, (1, length))) for length in (16, 64, 256)]
            times = [shortest_time(lambda batch=batch, encoder=encoder: encoder(batch)) for batch in batches]
        growth.append(times[-1] / times[0])
        say(f"{name}, 2 layers: 16, 64, 256 words take {join_values([1e3 * each for each in times], '.1f')} ms")
    return Verdict(
        best[0] > best[1] + 0.04,
        f"without pre-training the Transformer reaches {best[0]:.1%} at its best depth, the LSTM {best[1]:.1%}; 16 "
        f"times as many words take {growth[0]:.1f} and {growth[1]:.1f} times as long",
    )
