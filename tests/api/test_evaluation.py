"""Evaluation by slices: lengths, labels and columns."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import keel
from keel.errors import UsageError
from keel.metrics.slices import slice_by_length, slice_by_values
from keel.tasks.classify import TextClassification

SHORT, LONG = "fine boat", "a dull and rainy day in the mud and fog of the road"


@pytest.fixture(scope="module")
def classifier() -> keel.Model:
    rows = [(f"{SHORT} {n}", "good") for n in range(20)] + [(f"{LONG} {n}", "bad") for n in range(20)]
    return keel.finetune("onehot", rows, dev=None, progress=False)


def table(path: Path) -> Path:
    rows = [
        (SHORT, "good", "web"),
        (LONG, "bad", "web"),
        (SHORT, "bad", "print"),
        (LONG, "", "print"),
        (LONG, "bad", ""),
    ]
    path.write_text("text\tlabel\tsource\n" + "".join("\t".join(row) + "\n" for row in rows))
    return path


def test_a_slice_has_the_scores_of_its_examples_alone(classifier: keel.Model, tmp_path: Path) -> None:
    file = table(tmp_path / "test.tsv")
    by_column = keel.evaluate(classifier, file, slice="source", out=tmp_path / "report")
    assert [(each.name, each.count) for each in by_column.slices] == [("web", 2), ("print", 1), ("(none)", 1)]
    assert [each.values["accuracy"].value for each in by_column.slices] == [1, 0, 1]
    alone = keel.evaluate(classifier, [(SHORT, "good"), (LONG, "bad")])
    assert by_column.slices[0].values == alone.values
    assert by_column.slices[1].values["accuracy"].low is None  # one example has no interval
    stored = json.loads((tmp_path / "report" / "scores.json").read_text())["slices"]
    assert [each["values"]["accuracy"]["value"] for each in stored] == [1, 0, 1]
    assert (tmp_path / "report" / "slices.tsv").read_text().splitlines()[1].startswith("web\t2\t1.000")
    by_label = keel.evaluate(classifier, file, slice="label")
    assert {each.name: each.values["accuracy"].value for each in by_label.slices} == {
        "good": 1,
        "bad": pytest.approx(2 / 3),
    }
    by_length = keel.evaluate(classifier, file, slice="length")
    assert [(each.name, each.count) for each in by_length.slices] == [
        ("9 characters", 2),
        (f"{len(LONG)} characters", 2),
    ]
    assert not keel.evaluate(classifier, file).slices


def test_the_columns_that_exist_are_named(classifier: keel.Model, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'text', 'label', 'source'"):
        keel.evaluate(classifier, table(tmp_path / "test.tsv"), slice="sources")
    with pytest.raises(UsageError, match="fine-tuned"):
        keel.evaluate(replace(classifier, task=None), [SHORT], slice="length")


@pytest.mark.parametrize(
    ("task", "rows", "label_slices"),
    [
        (
            "classify",
            [(f"a{n}", float(n) / 10) for n in range(8)],
            ["0 to 0.1", "0.2 to 0.3", "0.4 to 0.5", "0.6 to 0.7"],
        ),
        ("tag", [(["Anna", "runs"], ["B-PER", "O"]), (["Rome", "runs"], ["B-LOC", "O"])] * 4, ["O", "LOC", "PER"]),
        ("choose", [(("a", ["b", "c"]), 0), (("a", ["c", "d"]), 1)] * 4, ["choice 1", "choice 2"]),
    ],
)
def test_every_task_with_labels_has_slices(task: str, rows: list[Any], label_slices: list[str]) -> None:
    model = keel.finetune(
        "transformer", rows, task=task, dev=None, steps=1, width=8, head_dim=8, layers=1, progress=False
    )
    assert [each.name for each in keel.evaluate(model, rows, slice="label").slices] == label_slices
    assert sum(each.count for each in keel.evaluate(model, rows, slice="length").slices) == len(rows)
    if task != "classify":
        with pytest.raises(UsageError, match="no further columns"):
            keel.evaluate(model, rows, slice="source")


def test_rare_values_share_a_slice() -> None:
    values = [str(number) for number in range(30) for _ in range(1 + (number < 10))]
    slices = slice_by_values(values)
    assert len(slices) == 11
    assert len(slices["other (20 values)"]) == 20
    assert len(slice_by_values(range(11))) == 11  # one value is no "other"


def test_length_slices_are_quartiles_without_splitting_ties() -> None:
    examples = TextClassification.read_examples(["x" * (n // 3 + 1) for n in range(24)])
    assert {name: len(chosen) for name, chosen in slice_by_length(examples).items()} == {
        "1 to 2 characters": 6,
        "3 to 4 characters": 6,
        "5 to 6 characters": 6,
        "7 to 8 characters": 6,
    }
    same = TextClassification.read_examples(["abc"] * 5)
    assert {name: len(chosen) for name, chosen in slice_by_length(same).items()} == {"3 characters": 5}
