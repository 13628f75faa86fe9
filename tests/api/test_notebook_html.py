"""Results in a notebook: short and escaped."""

from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

import keel
from keel.data.predictions import PredictionList
from keel.text_vectors import TokenVectors

EVIL = "<script>alert(1)</script> & 'x'"
BERT = keel.Bert(layers=1, width=16, head_dim=16, max_positions=32, sequence_length=32, dropout=0.0)
QUICK: dict[str, Any] = {"steps": 1, "batch": 4, "device": "cpu", "dev": None, "progress": False}


class Reader(HTMLParser):
    """The tags, which must be balanced, and the text of a page."""

    def __init__(self, html: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.text = ""
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def model() -> keel.Model:
    return keel.finetune(BERT, [(f"good {EVIL}", EVIL), ("bad film", "bad")] * 8, **QUICK)


def test_models_scores_predictions_and_reports_are_escaped_tables(model: keel.Model) -> None:
    many = [f"good {EVIL}", "bad film"] * 8
    results = [
        model,
        keel.evaluate(model, [(f"good {EVIL}", EVIL), ("bad film", "bad")] * 8),
        model.predict(many),
        keel.check([(f"good {EVIL}", EVIL), ("bad film", "bad")] * 8),
    ]
    pages = [Reader(each._repr_html_()) for each in results]
    assert all("table" in page.tags and "script" not in page.tags for page in pages)
    assert all(EVIL in page.text for page in (pages[0], pages[2], pages[3]))
    assert "accuracy" in pages[1].text
    assert "6 more" in pages[2].text


def test_a_repr_is_short(model: keel.Model) -> None:
    assert len(repr(model)) < 200
    many = model.predict(["good film"] * 1000)
    assert isinstance(many, list)
    assert len(repr(many).splitlines()) == 11
    assert repr(many).endswith("... 990 more]")
    assert repr(many[:2]) == repr([many[0], many[1]])
    assert repr(PredictionList(many[:1])) == f"[{many[0]!r}]"
    assert len(repr(TokenVectors(["a"], [(0, 1)], np.zeros((1, 768))))) < 100
    assert len(repr(model.task and model.task.predict(model.task.read_examples(["a film"] * 100)))) < 2000


def test_results_of_views_have_one_line_and_print_as_their_command_does(model: keel.Model) -> None:
    """An array with a number per layer, head and token is no answer to a question at a prompt."""
    spans = [{"text": "good film", "span1": [0, 4], "label": "a"}, {"text": "bad film", "span1": [0, 3], "label": "b"}]
    results = [
        keel.attention("good film", model=model),
        keel.trace("good film", model=model),
        keel.explain_prediction("good film", model=model, steps=2),
        keel.senses("film", ["good film", "bad film"], model=model),
        keel.clusters(["good film", "bad film"], model=model, clusters=2),
        keel.probe_layers(model, train=spans * 6, test=spans),
        keel.retrieval(model, [("good", "film"), ("bad", "good film")]),
        keel.BiasReport(model="m", language="en", pronouns=("she", "he")),
        keel.figure("rnn"),
    ]
    for each in results:
        assert repr(each).startswith(f"{type(each).__name__}(")
        assert len(repr(each)) < 160
        assert "\n" not in repr(each)
        assert str(each).splitlines() == each.lines()


@pytest.mark.parametrize(
    ("task", "examples", "inputs"),
    [
        ("tag", [(["John", "sleeps"], ["B-PER", "O"])] * 8, ["John sleeps"]),
        ("choose", [(("who?", ["me", "you"]), 0)] * 8, [("who?", [EVIL, "you"])]),
        ("classify", [("a", 0.5), ("b", 1.5)] * 8, ["a"]),
        ("classify", [("a", ["x", "y"]), ("b", ["x"])] * 8, [EVIL]),
    ],
)
def test_predictions_of_every_kind(task: str, examples: Any, inputs: Any) -> None:
    found = keel.finetune(BERT, examples, task=task, **QUICK).predict(inputs)
    assert "1 prediction" in Reader(found._repr_html_()).text
