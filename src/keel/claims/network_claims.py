"""Claims about networks before attention, and comparisons of encoders."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import keel
from keel.claims.claim import Say, Verdict
from keel.claims.measures import batch_of, join_values, minimize, shortest_time
from keel.claims.small_models import finetuned_scores, package_sentences, pretrain_tiny, read_docstrings
from keel.demo.docstrings import training_texts
from keel.nn.huffman import huffman_tree
from keel.systems.nnlm import NgramBatch
from keel.systems.system import System

POINTS = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
QUESTIONS = {"AND": [0.0, 0.0, 0.0, 1.0], "XOR": [0.0, 1.0, 1.0, 0.0]}


def exclusive_or(say: Say) -> Verdict:
    """25: one layer, and two layers with and without an activation, from 20 initialisations on AND and XOR."""
    kinds = {
        "one layer (perceptron)": ((2, 1), False),
        "two layers, no activation": ((2, 8, 1), False),
        "two layers, tanh between": ((2, 8, 1), True),
    }
    best: dict[tuple[str, str], float] = {}
    for name, (sizes, activation) in kinds.items():
        for question, answers in QUESTIONS.items():
            scores = _accuracies(sizes, activation, torch.tensor(answers))
            best[name, question] = scores.max().item()
            say(f"{name}: {question} accuracy {scores.max():.0%} at best of 20 runs, {scores.mean():.0%} on average")
    one, linear, nonlinear = kinds
    limited = max(best[one, "XOR"], best[linear, "XOR"])
    return Verdict(
        best[one, "AND"] == 1 and limited <= 0.75 and best[nonlinear, "XOR"] == 1,
        f"without an activation layers are one linear map and reach at most {limited:.0%} on XOR; with one, "
        f"{best[nonlinear, 'XOR']:.0%}",
    )


def cost_of_softmax(say: Say) -> Verdict:
    """12 to 15: cost per word in Bengio's network of softmax, hierarchical softmax, NCE and negative sampling."""
    base = keel.Nnlm(width=32, hidden=64, negatives=5)
    losses = {
        "full softmax": replace(base, loss="softmax"),
        "hierarchical softmax": replace(base, loss="hierarchical"),
        "NCE": replace(base, loss="nce"),
        "negative sampling": replace(base, loss="negative"),
    }
    sizes = (1_000, 10_000, 50_000)
    growth, slowest = [], []
    for name, system in losses.items():
        found = [_loss_time(system, size) for size in sizes]
        growth.append(found[-1][0] / found[0][0])
        slowest.append(found[-1][0])
        costs = ", ".join(f"{scores:,.0f} ({1e6 * seconds:.1f} us)" for seconds, scores in found)
        say(f"{name}: scores per word with vocabularies of {', '.join(f'{size:,}' for size in sizes)}: {costs}")
    full, hierarchical, nce, negative = growth
    return Verdict(
        full > 10 and max(hierarchical, nce, negative) < 5,
        f"from 1,000 to 50,000 words the time of the softmax grows by a factor of {full:.0f}, of hierarchical softmax "
        f"by {hierarchical:.1f}, of NCE by {nce:.1f} and of negative sampling by {negative:.1f}; at 50,000 it is "
        f"{slowest[0] / max(slowest[1:]):.0f} times slower than the slowest of them",
    )


def _loss_time(system: keel.Nnlm, words: int) -> tuple[float, float]:
    """Seconds per word of the loss for a vocabulary of this size, and the number of scores."""
    torch.manual_seed(0)
    objective = system.build_objective(system.build_encoder(words), keel.Tokenizer.from_words(["word"])).train()
    counts = 1e6 / torch.arange(1, words + 1)  # Zipf's law
    objective.counts_of_words.copy_(counts)
    context, wanted = torch.randint(words, (1, 512, system.order - 1)), torch.multinomial(counts, 512, True)[None]
    sampled = torch.randint(words, (1, 512, system.negatives if system.loss in ("nce", "negative") else 0))
    batch = NgramBatch(context=context, words=wanted, present=torch.ones(1, 512), negatives=sampled)
    with torch.inference_mode():
        seconds = shortest_time(lambda: objective(batch)) / 512  # the first run builds the tree
    if system.loss == "hierarchical":
        return seconds, float(huffman_tree(counts.numpy()).lengths[wanted.numpy()].mean())
    return seconds, words if system.loss == "softmax" else 1 + system.negatives


def _accuracies(sizes: tuple[int, ...], activation: bool, answers: Tensor) -> Tensor:
    """Accuracies [20] on the four points after 1000 steps from 20 initialisations."""
    torch.manual_seed(0)
    weights = [torch.randn(20, width + 1, next_width) for width, next_width in pairwise(sizes)]

    def forward() -> Tensor:
        vectors = POINTS.expand(20, 4, 2)
        for number, weight in enumerate(weights):
            vectors = F.pad(vectors, (0, 1), value=1.0) @ weight  # the last row is the bias
            if activation and number < len(weights) - 1:
                vectors = torch.tanh(vectors)
        return vectors[..., 0]  # [20, 4]

    def loss() -> Tensor:
        return 20 * F.binary_cross_entropy_with_logits(forward(), wanted)

    wanted = answers.expand(20, 4)
    minimize(loss, weights, 1000, 0.5, torch.optim.SGD)
    return ((forward() > 0) == (wanted > 0.5)).float().mean(1)


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
    characters, plain, pretrained = finetuned_scores(
        methods, train, test, say, dev=None, device="cpu", epochs=15, batch=20
    )
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
            batches = [batch_of(torch.randint(1000, (1, length))) for length in (16, 64, 256)]
            times = [shortest_time(lambda batch=batch, encoder=encoder: encoder(batch)) for batch in batches]
        growth.append(times[-1] / times[0])
        say(f"{name}, 2 layers: 16, 64, 256 words take {join_values([1e3 * each for each in times], '.1f')} ms")
    return Verdict(
        best[0] > best[1] + 0.04,
        f"without pre-training the Transformer reaches {best[0]:.1%} at its best depth, the LSTM {best[1]:.1%}; 16 "
        f"times as many words take {growth[0]:.1f} and {growth[1]:.1f} times as long",
    )
