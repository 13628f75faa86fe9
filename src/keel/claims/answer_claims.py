"""Claims about question answering by spans: what the aligned question adds, and what contradictory spans mean."""

from math import sqrt
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import keel
from keel.claims.claim import Say, Verdict
from keel.data.answer_files import read_answers
from keel.data.examples import Examples
from keel.metrics.bootstrap import accuracy_score

NAMES = (
    *("anna", "ben", "clara", "david", "emma", "felix", "grace", "henry", "iris", "jack", "kate", "liam", "mia"),
    *("noah", "olga", "paul", "ruth", "sam", "tina", "victor"),
)
CITIES = (
    *("oslo", "rome", "paris", "cairo", "lima", "delhi", "tokyo", "quito", "dakar", "turin", "lyon", "bonn"),
    *("riga", "bern", "minsk", "sofia", "perth", "leeds"),
)
QUARTERS = ("old", "new", "upper", "lower", "east", "west")
VERBS = ("lives in", "moved to", "works in", "comes from")
FACTS = 6
"""Sentences of a passage."""
SEEDS = 3
READER: dict[str, Any] = {
    "task": "answer", "network": "lstm", "network_width": 32, "epochs": 8, "batch": 16, "lr": 5e-3, "dev": "none",
    "device": "cpu", "threads": 1, "width": 32,
}  # fmt: skip
"""Settings of a small BiLSTM reader."""


def reader_scores(say: Say) -> list[list[float]]:
    """F1 of a BiLSTM reader of word vectors with and without the aligned question, for several seeds."""
    train, test = _made_up(600, 0), _made_up(300, 1)
    say(f"a reader of word vectors, {len(train)} questions, {len(test)} test questions: who of {FACTS} lives where?")
    found: list[list[float]] = []
    for align in (False, True):
        scores = []
        for seed in range(SEEDS):
            model = keel.finetune("word2vec", train, align=align, seed=seed, **READER)
            scores.append(100 * keel.evaluate(model, test).values["answer_f1"].value)
        found.append(scores)
        what = "with the aligned question" if align else "without"
        say(f"{what}: F1 {', '.join(f'{score:.1f}' for score in scores)} (seeds 0 to {SEEDS - 1})")
    return found


def end_before_start(say: Say, model: keel.Model | None = None, data: Path | None = None) -> Verdict:
    """107: questions whose most probable end precedes the most probable start, with and without an answer."""
    if model is None:
        train, test = _made_up(900, 0, unanswerable=1 / 3), _made_up(900, 1, unanswerable=1 / 3)
        settings: dict[str, Any] = READER | {"align": True}
        runs = [("answerable questions", _answerable(train), seed) for seed in range(SEEDS)]
    elif data is None:
        what = "a model of real text is evaluated on real text"
        raise keel.UsageError(f"{what}: give --data FOLDER with squad (dev-v2.0 as published)")
    else:
        train, _, test = squad_by_article(data / "squad")
        settings = {"task": "answer", "dev": "none"}
        runs = [("answerable questions", _answerable(train), 0), ("all questions", train, 0)]
    answerable = np.array([bool(answers.texts) for answers in test.values])
    yes, no = int(answerable.sum()), int((~answerable).sum())
    say(f"{len(train)} training questions; {len(test)} test questions, {no} of them without an answer")
    base: Any = "word2vec" if model is None else model
    pairs = [*zip(test.seconds or [], test.texts, strict=True)]
    leads: list[keel.Score] = []
    for name, questions, seed in runs:
        say.progress(f"training on {name}, seed {seed}")
        reader = keel.finetune(base, questions, **settings, seed=seed, on_event=say.on_event)
        score = keel.evaluate(reader, test).values["answerable_f1"]
        say(f"trained on {name}, seed {seed}: F1 of the questions with an answer {100 * score.value:.1f}")
        flagged = np.array([answer.end_before_start for answer in reader.predict(pairs)])
        without, with_one = int(flagged[~answerable].sum()), int(flagged[answerable].sum())
        say(
            f"  end before start in {accuracy_score(without, no):.1%} of the questions without an "
            f"answer, {accuracy_score(with_one, yes):.1%} of those with one"
        )
        leads.append(_difference(without, no, with_one, yes))
        say(f"  without an answer: {_share(without, without + with_one)} of these, {no / len(test):.0%} of all")
    shown = all((lead.low or 0) > 0 for lead in leads)
    refuted = any((lead.high or 0) < 0 for lead in leads)
    shares = ", ".join(f"{lead:.1f}" for lead in leads)
    return Verdict(
        shown if shown or refuted else None,
        f"end before start is more frequent in questions without an answer, by {shares} points",
    )


def _share(count: int, total: int) -> str:
    return f"{count} of {total} ({count / total:.0%})" if total else "none"


def _difference(one: int, of_one: int, other: int, of_other: int) -> keel.Score:
    """Difference of two shares in points, with its 95% interval."""
    p, q = one / of_one, other / of_other
    error = 196 * sqrt(p * (1 - p) / of_one + q * (1 - q) / of_other)
    value = 100 * (p - q)
    return keel.Score(value=value, low=value - error, high=value + error)


def _made_up(count: int, seed: int, unanswerable: float = 0.0) -> Examples:
    """Questions about made-up passages; the person in question is not in the passage if there is no answer."""
    random = Random(seed)
    records = []
    for _ in range(count):
        names = random.sample(NAMES, FACTS + 1)
        cities = [f"{random.choice(QUARTERS)} {city}" for city in random.sample(CITIES, FACTS)]
        facts = [f"{name} {random.choice(VERBS)} {city} ." for name, city in zip(names, cities, strict=False)]
        queried = FACTS if random.random() < unanswerable else random.randrange(FACTS)
        answer = [] if queried == FACTS else [cities[queried]]
        question = f"which city belongs to {names[queried]} ?"
        records.append({"context": " ".join(facts), "question": question, "answers": {"text": answer}})
    return read_answers(records)


def squad_by_article(folder: Path) -> tuple[Examples, Examples, Examples]:
    """Training, validation and test questions of SQuAD 2.0 dev by article: half of the articles, a quarter, and a
    quarter."""
    found = sorted(folder.glob("dev-v2.0*"))
    if not found:
        raise keel.UsageError(f"{folder} has no file dev-v2.0*: give the folder with SQuAD 2.0")
    examples = read_answers(found[0])
    articles = [*dict.fromkeys(example.group for example in examples)]
    part_of = {article: (0, 1, 0, 2)[number % 4] for number, article in enumerate(articles)}
    train, validation, test = (
        examples.take([n for n, each in enumerate(examples) if part_of[each.group] == part]) for part in range(3)
    )
    return train, validation, test


def _answerable(examples: Examples) -> Examples:
    return examples.take([number for number, answers in enumerate(examples.values) if answers.texts])
