"""A diagram has room for all it shows, whatever the text."""

from xml.etree.ElementTree import fromstring, tostring

import pytest

from keel.report.diagram import MARGIN, Area, Diagram, fitted_width, label_width, sub


def view_box(diagram: Diagram) -> list[float]:
    return [float(number) for number in diagram.picture("a diagram").get("viewBox", "").split()]


def test_the_canvas_grows_with_boxes_arrows_and_labels() -> None:
    diagram = Diagram()
    diagram.box(Area(0, 0, 40, 20), "x")
    assert view_box(diagram) == [-MARGIN, -MARGIN, 40 + 2 * MARGIN, 20 + 2 * MARGIN]
    diagram.arrow((20, 20), (20, 90))
    diagram.label("left", -10, 10, anchor="end")
    left, top, width, height = view_box(diagram)
    assert left == round(-10 - label_width("left") - MARGIN)
    assert (top, top + height) == (-MARGIN, 90 + MARGIN)
    assert left + width == 40 + MARGIN


def test_a_fitted_box_has_room_for_its_text() -> None:
    assert fitted_width("自然语言", "nlp") > label_width("自然语言") > label_width("nlp")
    assert fitted_width("a", least=90) == 90


def test_arrows_end_with_a_head_at_their_last_point() -> None:
    diagram = Diagram()
    diagram.arrow((0, 0), (0, 50), (30, 50))
    (head,) = diagram.picture("an arrow").iter("polygon")
    corners = [tuple(map(float, corner.split(","))) for corner in head.get("points", "").split()]
    assert corners[0] == (30, 50)
    assert all(x < 30 for x, _ in corners[1:])


@pytest.mark.parametrize("text", ["<script>&", "h_{t}", "null\x00 and \ud800", "自然"])
def test_any_text_is_text(text: str) -> None:
    diagram = Diagram()
    diagram.label(text, 0, 0)
    (label,) = fromstring(tostring(diagram.picture("texts"), encoding="unicode")).iter("text")
    assert "".join(label.itertext()) == text.replace("\x00", "\ufffd").replace("\ud800", "\ufffd")


def test_subscripts_return_to_the_line() -> None:
    diagram = Diagram()
    diagram.label(f"{sub('W', 'xh')} + b", 0, 0)
    (label,) = diagram.picture("a formula").iter("text")
    assert "".join(label.itertext()) == "Wxh + b"
    assert sum(float(part.get("dy", 0)) for part in label) == pytest.approx(0)
