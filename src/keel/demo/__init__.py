"""The tour: from raw text to a fine-tuned BERT on what every machine has, in acts; each keeps what it has done."""

import json
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import numpy as np

import keel
from keel.demo.demo_page import write_page
from keel.demo.docstrings import PACKAGES, Docstring, balanced, gather, questions
from keel.demo.paired_answers import Answers, verdict
from keel.demo.word_count_baseline import WordCounts
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore, note
from keel.explain.nearest_neighbors import Neighbor
from keel.systems.system import System

LABELS, TESTED, SEEDS = 250, 1000, 3
BLANKS = (
    "Returns the [MASK] of the matrix.",
    "The nodes of the [MASK] are given as a list.",
    "If the file does not [MASK], an error is raised.",
)
# So few minutes pass mostly before a BERT begins to look at its context: what makes that come late is left out.
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
"""What learns a vector for each word; each gets a row in the last act."""
WORDS = ("matrix", "graph", "file", "sine")
SUMS = ("sin - sine + cosine", "nodes - node + edge", "max - maximum + minimum")
TUNING = {"epochs": 20, "batch": 16, "lr": 1e-3}
"""How both networks are fine-tuned, the pre-trained one and the one that starts from scratch."""

Labelled = list[tuple[str, str]]
Say = Callable[[str], None]


def run(out: str | Path = "keel-demo", *, steps: int = 2600, on_event: OnEvent = ignore) -> Path:
    """Play all acts and write the page that tells of them; the same call goes on where an earlier one stopped.

    `steps` is for pre-training, the longest act: with the default the whole tour takes less than five minutes on two
    cores that have nothing else to do, and finds the same on every machine.
    """
    began, folder = time.monotonic(), Path(out)
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "docstrings.jsonl").exists():
        raise UsageError(f"{folder} is not empty and holds no demo: choose another --out")

    def act(number: int, title: str) -> None:
        on_event({"event": "act", "number": number, "text": f"\nAct {number}. {title}"})

    def say(text: str) -> None:
        note(on_event, f"  {text}")

    act(1, "Real English: what the packages that Keel stands on say about themselves")
    docstrings = gather(folder, say)
    say(f"{len(docstrings):,} docstrings; a third is kept for the test, and nothing is learned from it")

    act(2, "Vectors of words, in seconds: what is near, and what words come to")
    corpus = keel.Corpus.of("\n".join(docstring.sentences) for docstring in docstrings if not docstring.held_out)
    vectors = {name: learn_vectors(corpus, system, folder / name, on_event) for name, system in VECTORS.items()}
    knows = {name: ask(model) for name, model in vectors.items()}
    for name, (question, near) in ((name, row) for name, rows in knows.items() for row in rows):
        say(f"{name}, {question}: {', '.join(f'{word} {score:.2f}' for word, score in near) or 'not in this text'}")

    act(3, "A tokenizer learns the pieces of words")
    tokenizer = learn_pieces(corpus, folder / "tokenizer")
    cut = " ".join(map(tokenizer.token_of, tokenizer.encode(BLANKS[1]).ids))
    say(f"{len(tokenizer):,} pieces; a sentence in pieces: {cut}")

    act(4, f"A small BERT reads for {steps:,} steps and guesses the words that are hidden from it")
    base = pretrain(corpus, folder / "bert", folder / "tokenizer", steps, on_event)

    act(5, "What it knows now: it fills blanks")
    blanks = [(text, base.fill(text, top=3)[0]) for text in BLANKS]
    for text, found in blanks:
        say(f"{text}  {', '.join(f'{word} {probability:.0%}' for word, probability in found)}")

    act(6, f"Which package is this sentence from? {LABELS} labels, {TESTED:,} new sentences, {SEEDS} seeds")
    answers = compare(base, vectors, docstrings, folder / "answers", say)
    found = verdict(answers[0], *answers[-2:])
    say(found)

    page = write_page(
        folder / "index.html",
        docstrings=docstrings,
        knows=knows,
        cut=(BLANKS[1], cut),
        base=base,
        log=folder / "bert" / "run" / "log.jsonl",
        blanks=blanks,
        answers=answers,
        verdict=found,
    )
    say(f"All of it is on one page: {page} ({(time.monotonic() - began) / 60:.1f} minutes)")
    return page


def learn_vectors(corpus: keel.Corpus, system: System, folder: Path, on_event: OnEvent) -> keel.Model:
    """Vectors of the more frequent words, by one thread: the same on every machine."""
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


def ask(vectors: keel.Model) -> list[tuple[str, list[Neighbor]]]:
    """What is nearest to some words, and what some sums come to; nothing where a word is unknown."""
    found: list[tuple[str, list[Neighbor]]] = []
    for question in (*WORDS, *SUMS):
        try:
            found.append((question, keel.analogy(question, model=vectors, top=3)))
        except KeelError:  # the text is what is installed here
            found.append((question, []))
    return found


def learn_pieces(corpus: keel.Corpus, folder: Path) -> keel.Tokenizer:
    """A vocabulary of the corpus's own, as BERT has it."""
    if not folder.exists():
        keel.Tokenizer.train(corpus, kind="wordpiece", size=4000).save(folder)
    return keel.Tokenizer.load(folder)


def pretrain(corpus: keel.Corpus, folder: Path, tokenizer: Path, steps: int, on_event: OnEvent) -> keel.Model:
    """A BERT of two layers that has read the corpus some times."""
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
        checkpoint_minutes=0.5,  # little is lost if the machine stops
        on_event=on_event,
    )


def compare(
    base: keel.Model, vectors: dict[str, keel.Model], docstrings: Iterable[Docstring], folder: Path, say: Say
) -> list[Answers]:
    """Some ways to learn the same labels, each seed with labels of its own, all asked the same new sentences."""
    docstrings = list(docstrings)
    test = balanced(questions(docstring for docstring in docstrings if docstring.held_out), TESTED // len(PACKAGES))
    known = questions(docstring for docstring in docstrings if not docstring.held_out)
    each = LABELS // len(PACKAGES)
    say(f"a guess is right {100 / len(PACKAGES):.0f}% of the time")

    def by_counts(labelled: Labelled, seed: int) -> list[str]:
        return WordCounts(*zip(*labelled, strict=True)).predict([text for text, _ in test])

    def by_bert(labelled: Labelled, seed: int, from_scratch: bool) -> list[str]:
        model = keel.finetune(base, labelled, dev=None, seed=seed, from_scratch=from_scratch, **TUNING)
        return [found.label for found in model.predict([text for text, _ in test])]

    def by_vectors(labelled: Labelled, seed: int, model: keel.Model) -> list[str]:
        tuned = keel.finetune(model, labelled, dev=None, seed=seed, freeze=True)
        return [found.label for found in tuned.predict([text for text, _ in test])]

    ways: dict[str, Callable[[Labelled, int], list[str]]] = {
        "word counts": by_counts,
        **{f"{name} frozen": partial(by_vectors, model=model) for name, model in vectors.items()},
        "BERT from scratch": lambda labelled, seed: by_bert(labelled, seed, True),
        "BERT pre-trained": lambda labelled, seed: by_bert(labelled, seed, False),
    }
    folder.mkdir(exist_ok=True)
    answers = []
    for system, learn in ways.items():
        right = []
        for seed in range(SEEDS):
            path = folder / f"{system.replace(' ', '-')}-{seed}.json"
            if not path.exists():
                said = learn(balanced(known, each, skip=seed * each), seed)
                path.write_text(json.dumps([mine == label for mine, (_, label) in zip(said, test, strict=True)]))
            right.append(json.loads(path.read_text()))
            say(f"{system}, seed {seed}: {np.mean(right[-1]):.1%}")
        answers.append(Answers(system=system, right=np.array(right)))
        percent, low, high = answers[-1].percent()
        say(f"{system}: {percent:.1f}% right ({low:.1f} to {high:.1f})")
    return answers
