"""Demo: from raw text to a fine-tuned BERT, on text that every machine has, in six resumable parts."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import keel
from keel.demo.demo_page import write_page
from keel.demo.docstrings import PACKAGES, Docstring, balanced, collect_docstrings, labelled_sentences, training_texts
from keel.demo.paired_answers import Answers, verdict
from keel.demo.word_count_baseline import WordCountBaseline
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore, note
from keel.explain.nearest_neighbors import Neighbor
from keel.systems.system import System

LABELS, TESTED, SEEDS = 250, 1000, 3
MASKED = (
    "Returns the [MASK] of the matrix.",
    "The nodes of the [MASK] are given as a list.",
    "If the file does not [MASK], an error is raised.",
)
# Dropout and next sentence prediction delay the point at which a BERT starts to use context.
SYSTEM = keel.Bert(
    layers=2, width=128, head_dim=32, max_positions=128, sequence_length=64, dropout=0.0, attention_dropout=0.0,
    mask_rate=0.2, pair_objective="none",
)  # fmt: skip
PRETRAINING = {"batch": 32, "lr": 1e-3, "warmup": 0.1, "beta2": 0.98, "evaluate_every": 250}
VECTORS = {"word2vec": keel.Word2vec(), "fastText": keel.FastText(buckets=50_000)}
"""Static word vectors; each is a baseline in the last part."""
VECTOR_TRAINING = {"vocabulary": 4000, "held_out": 0.0, "epochs": 12, "batch": 4, "lr": 0.05, "threads": 1}
"""One thread, so that the vectors are the same on every machine."""
WORDS = ("matrix", "graph", "file", "sine")
ANALOGIES = ("sin - sine + cosine", "nodes - node + edge", "max - maximum + minimum")
FINETUNING = {"epochs": 20, "batch": 16, "lr": 1e-3}
"""Fine-tuning settings of the pre-trained network and of the one from scratch."""

Say = Callable[[str], None]


def run(out: str | Path = "keel-demo", *, steps: int = 2600, on_event: OnEvent = ignore) -> Path:
    """Run all parts and write an HTML page; a repeated call resumes.

    `steps` is the number of pre-training steps: with the default the demo takes less than five minutes on two idle
    cores, with the same results on every machine.
    """
    began, folder = time.monotonic(), Path(out)
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "docstrings.jsonl").exists():
        raise UsageError(f"{folder} is not empty and contains no demo: choose another --out")

    def part(number: int, title: str) -> None:
        on_event({"event": "act", "number": number, "text": f"\nPart {number}. {title}"})

    def say(text: str) -> None:
        note(on_event, f"  {text}")

    part(1, "Text: the docstrings of Keel's dependencies")
    docstrings = collect_docstrings(folder, say)
    say(f"{len(docstrings):,} docstrings; a third is held out for the test")

    part(2, "Word vectors: nearest neighbours and analogies")
    corpus = keel.Corpus.of(training_texts(docstrings))
    vectors = {
        name: pretrain_once(system, corpus, folder / name, on_event, **VECTOR_TRAINING)
        for name, system in VECTORS.items()
    }
    neighbors = {name: query_vectors(model) for name, model in vectors.items()}
    for name, found in neighbors.items():
        for question, near in found:
            words = ", ".join(f"{word} {score:.2f}" for word, score in near)
            say(f"{name}, {question}: {words or 'not in the vocabulary'}")

    part(3, "Tokenizer: subwords")
    tokenizer = train_tokenizer(corpus, folder / "tokenizer")
    subwords = " ".join(map(tokenizer.token_of, tokenizer.encode(MASKED[1]).ids))
    say(f"{len(tokenizer):,} subwords; a tokenized sentence: {subwords}")

    part(4, f"Pre-training: a small BERT, {steps:,} steps of masked language modelling")
    settings = PRETRAINING | {"tokenizer": str(folder / "tokenizer"), "steps": steps, "checkpoint_minutes": 0.5}
    base = pretrain_once(SYSTEM, corpus, folder / "bert", on_event, **settings)

    part(5, "Masked words: the most probable fillers")
    filled = [(text, base.fill(text, top=3)[0]) for text in MASKED]
    for text, found in filled:
        say(f"{text}  {', '.join(f'{word} {probability:.0%}' for word, probability in found)}")

    part(6, f"Fine-tuning: which package is a sentence from? {LABELS} labels, {TESTED:,} test sentences, {SEEDS} seeds")
    answers = compare(base, vectors, docstrings, folder / "answers", say)
    found = verdict(answers[0], *answers[-2:])
    say(found)

    page = write_page(folder, docstrings, neighbors, (MASKED[1], subwords), base, filled, answers, verdict=found)
    say(f"Report: {page} ({(time.monotonic() - began) / 60:.1f} minutes)")
    return page


def pretrain_once(system: System, corpus: keel.Corpus, folder: Path, on_event: OnEvent, **settings: Any) -> keel.Model:
    """Load the model of this folder, or pre-train it."""
    if (folder / "config.json").exists():
        return keel.Model.load(folder)
    return keel.pretrain(system, corpus, out=folder, on_event=on_event, **settings)


def query_vectors(vectors: keel.Model) -> list[tuple[str, list[Neighbor]]]:
    """Nearest neighbours and analogies; an empty list where a word is unknown."""
    found: list[tuple[str, list[Neighbor]]] = []
    for question in (*WORDS, *ANALOGIES):
        try:
            found.append((question, keel.analogy(question, model=vectors, top=3)))
        except KeelError:  # the vocabulary depends on the installed versions
            found.append((question, []))
    return found


def train_tokenizer(corpus: keel.Corpus, folder: Path) -> keel.Tokenizer:
    """Train a WordPiece tokenizer on the corpus."""
    if not folder.exists():
        keel.Tokenizer.train(corpus, kind="wordpiece", size=4000).save(folder)
    return keel.Tokenizer.load(folder)


def compare(
    base: keel.Model, vectors: dict[str, keel.Model], docstrings: list[Docstring], folder: Path, say: Say
) -> list[Answers]:
    """Compare classifiers: each seed has its own labels, all have the same test sentences."""
    test = balanced(labelled_sentences(docstrings, held_out=True), TESTED // len(PACKAGES))
    known, each = labelled_sentences(docstrings, held_out=False), LABELS // len(PACKAGES)
    say(f"random baseline: {100 / len(PACKAGES):.0f}%")
    texts, labels = zip(*test, strict=True)
    methods: dict[str, tuple[keel.Model, dict[str, Any]] | None] = {
        "word counts": None,
        **{f"{name} frozen": (model, {"freeze": True}) for name, model in vectors.items()},
        "BERT from scratch": (base, {"from_scratch": True, **FINETUNING}),
        "BERT pre-trained": (base, FINETUNING),
    }

    def predict(method: tuple[keel.Model, dict[str, Any]] | None, seed: int) -> list[str]:
        train = balanced(known, each, skip=seed * each)
        if method is None:
            return WordCountBaseline(*zip(*train, strict=True)).predict(texts)
        start, settings = method
        model = keel.finetune(start, train, dev=None, seed=seed, **settings)
        return [found.label for found in model.predict(texts)]

    folder.mkdir(exist_ok=True)
    answers = []
    for system, method in methods.items():
        right = []
        for seed in range(SEEDS):
            path = folder / f"{system.replace(' ', '-')}-{seed}.json"
            if not path.exists():
                predicted = predict(method, seed)
                path.write_text(json.dumps([mine == label for mine, label in zip(predicted, labels, strict=True)]))
            right.append(json.loads(path.read_text()))
            say(f"{system}, seed {seed}: {np.mean(right[-1]):.1%}")
        answers.append(Answers(system=system, correct=np.array(right)))
        percent = answers[-1].percent()
        say(f"{system}: accuracy {percent.value:.1f}% ({percent.low:.1f} to {percent.high:.1f})")
    return answers
