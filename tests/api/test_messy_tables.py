"""Messy tables on their whole way: what `check` finds, what `finetune` reports, and what both clean."""

import csv
from pathlib import Path
from typing import Any

import pytest

from keel.api.finetuning import finetune
from keel.checks import check
from keel.cli import main
from keel.errors import UsageError

SETTINGS: dict[str, Any] = {"epochs": 1, "batch": 8}
ODD_LABELS = {1: "Positive", 3: "positive ", 5: "NaN", 6: "", 7: "POSITIVE"}


@pytest.fixture
def messy(tmp_path: Path) -> Path:
    """Rows 2 to 41 of text, the last ten of them copies; three labels are misspelled and two missing."""
    rows = [
        [number, f"text {number % 30}", ODD_LABELS.get(number % 30) or ("negative", "positive")[number % 2], "kept"]
        for number in range(40)
    ]
    rows[6][2] = ""
    rows[20][1] = " "
    path = tmp_path / "messy.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["id", "text", "label", "other"], *rows])
    return path


def notes(source: Any, **settings: Any) -> tuple[Any, list[str]]:
    events: list[dict[str, Any]] = []
    model = finetune("onehot", source, on_event=events.append, **SETTINGS, **settings)
    return model, [event["text"] for event in events if event["event"] == "note"]


def test_finetune_reports_what_check_finds(messy: Path) -> None:
    model, found = notes(messy)
    assert model.task.labels.names == ("POSITIVE", "Positive", "negative", "positive", "positive ")
    for start in (f"{messy}:7: 3 rows have no label", f"{messy}:22: 1 text is empty", f"{messy}:3: 6 rows have labels"):
        assert sum(text.startswith(start) for text in found) == 1, found
    (copies,) = [text for text in found if text.startswith(f"{messy}:32: ")]
    assert copies.startswith(f"{messy}:32: 8 duplicate examples (for example, of {messy}:2)")
    assert copies.endswith("clean (finetune) or fix (check)")


def test_finetune_cleans_training_and_test_labels(messy: Path) -> None:
    test = [("text 1", "POSITIVE "), ("text 2", "negative")]
    model, found = notes(messy, clean=True, test=test)
    assert model.task.labels.names == ("negative", "positive")
    (cleaned,) = [text for text in found if "merged" in text]
    assert "3 variants" in cleaned
    assert "dropped 1 empty row and 8 duplicate rows; 28 rows are left" in cleaned
    assert not any("differ from" in text for text in found)
    assert model.card.scores["test"]["count"] == 2


def test_check_writes_a_cleaned_table(messy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fixed = tmp_path / "fixed.csv"
    assert main(["check", str(messy), "--fix", str(fixed)]) == 0
    assert "28 rows are left" in capsys.readouterr().out
    with open(fixed, newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert header == ["id", "text", "label", "other"]
    assert len(rows) == 28
    assert {row[2] for row in rows} == {"negative", "positive"}
    assert {row[3] for row in rows} == {"kept"}
    assert not [finding for finding in check(fixed).findings if finding.severity != "note"]


@pytest.mark.parametrize("suffix", ["tsv", "jsonl"])
def test_cleaned_tables_are_read_like_their_source(messy: Path, tmp_path: Path, suffix: str) -> None:
    check(messy, fix=tmp_path / "fixed.csv")
    check(messy, fix=tmp_path / f"fixed.{suffix}")
    of_csv, other = (check(tmp_path / f"fixed.{each}").files for each in ("csv", suffix))
    assert [facts["labels"] for facts in of_csv.values()] == [facts["labels"] for facts in other.values()]


def test_what_cannot_be_cleaned_is_refused(messy: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="would replace its input"):
        check(messy, fix=messy)
    with pytest.raises(UsageError, match=r"name a \.csv"):
        check(messy, fix=tmp_path / "fixed.parquet")
    plain = tmp_path / "plain.txt"
    plain.write_text("One text. And more.\n\nAnother one.\n")
    with pytest.raises(UsageError, match="fix needs one table"):
        check(plain, fix=tmp_path / "fixed.csv")
