import bz2
import gzip
import lzma
import random
from pathlib import Path
from typing import Any

import pytest
import zstandard

from keel.data.table_files import read_rows, read_table
from keel.data.text_files import open_text
from keel.errors import KeelError

CHINESE = "数学是利用符号语言研究数量的学科。\n第二行，很好！\n"


def lines_of(path: Path, content: bytes, encoding: str = "auto") -> tuple[list[str], list[str]]:
    """The lines of a file with this content, and what was said about it."""
    path.write_bytes(content)
    messages: list[str] = []
    lines = [line for _, line in open_text(path, encoding, lambda event: messages.append(event["text"]))]
    return lines, messages


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress, bz2.compress, zstandard.compress])
def test_any_compression_is_read_whatever_the_name(tmp_path: Path, pack) -> None:
    lines, messages = lines_of(tmp_path / "text.txt", pack(CHINESE.encode()))
    assert lines == CHINESE.split("\n")[:2]
    assert messages == []


@pytest.mark.parametrize("encoding", ["gb18030", "utf-16"])
def test_other_encodings_are_detected_and_reported(tmp_path: Path, encoding: str) -> None:
    lines, messages = lines_of(tmp_path / "a.txt", CHINESE.encode(encoding))
    assert lines == CHINESE.split("\n")[:2]
    assert encoding in messages[0]


def test_chinese_after_megabytes_of_ascii_is_still_found(tmp_path: Path) -> None:
    lines, messages = lines_of(tmp_path / "a.txt", b"plain words\n" * 200_000 + CHINESE.encode("gb18030"))
    assert lines[-2:] == CHINESE.split("\n")[:2]
    assert "gb18030" in messages[0]


def test_an_encoding_may_be_given(tmp_path: Path) -> None:
    assert lines_of(tmp_path / "a.txt", "café à côté".encode("latin-1"), "latin-1")[0] == ["café à côté"]
    with pytest.raises(KeelError, match="no encoding 'klingon'"):
        lines_of(tmp_path / "a.txt", b"x", "klingon")


def test_invalid_bytes_are_replaced_and_placed(tmp_path: Path) -> None:
    lines, messages = lines_of(tmp_path / "a.txt", "好的\n".encode() + b"bad \xff byte\n" + "末行".encode())
    assert lines == ["好的", "bad \ufffd byte", "末行"]
    assert messages[0].startswith(f"{tmp_path}/a.txt:2: 1 byte is not utf-8")


def test_latin_text_is_not_taken_for_chinese(tmp_path: Path) -> None:
    lines, messages = lines_of(tmp_path / "a.txt", "le café était fermé\n".encode("latin-1") * 50)
    assert lines[0] == "le caf\ufffd \ufffdtait ferm\ufffd"
    assert "150 bytes are not utf-8" in messages[0]
    assert "say encoding" in messages[0]


@pytest.mark.parametrize("encoding", ["auto", "utf-8", "utf-16"])
def test_what_is_not_text_is_refused(tmp_path: Path, encoding: str) -> None:
    halves = {"utf-16": random.Random(0).randbytes(8) + b"\x00\xdc" * 2000}
    with pytest.raises(KeelError, match=r"a\.txt is not text, or in another encoding \(\d+% of it is not utf-"):
        lines_of(tmp_path / "a.txt", halves.get(encoding, random.Random(0).randbytes(5000)), encoding)
    russian = "Мороз и солнце; день чудесный!\n"
    with pytest.raises(KeelError, match="or say encoding"):
        lines_of(tmp_path / "b.txt", russian.encode("koi8-r"), "utf-8")
    assert lines_of(tmp_path / "b.txt", russian.encode("koi8-r"), "koi8-r")[0] == [russian.strip()]


def test_bom_line_ends_and_nulls_leave_no_trace(tmp_path: Path) -> None:
    lines, messages = lines_of(tmp_path / "a.txt", b"\xef\xbb\xbfone\r\ntwo" + b"\0 words" + b"\r\n\r\nthree words")
    assert lines == ["one", "two words", "", "three words"]
    assert "a.txt:2: 1 NUL" in messages[0]


def test_line_separators_inside_a_line_do_not_end_it(tmp_path: Path) -> None:
    assert lines_of(tmp_path / "a.txt", "a\u2028b\x0cc\x85d\n".encode())[0] == ["a\u2028b\x0cc\x85d"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\3\4" + bytes(1000), "is not text .it is full of NUL bytes"),
        (b"a word\0and another one\0, here", "is not text .it holds NUL bytes"),
        (gzip.compress(b"many words " * 9999)[:-20], "is damaged or cut short"),
        (lzma.compress(b"many words " * 9999)[:-20], "is damaged or cut short"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(KeelError, match=message):
        lines_of(tmp_path / "a.txt", content)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(KeelError, match=r"there is no file .*nothing\.txt: check the name"):
        open_text(tmp_path / "nothing.txt")
    with pytest.raises(KeelError, match="is a folder"):
        open_text(tmp_path)


def test_csv_has_quotes_and_tsv_has_none(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('text,label\n"two\nlines, ""quoted""",good\n\nplain,bad\n')
    assert list(read_table(tmp_path / "a.csv")) == [
        (2, {"text": 'two\nlines, "quoted"', "label": "good"}),
        (5, {"text": "plain", "label": "bad"}),
    ]
    (tmp_path / "a.tsv").write_text('a\tb\n"open\tx\nshort\n')
    assert list(read_table(tmp_path / "a.tsv")) == [(2, {"a": '"open', "b": "x"}), (3, {"a": "short"})]
    assert next(read_rows(tmp_path / "a.tsv")) == (1, ["a", "b"])


def test_a_field_may_be_megabytes_long(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text\n" + "x" * 1_000_000 + "\n")
    assert [len(row["text"]) for _, row in read_table(tmp_path / "a.csv")] == [1_000_000]


def test_a_bad_line_of_jsonl_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "好"}\n\n{"text": \n')
    rows = read_table(tmp_path / "a.jsonl")
    assert next(rows) == (1, {"text": "好"})
    with pytest.raises(KeelError, match=r"a\.jsonl:3: this line is not JSON"):
        next(rows)
    (tmp_path / "b.jsonl").write_text("[1]\n")
    with pytest.raises(KeelError, match=r"b\.jsonl:1: .* not a JSON object"):
        list(read_table(tmp_path / "b.jsonl"))


def test_parquet_is_read_by_rows_and_damage_is_reported(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["one", "二"], "n": [1, 2]}), path)
    assert list(read_table(path)) == [(1, {"text": "one", "n": 1}), (2, {"text": "二", "n": 2})]
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(KeelError, match="cannot be read as parquet"):
        list(read_table(path))


def test_a_zst_file_that_is_cut_short_is_found(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    text = "".join(f"line {number} of a long text\n" for number in range(50_000)).encode()
    frames = zstandard.compress(text[:500_000]) + zstandard.compress(text[500_000:])
    whole, cut = tmp_path / "whole.txt.zst", tmp_path / "cut.txt.zst"
    whole.write_bytes(frames)
    assert "".join(line + "\n" for _, line in open_text(whole)).encode() == text
    cut.write_bytes(frames[: len(frames) * 3 // 4])
    with pytest.raises(KeelError, match="cut short"):
        list(open_text(cut))


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"one\r\ntwo\rthree", b"\xef\xbb\xbfone\n\ntwo\n", b"bad \xff byte\nnul \0 here\n", "é\n".encode()],
)
def test_lines_at_once_are_those_one_by_one(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "text.txt").write_bytes(content)
    events: list[dict[str, Any]] = []
    file = open_text(tmp_path / "text.txt", on_event=events.append)
    lines = file.lines()
    messages = [event["text"] for event in events]
    assert lines == [line for _, line in file]
    assert [event["text"] for event in events[len(messages) :]] == messages
