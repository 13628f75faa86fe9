import contextlib
import io
from typing import Any

import pytest

from keel.report import console as module
from keel.report.console import Console, clock, losses


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def step(number: int, steps: int = 100) -> dict[str, Any]:
    return {
        "event": "step",
        "step": number,
        "steps": steps,
        "loss": 7.6,
        "losses": {"mlm": 6.91, "nsp": 0.69},
        "lr": 1e-4,
        "seconds_per_step": 0.1,
        "tokens_per_second": 12345.6,
        "norm": 1.0,
        "seconds_left": 125.0,
    }


def test_without_a_terminal_there_is_a_log_line_per_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    stream = io.StringIO()
    with Console(stream=stream) as console:
        for number in range(1, 101):
            console(step(number))
            now += 0.5
    lines = stream.getvalue().splitlines()
    assert lines[0] == "step 1/100  loss 7.600 (mlm 6.910, nsp 0.690)  lr 1.0e-04  12.3k tokens/s  2:05 left"
    assert [line.split()[1] for line in lines] == ["1/100", "21/100", "41/100", "61/100", "81/100", "100/100"]


def test_on_a_terminal_notes_are_above_the_progress_bar() -> None:
    stream = Terminal()
    with Console(stream=stream) as console:
        console(step(1))
        console({"event": "note", "text": "[bold]a note[/bold]"})
        console(step(100))
    written = stream.getvalue()
    assert "mlm 6.910, nsp 0.690" in written
    assert "100/100" in written
    assert "[bold]a note[/bold]" in written
    assert "\x1b[?25h" in written  # the cursor is back


def test_the_cells_of_a_comparison_have_one_bar() -> None:
    stream, plain = Terminal(), io.StringIO()
    states = [(0, "cnn", None), (1, "cnn 50%", 125.0), (2, "", 0.0), (2, "", 0.0)]
    for each in (stream, plain):
        with Console(stream=each) as console:
            for done, running, left in states:
                console({"event": "cells", "done": done, "total": 2, "running": running, "seconds_left": left})
    written = stream.getvalue()
    assert "2/2" in written
    assert written.count("\x1b[?25l") == 1  # the bar is opened once
    assert plain.getvalue() == ""


def test_the_progress_bar_is_cleaned_up_when_a_run_fails() -> None:
    stream = Terminal()
    with contextlib.suppress(KeyError), Console(stream=stream) as console:
        console(step(1))
        raise KeyError
    assert "\x1b[?25h" in stream.getvalue()


def test_other_events_are_one_line_or_nothing() -> None:
    stream = io.StringIO()
    console = Console(stream=stream)
    console({"event": "note", "text": "x is read as gb18030"})
    console({"event": "note", "text": "x is read as gb18030"})
    console({"event": "checkpoint", "step": 3, "folder": "x"})
    console({"event": "row", "text": "a figure"})
    console({"event": "evaluation", "step": 1000, "steps": 2000, "loss": 3.0, "losses": {"mlm": 2.5, "nsp": 0.5}})
    score = {"value": 0.9, "low": 0.8, "high": 1.0}
    scores = {"event": "scores", "on": "dev", "values": {"accuracy": score}, "count": 1200}
    console(scores)  # the result of a single run, which is printed at the end
    console({**scores, "run": "seed 1", "runs": 3})
    console({"event": "evaluation", "step": 1, "steps": 2, "loss": 4.144, "losses": {"negative": 4.144}})
    console({"event": "something new"})
    assert stream.getvalue().splitlines() == [
        "x is read as gb18030",
        "step 1,000: validation loss 3.000 (mlm 2.500, nsp 0.500)",
        "dev (seed 1): accuracy 0.900 (0.800 to 1.000) on 1,200 examples",
        "step 1: validation loss (negative sampling) 4.144",
    ]


def test_quiet_is_quiet() -> None:
    stream = io.StringIO()
    console = Console(quiet=True, stream=stream)
    console(step(1))
    console({"event": "note", "text": "hello"})
    assert stream.getvalue() == ""


def test_losses_and_durations() -> None:
    assert losses({"loss": 0.5, "losses": {}, "lr": 1.0}) == "loss 0.500"
    assert [clock(seconds) for seconds in (0.4, 59.7, 187, 5025)] == ["0:00", "1:00", "3:07", "1:23:45"]
