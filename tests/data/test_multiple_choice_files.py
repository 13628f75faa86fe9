"""Texts with choices are read in the forms they are published in, and errors name what is wrong."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from keel.data.examples import Columns, Example
from keel.data.label_kinds import ChoiceLabel
from keel.data.multiple_choice_files import read_choices
from keel.errors import KeelError

SWAG = """,video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label
0,a,1,"A man sits. He",A man sits.,He,gold,"runs, fast",eats,sleeps,sings,2
"""
NAMED = [{"label": "1", "text": "x"}, {"label": "2", "text": "y"}]
RACE = {
    "answers": ["B", "A"],
    "options": [["red", "blue", "green", "grey"], ["one", "two", "three", "four"]],
    "questions": ["Which colour?", "How many?"],
    "article": "There is one blue house.",
    "id": "middle1.txt",
}


def write_text(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def lines(folder: Path, *records: dict[str, Any]) -> Path:
    return write_text(folder, "data.jsonl", "".join(json.dumps(record) + "\n" for record in records))


@pytest.mark.parametrize(
    ("record", "text", "choices", "label"),
    [
        ({"context": "c", "question": "q", "choices": ["x", "y"], "label": 1}, "c q", ("x", "y"), 1),
        ({"question": "q", "choices": ["x", "y", "z"], "label": "C"}, "q", ("x", "y", "z"), 2),
        ({"context": "c", "choices": ["x", "y"], "label": "y"}, "c", ("x", "y"), 1),
        ({"article": "a", "options": ["x", "y"], "answers": "A", "id": "1"}, "a", ("x", "y"), 0),
        ({"ctx": "c", "endings": ["x", "y"], "label": "1"}, "c", ("x", "y"), 1),
        ({"answerKey": "2", "question": {"stem": "q", "choices": NAMED}}, "q", ("x", "y"), 1),
        ({"question": "q", "choices": {"text": ["x", "y"], "label": ["1", "2"]}, "answerKey": "1"}, "q", ("x", "y"), 0),
    ],
)  # fmt: skip
def test_forms_of_json_lines(tmp_path: Path, record: dict[str, Any], text: str, choices: tuple[str, ...], label: int):
    path = lines(tmp_path, record)
    (example,) = read_choices(path)
    assert example == Example(text, None, label, f"{path}:1", choices=choices)


def test_tables_of_swag_and_codah(tmp_path: Path):
    (swag,) = read_choices(write_text(tmp_path, "swag.csv", SWAG))
    assert (swag.text, swag.choices, swag.label) == ("A man sits. He", ("runs, fast", "eats", "sleeps", "sings"), 2)
    codah = read_choices(write_text(tmp_path, "codah.tsv", "o\tI am\thot\tcold\t1\nc\tHe is\told\tnew\t0\n"))
    assert [(each.text, each.choices, each.label) for each in codah] == [
        ("I am", ("hot", "cold"), 1),
        ("He is", ("old", "new"), 0),
    ]


STORY = "InputStoryid,InputSentence1,InputSentence2,InputSentence3,InputSentence4,RandomFifthSentenceQuiz1,"
STORY += "RandomFifthSentenceQuiz2,AnswerRightEnding\n"


def test_story_cloze_and_hellaswag_as_published(tmp_path: Path):
    row = 'x1,Rick grew up.,"He ran, fast.",He was shot.,He turned.,He is happy.,He joined.,{}\n'
    path = write_text(tmp_path, "story.csv", STORY + row.format(1) + row.format(2))
    found = read_choices(path)
    assert [each.gold for each in found] == ["He is happy.", "He joined."]
    assert found[0].text == "Rick grew up. He ran, fast. He was shot. He turned."
    with pytest.raises(KeelError, match=r"story\.csv:2: the label '3'"):
        read_choices(write_text(tmp_path, "story.csv", STORY + row.format(3)))
    context = {"ctx_a": "A man sits.", "ctx_b": "he", "ctx": "A man sits. he"}
    record = {"ind": 24, "activity_label": "Roof", **context, "split": "val", "label": 3, "endings": [*"wxyz"]}
    (swag,) = read_choices(lines(tmp_path, record))
    assert (swag.text, swag.gold) == ("A man sits. he", "z")


def test_minimal_pairs_and_an_empty_context(tmp_path: Path):
    records = [{"sentence_good": f"{n} cats run", "sentence_bad": f"{n} cats runs", "pairID": n} for n in range(20)]
    found = read_choices(lines(tmp_path, *records))
    assert [example.gold for example in found] == [record["sentence_good"] for record in records]
    assert {example.label for example in found} == {0, 1}
    (example,) = read_choices(lines(tmp_path, {"context": "", "choices": ["x", "y"], "label": 1}))
    assert (example.text, example.gold) == ("", "y")
    (example,) = read_choices(lines(tmp_path, {"c": "", "choices": ["x", "y"], "label": 1}), Columns(text_column="c"))
    assert example.text == ""


def test_the_right_answer_does_not_always_come_first(tmp_path: Path):
    records = [{"question": f"q{n}", "correct": "yes", "wrong": ["no", "maybe"]} for n in range(30)]
    found = read_choices(lines(tmp_path, *records))
    assert all(example.gold == "yes" for example in found)
    assert {example.label for example in found} == {0, 1, 2}


def test_race_in_folders_and_in_a_tar(tmp_path: Path):
    for split in ("train", "test"):
        write_text(tmp_path, f"RACE/{split}/middle/1.txt", json.dumps(RACE))
    with tarfile.open(tmp_path / "race.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "RACE", "RACE")
    for source in (tmp_path / "RACE/test", tmp_path / "race.tar.gz/test", tmp_path / "race.tar.gz/RACE/test/middle"):
        found = read_choices(source)
        assert [(each.text, each.label) for each in found] == [
            ("There is one blue house. Which colour?", 1),
            ("There is one blue house. How many?", 0),
        ]
        assert found[1].location.endswith("1.txt question 2")
    for source in (tmp_path / "RACE", tmp_path / "race.tar.gz"):
        with pytest.raises(KeelError, match=r"has test, train: give one of them"):
            read_choices(source)
    with pytest.raises(KeelError, match="has no passages in dev"):
        read_choices(tmp_path / "race.tar.gz/dev")


def test_lists_and_columns_by_name(tmp_path: Path):
    listed = read_choices([(("a", ["x", "y"]), "B"), (("b", ["x", "y", "z"]), 0)])
    assert listed.kind == ChoiceLabel()
    assert listed.values == [1, 0]
    assert read_choices([("a", ["x", "y"])]).kind is None
    path = lines(tmp_path, {"story": "s", "ask": "q", "choices": ["x", "y"], "key": 1})
    columns = Columns(text_column="story", second_column="ask", label_column="key")
    assert [(each.text, each.label) for each in read_choices(path, columns)] == [("s q", 1)]
    with pytest.raises(KeelError, match=r":1: no column 'tale'.*text_column"):
        read_choices(path, Columns(text_column="tale"))


@pytest.mark.parametrize(
    ("record", "messages"),
    [
        ({"context": "c", "choices": ["x"], "label": 0}, "only one choice, 'x': give two or more"),
        ({"context": "c", "choices": ["x", "y"], "label": 2}, "label 2 is none of the 2 choices, which are 0 to 1"),
        ({"context": "c", "choices": ["x", "y"], "label": "E"}, "the label 'E' is none"),
        ({"context": "c", "choices": ["x", "y"], "label": -1}, "the label -1 is none"),
        ({"context": "c", "label": 0}, "no choices: give two or more"),
        ({"context": "c", "choices": [], "label": 0}, "no choices"),
        ({"context": "c", "choices": ["x", " "], "label": 0}, "choice 1 is empty: fill it in or drop it"),
        ({"context": "c", "choices": ["x", 7], "label": 0}, "choice 1 is 7, not a string"),
        ({"choices": ["x", "y"], "label": 0}, "no text"),
        ({"context": "c", "choices": ["x", "y"]}, "the label is empty, though other examples have one"),
        ({"article": "a", "questions": ["q"], "options": []}, "1 questions, 0 lists of options"),
        ({"article": None, "questions": [None], "options": [["x", "y"]], "answers": ["A"]}, "no text"),
        ({"article": "a", "questions": ["q"], "options": "xy", "answers": ["A"]}, "are not lists"),
        ({"context": "c", "ending0": "x", "ending1": None, "ending2": "y", "label": 0}, "choice 1 is empty"),
        ({"question": {"stem": "q", "choices": [{"label": "A", "text": "x"}, None]}, "answerKey": "A"}, "not a string"),
        ({"question": "q", "choices": {"label": ["A"], "text": None}, "answerKey": "A"}, "no choices"),
    ],
)  # fmt: skip
def test_bad_examples_are_named_with_their_place(tmp_path: Path, record: dict[str, Any], messages: str):
    path = lines(tmp_path, {"context": "a", "choices": ["x", "y"], "label": 1}, record)
    with pytest.raises(KeelError, match=messages) as caught:
        read_choices(path)
    assert f"{path}:2" in str(caught.value)


@pytest.mark.parametrize(
    ("record", "text"),
    [
        ({"sent1": "c", "sent2": None, "ending0": "x", "ending1": "y", "label": 1}, "c"),
        ({"article": "a", "questions": [None], "options": [["x", "y"]], "answers": ["B"]}, "a"),
        ({"article": None, "questions": ["q"], "options": [["x", "y"]], "answers": ["B"]}, "q"),
        ({"question": "q", "choices": {"label": None, "text": ["x", "y"]}, "answerKey": "B"}, "q"),
    ],
)  # fmt: skip
def test_half_of_a_text_may_be_missing(tmp_path: Path, record: dict[str, Any], text: str):
    (example,) = read_choices(lines(tmp_path, record))
    assert (example.text, example.choices, example.label) == (text, ("x", "y"), 1)


def test_an_empty_cell_between_choices_is_no_end_of_them(tmp_path: Path):
    table = "context,ending0,ending1,ending2,label\na,x,y,,1\n"
    (example,) = read_choices(write_text(tmp_path, "fewer.csv", table))
    assert example.choices == ("x", "y")
    with pytest.raises(KeelError, match="choice 1 is empty"):
        read_choices(write_text(tmp_path, "hole.csv", table.replace("a,x,y,,", "a,x,,y,")))


def test_nothing_and_damage(tmp_path: Path):
    with pytest.raises(KeelError, match="has no examples"):
        read_choices(write_text(tmp_path, "empty.jsonl", ""))
    damaged = tmp_path / "cut.tar.gz"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        write_text(tmp_path, "1.txt", json.dumps(RACE) * 500)
        tar.add(tmp_path / "1.txt")
    damaged.write_bytes(buffer.getvalue()[:100])
    with pytest.raises(KeelError, match="damaged or truncated"):
        read_choices(damaged)
    write_text(tmp_path, "bad/1.txt", "no json")
    with pytest.raises(KeelError, match="is not JSON"):
        read_choices(tmp_path / "bad")


@pytest.mark.parametrize(
    ("name", "count", "most"),
    [
        ("swag_slice/all.jsonl.xz", 6500, 2),
        ("csqa/dev.jsonl.xz", 1219, 5),
        ("mutual/dev.jsonl.xz", 886, 4),
        ("codah/full_data.tsv.xz", 2776, 4),
        ("race/RACE-middle.tar.xz/dev", 1436, 4),
    ],
)
def test_published_files(data_dir: Path, name: str, count: int, most: int):
    found = read_choices(data_dir / "tasks" / name)
    assert len(found) == count
    assert found.kind == ChoiceLabel()
    assert max(map(len, found.choices)) == most


def test_a_passage_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    write_text(tmp_path, "RACE/1.txt", "[" * 200_000)
    with pytest.raises(KeelError, match=r"1\.txt is nested too deeply"):
        read_choices(tmp_path / "RACE")
