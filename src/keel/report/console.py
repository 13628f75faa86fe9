"""Progress events on a terminal or in a notebook: a progress bar; elsewhere a log line per interval."""

import sys
import time
from html import escape
from typing import TYPE_CHECKING, Any, TextIO

from keel.events import pluralize
from keel.localization import translate
from keel.metrics.scores import format_main_score, format_score
from keel.training.loss_names import format_loss, name_loss

if TYPE_CHECKING:
    from rich.progress import Progress

INTERVAL = 10.0
"""Seconds between two log lines, where there is no progress bar."""
REFRESH = 0.5
"""Seconds between two updates of a progress bar in a notebook."""


class Console:
    """An `on_event` that writes to stderr, or below the cell of a notebook; use it in a `with`, so that the progress
    bar is cleaned up."""

    def __init__(self, *, quiet: bool = False, stream: TextIO | None = None):
        self.quiet = quiet
        self.notebook = stream is None and in_notebook()
        self.stream = stream or (sys.stdout if self.notebook else sys.stderr)  # notebooks print stderr in red
        self.logged_at = 0.0
        self.notes: set[str] = set()
        self.bar: Progress | None = None
        self.cell: NotebookBar | None = None

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
                parts = ", ".join(f"{name} {value:.3f}" for name, value in event.get("parts", {}).items())
                score = f", score {event['score']:.3f}" if "score" in event else ""
                self.say(f"step {event['step']:,}: validation {losses(event)}{score}{parts and f'; {parts}'}")
            case "tokens":
                documents = pluralize(event["documents"], "document")
                self._log_line(f"encoded {event['ids']:,} tokens of {documents}", last=False)
            case "scores":
                if event.get("runs", 1) > 1:  # of a single run they are the result, which goes to stdout
                    self.say(f"{event['on']} ({event['run']}): {score_line(event)}")
            case "cells":
                self._cells(event)
            case "checkpoint" | "row":  # a row belongs to a result, and results go to stdout
                pass
            case _ if text := event.get("text"):
                if text not in self.notes:  # a file that is read twice sends its notes twice
                    self.say(text)
                self.notes.add(text)

    def say(self, text: str) -> None:
        """Write one line in the user's language, above the bar if there is one."""
        text = translate(text)
        if self.bar is not None:
            self.bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            self.stream.write(f"{text}\n")
            self.stream.flush()

    def _step(self, event: dict[str, Any]) -> None:
        step, steps = event["step"], event["steps"]
        speeds = [
            f"{_short_number(value)} {name.removesuffix('_per_second')}/s"
            for name, value in event.items()
            if name.endswith("_per_second")
        ]
        text = "  ".join(map(translate, [losses(event), f"lr {event['lr']:.1e}", *speeds]))
        left = translate(f"{clock(event['seconds_left'])} left")
        if self.notebook:
            self.cell = self.cell or NotebookBar()
            self.cell.update(step, steps, f"{text}  {left}")
            self.cell = None if step == steps else self.cell
            return
        if not self.stream.isatty():
            self._log_line(f"{translate(f'step {step:,}/{steps:,}')}  {text}  {left}", last=step == steps)
            return
        bar = self.bar = self.bar or self._new_bar(steps)
        bar.update(bar.task_ids[0], completed=step, total=steps, text=text, left=left)
        if step == steps:
            self._close_bar()

    def _cells(self, event: dict[str, Any]) -> None:
        """Progress of a comparison: finished cells of all, and what runs now."""
        done, total, seconds = event["done"], event["total"], event["seconds_left"]
        finished = done == total and self.bar is None
        if finished or self.notebook or not self.stream.isatty():  # elsewhere the notes on cells are enough
            return
        left = translate(f"{'?' if seconds is None else clock(seconds)} left")
        bar = self.bar = self.bar or self._new_bar(total)
        bar.update(bar.task_ids[0], completed=done, total=total, text=event["running"], left=left)
        if done == total:
            self._close_bar()

    def _log_line(self, text: str, *, last: bool) -> None:
        if last or time.monotonic() - self.logged_at >= INTERVAL:
            self.say(text)
            self.logged_at = time.monotonic()

    def _new_bar(self, steps: int) -> "Progress":
        from rich.console import Console as Terminal
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.table import Column

        texts = (TextColumn("{task.fields[text]}"), TextColumn("{task.fields[left]}"))
        count = MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=2 * len(str(steps)) + 1))
        bar = Progress(BarColumn(12), count, *texts, console=Terminal(file=self.stream))
        bar.add_task("", total=steps, text="", left="")
        bar.start()
        return bar

    def _close_bar(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def in_notebook() -> bool:
    """Whether this runs in a Jupyter kernel."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


class NotebookBar:
    """A progress bar below the cell of a notebook; it needs no widgets."""

    def __init__(self) -> None:
        from IPython.display import display  # pyright: ignore[reportMissingImports] - only in a notebook

        self.updated_at = 0.0
        self.handle = display({"text/plain": ""}, raw=True, display_id=True)

    def update(self, step: int, steps: int, text: str) -> None:
        """Show this step, at most twice a second."""
        if step < steps and time.monotonic() - self.updated_at < REFRESH:
            return
        self.updated_at = time.monotonic()
        line = f"{step:,}/{steps:,}  {text}"
        bar = f"<progress value='{step}' max='{steps}'></progress> <code>{escape(line)}</code>"
        self.handle.update({"text/plain": line, "text/html": bar}, raw=True)


def losses(event: dict[str, Any]) -> str:
    """The loss, with its parts if there are several: "loss 7.600 (mlm 6.910, nsp 0.690)"."""
    return f"{name_loss(event['losses'])} {format_loss(event['loss'], event['losses'])}"


def _short_number(value: float) -> str:
    """Three digits or so: "950", "12.3k", "918k", "2.80M"."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.{2 - min(2, len(str(int(value / size))) - 1)}f}{unit}"
    return f"{value:.0f}"


def score_line(scores: dict[str, Any]) -> str:
    """Scores on one line: "accuracy 0.912 (0.890 to 0.931), ... on 872 examples"."""
    if "mean" in scores:
        return format_main_score(scores)
    values = ", ".join(format_score(name, score) for name, score in scores["values"].items())
    return f"{values} on {pluralize(scores['count'], 'example')}"


def clock(seconds: float) -> str:
    """A duration: 0:42, 3:07 or 1:23:45."""
    hours, rest = divmod(round(seconds), 3600)
    minutes, rest = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
