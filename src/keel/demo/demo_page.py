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
    folder: Path,
    docstrings: list[Docstring],
    neighbors: dict[str, list[tuple[str, list[Neighbor]]]],
    tokenized: tuple[str, str],
    base: keel.Model,
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
    counts = {"words": words, "docstrings": len(docstrings), "held out for the test": held}
    page.facts([(f"{count:,}", name) for name, count in counts.items()])
    page.text(
        "The docstrings of Keel's dependencies, extracted from their source files and cleaned. No model sees the "
        "held-out docstrings, neither in pre-training nor in fine-tuning."
    )
    shown = dict(reversed([(package, text) for text, package in labelled_sentences(docstrings)]))
    counted = Counter(docstring.package for docstring in docstrings)
    rows = [[package, f"{counted[package]:,}", tag("em", shown.get(package, ""))] for package in PACKAGES]
    page.table(["Package", "Docstrings", "Example"], rows)

    page.section("Part 2: word vectors")
    page.text(
        "Each word predicts the words around it, which gives a vector for each word. Words in similar contexts get "
        "similar vectors, and differences carry relations: sin is to sine what cos is to cosine."
    )
    for name, found in neighbors.items():
        rows = []
        for question, near in found:
            words = [f"{word} {score:.2f}" for word, score in near] or ["not in the vocabulary", "", ""]
            rows.append([tag("code", question), *words])
        page.table([f"{name}: neighbours or analogy", "First", "Second", "Third"], rows)

    page.section("Part 3: the tokenizer")
    sentence, subwords = tag("em", tokenized[0]), tag("code", tokenized[1])
    page.text(f"It has {len(base.tokenizer):,} subwords. ", sentence, " becomes ", subwords)

    page.section("Part 4: pre-training")
    log = (folder / "bert" / "run" / "log.jsonl").read_text(encoding="utf-8")
    events = [json.loads(line) for line in log.splitlines()]
    mask_rate = base.card.recipe["system"]["mask_rate"]
    weights = sum(weight.numel() for weight in base.encoder.parameters())
    page.text(
        f"{base.card.steps:,} steps in {base.card.seconds / 60:.1f} minutes on {base.card.hardware}: {mask_rate:.0%} "
        f"of the tokens are masked; {weights:,} parameters predict them from both sides."
    )
    curves = {}
    for name, kind in (("training", "step"), ("held out", "evaluation")):
        if curve := [(event["step"], event["losses"]["mlm"]) for event in events if event["event"] == kind]:
            curves[name] = curve
    caption = "Masked language modelling loss in nats per masked token; lower is better."
    page.figure(lines(curves, across="steps", upward="masked language modelling loss"), caption)

    page.section("Part 5: masked words")
    rows = [[text, *(f"{word} {probability:.0%}" for word, probability in found)] for text, found in filled]
    page.table(["Sentence", "Most probable", "Second", "Third"], rows)

    page.section("Part 6: fine-tuning")
    sentences = answers[0].correct.shape[1]
    chance = Bar(name="majority class", value=100 / len(PACKAGES))
    found = [
        Bar(name=each.system, **vars(each.percent()), points=each.seeds, highlighted=each is answers[-1])
        for each in answers
    ]
    page.figure(
        bars([chance, *found], digits=1),
        f"Accuracy in percent on {sentences:,} test sentences. Rings are single seeds, each with its own labels; lines "
        "are 95% intervals over sentences.",
    )
    page.text(
        f"The {sentences:,} sentences are from held-out docstrings; sentences that name a package are excluded, and "
        "all packages are equally frequent. Both BERTs have the same architecture and fine-tuning settings; frozen "
        "vectors are averaged over a sentence, and only the head is trained."
    )
    return page.write(folder / "index.html")
