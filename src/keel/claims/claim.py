"""Claims, and the verdicts of their experiments."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple
from xml.etree.ElementTree import Element

from keel.events import OnEvent, note
from keel.report.html_page import render_picture

VERDICTS = {True: "Holds", False: "Does not hold here", None: "Not decided here"}


class Picture(NamedTuple):
    """A picture of an experiment."""

    name: str
    """Empty for the only one; part of its file name."""
    picture: Element
    caption: str


@dataclass(frozen=True)
class Verdict:
    """Whether a claim holds in its experiment (None: undecided), and the figures behind it."""

    holds: bool | None
    figures: str
    rows: tuple[str, ...] = ()
    """Output lines of the experiment."""
    pictures: tuple[Picture, ...] = ()

    def __str__(self) -> str:
        return f"{VERDICTS[self.holds]}: {self.figures}."

    def lines(self) -> list[str]:
        """Output lines and verdict."""
        return [*self.rows, str(self)]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; pictures as the text of SVG files."""
        pictures = [{"caption": each.caption, "svg": render_picture(each.picture)} for each in self.pictures]
        return {"holds": self.holds, "figures": self.figures, "rows": list(self.rows), "pictures": pictures}


class Say:
    """Collects output lines, each of which it passes to `on_event` as {"event": "row", "text": ...}, and pictures."""

    def __init__(self, on_event: OnEvent):
        self.on_event = on_event
        self.rows: list[str] = []
        self.pictures: list[Picture] = []

    def __call__(self, row: str) -> None:
        self.rows.append(row)
        self.on_event({"event": "row", "text": row})

    def picture(self, picture: Element, caption: str, name: str = "") -> None:
        """Add a picture to the result."""
        self.pictures.append(Picture(name, picture, caption))

    def progress(self, text: str) -> None:
        """Report progress, which is not part of the result."""
        note(self.on_event, text)


@dataclass(frozen=True)
class Claim:
    """A claim or question of the sources, and its experiment."""

    title: str
    minutes: float
    """Approximate run time on two cores; up to 0.2 means seconds."""
    run: Callable[..., Verdict]
    """The experiment; its first argument is a `Say`."""
    accepts_model: bool = False
    """Whether it accepts a user's `model`."""
    accepts_data: bool = False
    """Whether it accepts a folder of `data` with the model."""
    timed: bool = False
    """Whether its figures are run times, which differ between runs."""
