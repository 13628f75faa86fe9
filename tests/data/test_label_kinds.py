"""A label kind is complete where its class is: other modules do not list the kinds."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

import keel
from keel.data.examples import Columns, Labels, read_examples
from keel.data.label_kinds import LABEL_KINDS, LabelKind, Regression, SingleLabel
from keel.data.tokenizer import Tokenizer
from keel.formats.stored_model import StoredModel


@pytest.fixture
def ordinal() -> Iterator[type[LabelKind]]:
    """A kind that is defined elsewhere, such as in the file of a task."""

    @dataclass(frozen=True)
    class OrdinalLabel(Regression):
        name: ClassVar[str] = "ordinal"

    yield OrdinalLabel
    del LABEL_KINDS["ordinal"]


def test_a_new_kind_is_known_by_its_name(ordinal: type[LabelKind]) -> None:
    assert LABEL_KINDS["ordinal"] is ordinal
    assert [*LABEL_KINDS][:6] == ["single", "multi", "regression", "tags", "choice", "text"]
    with pytest.raises(AssertionError, match="single"):
        type("Another", (SingleLabel,), {})
    assert LABEL_KINDS["single"] is SingleLabel


def test_folders_of_others_keep_their_kind_beside_a_new_one(ordinal: type[LabelKind]) -> None:
    def kind_of(config: dict[str, Any]) -> LabelKind:
        stored = StoredModel(
            system=keel.Cnn(), tokenizer=Tokenizer.from_words("ab"), vocab_size=7, tensors={}, config=config
        )
        return stored.label_kind

    assert ordinal.problem_type == "regression"
    assert kind_of({"problem_type": "regression"}) == Regression()
    assert kind_of({}) == kind_of({"problem_type": None}) == SingleLabel()


@pytest.mark.parametrize("kind", LABEL_KINDS.values())
def test_every_kind_is_described(kind: type[LabelKind]) -> None:
    assert kind().describe(Labels(kind=kind(), names=("a", "b") if kind.has_classes else ()))


def test_statistics_of_labels() -> None:
    numbers = read_examples([("x", 1), ("y", 4)], pair=False, columns=Columns(labels="regression"))
    assert numbers.kind is not None
    assert numbers.kind.statistics(numbers) == {"from": 1.0, "to": 4.0, "mean": 2.5}
    classes = read_examples([(f"t{number}", f"c{number % 23}") for number in range(47)], pair=False)
    assert classes.kind is not None
    counts = classes.kind.statistics(classes)
    assert (len(counts), counts["c0"], counts["and others"]) == (21, 3, 3)


def test_a_column_of_relevance_holds_labels(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("query\tdocument\trelevance\na\tb\tyes\nc\td\tno\n")
    columns = Columns(text_column="query", second_column="document")
    assert read_examples(tmp_path / "a.tsv", pair=True, columns=columns).names == ("no", "yes")
