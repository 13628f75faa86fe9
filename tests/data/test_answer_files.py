"""Readers of extractive question answering: published forms, offsets that do not match, bad input."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keel
from keel.api.answer_outputs import question_ids
from keel.data.answer_files import read_answers
from keel.data.answer_spans import ABSENT, GoldAnswers, find_answer
from keel.data.example_splits import split_validation
from keel.data.label_kinds import SpanLabel
from keel.errors import KeelError, UsageError

PASSAGE = "Anna lives in Oslo. Ben lives in Oslo, too."


def squad(*questions: dict[str, Any], title: str = "People") -> dict[str, Any]:
    return {"title": title, "paragraphs": [{"context": PASSAGE, "qas": [*questions]}]}


def write(path: Path, *articles: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"version": "v2.0", "data": [*articles]}))
    return path


def question(number: str = "q1", text: str = "Oslo", start: int = 14, **more: Any) -> dict[str, Any]:
    answers = [{"text": text, "answer_start": start}] if text else []
    return {"id": number, "question": "Where does Anna live?", "answers": answers, **more}


def test_squad_1_and_2(tmp_path: Path):
    plausible = {"is_impossible": True, "plausible_answers": [{"text": "Oslo", "answer_start": 14}]}
    examples = read_answers(write(tmp_path / "dev.json", squad(question(), question("q2", "", **plausible))))
    assert examples.kind == SpanLabel()
    assert examples.ids == ["q1", "q2"]
    assert examples.values == [GoldAnswers(("Oslo",), (14,)), GoldAnswers()]
    assert examples[0].second == PASSAGE
    assert examples[0].location == f"{tmp_path / 'dev.json'} question q1"
    assert SpanLabel().statistics(examples) == {"answerable": 1, "unanswerable": 1}


@pytest.mark.parametrize(
    "answers",
    [
        {"text": ["Oslo", "in Oslo"], "answer_start": [14, 11]},
        [{"text": "Oslo", "answer_start": 14}, {"text": "in Oslo", "answer_start": 11}],
        ["Oslo", "in Oslo"],
    ],
)
def test_records_as_hugging_face_has_them(answers: Any, tmp_path: Path):
    record = {"id": "7", "title": "t", "context": PASSAGE, "question": "Where does Anna live?", "answers": answers}
    path = tmp_path / "data.jsonl"
    path.write_text(json.dumps(record) + "\n")
    for source in (path, [record]):
        (example,) = read_answers(source)
        assert example.label == GoldAnswers(("Oslo", "in Oslo"), (14, 11))
        assert (example.id, example.group) == ("7", "t")


def test_tables_and_lists(tmp_path: Path):
    path = tmp_path / "data.tsv"
    path.write_text(f"context\tquestion\tanswer\n{PASSAGE}\tWho is it?\tBen\n{PASSAGE}\tWhen?\t\n")
    examples = read_answers(path)
    assert examples.values == [GoldAnswers(("Ben",), (20,)), GoldAnswers()]  # an empty cell: no answer
    listed = read_answers([((PASSAGE, "Where?"), "Oslo"), ((PASSAGE, "When?"), [])])
    assert listed.values == [GoldAnswers(("Oslo",), (14,)), GoldAnswers()]
    assert read_answers([(PASSAGE, "Where?")]).kind is None


@pytest.mark.parametrize(
    "answers", ["Oslo", ["Oslo"], ("Oslo",), np.array(["Oslo"], object)], ids=lambda each: type(each).__name__
)
@pytest.mark.parametrize("starts", [33, [33], (33,), np.array([33])], ids=lambda each: type(each).__name__)
def test_a_column_of_offsets_beside_that_of_answers(answers: Any, starts: Any):
    record = {"context": PASSAGE, "question": "Where?", "answers": answers, "answer_start": starts}
    assert read_answers([record]).values == [GoldAnswers(("Oslo",), (33,))]


def test_an_id_may_be_the_number_0():
    records = [{"id": number, "context": PASSAGE, "question": "Who?", "answers": ["Ben"]} for number in (1, 0, None)]
    examples = read_answers(records)
    assert examples.ids == ["1", "0", ""]
    assert question_ids(examples) == ["1", "0", "2"]


def test_mrqa_lines_have_several_questions(tmp_path: Path):
    record = {"context": PASSAGE, "qas": [{"qid": "a", "question": "Who?", "answers": ["Anna"]}]}
    path = tmp_path / "mrqa.jsonl"
    path.write_text("\n".join(map(json.dumps, [{"header": {"dataset": "x"}}, record])))
    assert [(each.id, each.label) for each in read_answers(path)] == [("a", GoldAnswers(("Anna",), (0,)))]


def test_an_answer_elsewhere_is_found_and_an_absent_one_reported(tmp_path: Path):
    path = write(tmp_path / "train.json", squad(question(start=30), question("q2", "Bergen", 3), question("q3")))
    notes: list[str] = []
    examples = read_answers(path, on_event=lambda event: notes.append(event["text"]))
    assert examples.values[0].starts == (33,)  # the nearest of two
    assert examples.values[1].starts == (ABSENT,)
    assert [text.partition(": ")[0] for text in notes] == [f"{path} question q1", f"{path} question q2"]
    report = keel.check(path)
    severities = {finding.where: finding.severity for finding in report.findings}
    assert (severities[f"{path} question q1"], severities[f"{path} question q2"]) == ("warning", "warning")
    assert report.files[str(path)]["task"] == "answer (detected)"


def test_check_lists_every_answer_that_is_not_at_its_offset(tmp_path: Path):
    """A training mentions the first ones."""
    path = write(tmp_path / "train.json", squad(*(question(f"q{number}", start=2) for number in range(30))))
    notes: list[str] = []
    read_answers(path, on_event=lambda event: notes.append(event["text"]))
    assert "q9" in notes[0]
    assert "q10" not in notes[0]
    (moved,) = (each for each in keel.check(path).findings if each.severity == "warning")
    assert all(f"q{number}" in f"{moved.where} {moved.cause}" for number in range(30))
    notes.clear()
    read_answers(
        [((PASSAGE, "Where?"), {"text": "Oslo", "answer_start": 2})] * 2, on_event=lambda e: notes.append(e["text"])
    )
    assert "item 0 of the list" in notes[0]
    assert "item 1" in notes[0]


def test_check_knows_that_questions_share_a_passage(tmp_path: Path):
    """The questions on one passage are no near-duplicates; equal ones with other answers show these."""
    others = [question(f"q{number}") | {"question": f"Who is number {number}?"} for number in range(5)]
    path = write(tmp_path / "train.json", squad(*others, question("a", "Oslo", 14), question("b", "Anna", 0)))
    found = " ".join(each.cause for each in keel.check(path).findings)
    assert "near-duplicate" not in found
    assert "GoldAnswers" not in found
    assert "here 'Anna'" in found
    with pytest.raises(UsageError, match="needs one table of texts"):
        keel.check(path, fix=tmp_path / "fixed.csv")


@pytest.mark.parametrize(("start", "wanted"), [(14, 14), (15, 14), (40, 33), (None, 14), (-5, 14)])
def test_the_nearest_occurrence_is_taken(start: int | None, wanted: int):
    assert find_answer(PASSAGE, "Oslo", start) == wanted


@pytest.mark.parametrize(
    ("article", "place", "fault"),
    [
        (squad(question() | {"question": None}), "question q1", "question is empty"),
        (squad(question()) | {"paragraphs": [{"context": " ", "qas": [question()]}]}, "q1", "passage is empty"),
        (squad(question() | {"answers": [{"text": "Oslo", "answer_start": "x"}]}), "question q1", "not a number"),
        (squad(question() | {"answers": 3}), "question q1", "answer is 3"),
        (squad(question() | {"answers": [{"text": "Oslo", "answer_start": float("inf")}]}), "q1", "not a number"),
        (squad(question() | {"answers": [{"text": None, "answer_start": 14}]}), "question q1", "answer is .*None"),
        (squad(question() | {"answers": {"text": [1998], "answer_start": [3]}}), "question q1", "answer is 1998"),
        (squad(question() | {"answers": {"text": ["Oslo"], "answer_start": [3, 4]}}), "q1", "1 answer has 2"),
        ({"paragraphs": [{"context": PASSAGE}]}, "paragraph 1", '"qas"'),
        ({"paragraphs": [7]}, "paragraph 1", "not an object"),
    ],
)
def test_bad_records_are_refused_with_their_place(article: dict[str, Any], place: str, fault: str, tmp_path: Path):
    path = write(tmp_path / "bad.json", squad(question("q0")), article)
    with pytest.raises(KeelError, match=fault) as error:
        read_answers(path)
    assert place in str(error.value)


def test_empty_questions_are_read_and_counted(tmp_path: Path):
    """CMRC 2018's trial set has two: predictions need all ids, and --clean drops them from training."""
    path = write(tmp_path / "dev.json", squad(question("q1"), question("q2") | {"question": " "}))
    assert read_answers(path).ids == ["q1", "q2"]
    (found,) = (each for each in keel.check(path).findings if "empty" in each.cause)
    assert found.severity == "warning"
    assert found.where.endswith("question q2")
    assert "--fix" not in found.remedy


@pytest.mark.parametrize("answers", [{"text": [""], "answer_start": [0]}, [{"text": " ", "answer_start": 0}], " "])
def test_an_empty_answer_is_none(answers: Any):
    assert read_answers([{"context": PASSAGE, "question": "Why?", "answers": answers}])[0].label == GoldAnswers()


@pytest.mark.parametrize("paragraphs", [[{"context": PASSAGE}], [7]])
def test_check_separates_place_and_fault_of_paragraphs(paragraphs: list[Any], tmp_path: Path):
    path = write(tmp_path / "bad.json", squad(question("q0")), {"paragraphs": paragraphs})
    (found,) = (each for each in keel.check(path, task="answer").findings if each.severity == "error")
    assert found.where == f"{path} article 2 paragraph 1"


def test_check_lists_ids_that_questions_share(tmp_path: Path):
    questions = question("q1"), question("q1", "Anna", 0) | {"question": "Who?"}, question("q2") | {"question": "And?"}
    path = write(tmp_path / "dev.json", squad(*questions))
    (found,) = (each for each in keel.check(path).findings if "the id of another" in each.cause)
    assert found.where.endswith("question q1")
    assert "1 question" in found.cause


def test_check_lists_every_bad_item_of_a_list():
    listed = [((PASSAGE, "Where?"), 3), ((PASSAGE, "Who?"), "Anna"), (("", "Who?"), "Anna"), "a text"]
    errors = [each.cause for each in keel.check(listed, task="answer").findings if each.severity == "error"]
    assert [cause[:6] for cause in errors] == ["item 0", "item 2", "item 3"]


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("cut.json", '{"version": "v1", "data": [{"title": "x", "paragraphs": [', "cut.json:1: this is not JSON"),
        ("none.json", '{"version": "v1", "data": []}', "has no questions"),
        ("other.json", '{"data": {"a": 1}}', "no list of articles"),
        ("films.tsv", "sentence\tlabel\na film\t1\n", "passage.*second_column"),
        ("passages.jsonl", '{"context": "Anna lives in Oslo.", "ask": "Who?"}\n', "question.*text_column"),
    ],
)
def test_files_without_questions_are_refused(name: str, content: str, fault: str, tmp_path: Path):
    (tmp_path / name).write_text(content)
    with pytest.raises(KeelError, match=fault):
        read_answers(tmp_path / name)


def test_questions_of_an_article_are_on_one_side_of_a_split(tmp_path: Path):
    articles = [squad(*(question(f"{n}-{k}") for k in range(5)), title=f"t{n}") for n in range(10)]
    examples = read_answers(write(tmp_path / "many.json", *articles))
    train, dev = split_validation(examples, 0.2, seed=0)
    assert len(dev) == 10
    assert {*train.groups}.isdisjoint(dev.groups)


def test_published_files(data_dir: Path):
    notes: list[str] = []
    tasks = data_dir / "tasks"
    train = read_answers(tasks / "zh/cmrc2018/train.json.xz", on_event=lambda event: notes.append(event["text"]))
    assert len(train) == 10_142
    assert notes[0].split(": ")[1].startswith("21 answers")
    dev = read_answers(tasks / "squad/dev-v2.0.from-explorer-html.json.xz")
    assert dev.kind is not None
    assert dev.kind.statistics(dev) == {"answerable": 5928, "unanswerable": 5945}
