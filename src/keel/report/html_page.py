"""HTML page of sections, texts, tables and figures in one file."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, tostring

from keel.errors import KeelError
from keel.report.page_style import CSS, STANDALONE_CSS


def tag(name: str, /, *children: Element | str, **attributes: Any) -> Element:
    """HTML or SVG element, escaped when rendered; attribute `class_` is class, `text_anchor` is text-anchor."""
    element = Element(name, {key.strip("_").replace("_", "-"): str(value) for key, value in attributes.items()})
    for child in children:
        if isinstance(child, Element):
            element.append(child)
        elif len(element):
            element[-1].tail = (element[-1].tail or "") + child
        else:
            element.text = (element.text or "") + child
    return element


class Page:
    """HTML page; every method appends to it."""

    def __init__(self, title: str, lead: str = "", *, broad: bool = False):
        self.title = title
        self._main = tag("main", tag("h1", title), **{"class": "broad"} if broad else {})
        if lead:
            self._main.append(tag("p", lead, class_="lead"))

    def section(self, title: str) -> None:
        """Start a section."""
        self._main.append(tag("h2", title))

    def text(self, *parts: Element | str) -> None:
        """Add a paragraph."""
        self._main.append(tag("p", *parts))

    def facts(self, facts: Iterable[tuple[str, str]]) -> None:
        """Add key figures as (value, name) pairs."""
        self._main.append(tag("dl", *(tag("div", tag("dd", value), tag("dt", name)) for value, name in facts)))

    def table(self, head: Sequence[str], rows: Iterable[Sequence[Element | str]]) -> None:
        """Add a table; all columns but the first are numeric."""
        names = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in head)))
        body = tag("tbody", *(tag("tr", *(tag("td", cell) for cell in row)) for row in rows))
        self._main.append(tag("div", tag("table", names, body), class_="wide"))

    def figure(self, picture: Element, caption: str) -> None:
        """Add a figure with its caption."""
        self._main.append(tag("figure", picture, tag("figcaption", caption)))

    def add(self, element: Element) -> None:
        """Add any other element."""
        self._main.append(element)

    def render(self) -> str:
        """The complete HTML."""
        head = tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("title", self.title),
            tag("style", CSS),
        )
        document = tag("html", head, tag("body", self._main), lang="en")
        return "<!DOCTYPE html>\n" + tostring(document, encoding="unicode", method="html") + "\n"

    def write(self, path: Path) -> Path:
        """Write the file atomically."""
        return _write(path, self.render())


def write_picture(path: Path, picture: Element) -> Path:
    """Write a picture to its own SVG file, atomically."""
    standalone = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **picture.attrib})
    standalone.extend([tag("style", STANDALONE_CSS), *picture])
    return _write(path, tostring(standalone, encoding="unicode") + "\n")


def _write(path: Path, text: str) -> Path:
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text, encoding="utf-8")
        return part.replace(path)
    except OSError as error:
        raise KeelError(f"{path} cannot be written: {error.strerror}") from None
