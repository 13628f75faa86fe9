"""Plain text is predicted in parts."""

from pathlib import Path

import pytest

import keel
from keel.data.examples import Columns, read_examples
from keel.data.text_streams import plain_text_parts
from keel.errors import KeelError
from keel.events import Event, ignore

LINES = [f"{'so good' if number % 3 else 'so bad'} {'x' * (number % 7)}" for number in range(500)]


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_parts_are_small_and_have_all_lines_with_their_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keel.data.text_streams.PART", 5000)
    path = write(tmp_path, "a.txt", "\n\n" + "\n \n".join(LINES) + "\n")
    parts = list(plain_text_parts(path, Columns(), ignore) or [])
    whole = read_examples(path, pair=False)
    assert max(map(len, parts)) < 60
    assert [text for part in parts for text in part.texts] == whole.texts == LINES
    assert [where for part in parts for where in part.locations] == [*whole.locations]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.tsv", "so good\tx\n"),
        ("tabs.txt", "so good\tx\n"),
        ("fast.txt", "__label__x so good\n"),
        ("trec.txt", "0 so good\n1 so bad\n" * 4),
        ("tree.txt", "(3 (2 It) (4 works))\n"),
        ("rows.txt", '{"text": "a"}\n{"text": "b"}\n'),
        ("empty.txt", "\n"),
        ("seq.in", "so good\n"),
    ],
)
def test_what_may_have_labels_is_read_as_a_whole(tmp_path: Path, name: str, text: str) -> None:
    write(tmp_path, "label", "x\n")
    assert plain_text_parts(write(tmp_path, name, text), Columns(), ignore) is None
    assert plain_text_parts(["so good"], Columns(), ignore) is None
    assert plain_text_parts(tmp_path / "none.txt", Columns(), ignore) is None


def test_predictions_of_a_file_are_those_of_its_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("so good", "yes"), ("so bad", "no")] * 4
    model = keel.finetune(keel.Onehot(), rows, task="classify", dev=None, device="cpu")
    path = write(tmp_path, "a.txt", "\n".join(LINES))
    monkeypatch.setattr("keel.data.text_streams.PART", 5000)
    notes: list[Event] = []
    found = [*keel.predict(model, path, on_event=notes.append)]
    assert [each["label"] for each in found] == [each.label for each in model.predict(LINES)]
    assert found[-1]["where"] == f"{path}:500"
    assert len(notes) == 1
    path.write_bytes(b"so good\n" * 5000 + b"so b\xe4d\n")
    with pytest.raises(KeelError, match=r"a\.txt:5001"):
        keel.predict(model, path)


@pytest.mark.parametrize(
    "text", ["3 eggs\n2 cups of flour\n" * 4, "0 so good\n1 so bad\n" * 4, "DESC:def What ?\nNUM:date When ?\n" * 4]
)
def test_nothing_is_cut_from_a_text_to_predict(tmp_path: Path, text: str) -> None:
    rows = [("so good", "1"), ("so bad", "0")] * 4
    model = keel.finetune(keel.Onehot(), rows, task="classify", dev=None, device="cpu")
    path = write(tmp_path, "a.txt", text)
    assert [each["text"] for each in keel.predict(model, path)] == text.splitlines()
    assert [each["text"] for each in keel.predict(model, path, out=tmp_path / "out.csv")] == text.splitlines()
    assert keel.evaluate(model, write(tmp_path, "b.txt", "1 so good\n0 so bad\n" * 4)).main_value == 1
