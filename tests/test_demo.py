"""Demo: reproducible text, fair test, resumable."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keel
from keel import demo
from keel.demo import docstrings as source
from keel.demo.docstrings import Docstring, balanced, collect_docstrings, labelled_sentences, to_prose
from keel.demo.paired_answers import Answers, verdict
from keel.demo.word_count_baseline import WordCountBaseline
from keel.errors import KeelError, UsageError

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


def test_word_counts_classify() -> None:
    pairs = labelled_sentences(made_up(60))
    learned, test = pairs[:100], pairs[100:]
    messages = WordCountBaseline([text for text, _ in learned], [label for _, label in learned]).predict(
        [text for text, _ in test]
    )
    assert np.mean([mine == label for mine, (_, label) in zip(messages, test, strict=True)]) > 0.95


@pytest.mark.parametrize(("better", "text"), [(30, "helps"), (0, "No significant difference"), (-30, "hurts")])
def test_verdict_follows_the_interval(better: int, text: str) -> None:
    random = np.random.default_rng(1)
    scratch = Answers(system="scratch", correct=random.random((3, 500)) < 0.5)
    pretrained = Answers(system="pre-trained", correct=random.random((3, 500)) < 0.5 + better / 100)
    counts = Answers(system="counts", correct=np.ones((3, 500), bool))
    assert text in verdict(counts, scratch, pretrained)
    assert f"{100 - np.mean(pretrained.seeds):.1f} points above the pre-trained" in verdict(counts, scratch, pretrained)
    percent = pretrained.percent()
    assert (percent.low or 100) < percent.value < (percent.high or 0)
    assert percent.value == pytest.approx(np.mean(pretrained.seeds))


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
    for name, value in {"LABELS": 30, "TESTED": 60, "SEEDS": 2, "FINETUNING": {"epochs": 1, "batch": 16}}.items():
        monkeypatch.setattr(demo, name, value)
    return folder


def test_demo_resumes_and_writes_a_page(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[dict[str, Any]] = []
    tune, stop_at = keel.finetune, [3]

    def interrupted(*args: Any, **settings: Any) -> keel.Model:
        if stop_at[0] == 0:
            raise KeyboardInterrupt
        stop_at[0] -= 1
        return tune(*args, **settings)

    monkeypatch.setitem(keel.__dict__, "finetune", interrupted)
    with pytest.raises(KeyboardInterrupt):
        demo.run(small, steps=3, on_event=events.append)
    kept = {path.name: path.stat().st_mtime_ns for path in (small / "answers").iterdir()}
    assert len(kept) == 2 + 3, "counts for two seeds, then vectors for two, then one network"
    (small / "docstrings.jsonl").touch()

    stop_at[0] = 100
    page = demo.run(small, steps=3, on_event=events.append)
    assert stop_at[0] == 97, "only the three missing networks are fine-tuned"
    assert kept.items() <= {path.name: path.stat().st_mtime_ns for path in (small / "answers").iterdir()}.items()
    parts = [event["number"] for event in events if event["event"] == "act"]
    assert parts == [*range(1, 7)] * 2
    assert sum(event["event"] == "evaluation" and event["step"] == 0 for event in events) == 1, "pre-trained once"

    html = page.read_text(encoding="utf-8")
    counts = json.loads((small / "answers" / "word-counts-0.json").read_text())
    assert len(counts) == 60
    for part in (
        "Part 6",
        "word counts",
        "word2vec frozen",
        "anchor - boat + bread",
        "BERT pre-trained",
        "polyline",
        *TOPICS,
    ):
        assert part in html


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="contains no demo"):
        demo.run(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
