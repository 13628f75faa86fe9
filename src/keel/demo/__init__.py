"""Demo: from raw text to a fine-tuned BERT, on text that every machine has, in six resumable parts."""

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

import keel
from keel.demo.demo_page import write_page
from keel.demo.docstrings import (
    PACKAGES,
    Docstring,
    balanced,
    collect_docstrings,
    labelled_sentences,
    training_texts,
)  # fmt: skip
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
    layers=2,
    width=128,
    head_dim=32,
    max_positions=128,
    sequence_length=64,
    dropout=0.0,
    attention_dropout=0.0,
    mask_rate=0.2,
    next_sentence=False,
)
VECTORS = {"word2vec": keel.Word2vec(), "fastText": keel.FastText(buckets=50_000)}
"""Static word vectors; each is a baseline in the last part."""
WORDS = ("matrix", "graph", "file", "sine")
ANALOGIES = ("sin - sine + cosine", "nodes - node + edge", "max - maximum + minimum")
FINETUNING = {"epochs": 20, "batch": 16, "lr": 1e-3}
"""Fine-tuning settings of the pre-trained network and of the one from scratch."""

Labelled = list[tuple[str, str]]
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
    vectors = {name: learn_vectors(corpus, system, folder / name, on_event) for name, system in VECTORS.items()}
    neighbors = {name: query_vectors(model) for name, model in vectors.items()}
    for name, (question, near) in ((name, row) for name, rows in neighbors.items() for row in rows):
        say(
            f"{name}, {question}: {', '.join(f'{word} {score:.2f}' for word, score in near) or 'not in the vocabulary'}"
        )

    part(3, "Tokenizer: subwords")
    tokenizer = train_tokenizer(corpus, folder / "tokenizer")
    subwords = " ".join(map(tokenizer.token_of, tokenizer.encode(MASKED[1]).ids))
    say(f"{len(tokenizer):,} subwords; a tokenized sentence: {subwords}")

    part(4, f"Pre-training: a small BERT, {steps:,} steps of masked language modelling")
    base = pretrain(corpus, folder / "bert", folder / "tokenizer", steps, on_event)

    part(5, "Masked words: the most probable fillers")
    filled = [(text, base.fill(text, top=3)[0]) for text in MASKED]
    for text, found in filled:
        say(f"{text}  {', '.join(f'{word} {probability:.0%}' for word, probability in found)}")

    part(6, f"Fine-tuning: which package is a sentence from? {LABELS} labels, {TESTED:,} test sentences, {SEEDS} seeds")
    answers = compare(base, vectors, docstrings, folder / "answers", say)
    found = verdict(answers[0], *answers[-2:])
    say(found)

    page = write_page(
        folder / "index.html",
        docstrings=docstrings,
        neighbors=neighbors,
        tokenized=(MASKED[1], subwords),
        base=base,
        log=folder / "bert" / "run" / "log.jsonl",
        filled=filled,
        answers=answers,
        verdict=found,
    )
    say(f"Report: {page} ({(time.monotonic() - began) / 60:.1f} minutes)")
    return page


def learn_vectors(corpus: keel.Corpus, system: System, folder: Path, on_event: OnEvent) -> keel.Model:
    """Train word vectors with one thread, so that they are the same on every machine."""
    if (folder / "config.json").exists():
        return keel.Model.load(folder)
    return keel.pretrain(
        system,
        corpus,
        out=folder,
        vocabulary=4000,
        held_out=0.0,
        epochs=12,
        batch=4,
        lr=0.05,
        threads=1,
        on_event=on_event,
    )


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


def pretrain(corpus: keel.Corpus, folder: Path, tokenizer: Path, steps: int, on_event: OnEvent) -> keel.Model:
    """Pre-train a BERT of two layers."""
    if (folder / "config.json").exists():
        return keel.Model.load(folder)
    return keel.pretrain(
        SYSTEM,
        corpus,
        out=folder,
        tokenizer=str(tokenizer),
        steps=steps,
        batch=32,
        lr=1e-3,
        warmup=0.1,
        beta2=0.98,
        evaluate_every=250,
        checkpoint_minutes=0.5,  # little is lost on interruption
        on_event=on_event,
    )


def compare(
    base: keel.Model, vectors: dict[str, keel.Model], docstrings: list[Docstring], folder: Path, say: Say
) -> list[Answers]:
    """Compare classifiers: each seed has its own labels, all have the same test sentences."""
    test = balanced(labelled_sentences(docstrings, held_out=True), TESTED // len(PACKAGES))
    known, each = labelled_sentences(docstrings, held_out=False), LABELS // len(PACKAGES)
    say(f"random baseline: {100 / len(PACKAGES):.0f}%")

    def by_counts(labelled: Labelled, seed: int) -> list[str]:
        return WordCountBaseline(*zip(*labelled, strict=True)).predict([text for text, _ in test])

    def by_bert(labelled: Labelled, seed: int, from_scratch: bool) -> list[str]:
        model = keel.finetune(base, labelled, dev=None, seed=seed, from_scratch=from_scratch, **FINETUNING)
        return [found.label for found in model.predict([text for text, _ in test])]

    def by_vectors(labelled: Labelled, seed: int, model: keel.Model) -> list[str]:
        tuned = keel.finetune(model, labelled, dev=None, seed=seed, freeze=True)
        return [found.label for found in tuned.predict([text for text, _ in test])]

    classifiers: dict[str, Callable[[Labelled, int], list[str]]] = {
        "word counts": by_counts,
        **{f"{name} frozen": partial(by_vectors, model=model) for name, model in vectors.items()},
        "BERT from scratch": lambda labelled, seed: by_bert(labelled, seed, True),
        "BERT pre-trained": lambda labelled, seed: by_bert(labelled, seed, False),
    }
    folder.mkdir(exist_ok=True)
    answers = []
    for system, learn in classifiers.items():
        right = []
        for seed in range(SEEDS):
            path = folder / f"{system.replace(' ', '-')}-{seed}.json"
            if not path.exists():
                predicted = learn(balanced(known, each, skip=seed * each), seed)
                path.write_text(json.dumps([mine == label for mine, (_, label) in zip(predicted, test, strict=True)]))
            right.append(json.loads(path.read_text()))
            say(f"{system}, seed {seed}: {np.mean(right[-1]):.1%}")
        answers.append(Answers(system=system, correct=np.array(right)))
        percent, low, high = answers[-1].percent()
        say(f"{system}: accuracy {percent:.1f}% ({low:.1f} to {high:.1f})")
    return answers
