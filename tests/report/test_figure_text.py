"""Names and texts of any characters leave every figure well-formed."""

from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree.ElementTree import Element, fromstring

import numpy as np
import pytest

from keel.report.attention_charts import attention_lines, head_grid, head_matrix
from keel.report.attribution_figure import (
    ColouredText,
    ColouredWord,
    coloured_paragraphs,
    coloured_picture,
    signed_bars,
    stacked,
)
from keel.report.bias_figures import interval_chart
from keel.report.charts import Bar, bars, heat_map, lines
from keel.report.diagram import Diagram
from keel.report.html_page import render_picture, write_figures
from keel.report.layer_charts import LayerCurve, MixRow, ProbePanel, mix_chart, probe_chart
from keel.report.scatter_map import draw_map

NAME = "a\x01b\ud800c\uffff<d>"
WEIGHTS = np.full((1, 1, 2, 2), 0.5)
TEXTS = [ColouredText(NAME, f"{NAME} {NAME}", [ColouredWord(0, len(NAME), 0.5)])]
Build = Callable[[str, Sequence[str]], Element]
FIGURES: dict[str, Build] = {
    "head_matrix": lambda name, names: head_matrix(names, names, WEIGHTS[0, 0]),
    "large head_matrix": lambda name, names: head_matrix([*names] * 30, [*names] * 30, np.full((60, 60), 0.1)),
    "head_grid": lambda name, names: head_grid([1], [1], WEIGHTS, [[name]]),
    "attention_lines": lambda name, names: attention_lines(names, names, WEIGHTS[0, 0], ([0], [])),
    "coloured_paragraphs": lambda name, names: coloured_paragraphs(TEXTS),
    "coloured_picture": lambda name, names: coloured_picture(TEXTS),
    "signed_bars": lambda name, names: signed_bars(TEXTS),
    "stacked": lambda name, names: stacked([(name, signed_bars(TEXTS))]),
    "interval_chart": lambda name, names: interval_chart(
        [Bar(name=name, value=1)], negative=name, positive=name, across=name
    ),
    "bars": lambda name, names: bars([Bar(name=name, value=1)]),
    "lines": lambda name, names: lines({name: [(0, 1.0), (1, 2.0)]}, across=name, upward=name),
    "heat_map": lambda name, names: heat_map(names, names, WEIGHTS[0, 0]),
    "mix_chart": lambda name, names: mix_chart([MixRow(name, {0: 0.5, 1: 0.5}, 1.0, 0.5)]),
    "probe_chart": lambda name, names: probe_chart(
        [ProbePanel(name, name, [0, 1], {"task": LayerCurve([0.5, 0.6])}, 0.4)]
    ),
    "draw_map": lambda name, names: draw_map(names, np.eye(2), [(0, 1)])[0],
    "diagram": lambda name, names: _diagram(name),
}


def _diagram(name: str) -> Element:
    diagram = Diagram()
    diagram.label(name, 0, 0)
    return diagram.picture(name)


@pytest.mark.parametrize("kind", FIGURES)
def test_no_name_breaks_a_figure(kind: str) -> None:
    svg = render_picture(FIGURES[kind](NAME, [NAME, "e"]))
    read = fromstring(svg.encode())
    written = "".join(read.itertext()) + "".join(value for each in read.iter() for value in each.attrib.values())
    assert "a\ufffdb" in written
    assert "\x01" not in written


def test_line_breaks_stay() -> None:
    picture = lines({"one\ttwo\nthree": [(0, 1.0), (1, 2.0)]}, across="x", upward="y")
    read = fromstring(render_picture(picture))
    assert "one\ttwo\nthree" in "".join(read.itertext())


def test_pictures_have_one_title(tmp_path: Path) -> None:
    write_figures(tmp_path / "a.svg", "A title", [(FIGURES["lines"]("x", []), "A caption")])
    picture = write_figures(tmp_path / "b.svg", "A title", [(FIGURES["diagram"]("Its own", []), "A caption")])
    for path, title in ((tmp_path / "a.svg", "A title"), (picture, "Its own")):
        names = [each.text for each in fromstring(path.read_bytes()).findall("{http://www.w3.org/2000/svg}title")]
        assert names == [title]
