"""HTML page of sections, texts, tables and figures in one file."""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal
from xml.etree.ElementTree import Element, tostring

from keel.errors import KeelError, UsageError
from keel.localization import language, translate, translate_sentence, translated
from keel.report.page_style import CSS, STANDALONE_CSS
from keel.report.printed_picture import print_picture, require_printer

ASSETS = Path(__file__).parents[1] / "assets" / "pages"
UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""Characters that XML refuses, and other control characters; texts show the replacement character instead."""
FIGURE_SUFFIXES = (".svg", ".pdf", ".png", ".html")
Layout = Literal["column", "broad", "fit"]
"""A column of text, the width of the screen, or one figure that fits the screen."""


def tag(name: str, /, *children: Element | str, **attributes: Any) -> Element:
    """HTML or SVG element, escaped when rendered; attribute `class_` is class, `text_anchor` is text-anchor.

    Floats are pixels with one decimal; attributes that are None are left out.
    """
    given = {key.strip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    shown = {key: f"{value:.1f}" if isinstance(value, float) else printable(str(value)) for key, value in given.items()}
    element = Element(name, shown)
    for child in children:
        if isinstance(child, Element):
            element.append(child)
        else:
            append_text(element, child)
    return element


def append_text(element: Element, text: str) -> None:
    """Append text to the content of an element."""
    if len(element):
        element[-1].tail = (element[-1].tail or "") + printable(text)
    else:
        element.text = (element.text or "") + printable(text)


def printable(text: str) -> str:
    """The text with replacement characters for those that XML refuses."""
    return UNPRINTABLE.sub("\ufffd", text)


def page_asset(name: str) -> str:
    """A script or style sheet of a page, by the name of its file."""
    return (ASSETS / name).read_text(encoding="utf-8")


class Page:
    """HTML page in the user's language; every method appends to it, and translates titles, paragraphs and captions.

    Cells of tables are data, and stay. `facts` are metadata for programs, `style` further rules of CSS.
    """

    def __init__(
        self,
        title: str,
        lead: str = "",
        *,
        layout: Layout = "column",
        facts: Mapping[str, str] | None = None,
        style: str = "",
    ):
        self.title, self._style = translate(title), style
        self.facts_for_programs = dict(facts or {})
        self._main = tag("main", tag("h1", self.title), class_=None if layout == "column" else layout)
        self._scripts: list[Element] = []
        if lead:
            self._main.append(tag("p", translate(lead), class_="lead"))

    def section(self, title: str) -> None:
        """Start a section."""
        self._main.append(tag("h2", translate(title)))

    def text(self, *parts: Element | str) -> None:
        """Add a paragraph."""
        self._main.append(tag("p", *(translate(part) if isinstance(part, str) else part for part in parts)))

    def facts(self, facts: Iterable[tuple[str, str]]) -> None:
        """Add key figures as (value, name) pairs."""
        self._main.append(
            tag("dl", *(tag("div", tag("dd", translate(value)), tag("dt", translate(name))) for value, name in facts))
        )

    def table(
        self,
        head: Sequence[str],
        rows: Iterable[Sequence[Element | str]],
        *,
        summary: str = "",
        classes: Iterable[str] = (),
        numeric: bool = True,
        dense: bool = False,
    ) -> None:
        """Add a table, collapsed under a `summary` if there is one; all columns but the first are numeric, or none.

        `classes` are those of the rows; a `dense` table has many columns of figures, each on one line.
        """
        names = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in translated(head))))
        pairs = zip_longest(rows, classes)
        body = tag("tbody", *(tag("tr", *(tag("td", cell) for cell in row), class_=kind) for row, kind in pairs))
        table = tag(
            "div", tag("table", names, body), class_="wide figures" if dense else "wide" if numeric else "wide words"
        )
        self._main.append(tag("details", tag("summary", translate(summary)), table) if summary else table)

    def figure(self, picture: Element, caption: str) -> None:
        """Add a figure with its caption."""
        self._main.append(tag("figure", picture, tag("figcaption", translate(caption))))

    def add(self, element: Element) -> None:
        """Add any element."""
        self._main.append(element)

    def output(self, lines: Iterable[str]) -> None:
        """Add the output of a program."""
        self._main.append(tag("pre", "\n".join(lines)))

    def script(self, text: str, **buttons: str) -> None:
        """Add a script of our own, never of the data, and buttons by their `data-action`."""
        labelled = (
            tag("button", translate(label), type="button", data_action=action) for action, label in buttons.items()
        )
        self._main.append(tag("nav", *labelled))
        self._scripts += [tag("div", id="tip", hidden="hidden"), tag("script", text)]

    def data(self, id: str, text: str) -> None:
        """Add data for the script, such as JSON; it is not executed."""
        assert "<" not in text, "it would end the element"
        self._scripts.insert(0, tag("script", text, type="application/json", id=id))

    def phrases(self, **sentences: str) -> None:
        """Add what a script shows, by name, in the user's language; the script fills in values that are in braces."""
        self.data("phrases", json.dumps({name: translate(text) for name, text in sentences.items()}))

    def _policy(self) -> str:
        """Content Security Policy: the page makes no request, and no script runs but its own."""
        programs = (each.text or "" for each in self._scripts if each.tag == "script" and not each.get("type"))
        hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in programs]
        scripts = " ".join(f"'sha256-{each}'" for each in hashes) or "'none'"
        return f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {scripts}"

    def render(self) -> str:
        """The complete HTML."""
        head = tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", http_equiv="Content-Security-Policy", content=self._policy()),
            *(tag("meta", name=f"keel-{name}", content=value) for name, value in self.facts_for_programs.items()),
            tag("title", self.title),
            tag("style", CSS + self._style),
        )
        translate_texts(self._main)
        document = tag("html", head, tag("body", self._main, *self._scripts), lang=language())
        return "<!DOCTYPE html>\n" + tostring(document, encoding="unicode", method="html") + "\n"

    def write(self, path: Path) -> Path:
        """Write the file atomically."""
        return write_text(path, self.render())


def translate_texts(root: Element) -> None:
    """Translate sentences in the texts and titles of an element and all elements in it."""
    if language() == "en":
        return
    for element in root.iter():
        element.text = element.text and translate_sentence(element.text)
        element.tail = element.tail and translate_sentence(element.tail)
        for name in ("title", "alt", "aria-label"):
            if shown := element.get(name):
                element.set(name, translate_sentence(shown))


def picture_file(path: str | Path) -> Path:
    """The path, if a figure can be written to it: its ending says as what."""
    suffix = Path(path).suffix.lower()
    if suffix not in FIGURE_SUFFIXES:
        raise UsageError(f"{path} must end in {', '.join(FIGURE_SUFFIXES[:-1])} or {FIGURE_SUFFIXES[-1]}")
    if suffix in (".pdf", ".png"):
        require_printer()
    return Path(path)


def is_page(path: str | Path) -> bool:
    """Whether a figure's file is an HTML page; else it is a picture alone."""
    return picture_file(path).suffix.lower() == ".html"


def render_picture(picture: Element) -> str:
    """A picture as the text of an SVG file of its own, with a size, without which it would fill any page."""
    standalone = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **picture.attrib})
    *_, width, height = picture.attrib.get("viewBox", "100% 100%").split()
    for name, size in (("width", width), ("height", height)):
        standalone.attrib.setdefault(name, size)
    standalone.extend([tag("style", STANDALONE_CSS), *picture])
    translate_texts(standalone)
    return tostring(standalone, encoding="unicode") + "\n"


def write_picture(path: Path, picture: Element, title: str = "") -> Path:
    """Write a picture to a file of its own, .svg, .pdf or .png, atomically; viewers show its title."""
    if title and picture.find("title") is None:
        picture.insert(0, tag("title", title))
    svg = render_picture(picture)
    match path.suffix.lower():
        case ".pdf":
            return write_file(path, print_picture(svg, "pdf"))
        case ".png":
            return write_file(path, print_picture(svg, "png"))
        case _:
            return write_file(path, svg.encode())


def write_figures(
    path: Path, title: str, figures: Sequence[tuple[Element, str]], *, lead: str = "", layout: Layout = "column"
) -> Path:
    """Write pictures with their captions to an .html page, or the first picture to a file of its own."""
    if not is_page(path):
        return write_picture(path, figures[0][0], title)
    page = Page(title, lead, layout=layout)
    for picture, caption in figures:
        page.figure(picture, caption)
    return page.write(path)


def write_text(path: Path, text: str) -> Path:
    """Write a text file atomically."""
    return write_file(path, text.encode())


def write_file(path: Path, content: bytes) -> Path:
    """Write a file atomically."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(content)
        return part.replace(path)
    except OSError as error:
        raise KeelError(f"{path} cannot be written: {error.strerror}") from None
