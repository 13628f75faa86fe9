"""Demo in three acts: the models that come with Keel, one of them fine-tuned; pre-training a BERT on text that every
machine has; a comparison on a few labels. It resumes."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import keel
from keel.demo.demo_page import DemoResults, Filled, Queried, write_page
from keel.demo.docstrings import (
    PACKAGES,
    Docstring,
    balanced,
    collect_docstrings,
    labelled_sentences,
    shifted_sentences,
    training_texts,
)
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore, note
from keel.formats.bundled_models import locate
from keel.report.comparison_table import comparison_lines
from keel.systems.system import System

STEPS = 2600
"""Fewer are not enough for this BERT to use context."""
LABELS, TESTED, SEEDS = 1500, 1000, 3
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
VECTORS = {"word2vec": keel.Word2vec(), "fasttext-vectors": keel.FastText(buckets=50_000)}
"""Static word vectors; each is a row of the comparison."""
VECTOR_TRAINING = {"vocabulary": 4000, "held_out": 0.0, "epochs": 12, "batch": 4, "lr": 0.05, "threads": 1}
"""One thread, so that the vectors are the same on every machine."""
WORDS = ("matrix", "graph", "file", "sine")
ANALOGIES = ("sin - sine + cosine", "nodes - node + edge", "max - maximum + minimum")
BUNDLED_QUERIES = {
    "english-words": ("king", "paris - france + japan"),
    "chinese-words": ("苏轼", "巴黎 - 法国 + 日本"),
}
"""Questions for the bundled word vectors."""
BUNDLED_MASKS = (
    ("english", "The keys to the cabinet [MASK] on the table."),
    ("english", "She was born in Paris, [MASK]."),
    ("chinese", "他是一名[MASK]生，在医院工作。"),
)
"""Texts for the bundled encoders."""
PROMPT = "The city of Berlin"
GENERATION = {"tokens": 69, "top_p": 0.9, "temperature": 0.8, "seed": 0}
FEW_LABELS, FEW_TESTED = 250, 600
CLASSIFIERS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "onehot": ("onehot", {}),
    "english-words": ("english-words (frozen)", {"freeze": True}),
    # By Muon and in ten epochs, the defaults for this model, it takes five times as long and is no better here.
    "english": ("english (fine-tuned)", {"dev": None, "optimizer": "adamw", "lr": 1e-4, "epochs": 5}),
}
"""Classifiers of the first act: a description and the settings of each."""
NEW_SYSTEMS = ("onehot", "fasttext")
"""Systems of the comparison that learn from the labels alone."""
SCRATCH = "bert-from-scratch"


def run(out: str | Path = "keel-demo", *, steps: int = STEPS, on_event: OnEvent = ignore) -> Path:
    """Run all acts and write an HTML page; a repeated call resumes.

    `steps` is the number of pre-training steps: with the default the demo takes about five minutes on two idle
    cores, with the same results on every machine.
    """
    began, folder = time.monotonic(), Path(out)
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "docstrings.jsonl").exists():
        raise UsageError(f"{folder} is not empty and contains no demo: choose another --out")

    def act(number: int, title: str) -> None:
        on_event({"event": "act", "number": number, "text": f"\nAct {number}. {title}"})

    def part(number: int, title: str) -> None:
        on_event({"event": "part", "number": number, "text": f"\nPart {number}. {title}"})

    def say(text: str) -> None:
        note(on_event, f"  {text}")

    act(1, "What comes with Keel: models that are pre-trained")
    part(1, "Word vectors: nearest neighbours and analogies")
    bundled = {name: query_vectors(keel.Model.load(locate(name)), words) for name, words in BUNDLED_QUERIES.items()}
    say_neighbors(bundled, say)

    part(2, "Encoders: the most probable words for a mask")
    bundled_filled = [(text, keel.fill(text, model=locate(name), top=3)[0]) for name, text in BUNDLED_MASKS]
    say_filled(bundled_filled, say)

    part(3, "A language model: a text that continues a prompt")
    generated = keel.generate(PROMPT, model=locate("english-gpt"), **GENERATION)
    say(PROMPT + " ".join(generated.split("\n")))

    part(4, "Text: the docstrings of Keel's dependencies")
    docstrings = collect_docstrings(folder, say)
    say(f"{len(docstrings):,} docstrings; a third is held out for the test")

    part(5, f"Fine-tuning: are two words of a sentence exchanged? {FEW_LABELS} labels, {FEW_TESTED} test sentences")
    classified = classify(docstrings, folder, on_event)
    for name, scores in classified.items():
        say(f"{name}: accuracy {scores.values[scores.main]}")

    act(2, "From raw text to a pre-trained BERT")
    part(6, "Word vectors: nearest neighbours and analogies")
    corpus = keel.Corpus.of(training_texts(docstrings))
    vectors = pretrain_vectors(corpus, folder, on_event)
    neighbors = {name: query_vectors(model, (*WORDS, *ANALOGIES)) for name, model in vectors.items()}
    say_neighbors(neighbors, say)

    part(7, "Tokenizer: subwords")
    tokenizer = train_tokenizer(corpus, folder / "tokenizer")
    subwords = " ".join(map(tokenizer.token_of, tokenizer.encode(MASKED[1]).ids))
    say(f"{len(tokenizer):,} subwords; a tokenized sentence: {subwords}")

    part(8, f"Pre-training: a small BERT, {steps:,} steps of masked language modelling")
    base = pretrain_bert(corpus, folder, on_event, steps)

    part(9, "Masked words: the most probable fillers")
    filled = [(text, base.fill(text, top=3)[0]) for text in MASKED]
    say_filled(filled, say)

    act(3, "Comparison of the generations")
    part(10, f"Which package is a sentence from? {LABELS:,} labels, {TESTED:,} test sentences, {SEEDS} seeds")
    comparison = compare(base, docstrings, folder, on_event)
    gain = pretraining_gain(comparison)
    for line in (*comparison_lines(comparison), gain):
        say(line)
    say(f"Comparison: {folder / 'comparison' / 'report.html'}")

    results = DemoResults(
        bundled_neighbors=bundled, bundled_filled=bundled_filled, generated=(PROMPT, generated), docstrings=docstrings,
        few_labels=FEW_LABELS, classified=classified, neighbors=neighbors, tokenized=(MASKED[1], subwords), base=base,
        filled=filled, comparison=comparison, gain=gain,
    )  # fmt: skip
    page = write_page(folder, results)
    say(f"Report: {page} ({(time.monotonic() - began) / 60:.1f} minutes)")
    return page


def classify(docstrings: list[Docstring], folder: Path, on_event: OnEvent) -> dict[str, keel.Scores]:
    """The scores of `CLASSIFIERS` by description, on sentences of held-out docstrings."""
    train, test = folder / "shift-train.jsonl", folder / "shift-test.jsonl"
    for path, count in ((train, FEW_LABELS), (test, FEW_TESTED)):
        write_examples(path, balanced(shifted_sentences(docstrings, held_out=path == test), count // 2))
    found = {}
    for name, (description, settings) in CLASSIFIERS.items():
        out = folder / "classifiers" / name
        if (out / "config.json").exists():
            model = keel.Model.load(out)
        else:
            start = name if name in NEW_SYSTEMS else locate(name)
            model = keel.finetune(start, train, task="classify", out=out, on_event=on_event, **settings)
        found[description] = keel.evaluate(model, test)
    return found


def say_neighbors(neighbors: dict[str, Queried], say: Callable[[str], None]) -> None:
    for name, found in neighbors.items():
        for question, near in found:
            words = ", ".join(f"{word} {score:.2f}" for word, score in near)
            say(f"{name}, {question}: {words or 'not in the vocabulary'}")


def say_filled(filled: list[Filled], say: Callable[[str], None]) -> None:
    for text, found in filled:
        say(f"{text}  {', '.join(f'{word} {probability:.0%}' for word, probability in found)}")


def pretrain_vectors(corpus: keel.Corpus, folder: Path, on_event: OnEvent) -> dict[str, keel.Model]:
    """Word vectors by name, in folders of these names."""
    return {
        name: pretrain_once(system, corpus, folder / name, on_event, **VECTOR_TRAINING)
        for name, system in VECTORS.items()
    }


def pretrain_bert(corpus: keel.Corpus, folder: Path, on_event: OnEvent, steps: int = STEPS) -> keel.Model:
    """A small BERT in the folder `bert`, and its tokenizer."""
    train_tokenizer(corpus, folder / "tokenizer")
    settings = {"tokenizer": str(folder / "tokenizer"), "steps": steps, "checkpoint_minutes": 0.5}
    return pretrain_once(SYSTEM, corpus, folder / "bert", on_event, **PRETRAINING, **settings)


def pretrain_once(system: System, corpus: keel.Corpus, folder: Path, on_event: OnEvent, **settings: Any) -> keel.Model:
    """Load the model of this folder, or pre-train it."""
    if (folder / "config.json").exists():
        return keel.Model.load(folder)
    return keel.pretrain(system, corpus, out=folder, on_event=on_event, **settings)


def query_vectors(vectors: keel.Model, questions: Sequence[str]) -> Queried:
    """Nearest neighbours and analogies; an empty list where a word is unknown."""
    found: Queried = []
    for question in questions:
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


def compare(base: keel.Model, docstrings: list[Docstring], folder: Path, on_event: OnEvent) -> keel.Comparison:
    """Compare the models of the first act with systems that learn from the labels alone, and with an untrained BERT."""
    train, test = folder / "train.jsonl", folder / "test.jsonl"
    for path, count in ((train, LABELS), (test, TESTED)):
        write_examples(path, balanced(labelled_sentences(docstrings, held_out=path == test), count // len(PACKAGES)))
    scratch = folder / SCRATCH
    if not scratch.exists():
        torch.manual_seed(0)
        encoder = base.system.build_encoder(len(base.tokenizer))
        keel.Model(system=base.system, encoder=encoder, tokenizer=base.tokenizer).save(scratch)
    rows = [*NEW_SYSTEMS, *(folder / name for name in VECTORS), scratch, folder / "bert"]
    out, names = folder / "comparison", " ".join(map(str, rows))
    note(on_event, f"  keel compare {names} --train {train} --test {test} --seeds {SEEDS} --out {out}")
    found = keel.compare(rows, train=train, test=test, seeds=SEEDS, out=out, on_event=on_event)
    if not found.ranking(found.columns[0]):
        raise KeelError(f"no system could be scored: {found.failed()[0].error}")
    return found


def pretraining_gain(comparison: keel.Comparison) -> str:
    """One sentence: the pre-trained BERT compared with the same network from scratch."""
    for test in comparison.tests(comparison.columns[0]):
        if {test.first, test.second} == {"bert", SCRATCH}:
            points = 100 * test.difference * (1 if test.first == "bert" else -1)
            return f"Pre-training changes the accuracy of this BERT by {points:+.1f} points ({test.verdict})."
    return "One of the two BERTs could not be scored."


def write_examples(path: Path, pairs: Iterable[tuple[str, str]]) -> None:
    """Write labelled sentences as JSON lines."""
    lines = (json.dumps({"text": text, "label": label}, ensure_ascii=False) for text, label in pairs)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
