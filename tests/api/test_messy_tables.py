"""Messy tables on their whole way: what `check` finds, what `finetune` reports, and what both clean."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keel.api.evaluation import evaluate
from keel.api.finetuning import finetune
from keel.api.inference import predict
from keel.checks import check
from keel.cli import main
from keel.data.examples import read_examples
from keel.data.predictions import Predictions
from keel.data.table_files import read_table
from keel.data.text_files import open_text
from keel.errors import KeelError, UsageError
from keel.metrics.label_scores import score_labels

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


def test_labels_unseen_in_training_count_as_errors(tmp_path: Path) -> None:
    rows = [(f"good {n}", "a") for n in range(20)] + [(f"bad {n}", "b") for n in range(20)]
    test = [("good 1", "a"), ("bad 1", "b"), ("good 2", "new"), ("bad 2", "other")]
    model, found = notes(rows, test=test, dev=None, lr=0.1)
    assert any(text.startswith("item 2 of the list: 2 examples have a label that is not in") for text in found)
    assert model.card.scores["test"]["values"]["accuracy"]["value"] == 0.5
    events: list[dict[str, Any]] = []
    scores = evaluate(model, test, on_event=events.append)
    assert scores.main_value == 0.5
    assert scores.names == ("a", "b", "new", "other")
    assert {error.label for error in scores.errors} == {"new", "other"}
    assert any(event["text"].startswith("item 2 of the list: 2 of 4 examples") for event in events)
    strict, _ = notes(rows, dev=test, lr=0.1, threshold=0.999999)  # which no example of class b reaches
    assert strict.card.scores["dev"]["values"]["accuracy"]["value"] == 0.25
    notes(rows, dev=test, lr=0.1, calibrate=True)
    with pytest.raises(KeelError, match="'c' did not occur in training"):
        evaluate(model, [("good 1", "c"), ("bad", "d")])


@pytest.mark.data
def test_atis_is_scored_as_published(data_dir: Path) -> None:
    folder = data_dir / "tasks/atis_snips/atis"
    train, test = (
        list(zip(*(open_text(folder / name).lines() for name in names), strict=True))
        for names in (("train/seq.in.xz", "train/label"), ("test/seq.in", "test/label"))
    )
    labels, examples = read_examples(train, pair=False).labels, read_examples(test, pair=False)
    assert labels.describe_unseen(examples).startswith("item 34 of the list: 5 of 893 examples have labels")
    most_frequent = np.eye(len(labels.names))[[labels.names.index("atis_flight")] * 893]
    predictions = Predictions(labels, most_frequent).with_labels(labels.including(examples))
    scores = score_labels(examples, predictions)
    assert scores.values["accuracy"].value == 632 / 893
    assert len(scores.names) == len(labels.names) + 4


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl"])
def test_predictions_are_written_beside_the_rows(messy: Path, tmp_path: Path, suffix: str) -> None:
    model, _ = notes(messy, clean=True)
    out, events = tmp_path / f"scored.{suffix}", list[dict[str, Any]]()
    records = list(predict(model, messy, out=out, on_event=events.append))
    added = ["prediction", "confidence", "probability_negative", "probability_positive"]
    assert list(records[0]) == ["id", "text", "label", "other", *added]
    found = [row for _, row in read_table(out)]
    assert len(found) == 40  # also without text or label
    assert [str(row["prediction"]) for row in found] == [row["prediction"] for row in records]
    assert {row["other"] for row in found} == {"kept"}
    assert all(abs(float(row[added[2]]) + float(row[added[3]]) - 1) < 1e-5 for row in found)
    expected = [each.label for each in model.predict([row["text"] for row in found])]
    assert [row["prediction"] for row in found] == expected
    again = tmp_path / "again.csv"
    records = list(predict(model, out, out=again, on_event=events.append))
    assert list(records[0])[-4:] == [f"{name}_" for name in added]
    assert sum("'prediction' " in event["text"] or "'prediction'," in event["text"] for event in events) >= 1


def test_where_predictions_can_be_written(tmp_path: Path) -> None:
    model, _ = notes([("good", "a"), ("bad", "b")] * 10)
    plain = tmp_path / "new.txt"
    plain.write_text("good\nbad\n")
    assert [next(iter(row)) for row in predict(model, plain, out=tmp_path / "a.csv")] == ["text", "text"]
    for name in ("new.txt", "a.xlsx", "a.csv.gz"):
        with pytest.raises(UsageError, match="name a"):
            predict(model, plain, out=tmp_path / name)
    with pytest.raises(UsageError, match="would replace its input"):
        predict(model, tmp_path / "a.csv", out=tmp_path / "a.csv")
    several, _ = notes([("good", ["a", "b"]), ("bad", []), ("so so", ["b"])] * 10, lr=0.1)
    rows = list(predict(several, plain, out=tmp_path / "b.csv"))
    assert list(rows[0]) == ["text", "prediction", "confidence", "probability_a", "probability_b"]
    numbers, _ = notes([("good", 1.5), ("bad", 0.25)] * 10)
    rows = list(predict(numbers, plain, out=tmp_path / "c.csv"))
    assert [type(row["prediction"]) for row in rows] == [float, float]


def test_what_cannot_be_cleaned_is_refused(messy: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="would replace its input"):
        check(messy, fix=messy)
    with pytest.raises(UsageError, match=r"name a \.csv"):
        check(messy, fix=tmp_path / "fixed.parquet")
    ragged = tmp_path / "ragged.csv"
    ragged.write_text("text,label\na,x\nb,y,z\nc,y\nd,x\n")
    found = check(ragged, fix=tmp_path / "fixed.csv").errors
    assert [finding.where for finding in found] == [f"{ragged}:3", str(tmp_path / "fixed.csv")]
    assert not (tmp_path / "fixed.csv").exists()
    plain = tmp_path / "plain.txt"
    plain.write_text("One text. And more.\n\nAnother one.\n")
    with pytest.raises(UsageError, match="fix needs one table"):
        check(plain, fix=tmp_path / "fixed.csv")
