"""The decoding page names the next input, draws the tree, and shows attention and cache."""

import re
from typing import Any

import pytest

from keel.report.decoding_page import decoding_page


def node(
    step: int, parent: int, token: str, probability: float, outcome: str, **attention: list[list[float]]
) -> dict[str, Any]:
    figures = {"probability": probability, "log_probability": -float(step) - (1 - probability), "score": -1.0}
    return {
        "step": step,
        "parent": parent,
        "id": 1,
        "token": token,
        "outcome": outcome,
        "reason": "test",
        "attention": attention,
    } | figures


@pytest.fixture
def trace() -> dict[str, Any]:
    nodes = [
        node(1, -1, "ich", 0.4, "kept", cross_attention=[[0.9, 0.1]]),
        node(1, -1, "wir", 0.5, "kept", cross_attention=[[0.8, 0.2]]),
        node(1, -1, "<b>", 0.1, "dropped"),
        node(2, 0, "[SEP]", 0.9, "ended", cross_attention=[[0.2, 0.8]]),
        node(2, 1, "essen", 0.2, "kept", cross_attention=[[0.3, 0.7]]),
    ]
    text = {
        "source": ["i", "eat"],
        "prompt": [],
        "answers": [{"text": "ich", "score": -0.5, "log_probability": -0.7}],
        "path": [0, 3],
        "hypotheses": nodes,
    }
    cost = {"sequences": 1, "computed": 1, "cached": 0, "state_bytes": 8, "source_bytes": 16}
    steps = [cost, cost | {"sequences": 2, "computed": 2, "cached": 2}]
    settings = {"beams": 2, "length_penalty": 0.6, "best": 1}
    return {"strategy": "beam search", "settings": settings, "texts": [text], "steps": steps}


def test_answers_frequent_questions(trace: dict[str, Any]) -> None:
    page = decoding_page(trace).render()
    assert "<mark>ich</mark> with 40.00%" in page
    assert "wir (50.00%)" in page, "the most probable token, which is not in the best answer"
    assert "read 3 tokens" in page
    assert "without it 5 tokens would have been read, 1.7 times as many" in page
    assert "&lt;b&gt;" in page, "tokens are escaped"
    assert "<script" not in page
    headings = page.count("<h2")
    trace["texts"].append(trace["texts"][0])
    assert decoding_page(trace).render().count("<h2") > headings


def test_tree_has_a_box_per_kept_hypothesis(trace: dict[str, Any]) -> None:
    page = decoding_page(trace).render()
    assert len(re.findall(r'<rect class="box', page)) == 4 + 1, "and a double frame"
    assert len(re.findall(r'<rect class="box mark"', page)) == 2
    assert len(re.findall(r'<line class="arrow"', page)) == 1
    assert len(re.findall(r'<tr class="dropped"', page)) == 1
    assert "ich - i: 0.90" in page
    assert "eat</text>" in page


def test_sampled_tokens_beside_the_most_probable(trace: dict[str, Any]) -> None:
    trace |= {"strategy": "sampling", "settings": {"temperature": 0.8, "seed": 1}}
    page = decoding_page(trace).render()
    assert "temperature 0.8, seed 1" in page
    assert "1 of the 2 sampled tokens are not the most probable" in page
    assert len(re.findall(r'<rect class="box', page)) == 5 + 1
    trace["texts"][0]["path"] = []
    assert "No token was generated" in decoding_page(trace).render()


@pytest.mark.parametrize("sink", [False, True])
def test_attention_columns_match_tokens(trace: dict[str, Any], sink: bool) -> None:
    before = [0.5] if sink else []
    nodes = [
        node(1, -1, "b", 0.9, "kept", attention=[[*before, 0.1, 0.4]]),
        node(2, 0, "c", 0.9, "kept", attention=[[*before, 0.1, 0.1, 0.3]]),
    ]
    trace["texts"][0] |= {"source": None, "prompt": ["a"], "hypotheses": nodes, "path": [0, 1]}
    page = decoding_page(trace).render()
    assert "b - a: 0.40" in page
    assert "c - b: 0.30" in page
    assert ("b - &lt;sink&gt;: 0.50" in page) == sink
    assert "b - &lt;start&gt;: 0.10" in page
