"""The log of a run, log.jsonl, as curves: losses and learning rate by step and by training time."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from keel.errors import KeelError

CHECKPOINTS = "checkpoints"
SCORE_FIELDS = ("on", "main", "values", "count")
"""Fields of every event of scores."""


class CurvePoint(NamedTuple):
    """A value after a step; `seconds` is the time spent in steps until then, `time` the clock's when it was logged."""

    step: int
    seconds: float
    value: float
    time: float


@dataclass
class LoggedFit:
    """The events of one training: a run of several seeds or folds has several."""

    name: str = ""
    """Folder of its checkpoints inside run/, such as "seed-0"; empty if it is the only one."""
    curves: dict[str, list[CurvePoint]] = field(default_factory=dict)
    """By name: "training loss", "validation loss" (and their parts, if there are several), "learning rate"."""
    step: int = 0
    steps: int = 0
    """Steps of the plan."""
    seconds: float = 0.0
    complete: bool = False

    def add(self, event: Mapping[str, Any]) -> None:
        """Add an event of a step or an evaluation; a run that resumed repeats steps after its checkpoint."""
        step, is_step = event["step"], event["event"] == "step"
        if step < self.step:
            self.curves = {name: [each for each in curve if each.step < step] for name, curve in self.curves.items()}
            last = max((curve[-1] for curve in self.curves.values() if curve), default=None)
            self.step, self.seconds = (last.step, last.seconds) if last else (0, 0.0)
        if is_step:
            self.seconds += float(event["seconds_per_step"]) * (step - self.step)
        self.step, self.steps = step, event["steps"]
        kind = "training" if is_step else "validation"
        parts = {**(event["losses"] if len(event["losses"]) > 1 else {}), **event.get("parts", {})}
        values = {f"{kind} loss": event["loss"], **{f"{kind} loss: {name}": value for name, value in parts.items()}}
        for name, value in {**values, **({"learning rate": event["lr"]} if is_step else {})}.items():
            curve = self.curves.setdefault(name, [])
            if not curve or curve[-1].step < step:
                curve.append(CurvePoint(step, self.seconds, float(value), float(event["time"])))


@dataclass(frozen=True)
class RunLog:
    """All trainings of a run folder, and the events of their scores."""

    verb: str
    fits: list[LoggedFit]
    scores: list[dict[str, Any]]

    @classmethod
    def read(cls, path: Path) -> "RunLog":
        """Read a log.jsonl, also of a run that was interrupted and resumed, or that still runs."""
        verb, fits, scores = "", [LoggedFit()], []
        for number, event in _events(path):
            try:
                match event.get("event"):
                    case "start":
                        verb = event.get("verb", "")
                    case "step" | "evaluation":
                        fit = fits[-1]
                        if fit.complete and event["event"] == "evaluation" and event["step"] == fit.step:
                            continue  # of a finished run that was started again
                        if fit.complete:
                            fits.append(LoggedFit())
                        fits[-1].add(event)
                    case "checkpoint":
                        folder = Path(event["folder"]).parent.parent.name
                        fits[-1].name = "" if folder == "run" else folder
                        fits[-1].complete = event["step"] == fits[-1].steps
                    case "scores":
                        scores.append(event | {key: event[key] for key in SCORE_FIELDS})
            except KeyError as error:
                raise _damaged(path, number, f"the event {event['event']!r:.40} lacks {error.args[0]!r}") from None
            except (TypeError, ValueError, AttributeError):
                raise _damaged(
                    path, number, f"the event {event['event']!r:.40} has a value of the wrong type"
                ) from None
        return cls(verb, fits, scores)


def _events(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The events with the numbers of their lines."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        try:
            event = json.loads(line)
        except ValueError:
            if number == len(lines):  # it is being written, or was cut off
                return
            raise _damaged(path, number, "this line is not JSON") from None
        if isinstance(event, dict):
            yield number, event


def _damaged(path: Path, number: int, what: str) -> KeelError:
    return KeelError(f"{path}:{number}: {what}: remove this line")


def latest_state(run: Path) -> dict[str, Any]:
    """The state of the newest checkpoint inside a run folder (settings, step, seconds); empty if there is none."""
    for folder in sorted((run / CHECKPOINTS).glob("step-*"), reverse=True):
        try:
            state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):  # it is being written
            continue
        if isinstance(state, dict):
            return state
    return {}
