"""HTML page of the demo."""

import json
from collections import Counter
from pathlib import Path

import keel
from keel.demo.docstrings import PACKAGES, Docstring, labelled_sentences
from keel.demo.paired_answers import Answers
from keel.explain.nearest_neighbors import Neighbor
from keel.model import Candidate
from keel.report.charts import Bar, bars, lines
from keel.report.html_page import Page, tag


def write_page(
    path: Path,
    *,
    docstrings: list[Docstring],
    neighbors: dict[str, list[tuple[str, list[Neighbor]]]],
    tokenized: tuple[str, str],
    base: keel.Model,
    log: Path,
    filled: list[tuple[str, list[Candidate]]],
    answers: list[Answers],
    verdict: str,
) -> Path:
    """Write all data, models and results, part by part."""
    page = Page(
        "Which package is this sentence from?",
        "Keel collected text on this machine, pre-trained a small BERT on it and fine-tuned it on a few labels. "
        "Nothing was downloaded.",
    )
    page.text(tag("mark", verdict))

    page.section("Part 1: the text")
    words = sum(len(sentence.split()) for docstring in docstrings for sentence in docstring.sentences)
    held = sum(docstring.held_out for docstring in docstrings)
    page.facts(
        [(f"{words:,}", "words"), (f"{len(docstrings):,}", "docstrings"), (f"{held:,}", "held out for the test")]
    )
    page.text(
        "The docstrings of Keel's dependencies, extracted from their source files and cleaned. No model sees the "
        "held-out docstrings, neither in pre-training nor in fine-tuning."
    )
    shown = dict(reversed([(package, text) for text, package in labelled_sentences(docstrings)]))
    counted = Counter(docstring.package for docstring in docstrings)
    page.table(
        ["Package", "Docstrings", "Example"],
        [[package, f"{counted[package]:,}", tag("em", shown.get(package, ""))] for package in PACKAGES],
    )

    page.section("Part 2: word vectors")
    page.text(
        "Each word predicts the words around it, which gives a vector for each word. Words in similar contexts get "
        "similar vectors, and differences carry relations: sin is to sine what cos is to cosine."
    )
    for name, rows in neighbors.items():
        table = [[tag("code", question), *_cells(found)] for question, found in rows]
        page.table([f"{name}: neighbours or analogy", "First", "Second", "Third"], table)

    page.section("Part 3: the tokenizer")
    page.text(
        f"It has {len(base.tokenizer):,} subwords. ", tag("em", tokenized[0]), " becomes ", tag("code", tokenized[1])
    )

    page.section("Part 4: pre-training")
    with open(log, encoding="utf-8") as rows:
        events = [json.loads(row) for row in rows]
    mask_rate = base.card.recipe["system"]["mask_rate"]
    weights = sum(weight.numel() for weight in base.encoder.parameters())
    page.text(
        f"{base.card.steps:,} steps in {base.card.seconds / 60:.1f} minutes on {base.card.hardware}: {mask_rate:.0%} "
        f"of the tokens are masked; {weights:,} parameters predict them from both sides."
    )
    curves = {
        name: [(event["step"], event["losses"]["mlm"]) for event in events if event["event"] == kind]
        for name, kind in (("training", "step"), ("held out", "evaluation"))
    }
    page.figure(
        lines(
            {name: curve for name, curve in curves.items() if curve},
            across="steps",
            upward="masked language modelling loss",
        ),
        "Masked language modelling loss in nats per masked token; lower is better.",
    )

    page.section("Part 5: masked words")
    page.table(
        ["Sentence", "Most probable", "Second", "Third"],
        [[text, *(f"{word} {probability:.0%}" for word, probability in found)] for text, found in filled],
    )

    page.section("Part 6: fine-tuning")
    sentences = answers[0].correct.shape[1]
    page.figure(
        bars(
            [
                Bar(name="majority class", value=100 / len(PACKAGES)),
                *(_bar(answer, highlighted=answer is answers[-1]) for answer in answers),
            ],
            digits=1,
        ),
        f"Accuracy in percent on {sentences:,} test sentences. Rings are single seeds, each with its own labels; lines "
        "are 95% intervals over sentences.",
    )
    page.text(
        f"The {sentences:,} sentences are from held-out docstrings; sentences that name a package are excluded, and "
        "all packages are equally frequent. Both BERTs have the same architecture and fine-tuning settings; frozen "
        "vectors are averaged over a sentence, and only the head is trained."
    )
    return page.write(path)


def _cells(found: list[Neighbor]) -> list[str]:
    return [f"{word} {score:.2f}" for word, score in found] or ["not in the vocabulary", "", ""]


def _bar(answers: Answers, highlighted: bool) -> Bar:
    value, low, high = answers.percent()
    return Bar(name=answers.system, value=value, low=low, high=high, points=answers.seeds, highlighted=highlighted)
