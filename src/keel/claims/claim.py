"""What an experiment finds."""

from collections.abc import Callable
from dataclasses import dataclass

from keel.events import OnEvent, note

VERDICTS = {True: "Holds", False: "Does not hold here", None: "Not decided here"}


@dataclass(frozen=True)
class Finding:
    """Whether a claim is true where it was run, and the figures that say so; None where they cannot tell."""

    holds: bool | None
    figures: str
    rows: tuple[str, ...] = ()
    """The lines of the result, in their order."""

    def __str__(self) -> str:
        return f"{VERDICTS[self.holds]}: {self.figures}."

    def lines(self) -> list[str]:
        """The whole result for a person: its rows, then the verdict."""
        return [*self.rows, str(self)]


class Say:
    """Takes the lines of a result as they fall; `on_event` hears each as {"event": "row", "text": ...}."""

    def __init__(self, on_event: OnEvent):
        self.on_event = on_event
        self.rows: list[str] = []

    def __call__(self, row: str) -> None:
        self.rows.append(row)
        self.on_event({"event": "row", "text": row})

    def progress(self, text: str) -> None:
        """Tell what is being done: it is no part of the result."""
        note(self.on_event, text)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Something that the sources say or ask, and the experiment that answers."""

    title: str
    minutes: float
    """About how long it runs on two cores; below 0.2 it is a matter of seconds."""
    run: Callable[..., Finding]
    """Is given a `Say`."""
    of_models: bool = False
    """Whether it can be asked of a `model`, with a folder of `data`, and not of a tiny one alone."""
