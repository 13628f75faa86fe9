"""Demo: reproducible text, fair test, resumable."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keel
from keel import demo
from keel.cli import main
from keel.demo import docstrings as source
from keel.demo.docstrings import (
    Docstring,
    balanced,
    collect_docstrings,
    labelled_sentences,
    shifted_sentences,
    to_prose,
)
from keel.errors import Interrupted, KeelError, UsageError

NUMPYDOC = """Return the sum of an array over an axis.

The result has the type of ``array``, see :func:`numpy.cumsum` for more. It is
never a view.

Parameters
----------
array : array_like
    The numbers to add.

.. note:: This is a note that nobody reads.

>>> total([1, 2, 3])
6

Arrays of no elements give zero, as sums of nothing do.
"""

TOPICS = {
    "sea": "boat anchor sail harbour wave",
    "kitchen": "bread oven soup recipe cake",
    "law": "judge case verdict court law",
}


def made_up(each: int) -> list[Docstring]:
    """Docstrings of three packages, each with its own words."""
    random = np.random.default_rng(0)

    def sentence(words: str) -> str:
        return f"The {' '.join(random.choice(words.split(), 5))} number {random.integers(10**6)}."

    return [Docstring(name, (sentence(words), sentence(words))) for name, words in TOPICS.items() for _ in range(each)]


def test_a_docstring_is_cleaned_to_its_prose() -> None:
    assert to_prose(NUMPYDOC) == (
        "Return the sum of an array over an axis.",
        "The result has the type of array, see numpy.cumsum for more.",
        "It is never a view.",
        "Arrays of no elements give zero, as sums of nothing do.",
    )


@pytest.mark.parametrize(
    "text", ["", "Args:\n    x: the number to add to it.", ">>> a = 1", "See http://x.y/{a_b}=1 for it."]
)
def test_markup_gives_no_sentence(text: str) -> None:
    assert to_prose(text) == ()


def test_docstrings_are_read_without_importing_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "PACKAGES", ("mpmath", "jinja2"))
    messages: list[str] = []
    found = collect_docstrings(tmp_path, messages.append)
    assert {docstring.package for docstring in found} == {"jinja2", "mpmath"}
    assert min(len(docstring.sentences) for docstring in found) >= 2
    assert len({docstring.sentences for docstring in found}) == len(found) > 100
    assert any(line.startswith("mpmath 1.") for line in messages)
    messages.clear()
    assert collect_docstrings(tmp_path, messages.append) == found
    assert not messages, "the second time it is read from the folder"


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "PACKAGES", ("no-such-package",))
    with pytest.raises(KeelError, match="no-such-package"):
        collect_docstrings(tmp_path, lambda text: None)
    assert not list(tmp_path.iterdir())


def test_labelled_sentences_are_unique_and_name_no_package() -> None:
    twice = "This sentence stands in two docstrings."
    found = labelled_sentences([
        Docstring("torch", (twice, "A tensor is a grid of numbers.")),
        Docstring("numpy", (twice, "This is not how NumPy does it.")),
    ])  # fmt: skip
    assert found == [("A tensor is a grid of numbers.", "torch")]


def test_no_labelled_sentence_is_in_both_splits() -> None:
    shared = "This sentence is in every docstring of the package."
    docstrings = [Docstring("torch", (shared, f"Sentence number {number} is here.")) for number in range(20)]
    one = next(docstring for docstring in docstrings if docstring.held_out)
    other = next(docstring for docstring in docstrings if not docstring.held_out)
    found = [labelled_sentences([one, other], held_out=held_out) for held_out in (True, False)]
    assert found == [[(one.sentences[1], "torch")], [(other.sentences[1], "torch")]]


def test_half_of_the_sentences_have_two_adjacent_words_exchanged() -> None:
    docstrings = made_up(100)
    given = {held_out: shifted_sentences(docstrings, held_out=held_out) for held_out in (False, True)}
    originals = {held_out: set() for held_out in given}
    for held_out, pairs in given.items():
        counts = Counter(label for _, label in pairs)
        assert counts["swapped"] == pytest.approx(counts["original"], rel=0.3)
        sentences = {text for each in docstrings if each.held_out == held_out for text in each.sentences}
        for text, label in pairs:
            same = [original for original in sentences if sorted(original.split()) == sorted(text.split())]
            (original,) = same
            originals[held_out].add(original)
            moved = [n for n, (a, b) in enumerate(zip(text.split(), original.split(), strict=True)) if a != b]
            assert moved == ([] if label == "original" else [moved[0], moved[0] + 1])
            assert not {0, len(text.split()) - 1} & set(moved)
    assert not originals[False] & originals[True]


def test_a_shifted_sentence_of_both_splits_is_held_out() -> None:
    shared = "This sentence is in every docstring of the package."
    docstrings = [Docstring("torch", (shared, f"Sentence number {number} is right here now.")) for number in range(20)]
    found = [{frozenset(text.split()) for text, _ in shifted_sentences(docstrings, held_out=h)} for h in (False, True)]
    assert [frozenset(shared.split()) in texts for texts in found] == [False, True]


def test_balanced_classes_and_disjoint_seeds() -> None:
    pairs = [(f"{label}{number}", label) for number in range(10) for label in "ab"]
    first, second = balanced(pairs, 3), balanced(pairs, 3, skip=3)
    assert Counter(label for _, label in first) == Counter(label for _, label in second) == {"a": 3, "b": 3}
    assert not set(first) & set(second)
    with pytest.raises(KeelError, match="too few sentences of a, b"):
        balanced(pairs, 8, skip=3)


def test_a_third_is_held_out_by_the_text_alone() -> None:
    docstrings = made_up(300)
    assert sum(docstring.held_out for docstring in docstrings) / len(docstrings) == pytest.approx(1 / 3, abs=0.06)
    assert [Docstring("other", docstring.sentences).held_out for docstring in docstrings] == [
        docstring.held_out for docstring in docstrings
    ]


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A demo of three made-up packages, with few labels and two seeds."""
    folder = tmp_path / "demo"
    monkeypatch.setattr(demo, "collect_docstrings", lambda folder, say: (folder.mkdir(exist_ok=True), made_up(120))[1])
    monkeypatch.setattr(demo, "PACKAGES", tuple(TOPICS))
    monkeypatch.setattr("keel.demo.demo_page.PACKAGES", tuple(TOPICS))
    monkeypatch.setattr(demo, "VECTORS", {"word2vec": keel.Word2vec(width=8)})
    monkeypatch.setattr(demo, "WORDS", ("boat", "zebra"))
    monkeypatch.setattr(demo, "ANALOGIES", ("anchor - boat + bread",))
    one_epoch = {"onehot": demo.CLASSIFIERS["onehot"], "english": ("english (fine-tuned)", {"dev": None, "epochs": 1})}
    monkeypatch.setattr(demo, "CLASSIFIERS", one_epoch)
    for name, value in {
        "LABELS": 30,
        "TESTED": 60,
        "SEEDS": 2,
        "NEW_SYSTEMS": ("onehot",),
        "FEW_LABELS": 20,
        "FEW_TESTED": 40,
    }.items():
        monkeypatch.setattr(demo, name, value)
    return folder


def test_demo_resumes_and_writes_a_page(small: Path) -> None:
    events: list[dict[str, Any]] = []

    def interrupt(event: dict[str, Any]) -> None:
        events.append(event)
        if event["event"] == "cells" and event["done"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="rerun the command to resume"):
        demo.run(small, steps=3, on_event=interrupt)
    kept = {path.name: path.stat().st_mtime_ns for path in (small / "comparison" / "cells").iterdir()}
    assert 2 <= len(kept) < 8
    (small / "docstrings.jsonl").touch()

    page = demo.run(small, steps=3, on_event=events.append)
    cells = {path.name: path.stat().st_mtime_ns for path in (small / "comparison" / "cells").iterdir()}
    assert len(cells) == 4 * 2, "two seeds of one-hot counts, word vectors and two BERTs"
    assert kept.items() <= cells.items(), "finished cells are reused"
    assert [event["number"] for event in events if event["event"] == "act"] == [1, 2, 3] * 2
    assert [event["number"] for event in events if event["event"] == "part"] == [*range(1, 11)] * 2
    assert sum(event["event"] == "evaluation" and event["step"] == 0 for event in events) == 1, "pre-trained once"

    html = page.read_text(encoding="utf-8")
    assert (small / "comparison" / "report.html").exists()
    topics = (
        "polyline",
        "anchor - boat + bread",
        "苏轼",
        "tokyo",
        "医",
        "The city of Berlin",
        "english (fine-tuned)",
        *TOPICS,
    )
    for part in ("Part 10", "onehot", "word2vec", "bert-from-scratch", 'href="comparison/report.html"', *topics):
        assert part in html
    shown = [event["text"].strip() for event in events if event["event"] == "note"]
    assert shown[-1].startswith(f"Report: {page}")
    assert shown[-2] == f"Comparison: {small / 'comparison' / 'report.html'}"
    verdict = next(line for line in shown if line.startswith("demo/test: "))
    assert verdict in html
    assert next(line for line in shown if line.startswith("Pre-training changes")) in html


def test_comparison_can_be_repeated_by_its_command(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events: list[dict[str, Any]] = []
    demo.run(small, steps=3, on_event=events.append)
    (command,) = [event["text"].split() for event in events if event.get("text", "").startswith("  keel compare")]
    assert main(command[1:]) == 0
    shown = capsys.readouterr()
    assert "8 of 8 cells are stored and reused" in shown.err
    assert "bert-from-scratch" in shown.out


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="contains no demo"):
        demo.run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
