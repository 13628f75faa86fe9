"""JSON and XML documents are recognised, and never read as plain text."""

import json
from pathlib import Path

import pytest

from keel.checks import check
from keel.data.corpus import Corpus
from keel.data.examples import read_examples
from keel.data.markup import markup_kind
from keel.data.multiple_choice_files import read_choices
from keel.data.tagged_sentences import read_tagged_sentences
from keel.errors import KeelError

SQUAD = json.dumps({"data": [{"title": "t", "paragraphs": [{"context": "A b.", "qas": [{"question": "c?"}]}]}]})
DREAM = [
    [["M: I am late.", "W: Again?"], [{"question": "Who?", "choice": ["He", "She", "No"], "answer": "She"}], "5-510"]
]
WINOGRAD = """<?xml version="1.0"?>
<collection><schema><text><txt1>The men refused</txt1></text><answers><answer>a</answer></answers></schema></collection>
"""
DOCUMENTS = {
    "squad.json": (SQUAD, "SQuAD-like JSON"),
    "squad.txt": (json.dumps(json.loads(SQUAD), indent=2), "SQuAD-like JSON"),
    "dream.json": (json.dumps(DREAM), "DREAM JSON"),
    "wsc.xml": (WINOGRAD, "Winograd schemas in XML"),
    "page.txt": ("<doc id='1'>\n<p>A b.</p>\n<p>c d</p>\n</doc>\n", "XML"),
    "rows.txt": ('{"a": "b [c]"}\n{"a": "d"}\n', "JSON lines"),
    "nan.txt": ('[{"text": "a", "score": NaN, "best": -Infinity}]', "JSON array of objects"),
    "numbers.json": ('["a", NaN]', "JSON"),
    "damaged.txt": ('[{"text": "a"}] oops', "JSON array of objects"),
    "damaged.json": ('{"text": "a"} oops', "JSON"),
    "empty.json": ("[]", "JSON"),
    "pages.txt": ("<doc>\n" + "<p>A b.</p>\n<br/>\n" * 5000 + "</doc>\n", "XML"),
    "one.xml": ("<text>A b.\n", "XML"),
    "nested.txt": ('{"a": {"b": [1, 2.5, null, "' + "c" * 100_000 + '"]}}', "JSON"),
}
TEXTS = {
    "note.txt": '[1] Smith said "yes" to it.\n',
    "braces.txt": "{ is a brace.\n",
    "arrow.txt": "<- an arrow points left.\n<unk> is a token\nand so on\n",
    "chat.txt": "<user> hello\n<assistant> hi , how are you ?\n" * 3000,
    "closed.txt": "<user> hello </user>\n<assistant> <b>hi</b> </assistant>\n" * 3000,
    "sentences.txt": "<s> a b </s>\n<s> c <unk> d </s>\n",
    "sentence.txt": "<s> a b </s>\n",
    "paper.json.txt": "Plain text of paper.json .\n",
    "quote.txt": '"A quoted line."\n',
}


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_are_named_and_refused_as_text(tmp_path: Path, name: str) -> None:
    text, kind = DOCUMENTS[name]
    path = write(tmp_path, name, text)
    assert markup_kind(path) == kind
    with pytest.raises(KeelError, match=rf"{name} is {kind}"):
        list(Corpus(path).blocks())
    for read in (lambda: read_examples(path, pair=False), lambda: read_tagged_sentences(path)):
        with pytest.raises(KeelError, match=kind):
            read()


@pytest.mark.parametrize("name", TEXTS)
def test_text_with_brackets_stays_text(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, name, TEXTS[name])
    assert markup_kind(path) == ""
    assert list(Corpus(path).blocks())


def test_plain_text_in_a_json_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "a.json", "so good\n")
    for read in (lambda: [*Corpus(path).blocks()], lambda: read_examples(path, pair=False)):
        with pytest.raises(KeelError, match=r"a\.json is not JSON.*\.txt"):
            read()


def test_check_reports_what_a_document_is(tmp_path: Path) -> None:
    squad, winograd = write(tmp_path, "squad.json", SQUAD), write(tmp_path, "wsc.xml", WINOGRAD)
    assert check(squad).files[str(squad)]["task"] == "answer (detected)"
    assert "Winograd" in check(winograd).errors[0].cause


def test_dream_as_published(tmp_path: Path) -> None:
    (example,) = read_choices(write(tmp_path, "dream.json", json.dumps(DREAM)))
    assert example.text == "M: I am late.\nW: Again? Who?"
    assert (example.gold, example.location.endswith("dialogue 5-510 question 1")) == ("She", True)


@pytest.mark.parametrize(
    "text", ['[[["a"], [{"question": 1, "choice": 2, "answer": 3}]', '["question", "choice", "answer"]']
)
def test_a_damaged_document_has_its_sentence(tmp_path: Path, text: str) -> None:
    with pytest.raises(KeelError, match=r"dream\.json"):
        read_choices(write(tmp_path, "dream.json", text))


def test_published_questions_with_answer_spans(data_dir: Path) -> None:
    for name in ("squad/dev-v1.1.from-explorer-html.json.xz", "zh/cmrc2018/dev.json.xz"):
        assert markup_kind(data_dir / "tasks" / name) == "SQuAD-like JSON"


ARTICLE = '<doc id="12" url="?curid=12" title="Tea">\nTea\n\nTea is a drink. It is hot.\n\n</doc>\n'


@pytest.mark.parametrize(
    "text", [ARTICLE * 9, ARTICLE.replace("hot", "hot, " * 20_000), "A b.\n" + "c d.\n</doc>\n" * 9]
)
def test_lines_that_are_only_tags_get_a_warning(tmp_path: Path, text: str) -> None:
    path, events = tmp_path / "wiki.txt", []
    path.write_text(text)
    for _ in Corpus(path, on_event=events.append).blocks():
        pass
    (event,) = events
    line = 1 if text.startswith("<") else 3
    assert event["text"].startswith(f"{path}:{line}: ")
    assert [each.where for each in check(path).findings if "only tags" in each.cause] == [f"{path}:{line}"]


@pytest.mark.parametrize("name", TEXTS)
def test_other_text_gets_no_warning_of_tags(tmp_path: Path, name: str) -> None:
    path, events = tmp_path / name, []
    path.write_text(TEXTS[name] + "<s>\n" + "One more.\n" * 50)
    list(Corpus(path, on_event=events.append).blocks())
    assert not any("only tags" in event["text"] for event in events)
