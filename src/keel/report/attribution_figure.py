"""Figures of attributions: text with coloured words, signed bars, deletion and insertion curves."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from xml.etree.ElementTree import Element

from keel.report.charts import FONT, WIDTH, lines, text_width
from keel.report.html_page import append_text, tag
from keel.text_table import signed

STRONGEST = 0.55
"""Opacity of the colour of the strongest word: the text on it stays readable, light and dark."""
MAX_BARS = 25
LINE = 26
"""Pixels of a line of text."""
CHARACTER_WIDTHS = {**dict.fromkeys("iljtfrI.,:;'!|()[]-\"", 0.34), **dict.fromkeys("mwMW@%", 0.88)}
"""Widths of characters in ems, where they are not 0.56 (0.68 for capitals)."""
POSITIVE, NEGATIVE = "0", "1"
"""Colours of words for and against the prediction."""


class ColouredWord(NamedTuple):
    """A word of a text, by its characters, and its attribution."""

    start: int
    end: int
    value: float


class ColouredText(NamedTuple):
    """A text with its words; an empty name is not shown."""

    name: str
    text: str
    words: Sequence[ColouredWord]


def largest_value(texts: Iterable[ColouredText]) -> float:
    """The largest attribution in absolute value, which has the full colour."""
    return max((abs(word.value) for text in texts for word in text.words), default=0.0) or 1.0


def text_parts(text: ColouredText) -> list[tuple[str, float | None]]:
    """The text in parts, in order: words with their attribution, and what is between them with None."""
    parts: list[tuple[str, float | None]] = []
    end = 0
    for word in text.words:
        if word.start > end:
            parts.append((text.text[end : word.start], None))
        parts.append((text.text[word.start : word.end], word.value))
        end = word.end
    return [*parts, (text.text[end:], None)] if end < len(text.text) else parts


def coloured_paragraphs(texts: Sequence[ColouredText]) -> Element:
    """Paragraphs for a page, each word on its colour, with its attribution as a tooltip."""
    largest = largest_value(texts)
    found = tag("div", class_="attributions")
    for text in texts:
        paragraph = tag("p", style="line-height: 2; overflow-wrap: anywhere")
        if text.name:
            paragraph.append(tag("b", text.name))
            append_text(paragraph, " ")
        for part, value in text_parts(text):
            if value is None:
                append_text(paragraph, part)
                continue
            share = 100 * STRONGEST * abs(value) / largest
            colour = f"color-mix(in srgb, var(--colour{_colour(value)}) {share:.1f}%, transparent)"
            style = f"background: {colour}; border-radius: 3px; padding: .15em 0"
            paragraph.append(tag("span", part, style=style, title=signed(value, largest)))
        found.append(paragraph)
    return found


def coloured_picture(texts: Sequence[ColouredText], width: int = WIDTH) -> Element:
    """The same as a picture, in lines of this width."""
    largest = largest_value(texts)
    svg = tag("svg", role="img")
    y = 4.0
    for text in texts:
        if text.name:
            svg.append(tag("text", text.name, class_="faint", x=0, y=y + 16))
            y += LINE
        x = 0.0
        for part, value in text_parts(text):
            for segment in part.splitlines() if value is None else [part]:
                size = _width(segment)
                if value is None and not segment.strip():
                    x += size if x else 0.0
                    continue
                for fitting in _fitting_parts(segment, width):
                    size = _width(fitting)
                    if x and x + size > width:
                        x, y = 0.0, y + LINE
                    svg.extend(_word(fitting, value, x, y, size, largest))
                    x += size
            if value is None and "\n" in part and x:
                x, y = 0.0, y + LINE
        y += LINE + 6 if x else 6
    svg.set("viewBox", f"0 0 {width} {math.ceil(y)}")
    return svg


def _word(word: str, value: float | None, x: float, y: float, size: float, largest: float) -> list[Element]:
    shown = tag("text", word, x=x, y=y + 16, textLength=size, lengthAdjust="spacingAndGlyphs")
    if value is None:
        return [shown]
    opacity = f"{STRONGEST * abs(value) / largest:.3f}"
    shape = {"x": x - 1.5, "y": y, "width": size + 3, "height": 22, "rx": 3, "fill_opacity": opacity}
    title = tag("title", f"{word}: {signed(value, largest)}")
    return [tag("rect", title, class_=f"fill{_colour(value)}", **shape), shown]


def _fitting_parts(word: str, width: float) -> list[str]:
    """A word in parts that fit into a line; nearly always itself."""
    parts = [""]
    for character in word:
        if parts[-1] and _width(parts[-1] + character) > width:
            parts.append("")
        parts[-1] += character
    return parts


def _width(text: str) -> float:
    """Approximate width in pixels of text in a sans-serif font."""

    def ems(character: str) -> float:
        if character.isspace():
            return 0.3
        return CHARACTER_WIDTHS.get(character, 0.68 if character.isupper() else 0.56)

    return sum(FONT * ems(each) if each < "\u0300" else text_width(each) for each in text)


def signed_bars(texts: Sequence[ColouredText]) -> Element:
    """The strongest words, each with a bar to the right (for the prediction) or to the left (against it)."""
    named = [(text.text[word.start : word.end], word.value) for text in texts for word in text.words]
    shown = sorted(sorted(named, key=lambda each: -abs(each[1]))[:MAX_BARS], key=lambda each: -each[1])
    step, numbers, largest = 22, 62, largest_value(texts)
    names = min(200.0, 4 + 1.15 * max((_width(word) for word, _ in shown), default=0.0))  # fonts differ
    left = names + 12 + (numbers if any(value < 0 for _, value in shown) else 0)
    negative = max((-value for _, value in shown if value < 0), default=0.0)
    positive = max((value for _, value in shown if value > 0), default=0.0)
    scale = (WIDTH - left - (numbers if positive else 0)) / ((negative + positive) or largest)
    axis = left + scale * negative
    svg = tag("svg", viewBox=f"0 0 {WIDTH} {step * len(shown) + 4}", role="img")
    for number, (word, value) in enumerate(shown):
        middle = step * number + step / 2
        while len(word) > 2 and 1.15 * _width(word) > names:
            word = f"{word[:-2]}…"
        svg.append(tag("text", word, x=names, y=middle + 4.5, text_anchor="end"))
        length = scale * abs(value)
        shape = {"x": axis - (length if value < 0 else 0.0), "y": middle - 8, "width": length, "height": 16, "rx": 2}
        svg.append(tag("rect", class_=f"fill{_colour(value)}", **shape))
        end, anchor = (axis - length - 6, "end") if value < 0 else (axis + length + 6, "start")
        svg.append(tag("text", signed(value, largest), class_="faint", x=end, y=middle + 4.5, text_anchor=anchor))
    svg.append(tag("line", class_="grid", x1=axis, x2=axis, y1=0, y2=step * len(shown)))
    return svg


def ranking_chart(
    shares: Sequence[float], curve: Sequence[float], random: Sequence[float], *, across: str, upward: str
) -> Element:
    """A deletion or insertion curve beside the mean of random orders."""
    named = {"attribution": curve, "random order": random}
    return lines(
        {name: [*zip((100 * share for share in shares), values, strict=True)] for name, values in named.items()},
        across=across,
        upward=upward,
    )


def stacked(pictures: Sequence[tuple[str, Element]], width: int = WIDTH) -> Element:
    """Pictures below each other, each under a title if it has one."""
    svg = tag("svg", role="img")
    y = 0.0
    for title, picture in pictures:
        if title:
            svg.append(tag("text", title, x=0, y=y + 15, font_weight=600))
            y += 28
        group = tag("g", transform=f"translate(0 {y:.1f})")
        group.extend([*picture])
        svg.append(group)
        y += float(picture.attrib["viewBox"].split()[3]) + 18
    svg.set("viewBox", f"-8 -8 {width + 16} {math.ceil(y)}")
    return svg


def terminal_text(text: ColouredText, largest: float) -> str:
    """The text with ANSI colours: words for the prediction on blue, those against it on orange."""
    found = f"{text.name}: " if text.name else ""
    for part, value in text_parts(text):
        plain = "".join(each if each.isprintable() else " " for each in part)
        share = 0.0 if value is None else abs(value) / largest
        if value is None or share < 0.05:
            found += plain
            continue
        shades = (153, 111, 75, 33) if value > 0 else (223, 216, 209, 202)
        found += f"\x1b[30;48;5;{shades[min(3, int(4 * share))]}m{plain}\x1b[0m"
    return found


def _colour(value: float) -> str:
    return POSITIVE if value >= 0 else NEGATIVE
