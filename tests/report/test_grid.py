import numpy as np

from keel.report import draw_grid


def test_every_pair_has_a_square_as_dark_as_its_share() -> None:
    svg = draw_grid(["the", "house", "."], ["das", "<haus>"], np.array([[0.9, 0.1, 0.0], [0.05, 0.85, 1.5]]))
    squares = list(svg.iter("rect"))
    assert [float(square.get("fill-opacity", 0)) for square in squares] == [0.9, 0.1, 0.0, 0.05, 0.85, 1.0]
    assert [text.text for text in svg.iter("text")] == ["the", "house", ".", "das", "<haus>"]
    assert [title.text for title in svg.iter("title")][4] == "<haus> - house: 0.85"
    width, height = map(float, svg.get("viewBox", "").split()[2:])
    for square in squares:
        assert float(square.get("x", 0)) + float(square.get("width", 0)) <= width
        assert float(square.get("y", 0)) + float(square.get("height", 0)) <= height
