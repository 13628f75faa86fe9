"""What an experiment finds."""

from collections.abc import Callable
from dataclasses import dataclass

Say = Callable[[str], None]
"""Takes the lines of a result as they fall."""


VERDICTS = {True: "Holds", False: "Does not hold here", None: "Not decided here"}


@dataclass(frozen=True)
class Finding:
    """Whether a claim is true where it was run, and the figures that say so; None where they cannot tell."""

    holds: bool | None
    figures: str

    def __str__(self) -> str:
        return f"{VERDICTS[self.holds]}: {self.figures}."


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Something that the sources say or ask, and the experiment that answers."""

    title: str
    minutes: float
    """About how long it runs on two cores; below 0.2 it is a matter of seconds."""
    run: Callable[[Say], Finding]
