"""What may stand for text, and how a list of texts is told from one of files."""

from pathlib import Path
from typing import Any

import pytest
import torch

from keel.api.run_folder import hardware
from keel.api.settings import TextSettings, corpus_of
from keel.errors import KeelError
from keel.events import ignore


def documents(source: Any) -> list[str]:
    return [*corpus_of(source, TextSettings(), ignore).documents()]


@pytest.mark.parametrize(
    "texts",
    [
        ["hello world this is text", "more"],
        ["Hello there my friend.", "", "and/or", "e.g", "-"],
        ["他走了", "ok"],
        ["a word " * 1000, "b"],
        ["It is in readme.md", "some other text"],
        ["one text\nsave as data.json", "tests"],
    ],
)
def test_a_short_text_among_others_is_a_text(texts: list[str]) -> None:
    assert documents(texts) == [text for text in texts if text]


def test_a_list_that_names_a_file_is_of_files(tmp_path: Path) -> None:
    (tmp_path / "my text.txt").write_text("words", encoding="utf-8")
    assert documents([str(tmp_path / "my text.txt"), tmp_path / "*.txt"]) == ["words", "words"]
    with pytest.raises(KeelError, match=r"there is no file no such: check.*; texts may be given as keel\.Corpus\.of"):
        documents(["no such", str(tmp_path / "my text.txt")])
    (tmp_path / "数据").mkdir()
    (tmp_path / "数据" / "a.txt").write_text("字", encoding="utf-8")
    assert documents([f"{tmp_path}/数据/*.txt", f"{tmp_path}/my*.txt"]) == ["字", "words"]
    assert documents([f"{tmp_path}/my *.txt", f"{tmp_path}/数据/*.txt"]) == ["words", "字"]
    for names in (["no such.txt"], ["no such", "none.TXT.gz"], ["more"]):
        with pytest.raises(KeelError, match=r"there is no file .*keel\.Corpus\.of\(\[\.\.\.\]\)"):
            documents(names)


def test_what_is_no_text_at_all_is_refused() -> None:
    assert documents([""]) == []
    with pytest.raises(KeelError, match="the name of a text file is empty: give files"):
        documents("")
    for source in (None, 5):
        with pytest.raises(KeelError, match=f"{source} is neither a file nor a list of them: give the names"):
            documents(source)
    with pytest.raises(KeelError, match="document 1 of the list is a float: give strings only"):
        documents(["one text", float("nan")])
    with pytest.raises(KeelError, match="there is no file a word a word"):
        documents("a word " * 1000)


def test_one_thread_is_told_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for count, said in ((1, "CPU, 1 thread"), (2, "CPU, 2 threads")):
        monkeypatch.setattr(torch, "get_num_threads", lambda count=count: count)
        assert hardware(torch.device("cpu")).endswith(said)
