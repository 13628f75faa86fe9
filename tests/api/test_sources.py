"""One rule for sources: a str or Path is a file or pattern, a list holds texts (or Paths), a DataFrame is a table."""

from pathlib import Path
from typing import Any

import pytest
import torch

import keel
from keel.api.run_folder import hardware
from keel.api.settings import TextSettings, corpus_of
from keel.data.corpus import Corpus
from keel.data.memory_sources import plain_source
from keel.errors import KeelError
from keel.events import ignore


def documents(source: Any, **settings: Any) -> list[str]:
    return [*corpus_of(source, TextSettings(**settings), ignore).documents()]


@pytest.mark.parametrize(
    "texts",
    [
        ["hello world this is text", "more"],
        ["more"],
        ["wiki.txt"],
        ["data/*.txt", "notes.md"],
        ["Hello there my friend.", "", "and/or", "e.g", "-"],
        ["他走了", "ok"],
        ["a word " * 1000, "b"],
    ],
)
def test_a_list_of_strings_is_a_list_of_texts(texts: list[str]) -> None:
    assert documents(texts) == [text for text in texts if text]
    assert [*Corpus(texts).documents()] == documents(texts)
    assert documents(tuple(texts)) == documents(text for text in texts) == documents(texts)


def test_a_string_or_a_path_is_a_file_or_a_pattern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my text.txt").write_text("words", encoding="utf-8")
    (tmp_path / "数据").mkdir()
    (tmp_path / "数据" / "a.txt").write_text("字", encoding="utf-8")
    assert documents(str(tmp_path / "my text.txt")) == documents(tmp_path / "my text.txt") == ["words"]
    assert documents(f"{tmp_path}/my *.txt") == documents(tmp_path / "my*.txt") == ["words"]
    assert documents([tmp_path / "数据" / "*.txt", tmp_path / "my text.txt"]) == ["字", "words"]
    with pytest.raises(KeelError, match="there is no file no such"):
        documents("no such")
    with pytest.raises(KeelError, match="there is no file a word a word"):
        documents("a word " * 1000)


def test_a_data_frame_is_a_table() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"text": ["one", "two"], "body": ["three", "four"]})
    assert documents(table) == [*Corpus(table).documents()] == ["one", "two"]
    assert documents(table, text_column="body") == ["three", "four"]
    with pytest.raises(KeelError, match="no column 'title': it has 'text', 'body'; set text_column"):
        documents(table, text_column="title")


def test_what_is_no_text_at_all_is_refused(tmp_path: Path) -> None:
    assert documents([""]) == []
    with pytest.raises(KeelError, match="the name of a text file is empty: give files"):
        documents("")
    for source in (None, 5):
        with pytest.raises(KeelError, match=f"{source} is neither a file nor a list of texts: give the names"):
            documents(source)
    with pytest.raises(KeelError, match=r"document 1 of the list is a float \(nan\): give strings only"):
        documents(["one text", float("nan")])
    with pytest.raises(KeelError, match="document 1 of the list is a PosixPath"):
        documents(["one text", tmp_path])


def test_one_thread_is_counted_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for count, text in ((1, "CPU, 1 thread"), (2, "CPU, 2 threads")):
        monkeypatch.setattr(torch, "get_num_threads", lambda count=count: count)
        assert hardware(torch.device("cpu")).endswith(text)


def test_a_dict_of_columns_is_a_table_and_any_other_dict_a_record() -> None:
    columns = {"text": ["a good film", "a bad film"] * 8, "label": ["good", "bad"] * 8}
    model = keel.finetune("onehot", columns, dev=None, progress=False)
    assert [each.label for each in model.predict({"text": ["a good film", "a bad film"]})] == ["good", "bad"]
    assert model.predict({"text": "a bad film", "source": "web"}).label == "bad"
    assert plain_source({"words": ["a"], "tags": ["O"]}) == {"words": ["a"], "tags": ["O"]}
    assert plain_source({"question": "why?", "choices": ["a", "b"]}) == {"question": "why?", "choices": ["a", "b"]}
