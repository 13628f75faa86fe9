"""A map shows every word once, labels apart from each other, in a file that needs nothing else."""

from itertools import combinations
from pathlib import Path
from xml.etree.ElementTree import Element, fromstring

import numpy as np
import pytest

from keel.report.charts import FONT, text_width
from keel.report.html_page import write_picture
from keel.report.scatter_map import draw_map


def boxes(svg: Element) -> dict[str, tuple[float, float, float, float]]:
    found = {}
    for text in svg.iter("text"):
        left, bottom = float(text.get("x", 0)), float(text.get("y", 0))
        found[text.text or ""] = (left, bottom - FONT, left + text_width(text.text or ""), bottom)
    return found


@pytest.mark.parametrize("count", [2, 40, 300])
def test_no_label_lies_on_another(count: int) -> None:
    random = np.random.default_rng(count)
    words = [f"word{number}" if number % 3 else f"词语{number}" for number in range(count)]
    svg, without = draw_map(words, random.uniform(size=(count, 2)))
    found = boxes(svg)
    assert len(found) + without == count
    assert without < count / 5
    for (left, top, right, bottom), (other_left, other_top, other_right, other_bottom) in combinations(
        found.values(), 2
    ):
        assert right <= other_left or other_right <= left or bottom <= other_top or other_bottom <= top
    assert [circle.find("title").text for circle in svg.iter("circle")] == words  # type: ignore[union-attr]


def test_arrows_that_are_equal_stay_equal_and_lie_under_no_label() -> None:
    points = np.array([[0, 0], [1, 2], [5, 0], [6, 2], [3.0, 1.0]])
    svg, _ = draw_map(["man", "king", "woman", "queen", "x"], points, [(0, 1), (2, 3)])
    lines = [[float(line.get(name, 0)) for name in ("x1", "y1", "x2", "y2")] for line in svg.iter("line")]
    one, two = [(x2 - x1, y2 - y1) for x1, y1, x2, y2 in lines]
    assert one == pytest.approx(two, abs=0.3)
    assert one[1] == pytest.approx(-2 * one[0], abs=0.3), "up in the plane is up in the picture"
    for x1, y1, x2, y2 in lines:
        for share in np.linspace(0, 1, 50):
            x, y = x1 + share * (x2 - x1), y1 + share * (y2 - y1)
            assert not any(left < x < right and top < y < bottom for left, top, right, bottom in boxes(svg).values())


def test_overlapping_points_are_plotted_and_counted() -> None:
    svg, without = draw_map([f"w{number}" for number in range(80)], np.zeros((80, 2)))
    assert len(list(svg.iter("circle"))) == 80
    assert without == 80 - len(boxes(svg)) > 0


def test_groups_are_coloured_and_named() -> None:
    points = np.random.default_rng(0).normal(size=(60, 2)) + 9 * np.eye(2)[np.arange(60) % 2]
    svg, _ = draw_map([f"w{n}" for n in range(60)], points, groups=np.arange(60) % 2, group_names=["a, b", "c, d"])
    assert len({circle.get("style") for circle in svg.iter("circle")}) == 2
    assert {"a, b", "c, d"} <= {*boxes(svg)}
    svg, without = draw_map(["a text"] * 60, points, groups=np.arange(60) % 2, group_names=["a", "b"], labelled=False)
    assert [*boxes(svg)] == ["a", "b"]
    assert without == 0


def test_many_words_have_labels_of_the_most_frequent_ones() -> None:
    svg, without = draw_map([f"w{n}" for n in range(5_000)], np.random.default_rng(0).uniform(size=(5_000, 2)))
    labels = boxes(svg)
    assert 100 < len(labels) <= 300
    assert "w0" in labels
    assert without == 5_000 - len(labels)


def test_a_picture_in_a_file_of_its_own_is_whole(tmp_path: Path) -> None:
    svg, _ = draw_map(["<a>", "皇帝"], np.array([[0.0, 0.0], [1.0, 1.0]]))
    path = write_picture(tmp_path / "map.svg", svg)
    text = path.read_text(encoding="utf-8")
    read = fromstring(text)
    assert {node.text for node in read.iter("{http://www.w3.org/2000/svg}text")} == {"<a>", "皇帝"}
    assert "prefers-color-scheme: dark" in text
    assert "var(" not in text, "programs other than browsers know no variables"
    assert list(tmp_path.iterdir()) == [path]
