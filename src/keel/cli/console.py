"""Events to the terminal: a bar where there is one to draw on, a line now and then where not."""

import sys
import time
from typing import TYPE_CHECKING, Any, TextIO

from keel.events import counted
from keel.metrics.scores import format_main_score, format_score

if TYPE_CHECKING:
    from rich.progress import Progress

INTERVAL = 10.0
"""Seconds between two lines about steps, where there is no bar."""


class Console:
    """An `on_event` that a person reads; use it in a `with`, so that the bar is cleaned up."""

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None):
        self.quiet = quiet
        self.stream = stream or sys.stderr
        self.told = 0.0
        self.notes: set[str] = set()
        self.bar: Progress | None = None

    def __enter__(self) -> "Console":
        return self

    def __exit__(self, *problem: object) -> None:
        self._close_bar()

    def __call__(self, event: dict[str, Any]) -> None:
        if self.quiet:
            return
        match event.get("event"):
            case "step":
                self._step(event)
            case "evaluation":
                self.say(f"step {event['step']:,}: held-out {losses(event)}")
            case "tokens":
                self._now_and_then(
                    f"{event['ids']:,} tokens of {counted(event['documents'], 'document')} are encoded", last=False
                )
            case "scores":
                seed = f" (seed {event['seed']})" if "seed" in event else ""
                self.say(f"{event['on']}{seed}: {score_line(event)}")
            case "checkpoint" | "row":  # a row is part of a result, and results go to stdout
                pass
            case _ if text := event.get("text"):
                if text not in self.notes:  # a file that is read twice says the same twice
                    self.say(text)
                self.notes.add(text)

    def say(self, text: str) -> None:
        """Write one line, above the bar if there is one."""
        if self.bar is not None:
            self.bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            self.stream.write(f"{text}\n")
            self.stream.flush()

    def _step(self, event: dict[str, Any]) -> None:
        step, steps = event["step"], event["steps"]
        speeds = [
            f"{value:,.0f} {name.removesuffix('_per_second')}/s"
            for name, value in event.items()
            if name.endswith("_per_second")
        ]
        text = "  ".join([losses(event), f"rate {event['lr']:.2g}", *speeds])
        if not self.stream.isatty():
            self._now_and_then(
                f"step {step:,} of {steps:,}  {text}  {clock(event['seconds_left'])} left", last=step == steps
            )
            return
        bar = self.bar = self.bar or self._new_bar(steps)
        bar.update(bar.task_ids[0], completed=step, total=steps, text=text, left=clock(event["seconds_left"]))
        if step == steps:
            self._close_bar()

    def _now_and_then(self, text: str, *, last: bool) -> None:
        if last or time.monotonic() - self.told >= INTERVAL:
            self.say(text)
            self.told = time.monotonic()

    def _new_bar(self, steps: int) -> "Progress":
        from rich.console import Console as Terminal
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        texts = (TextColumn("{task.fields[text]}"), TextColumn("{task.fields[left]} left"))
        bar = Progress(BarColumn(24), MofNCompleteColumn(), *texts, console=Terminal(file=self.stream))
        bar.add_task("", total=steps, text="", left="")
        bar.start()
        return bar

    def _close_bar(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def losses(event: dict[str, Any]) -> str:
    """Each loss by its name, "mlm 6.910 nsp 0.690"; a lone one may be called loss."""
    apart = event["losses"] or {"loss": event["loss"]}
    return " ".join(f"{name} {value:.3f}" for name, value in apart.items())


def score_line(scores: dict[str, Any]) -> str:
    """Scores as plain data on one line: "accuracy 0.912 (0.890 to 0.931), ... on 872 examples"."""
    if "mean" in scores:
        return format_main_score(scores)
    values = ", ".join(format_score(name, score) for name, score in scores["values"].items())
    return f"{values} on {counted(scores['count'], 'example')}"


def clock(seconds: float) -> str:
    """A stretch of time: 42 s, 3:07 or 1:23:45."""
    hours, rest = divmod(round(seconds), 3600)
    minutes, rest = divmod(rest, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}" if minutes else f"{rest} s"
