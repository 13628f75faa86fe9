import bz2
import gzip
import lzma
import os
import random
from pathlib import Path
from typing import Any

import pytest
import zstandard

from keel.data.examples import read_examples
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


def test_invalid_bytes_are_refused_with_their_line(tmp_path: Path) -> None:
    content = "好的\n".encode() + b"bad \xff byte\n" + "末行".encode()
    with pytest.raises(KeelError, match=r"a\.txt:2: .*not valid utf-8.*.encoding utf-8 replaces invalid bytes"):
        lines_of(tmp_path / "a.txt", content)
    lines, messages = lines_of(tmp_path / "a.txt", content, "utf-8")
    assert lines == ["好的", "bad \ufffd byte", "末行"]
    assert messages[0].startswith(f"{tmp_path}/a.txt:2: 1 byte is not utf-8")


def test_text_that_ends_inside_a_character_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeelError, match=r"a\.txt:2: .*not valid utf-8: use encoding NAME"):
        lines_of(tmp_path / "a.txt", CHINESE.encode()[:-3])


@pytest.mark.parametrize(
    ("text", "encoding", "line"),
    [
        ("plain\nle café était fermé\n" * 50, "cp1252", 2),
        ("plain\n“quoted” – text\n", "cp1252", 2),
        ("words and more words\n" * 300_000 + CHINESE, "gb18030", 300_001),  # after the sample
    ],
)
def test_the_likely_encoding_is_named_and_reads_the_text(tmp_path: Path, text: str, encoding: str, line: int) -> None:
    with pytest.raises(KeelError, match=rf"a\.txt:{line}: .*probably {encoding}: use encoding {encoding} "):
        lines_of(tmp_path / "a.txt", text.encode(encoding))
    assert lines_of(tmp_path / "a.txt", text.encode(encoding), encoding) == (text.split("\n")[:-1], [])


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_boms_are_honoured(tmp_path: Path, encoding: str) -> None:
    assert lines_of(tmp_path / "a.txt", CHINESE.encode(encoding))[0] == CHINESE.split("\n")[:2]


def test_invalid_utf_16_is_refused(tmp_path: Path) -> None:
    content = CHINESE.encode("utf-16") + b"\x00\xdc" + "x\n".encode("utf-16-le") * 9
    with pytest.raises(KeelError, match=r"a\.txt:1: .*not valid utf-16"):
        lines_of(tmp_path / "a.txt", content)
    with pytest.raises(KeelError, match="use encoding utf-16-be"):
        lines_of(tmp_path / "a.txt", "plain words\n".encode("utf-16-be"))


SCRIPTS = {
    "cp1251": "Мороз и солнце; день чудесный! Ещё ты дремлешь.\n",
    "koi8-r": "Мороз и солнце; день чудесный! Ещё ты дремлешь.\n",
    "shift_jis": "吾輩は猫である。名前はまだ無い。\n",
    "euc_jp": "吾輩は猫である。名前はまだ無い。\n",
    "big5": "這是我的書，不是他的。有一個人在這裡。\n",
    "cp949": "나는 고양이로소이다. 이름은 아직 없다.\n",
}


@pytest.mark.parametrize("encoding", SCRIPTS)
def test_the_likely_encoding_of_other_scripts_is_named(tmp_path: Path, encoding: str) -> None:
    text = SCRIPTS[encoding] * 50
    with pytest.raises(KeelError, match=rf"a\.txt .*probably {encoding} \(\d+% .*use encoding {encoding}$"):
        lines_of(tmp_path / "a.txt", text.encode(encoding))
    assert lines_of(tmp_path / "a.txt", text.encode(encoding), encoding)[0] == text.split("\n")[:-1]


KOREAN = "이 영화는 정말 재미있고 배우들의 연기가 뛰어나다. 다시 보고 싶지는 않지만 친구에게 추천한다."
JAPANESE = "東京都庁舎は新宿区西新宿二丁目に所在する東京都の庁舎"  # mostly kanji
TAIWANESE = "臺北市位於臺灣北部的臺北盆地，是臺灣的首都與最大城市"


@pytest.mark.parametrize(
    ("text", "encoding"), [(KOREAN, "euc_kr"), (JAPANESE, "euc_jp"), (JAPANESE, "shift_jis"), (TAIWANESE, "big5")]
)
@pytest.mark.parametrize("repeats", [1, 100])
def test_other_scripts_are_not_taken_for_chinese(tmp_path: Path, text: str, encoding: str, repeats: int) -> None:
    with pytest.raises(KeelError, match="use encoding"):
        lines_of(tmp_path / "a.txt", ("plain words\n" + text + "\n").encode(encoding) * repeats)


def test_short_chinese_is_gb18030(tmp_path: Path) -> None:
    for text in ("这部电影很好看", "房间干净，服务员热情", "质量太差"):
        assert lines_of(tmp_path / "a.txt", f"{text}\n".encode("gb18030"))[0] == [text]


@pytest.mark.parametrize("encoding", ["cp1251", "koi8-r"])
def test_cyrillic_is_not_taken_for_chinese(tmp_path: Path, encoding: str) -> None:
    with pytest.raises(KeelError, match="use encoding"):
        lines_of(tmp_path / "a.txt", ("plain words\n" * 20 + "Мороз и солнце; день чудесный!\n").encode(encoding) * 50)


def test_a_line_above_the_limit_is_refused_or_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keel.data.text_files.MAX_LINE", 10)
    path = tmp_path / "a.txt"
    path.write_text("0123456789\n0123456789ab" + "c" * 30 + "\nlast")
    messages: list[str] = []
    file = open_text(path, on_event=lambda event: messages.append(event["text"]))
    for read in (file.lines, lambda: list(file)):
        with pytest.raises(KeelError, match=r"a\.txt:2: this line has more than 10 characters"):
            read()
    assert file.lines(cut=True) == ["0123456789", "0123456789", "last"]
    assert messages[0].startswith(f"{path}:2: 1 line has more than 10 characters")
    path.with_suffix(".jsonl").write_text('{"a": 1}\n{"text": "long"}\n')
    with pytest.raises(KeelError, match=r"a\.jsonl:2: this line has more"):
        list(read_table(path.with_suffix(".jsonl")))


def test_a_field_of_a_quote_that_is_not_closed_is_limited(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('text,label\n"open,b\n' + "some words,b\n" * 400_000)
    with pytest.raises(KeelError, match=r"a\.csv:2: .*is a quote not closed"):
        list(read_table(tmp_path / "a.csv"))


@pytest.mark.parametrize(("pack", "name"), [(gzip.compress, "gz"), (bz2.compress, "bz2"), (zstandard.compress, "zst")])
def test_damaged_compression_is_refused(tmp_path: Path, pack, name: str) -> None:
    content = bytearray(pack(random.Random(0).randbytes(3000).hex().encode()))
    content[5:30] = b"\xff" * 25
    with pytest.raises(KeelError, match=rf"a\.txt\.{name} is damaged or truncated"):
        lines_of(tmp_path / f"a.txt.{name}", bytes(content))


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(KeelError, match="is a pipe or a device"):
        open_text(tmp_path / "pipe")
    with pytest.raises(KeelError, match="is a pipe or a device"):
        open_text("/dev/null")


@pytest.mark.parametrize("encoding", ["auto", "utf-8", "utf-16"])
def test_what_is_not_text_is_refused(tmp_path: Path, encoding: str) -> None:
    halves = {"utf-16": random.Random(0).randbytes(8) + b"\x00\xdc" * 2000}
    with pytest.raises(KeelError, match=r"a\.txt is not text, or in another encoding \(\d+% of it is not utf-"):
        lines_of(tmp_path / "a.txt", halves.get(encoding, random.Random(0).randbytes(5000)), encoding)
    russian = "Мороз и солнце; день чудесный!\n"
    with pytest.raises(KeelError, match="or use encoding"):
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
        (gzip.compress(b"many words " * 9999)[:-20], "is damaged or truncated"),
        (lzma.compress(b"many words " * 9999)[:-20], "is damaged or truncated"),
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


def test_a_bom_at_the_start_of_a_line_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "joined.txt"
    path.write_text("\ufeff\ufeffone\n\ufeff\n\ufefftwo \ufeff three\n\ufeff", encoding="utf-8")
    lines = ["one", "", "two \ufeff three"]
    assert [line for _, line in open_text(path)][:3] == open_text(path).lines()[:3] == lines
    table = tmp_path / "a.csv"
    table.write_text("\ufefftext,label\na,x\n\ufeff\nb,y\n", encoding="utf-8")
    assert [row for _, row in read_rows(table)] == [["text", "label"], ["a", "x"], ["b", "y"]]


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
    with pytest.raises(KeelError, match="truncated"):
        list(open_text(cut))


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"one\r\ntwo\rthree", b"\xef\xbb\xbfone\n\ntwo\n", b"bad \xff byte\nnul \0 here\n", "é\n".encode()],
)
def test_lines_at_once_are_those_one_by_one(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "text.txt").write_bytes(content)
    events: list[dict[str, Any]] = []
    file = open_text(tmp_path / "text.txt", "utf-8", on_event=events.append)
    lines = file.lines()
    messages = [event["text"] for event in events]
    assert lines == [line for _, line in file]
    assert [event["text"] for event in events[len(messages) :]] == messages


@pytest.mark.parametrize("name", ["a.txt.gz", "a.csv.gz", "a.jsonl.gz"])
def test_a_compressed_file_that_expands_too_far_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("keel.data.text_files.LEAST_EXPANDED", 100_000)
    path = tmp_path / name
    line = '{"text": "a"}\n' if "json" in name else "a,b\n"
    path.write_bytes(gzip.compress(line.encode() * 60_000))
    with pytest.raises(KeelError, match=rf"{name}: .* bytes expand to more than \d+ MB"):
        read_examples(path, pair=False)
    assert sum(1 for _ in open_text(path).numbered_lines(streamed=True)) == 60_000
    path.write_bytes(gzip.compress(random.Random(1).randbytes(100_000).hex(" ", 40).replace(" ", "\n").encode()))
    assert open_text(path).lines()  # it expands as text does


@pytest.mark.parametrize("name", ["a.txt.gz", "a.csv.gz"])
def test_many_short_lines_count_with_the_memory_they_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("keel.data.text_files.LEAST_EXPANDED", 100_000)
    (path := tmp_path / name).write_bytes(gzip.compress(b"a,b\n" * 20_000))  # 80,000 characters
    with pytest.raises(KeelError, match=rf"{name}: .* bytes expand to more than \d+ MB"):
        read_examples(path, pair=False)
