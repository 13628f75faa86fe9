"""Progress in Python: a console by default, none with progress=False or an on_event of one's own."""

import pathlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import keel
from keel.errors import naming_flags
from keel.report.console import Console

TEXTS = [(f"{word} film", word) for word in ("good", "bad")] * 8
BERT = keel.Bert(layers=1, width=16, head_dim=16, max_positions=32, sequence_length=32, dropout=0.0)
QUICK: dict[str, Any] = {"steps": 3, "batch": 4, "device": "cpu", "dev": None}


class Cell:
    """What a notebook displays below a cell."""

    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []

    def display(self, content: dict[str, str], *, raw: bool, display_id: bool) -> "Cell":
        self.shown.append(content)
        return self

    def update(self, content: dict[str, str], *, raw: bool) -> None:
        self.shown.append(content)


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    found = Cell()
    shell, display = ModuleType("IPython"), ModuleType("IPython.display")
    vars(shell)["get_ipython"] = lambda: SimpleNamespace(kernel=None)
    vars(display)["display"] = found.display
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return found


def test_progress_is_shown_unless_it_is_silenced(capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    keel.finetune(BERT, TEXTS, **QUICK)
    out, err = capsys.readouterr()
    assert out == ""
    assert "step 3/3  loss" in err
    keel.pretrain(BERT, [text for text, _ in TEXTS] * 4, out=tmp_path / "m", steps=2, batch=2, device="cpu")
    assert "step 2/2  loss" in capsys.readouterr().err
    events: list[Any] = []
    keel.finetune(BERT, TEXTS, on_event=events.append, **QUICK)
    assert any(event["event"] == "step" for event in events)
    keel.finetune(BERT, TEXTS, progress=False, **QUICK)
    with naming_flags():  # the command line has a console of its own
        keel.finetune(BERT, TEXTS, **QUICK)
    keel.Classifier(BERT, steps=3, batch=4, device="cpu").fit(*zip(*TEXTS, strict=True))
    assert capsys.readouterr() == ("", "")


def test_in_a_notebook_a_bar_is_updated_below_the_cell(capsys: pytest.CaptureFixture[str], cell: Cell) -> None:
    keel.finetune(BERT, TEXTS, **QUICK)
    assert len(cell.shown) > 1
    assert "3/3" in cell.shown[-1]["text/plain"]
    assert "<progress value='3' max='3'>" in cell.shown[-1]["text/html"]
    out, err = capsys.readouterr()  # notes are printed in black
    assert err == ""
    assert "step" not in out


def test_what_a_notebook_shows_is_escaped(cell: Cell) -> None:
    step = {"step": 1, "steps": 1, "loss": 1.0, "losses": {"<b>": 1.0, "&": 1.0}, "lr": 1.0, "seconds_left": 0.0}
    with Console() as console:
        console({"event": "step", **step})
    assert "&lt;b&gt;" in cell.shown[-1]["text/html"]


def test_a_recorded_call_names_parallel_files(tmp_path: Path) -> None:
    both = tmp_path / "a.en", tmp_path / "a.de"
    for path in both:
        path.write_text("one two\nthree four\n" * 6)
    system = keel.Seq2seq(width=8, attention_dim=8)
    model = keel.finetune(system, both, task="seq2seq", steps=1, batch=4, dev=None, device="cpu", progress=False)
    recorded: list[Any] = []
    names = {"finetune": lambda *given, **_: recorded.append(given), "Seq2seq": keel.Seq2seq}
    eval(model.card.command, {"keel": SimpleNamespace(**names), "pathlib": pathlib})
    assert recorded == [(system, both)]


def test_the_card_names_what_a_threshold_applies_to(tmp_path: Path) -> None:
    rows = [("so good", ["x", "y"]), ("so bad", ["y"]), ("fine", [])] * 8
    keel.finetune(BERT, rows, task="classify", threshold=0.4, out=tmp_path / "m", progress=False, **QUICK)
    card = " ".join((tmp_path / "m" / "README.md").read_text().split())
    assert "threshold 0.4 to the probabilities" in card
