"""HTML page of the demo."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import keel
from keel.demo.docstrings import PACKAGES, Docstring, labelled_sentences, shifted_sentences
from keel.explain.nearest_neighbors import Neighbor
from keel.model import Candidate
from keel.report.charts import lines
from keel.report.comparison_page import ranking_figure
from keel.report.comparison_table import TABLE_HEAD, table_rows
from keel.report.html_page import Page, tag

Queried = list[tuple[str, list[Neighbor]]]
"""Words or analogies, with their nearest neighbours."""
Filled = tuple[str, list[Candidate]]
"""A text with a mask, and the most probable words for it."""


@dataclass(frozen=True, kw_only=True)
class DemoResults:
    """What the demo has found, in the order of its parts."""

    bundled_neighbors: dict[str, Queried]
    bundled_filled: list[Filled]
    generated: tuple[str, str]
    """A prompt and its continuation."""
    docstrings: list[Docstring]
    few_labels: int
    """Number of labels of the classifiers."""
    classified: dict[str, keel.Scores]
    """Scores of the classifiers by description."""
    neighbors: dict[str, Queried]
    tokenized: tuple[str, str]
    """A sentence and its subwords."""
    base: keel.Model
    filled: list[Filled]
    comparison: keel.Comparison
    gain: str
    """One sentence: what pre-training has changed."""


def write_page(folder: Path, results: DemoResults) -> Path:
    """Write all data, models and results, part by part."""
    docstrings, base, comparison = results.docstrings, results.base, results.comparison
    (column,) = comparison.columns
    ranked = comparison.ranking(column)
    page = Page(
        "Which package is this sentence from?",
        "Keel collected text on this machine, pre-trained word vectors and a small BERT on it, and compared them on "
        f"{column.trained_on:,} labels. Nothing was downloaded.",
    )
    page.text(tag("mark", comparison.verdict(column)))

    page.section("Part 1: word vectors that come with Keel")
    page.text("Learned from 98 million words of English and 26 million of Chinese; their cards name text and licence.")
    _neighbor_tables(page, results.bundled_neighbors)

    page.section("Part 2: encoders that come with Keel")
    _filler_table(page, results.bundled_filled)

    page.section("Part 3: a language model that comes with Keel")
    prompt, continuation = results.generated
    page.text(
        "A prompt, continued by sampling from english-gpt. Its sentences are grammatical; what they say is made up."
    )
    page.text(tag("strong", prompt), tag("span", continuation))

    page.section("Part 4: the text")
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

    page.section("Part 5: fine-tuning with few labels")
    tested = next(iter(results.classified.values())).count
    page.text(
        "Are two adjacent words of a sentence exchanged (bigram shift, a task of SentEval)? "
        f"{results.few_labels:,} labelled sentences for training, {tested:,} from held-out docstrings for the test; in "
        "half of them two words are exchanged, so that guessing has an accuracy of 0.500."
    )
    examples = dict(reversed([(label, text) for text, label in shifted_sentences(docstrings, held_out=False)]))
    page.table(["Label", "Example"], [[label, tag("em", text)] for label, text in sorted(examples.items())])
    rows = [[name, f"{scores.values[scores.main]}"] for name, scores in results.classified.items()]
    page.table(["Classifier", "Accuracy (95% interval)"], rows)
    page.text(
        "Counts of words and the mean of word vectors do not contain the order of words, so that they cannot do better "
        "than guessing. A pre-trained encoder reads each word in its context."
    )

    page.section("Part 6: word vectors")
    page.text(
        "Each word predicts the words around it, which gives a vector for each word. Words in similar contexts get "
        "similar vectors, and differences carry relations: sin is to sine what cos is to cosine."
    )
    _neighbor_tables(page, results.neighbors)

    page.section("Part 7: the tokenizer")
    sentence, subwords = tag("em", results.tokenized[0]), tag("code", results.tokenized[1])
    page.text(f"It has {len(base.tokenizer):,} subwords. ", sentence, " becomes ", subwords)

    page.section("Part 8: pre-training")
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

    page.section("Part 9: masked words")
    _filler_table(page, results.filled)

    page.section("Part 10: the comparison")
    page.text(
        f"{column.trained_on:,} labelled sentences for training, {len(column.examples):,} from held-out docstrings for "
        "the test; sentences that name a package are excluded, and all packages are equally frequent, so that guessing "
        f"has an accuracy of {1 / len(PACKAGES):.3f}. Each system has its default settings and {len(ranked[0].seeds)} "
        "seeds; word vectors are averaged over a sentence and fine-tuned, and both BERTs have the same architecture."
    )
    page.figure(*ranking_figure(ranked))
    page.table(["System", *TABLE_HEAD[1:]], table_rows(ranked), dense=True)
    page.text(
        tag("mark", results.gain),
        " With so little text and so few steps, counts of words and n-grams are hard to beat: what a BERT gains from "
        "pre-training grows with the text that it has read.",
    )
    report = tag("a", "The report of the comparison", href="comparison/report.html")
    page.text(report, " has all pairwise tests, cost against quality, and sentences on which the systems disagree.")
    return page.write(folder / "index.html")


def _neighbor_tables(page: Page, neighbors: dict[str, Queried]) -> None:
    for name, found in neighbors.items():
        rows = []
        for question, near in found:
            words = [f"{word} {score:.2f}" for word, score in near] or ["not in the vocabulary", "", ""]
            rows.append([tag("code", question), *words])
        page.table([f"{name}: neighbours or analogy", "First", "Second", "Third"], rows)


def _filler_table(page: Page, filled: list[Filled]) -> None:
    rows = [[text, *(f"{word} {probability:.0%}" for word, probability in found)] for text, found in filled]
    page.table(["Sentence", "Most probable", "Second", "Third"], rows)
