"""A page is one file that needs nothing else, and no text can break it."""

from html.parser import HTMLParser
from pathlib import Path

import pytest

from keel.report.charts import Bar, bars, lines, ticks_between
from keel.report.html_page import Page, tag


class Reader(HTMLParser):
    """What a browser sees: the tags, their attributes, and the text."""

    def __init__(self, html: str):
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.words += data


@pytest.fixture
def page() -> Page:
    page = Page("Ships & <keels>", "A lead.")
    page.section("First")
    page.text("Some ", tag("em", "stressed"), " text.")
    page.facts([("3", "ships")])
    page.table(["Name", "Tons"], [["<script>alert(1)</script>", "5"]])
    page.figure(bars([Bar(name='"a" & b', value=2.0, low=1.0, high=3.0, points=(1.5, 2.5), highlighted=True)]), "Bars.")
    page.figure(lines({"loss": [(0, 9.0), (10, 4.0)]}, across="steps", upward="loss"), "Curves.")
    return page


def test_nothing_written_in_a_text_becomes_a_tag(page: Page) -> None:
    seen = Reader(page.render())
    assert "script" not in seen.tags
    assert "<script>alert(1)</script>" in seen.words
    assert "Ships & <keels>" in seen.words
    assert '"a" & b' in seen.words


def test_texts_keep_their_order_around_a_tag(page: Page) -> None:
    assert "Some stressed text." in Reader(page.render()).words


def test_page_is_self_contained(page: Page) -> None:
    seen = Reader(page.render())
    assert not {"link", "img", "script", "iframe"} & set(seen.tags)
    assert not [name for name, _ in seen.attributes if name in ("src", "href", "xlink:href")]
    assert "url(" not in page.render()
    assert "prefers-color-scheme: dark" in page.render()


def test_writing_leaves_one_whole_file(page: Page, tmp_path: Path) -> None:
    path = page.write(tmp_path / "index.html")
    assert path.read_text(encoding="utf-8") == page.render()
    assert list(tmp_path.iterdir()) == [path]


def test_bars_are_as_long_as_their_values() -> None:
    svg = bars([Bar(name="one", value=10), Bar(name="two", value=20)])
    one, two = (float(bar.get("width", 0)) for bar in svg.iter("rect"))
    assert two == pytest.approx(2 * one)


def test_the_interval_lies_around_the_end_of_its_bar() -> None:
    svg = bars([Bar(name="one", value=10, low=8, high=12)])
    (bar,) = svg.iter("rect")
    (interval,) = (line for line in svg.iter("line") if line.get("class") == "interval")
    end = float(bar.get("x", 0)) + float(bar.get("width", 0))
    assert float(interval.get("x1", 0)) < end < float(interval.get("x2", 0))


def test_a_falling_loss_is_a_falling_curve() -> None:
    svg = lines({"loss": [(0, 9.0), (5, 6.0), (10, 4.0)]}, across="steps", upward="loss")
    (curve,) = svg.iter("polyline")
    heights = [float(point.split(",")[1]) for point in curve.get("points", "").split()]
    assert heights == sorted(heights)  # y grows downward in SVG


def test_names_of_curves_that_end_together_do_not_overlap() -> None:
    svg = lines({"one": [(0, 1.0), (1, 2.0)], "two": [(0, 1.0), (1, 2.01)]}, across="x", upward="y")
    heights = {text.text: float(text.get("y", 0)) for text in svg.iter("text")}
    assert abs(heights["one"] - heights["two"]) >= 16


@pytest.mark.parametrize(("low", "high"), [(0.0, 43.2), (0.0, 0.0), (3.9, 9.4), (0.0, 1234.0), (-2.0, 0.013)])
def test_ticks_are_few_and_enclose_the_values(low: float, high: float) -> None:
    ticks = ticks_between(low, high)
    assert ticks[0] <= low
    assert ticks[-1] >= high
    assert 1 <= len(ticks) <= 8
