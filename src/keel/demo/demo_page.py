"""The page that tells of the tour."""

import json
from collections import Counter
from pathlib import Path

import keel
from keel.demo.docstrings import PACKAGES, Docstring, questions
from keel.demo.paired_answers import Answers
from keel.explain.nearest_neighbors import Neighbor
from keel.model import Candidate
from keel.report import Bar, Page, bars, lines
from keel.report.html_page import tag


def write_page(
    path: Path,
    *,
    docstrings: list[Docstring],
    knows: dict[str, list[tuple[str, list[Neighbor]]]],
    cut: tuple[str, str],
    base: keel.Model,
    log: Path,
    blanks: list[tuple[str, list[Candidate]]],
    answers: list[Answers],
    verdict: str,
) -> Path:
    """Everything that was gathered, learned and found, act by act."""
    page = Page(
        "Which package is this sentence from?",
        "Keel gathered text on this machine, pre-trained a small BERT on it and fine-tuned it on a few labels. "
        "Nothing was downloaded.",
    )
    page.text(tag("mark", verdict))

    page.section("Act 1: the text")
    words = sum(len(sentence.split()) for docstring in docstrings for sentence in docstring.sentences)
    held = sum(docstring.held_out for docstring in docstrings)
    page.facts([(f"{words:,}", "words"), (f"{len(docstrings):,}", "docstrings"), (f"{held:,}", "kept for the test")])
    page.text(
        "The docstrings of packages that Keel needs, read from their source files and cleaned to prose. No model sees "
        "the docstrings that are kept for the test, neither in pre-training nor with labels."
    )
    shown = dict(reversed([(package, text) for text, package in questions(docstrings)]))
    counted = Counter(docstring.package for docstring in docstrings)
    page.table(
        ["Package", "Docstrings", "A sentence of it"],
        [[package, f"{counted[package]:,}", tag("em", shown.get(package, ""))] for package in PACKAGES],
    )

    page.section("Act 2: vectors of words")
    page.text(
        "Each word of the text foretold those around it, and what was learned is a vector for each. Words in like "
        "places get like vectors, and differences carry relations: sin is to sine what cos is to cosine."
    )
    for name, rows in knows.items():
        table = [[tag("code", question), *_listed(found)] for question, found in rows]
        page.table([f"{name}: near, or the sum", "First", "Second", "Third"], table)

    page.section("Act 3: the tokenizer")
    page.text(
        f"It learned {len(base.tokenizer):,} pieces of words. ", tag("em", cut[0]), " becomes ", tag("code", cut[1])
    )

    page.section("Act 4: pre-training")
    with open(log, encoding="utf-8") as rows:
        events = [json.loads(row) for row in rows]
    hidden = base.card.recipe["system"]["mask_rate"]
    weights = sum(weight.numel() for weight in base.encoder.parameters())
    page.text(
        f"{base.card.steps:,} steps in {base.card.seconds / 60:.1f} minutes on {base.card.hardware}: "
        f"{hidden:.0%} of the words are hidden, and a network of {weights:,} weights guesses them from both sides."
    )
    curves = {
        name: [(event["step"], event["losses"]["mlm"]) for event in events if event["event"] == kind]
        for name, kind in (("training", "step"), ("held out", "evaluation"))
    }
    page.figure(
        lines({name: curve for name, curve in curves.items() if curve}, across="steps", upward="loss of hidden words"),
        "The surprise at a hidden word, in nats: the lower, the better it is guessed.",
    )

    page.section("Act 5: blanks")
    page.table(
        ["Sentence", "Likeliest", "Second", "Third"],
        [[text, *(f"{word} {chance:.0%}" for word, chance in found)] for text, found in blanks],
    )

    page.section("Act 6: a few labels")
    sentences = answers[0].right.shape[1]
    page.figure(
        bars(
            [
                Bar(name="one package for all", value=100 / len(PACKAGES)),
                *(_bar(answer, marked=answer is answers[-1]) for answer in answers),
            ],
            digits=1,
        ),
        f"Percent of {sentences:,} new sentences whose package was named. Rings are single seeds, each with labels of "
        "its own; lines are 95% intervals over sentences.",
    )
    page.text(
        f"The {sentences:,} sentences are from docstrings that no model has seen; sentences that name a package are "
        "left out, and all packages are equally many. Both BERTs have the same shape and the same fine-tuning; frozen "
        "vectors are averaged over a sentence, and only the head above them learns from the labels."
    )
    return page.write(path)


def _listed(found: list[Neighbor]) -> list[str]:
    return [f"{word} {score:.2f}" for word, score in found] or ["not in this text", "", ""]


def _bar(answers: Answers, marked: bool) -> Bar:
    value, low, high = answers.percent()
    return Bar(name=answers.system, value=value, low=low, high=high, points=answers.seeds, marked=marked)
