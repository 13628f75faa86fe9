"""Pairs are read from whatever holds them, and what does not fit together is refused with its place."""

import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from keel.data.example_splits import split_validation
from keel.data.examples import Columns, Examples
from keel.data.label_kinds import TextTarget
from keel.data.parallel_text import read_aligned
from keel.errors import KeelError

ENGLISH, GERMAN = ["a dog", "two cats", "a red house"], ["ein Hund", "zwei Katzen", "ein rotes Haus"]


def pairs(examples: Examples) -> list[tuple[str, Any]]:
    return list(zip(examples.texts, examples.values, strict=True))


def test_two_files_are_read_side_by_side(tmp_path: Path) -> None:
    source, target = tmp_path / "train.en", tmp_path / "train.de.gz"
    source.write_text("\n".join(ENGLISH) + "\n", encoding="utf-8")
    target.write_bytes(gzip.compress(("\n".join(GERMAN) + "\n").encode()))
    for given in ((source, target), (str(source), str(target))):
        examples = read_aligned(given)
        assert pairs(examples) == list(zip(ENGLISH, GERMAN, strict=True))
        assert examples.kind == TextTarget()
        assert examples[2].location == f"{source}:3"


@pytest.mark.parametrize("form", ["tsv", "header", "jsonl", "nested", "csv", "lists", "pairs", "dicts", "frame", "xz"])
def test_every_form_gives_the_same_pairs(form: str, tmp_path: Path) -> None:
    both = list(zip(ENGLISH, GERMAN, strict=True))
    records = [{"source": one, "target": two} for one, two in both]
    nested = [{"id": 1, "translation": {"en": one, "de": two}} for one, two in both]
    rows = [f"{one}\t{two}" for one, two in both]
    written = {
        "tsv": ("p.tsv", "\n".join(rows)),
        "header": ("p.tsv", "\n".join(["source\ttarget", *rows])),
        "jsonl": ("p.jsonl", "\n".join(map(json.dumps, records))),
        "nested": ("p.jsonl", "\n".join(map(json.dumps, nested))),
        "csv": ("p.csv", "\n".join(["input,output", *(f"{one},{two}" for one, two in both)])),
        "xz": ("p.tsv.xz", "\n".join(rows)),
    }
    given: Any = {"lists": (ENGLISH, GERMAN), "pairs": both, "dicts": records}.get(form)
    if form == "frame":
        import pandas as pd

        given = pd.DataFrame(records)
    if form in written:
        name, text = written[form]
        given = tmp_path / name
        given.write_bytes(lzma.compress(text.encode()) if form == "xz" else text.encode())
    assert pairs(read_aligned(given)) == both


def test_columns_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "p.tsv"
    path.write_text("1\ta dog\tein Hund\tCC\n2\ttwo cats\tzwei Katzen\tCC\n", encoding="utf-8")
    with pytest.raises(KeelError, match="4 columns without names; name them with text_column and label_column"):
        read_aligned(path)
    assert pairs(read_aligned(path, Columns(text_column="3", label_column="2")))[0] == ("ein Hund", "a dog")


@pytest.mark.parametrize("columns", [Columns(text_column="target"), Columns(label_column="source")])
def test_naming_one_side_by_the_usual_name_of_the_other_reverses_the_pair(columns: Columns) -> None:
    examples = read_aligned([{"source": "a", "target": "b", "id": "1"}], columns)
    assert (examples.texts, examples.values) == (["b"], ["a"])


def test_texts_alone_have_no_targets(tmp_path: Path) -> None:
    path = tmp_path / "new.txt"
    path.write_text("a dog\ntwo cats\n", encoding="utf-8")
    for given in (path, ["a dog", "two cats"]):
        examples = read_aligned(given)
        assert (examples.kind, examples.texts) == (None, ["a dog", "two cats"])


def test_what_does_not_fit_together_is_refused(tmp_path: Path) -> None:
    source, target = tmp_path / "a.en", tmp_path / "a.de"
    source.write_text("one\ntwo\nthree\n")
    target.write_text("eins\nzwei\n")
    with pytest.raises(KeelError, match=r"a\.en has 3 lines and .*a\.de has 2:"):
        read_aligned((source, target))
    with pytest.raises(KeelError, match="the first list has 2 lines and the second list has 1: "):
        read_aligned((["one", "two"], ["eins"]))
    target.write_text("eins\n \ndrei\n")
    with pytest.raises(KeelError, match=r"a\.en:2: the target is empty .*: fill it in"):
        read_aligned((source, target))
    source.write_text("\ntwo\n\n")
    with pytest.raises(KeelError, match=r"a\.en:1: the source is empty .* \(3 such pairs in all\)"):
        read_aligned((source, target))
    with pytest.raises(KeelError, match="item 1 of the list: the text is 3, not a string"):
        read_aligned([("a", "b"), ("c", 3)])
    with pytest.raises(KeelError, match="item 1 of the list: 'translation' is None, not a text for each language"):
        read_aligned([{"translation": {"en": "a", "de": "b"}}, {"translation": None}])
    source.write_text("")
    target.write_text("")
    with pytest.raises(KeelError, match="has no texts"):
        read_aligned((source, target))


def test_odd_pairs_are_reported(tmp_path: Path) -> None:
    messages: list[str] = []

    def listen(event: dict[str, Any]) -> None:
        messages.append(event["text"])

    path = tmp_path / "a.en"
    path.write_text("one\n\ntwo\n")
    examples = read_aligned((path, path), on_event=listen)
    assert examples.texts == ["one", "two"]
    assert examples[1].location == f"{path}:3"
    assert any("1 empty pair" in text for text in messages)
    assert any("equal to its source" in text for text in messages)


def test_a_share_is_held_out_at_random() -> None:
    examples = read_aligned([(f"text {number}", f"Text {number}") for number in range(50)])
    learned, held = split_validation(examples, 0.1, seed=3)
    assert (len(learned), len(held)) == (45, 5)
    assert {*learned.texts}.isdisjoint(held.texts)
