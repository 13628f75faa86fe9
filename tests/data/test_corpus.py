import io
import json
import sys
import tracemalloc
from pathlib import Path

import pytest

from keel.data.corpus import Corpus
from keel.errors import KeelError


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_blank_lines_and_files_part_documents(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "\n\none\ntwo\n\n  \nthree\n")
    write(tmp_path / "b.txt", "four")
    assert list(Corpus(f"{tmp_path}/*.txt").documents()) == ["one\ntwo", "three", "four"]
    assert list(Corpus([tmp_path / "b.txt", tmp_path / "a.txt"]).documents()) == ["four", "one\ntwo", "three"]
    assert Corpus(f"{tmp_path}/*.txt").files == [tmp_path / "a.txt", tmp_path / "b.txt"]


def test_a_block_knows_its_line(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "\n\none\ntwo\n\n  \nthree\n")
    write(tmp_path / "b.csv", 'text\n"one\ntwo"\n\nthree\n')
    for name, numbers in (("a.txt", [3, 7]), ("b.csv", [2, 5])):
        assert [block.line for block in Corpus(tmp_path / name).blocks()] == numbers
    lines = [f"{number} {'x' * (number % 90)}\n" for number in range(1, 60_000)]
    long = list(Corpus(write(tmp_path / "c.txt", "\n" + "".join(lines))).blocks())
    assert len(long) > 2
    assert all(block.text.startswith(f"{block.line - 1} ") for block in long)


def test_a_row_of_a_table_is_a_document(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", 'id,body\n1,"one\n\nstill one"\n2,two\n')
    write(tmp_path / "b.jsonl", json.dumps({"body": "three"}) + "\n" + json.dumps({"body": None}) + "\n")
    events: list[dict] = []
    corpus = Corpus([tmp_path / "a.csv", tmp_path / "b.jsonl"], text_column="body", on_event=events.append)
    assert list(corpus.documents()) == ["one\n\nstill one", "two", "three"]
    assert "1 row without 'body'" in events[0]["text"]


@pytest.mark.parametrize(
    ("text", "separator"),
    [
        ("id;text\n1;one, and more\n2;two\n", "auto"),
        ("id;text\n1;one, and more\n2;two\n", "semicolon"),
        ("id\ttext\n1\tone, and more\n2\ttwo\n", "auto"),
        ('id,text\n1,"one, and more"\n2,two\n', "auto"),
        ("id|text\n1|one, and more\n2|two\n", "|"),
    ],
)
def test_the_separator_of_a_csv_corpus_is_detected_or_given(tmp_path: Path, text: str, separator: str) -> None:
    events: list = []
    corpus = Corpus(write(tmp_path / "a.csv", text), separator=separator, on_event=events.append)
    for _ in range(2):
        assert list(corpus.documents()) == ["one, and more", "two"]
    assert len(events) == (separator == "auto" and "," not in text[:7])
    assert (corpus.fingerprint() == Corpus(tmp_path / "a.csv").fingerprint()) == (separator == "auto")
    with pytest.raises(KeelError, match="separator must be one character"):
        Corpus(tmp_path / "a.csv", separator=";;")


def test_semicolons_in_texts_are_no_separators(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text\none; and more\ntwo; or three\n")
    assert list(Corpus(path).documents()) == ["one; and more", "two; or three"]


def test_a_missing_column_is_named_with_those_there_are(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "id,body\n1,one\n")
    with pytest.raises(KeelError, match=r"a\.csv:2: no column 'text' among \['id', 'body'\]: name one with"):
        list(Corpus(tmp_path / "a.csv").documents())


def test_what_cannot_be_read_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(KeelError, match="is a folder: name the files in it"):
        Corpus(tmp_path)
    with pytest.raises(KeelError, match="there is no file"):
        Corpus(tmp_path / "*.text")
    with pytest.raises(KeelError, match="no text files were named"):
        Corpus([])
    with pytest.raises(KeelError, match="document 1 of the list is a float"):
        Corpus.of(["one", float("nan")])  # pyright: ignore[reportArgumentType]


def test_an_odd_name_is_a_file_not_a_pattern(tmp_path: Path) -> None:
    assert list(Corpus(write(tmp_path / "a[1].txt", "one")).documents()) == ["one"]


def test_standard_input_can_be_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("one\n\n二\n".encode())))
    corpus = Corpus("-")
    assert list(corpus.documents()) == list(corpus.documents()) == ["one", "二"]
    assert str(corpus) == "<stdin>"


def test_documents_in_memory_are_kept_whole_and_mended() -> None:
    corpus = Corpus.of(text for text in ["one\n\nstill one", "", "lone \ud800 half", "\ud83d\ude00"])
    assert list(corpus.documents()) == ["one\n\nstill one", "lone \ufffd half", "😀"]


def test_lines_or_documents_seen_before_are_dropped(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "same\nfirst\n\nsame\nfirst\n\nsame\nsecond\n")
    events: list[dict] = []
    assert list(Corpus(path, dedup="documents", on_event=events.append).documents()) == ["same\nfirst", "same\nsecond"]
    assert list(Corpus(path, dedup="lines", on_event=events.append).documents()) == ["same\nfirst", "second"]
    assert [event["text"].split(" seen")[0] for event in events] == ["1 document", "3 lines"]


def test_the_fingerprint_is_that_of_content_and_reading(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one\n")
    first = Corpus(path).fingerprint()
    assert first == Corpus(write(tmp_path / "b.txt", "one\n")).fingerprint()
    assert first != Corpus(path, dedup="lines").fingerprint()
    assert first != Corpus(write(path, "two\n")).fingerprint()
    assert Corpus.of(["ab", "c"]).fingerprint() != Corpus.of(["a", "bc"]).fingerprint()


@pytest.mark.parametrize("joint", [" ", ""])
def test_a_line_of_50_megabytes_comes_in_parts(tmp_path: Path, joint: str) -> None:
    unit = "Words follow words." + joint
    path = write(tmp_path / "a.txt", unit * (50_000_000 // len(unit)) + "\nthe end\n")
    tracemalloc.start()
    blocks = list(map(len, (block.text for block in Corpus(path).blocks())))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert max(blocks) < 1 << 21
    assert sum(blocks) == path.stat().st_size
    assert peak < 50_000_000


def test_parts_of_a_long_document_join_to_it(tmp_path: Path) -> None:
    text = "\n".join(f"Sentence number {number} stands here. 第{number}句。" for number in range(50_000))
    assert list(Corpus(write(tmp_path / "a.txt", text)).documents()) == [text]
    assert list(Corpus.of([text]).documents()) == [text]
    assert [block.begins for block in Corpus.of([text]).blocks()] == [True, False, False]
