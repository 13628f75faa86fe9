"""Charts show what they are given; heat maps are written as a page or as a picture."""

from pathlib import Path

import numpy as np
import pytest

from keel.api.translation import write_alignment
from keel.errors import UsageError
from keel.explain.word_alignment import Alignment
from keel.report.charts import heat_map, lines, text_width


def test_every_pair_has_a_square_as_dark_as_its_share() -> None:
    svg = heat_map(["the", "house", "."], ["das", "<haus>"], np.array([[0.9, 0.1, 0.0], [0.05, 0.85, 1.5]]))
    squares = list(svg.iter("rect"))
    assert [float(square.get("fill-opacity", 0)) for square in squares] == [0.9, 0.1, 0.0, 0.05, 0.85, 1.0]
    assert [text.text for text in svg.iter("text")] == ["the", "house", ".", "das", "<haus>"]
    assert [title.text for title in svg.iter("title")][4] == "<haus> - house: 0.85"
    width, height = map(float, svg.get("viewBox", "").split()[2:])
    for square in squares:
        assert float(square.get("x", 0)) + float(square.get("width", 0)) <= width
        assert float(square.get("y", 0)) + float(square.get("height", 0)) <= height


def test_alignments_are_written_as_page_or_picture(tmp_path: Path) -> None:
    found = Alignment(["the", "<b>", "[SEP]"], ["das", "haus"], np.array([[0.8, 0.1, 0.1], [0.0, 0.9, 0.1]]))
    page = write_alignment(tmp_path / "a.html", [found, found]).read_text(encoding="utf-8")
    assert page.count("<figure>") == 2
    assert "&lt;b&gt;" in page
    picture = write_alignment(tmp_path / "a.svg", [found]).read_text(encoding="utf-8")
    assert "haus - &lt;b&gt;: 0.90" in picture
    with pytest.raises(UsageError, match=r"must end in \.svg"):
        write_alignment(tmp_path / "a.gif", [found])


def test_labels_of_curves_that_end_at_the_bottom_are_above_the_axis() -> None:
    picture = lines({"one": [(0.0, 1.0), (1.0, 0.0)], "two": [(0.0, 0.5), (1.0, 0.0)]}, across="x", upward="y")
    axis = max(float(each.attrib["y1"]) for each in picture.iter("line"))
    heights = [float(each.attrib["y"]) for each in picture.iter("text") if each.text in ("one", "two")]
    assert max(heights) <= axis + 4
    assert abs(heights[0] - heights[1]) >= 16


def test_labels_of_the_vertical_axis_are_not_cut() -> None:
    picture = lines({"a": [(0.0, 0.56891), (1.0, 0.56889)]}, across="x", upward="y")
    labels = [each for each in picture if each.get("text-anchor") == "end" and (each.text or "").startswith("0.56")]
    assert labels
    assert all(float(each.get("x", "0")) >= text_width(each.text or "") for each in labels)
