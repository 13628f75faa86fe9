"""Figures of preferences: values with intervals around zero."""

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from keel.localization import translate
from keel.report.charts import WIDTH, Bar, linear_scale, text_width, ticks_between
from keel.report.html_page import tag

ROW = 21


def interval_chart(rows: Sequence[Bar], *, negative: str, positive: str, across: str) -> Element:
    """Values as dots with their intervals, zero in the middle of two directions; those without 0 are highlighted."""
    left = max(text_width(each.name) for each in rows) + 16
    values = [value for each in rows for value in (each.value, each.low, each.high) if value is not None]
    ticks = ticks_between(min(0.0, *values), max(0.0, *values), 6)
    top, height = 26.0, 26.0 + ROW * len(rows)
    place = linear_scale(ticks[0], ticks[-1], left, WIDTH - 20)
    svg = tag("svg", viewBox=f"0 0 {WIDTH} {height + 44:.0f}", role="img", style=f"max-width: {WIDTH}px")
    for tick in ticks:
        x = place(tick)
        svg.append(tag("line", class_="grid", x1=x, x2=x, y1=top - 6, y2=height))
        svg.append(tag("text", f"{tick:+g}" if tick else "0", class_="faint", x=x, y=height + 18, text_anchor="middle"))
    zero = place(0.0)
    svg.append(tag("line", class_="interval", x1=zero, x2=zero, y1=top - 6, y2=height))
    svg.append(tag("text", f"← {translate(negative)}", class_="accent", x=zero - 10, y=14, text_anchor="end"))
    svg.append(tag("text", f"{translate(positive)} →", class_="accent", x=zero + 10, y=14))
    svg.append(tag("text", translate(across), class_="faint", x=WIDTH - 20, y=height + 38, text_anchor="end"))
    for number, each in enumerate(rows):
        y = top + ROW * (number + 0.5)
        hint = f"{each.name}: {each.value:+.3f}"
        svg.append(tag("text", each.name, x=left - 12, y=y + 4.5, text_anchor="end"))
        if each.low is not None and each.high is not None:
            hint += f" ({each.low:+.3f} to {each.high:+.3f})"
            svg.append(tag("line", class_="interval", x1=place(each.low), x2=place(each.high), y1=y, y2=y))
        kind = "mark" if each.highlighted else "plain"
        svg.append(tag("circle", tag("title", hint), class_=kind, cx=place(each.value), cy=y, r=4.5))
    return svg
