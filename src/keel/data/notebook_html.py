"""HTML of results in a notebook: a small table, every text escaped; the notebook's own style sheet sets the colours."""

from collections.abc import Iterable, Sequence
from html import escape
from itertools import islice

MAX_ROWS = 10
"""Rows of a long table that a notebook shows."""
MAX_CHARACTERS = 200
"""Characters of a text that a notebook shows."""


def html_table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]], *, total: int = 0) -> str:
    """A table with a title; of `total` rows the first ones are given."""
    shown = list(islice(rows, MAX_ROWS)) if total else list(rows)
    body = "".join(_row("td", row) for row in shown)
    rest = f"<p>{total - len(shown):,} more</p>" if total > len(shown) else ""
    thead = f"<thead>{_row('th', header)}</thead>" if header else ""
    return f"<p><b>{escape(title)}</b></p><table>{thead}<tbody>{body}</tbody></table>{rest}"


def _row(tag: str, cells: Iterable[object]) -> str:
    return "<tr>" + "".join(f"<{tag} style='text-align: left'>{_cell(value)}</{tag}>" for value in cells) + "</tr>"


def _cell(value: object) -> str:
    text = str(value)
    return escape(text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}...")
