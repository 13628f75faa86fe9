"""Chinese files in the encodings that occur, rightly and wrongly declared (docs/chinese.md)."""

import gzip
import io
from pathlib import Path

import pytest

import keel
from keel.data.examples import read_examples
from keel.data.tagged_sentences import read_tagged_sentences
from keel.data.text_encodings import declared_encoding, evident_encoding
from keel.data.text_files import open_text, stdin_lines
from keel.errors import KeelError

SIMPLIFIED = [
    "数学是利用符号语言研究数量的学科。",
    "这部电影的演员和导演都很好，我们看了两次！",
    "房间很大，也很干净。",
]
TRADITIONAL = ["這是我的書，不是他的。", "有一個人在這裏，為了國家的學問。", "恒星的光要很多年才到我們這裡。"]
GB_BOM = b"\x84\x31\x95\x33"


def read(path: Path, content: bytes, encoding: str = "auto") -> tuple[list[str], list[str]]:
    """The lines of a file with this content, and the messages."""
    path.write_bytes(content)
    messages: list[str] = []
    return open_text(path, encoding, lambda event: messages.append(event["text"])).lines(), messages


@pytest.mark.parametrize("bom", [b"", GB_BOM])
@pytest.mark.parametrize("encoding", ["auto", "gb18030", "gbk", "gb2312"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_gb18030_is_read_with_and_without_bom(tmp_path: Path, bom: bytes, encoding: str, pack) -> None:
    content = pack(bom + "\n".join(SIMPLIFIED).encode("gb18030"))
    lines, messages = read(tmp_path / "a.txt", content, encoding)
    assert lines == SIMPLIFIED
    assert len(messages) == (encoding == "auto")
    assert all("is read as gb18030" in message for message in messages)


def test_the_bom_of_gb18030_suffices_for_text_of_any_script(tmp_path: Path) -> None:
    """Without it, this could be several encodings."""
    text = "naïve – 한국어 😀"
    assert read(tmp_path / "a.txt", GB_BOM + text.encode("gb18030"))[0] == [text]


def test_text_declared_gb2312_may_have_all_characters_of_gb18030(tmp_path: Path) -> None:
    text = "朱镕基和㐀，价格 20€，𠮷野家"
    with pytest.raises(UnicodeEncodeError):
        text.encode("gb2312")
    assert read(tmp_path / "a.txt", text.encode("gb18030"), "GB2312") == ([text], [])


def test_big5_is_named_and_then_read(tmp_path: Path) -> None:
    content = "\r\n".join(TRADITIONAL).encode("cp950")
    with pytest.raises(UnicodeDecodeError):
        content.decode("big5")  # Python's lacks 裏 and 恒
    with pytest.raises(KeelError, match=r"a\.txt .*probably big5 .*: give text, or use encoding big5"):
        read(tmp_path / "a.txt", content)
    assert read(tmp_path / "a.txt", content, "big5") == (TRADITIONAL, [])


@pytest.mark.parametrize("encoding", ["gb18030", "gb2312", "big5", "cp1252", "ascii"])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
def test_utf_8_declared_as_something_else_is_refused(tmp_path: Path, encoding: str, bom: bytes) -> None:
    """As GB18030 it would decode without an error, to 鏁板."""
    content = bom + "\n".join(SIMPLIFIED).encode()
    with pytest.raises(KeelError, match=rf"a\.txt is utf-8, not {encoding}: leave out encoding$"):
        read(tmp_path / "a.txt", content, encoding)


def test_utf_16_declared_as_something_else_is_refused(tmp_path: Path) -> None:
    content = "\n".join(SIMPLIFIED).encode("utf-16")
    with pytest.raises(KeelError, match=r"is utf-16, not gb18030: leave out encoding"):
        read(tmp_path / "a.txt", content, "gb18030")
    assert read(tmp_path / "a.txt", content, "utf-16-le")[0] == SIMPLIFIED


@pytest.mark.parametrize("text", [*SIMPLIFIED, "联通", "中文 mixed with English"])
def test_rightly_declared_short_texts_are_read(tmp_path: Path, text: str) -> None:
    for encoding in ("gb18030", "utf-8", "utf-8-sig", "utf-16", "utf-16-be"):
        assert read(tmp_path / "a.txt", text.encode(encoding), encoding) == ([text], [])


def test_a_sample_that_ends_inside_a_character_is_still_utf_8() -> None:
    content = "".join(SIMPLIFIED).encode()
    assert evident_encoding(content[:-1], "gb18030") == "utf-8"
    assert evident_encoding(content[:-1] + b"x", "gb18030") == ""
    assert evident_encoding(content, "utf-8") == ""
    assert evident_encoding(content[:24], "gb18030") == "", "too little to be sure"


def test_gb18030_declared_as_utf_8_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeelError, match=r"not utf-8.*use encoding gb18030"):
        read(tmp_path / "a.txt", "\n".join(SIMPLIFIED).encode("gb18030"), "utf-8")


def test_big5_declared_as_gb18030_is_read_with_a_note(tmp_path: Path) -> None:
    """It decodes to rare characters without an error, and the declaration may be right for an unusual text."""
    content = "\n".join(TRADITIONAL * 3).encode("cp950")
    _, messages = read(tmp_path / "a.txt", content, "gb18030")
    assert any("looks like big5, not gb18030" in message for message in messages)
    _, messages = read(tmp_path / "a.txt", "\n".join(TRADITIONAL * 3).encode("gb18030"), "gb18030")
    assert messages == [], "traditional characters are in GB18030 too"


def test_two_encodings_in_one_file_are_refused_with_the_line(tmp_path: Path) -> None:
    content = "".join(f"{line}\n" for line in SIMPLIFIED * 20).encode() + SIMPLIFIED[0].encode("gb18030")
    with pytest.raises(KeelError, match=r"a\.txt:61: .*not valid utf-8 but probably gb18030: use encoding gb18030"):
        read(tmp_path / "a.txt", content)


def test_mixed_line_ends_end_lines(tmp_path: Path) -> None:
    """Windows, Unix and old Macintosh ends; other separators of Unicode stay inside a line."""
    content = "一\r\n二\n三\r四\u2028四\x85四\r\n\r\n五"
    expected = ["一", "二", "三", "四\u2028四\x85四", "", "五"]
    for encoding in ("utf-8", "gb18030", "utf-16"):
        lines, _ = read(tmp_path / "a.txt", content.encode(encoding), "auto" if encoding == "utf-16" else encoding)
        assert lines == expected
        file = open_text(tmp_path / "a.txt", "auto" if encoding == "utf-16" else encoding)
        assert [line for _, line in file] == expected


def test_names_of_encodings() -> None:
    assert declared_encoding("GBK") == declared_encoding("cp936") == declared_encoding("euc-cn") == "gb18030"
    assert declared_encoding("big5-tw") == "cp950"
    assert declared_encoding("big5hkscs") == "big5hkscs"
    with pytest.raises(LookupError):
        declared_encoding("klingon")


def test_stdin_is_read_as_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "朱镕基\r\n价格"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode("gb18030"))))
    assert [*stdin_lines("gb2312")] == text.split("\r\n")


@pytest.mark.parametrize("content", ["标签\t文本\n好\t{0}\n差\t{1}\n", "标签,文本\r\n好,{0}\r\n差,{1}\r\n"])
def test_every_reader_takes_gb18030(tmp_path: Path, content: str) -> None:
    path = tmp_path / ("a.tsv" if "\t" in content else "a.csv")
    path.write_bytes(GB_BOM + content.format(*SIMPLIFIED).encode("gb18030"))
    columns = keel.Columns(text_column="文本", label_column="标签")
    examples = read_examples(path, pair=False, columns=columns)
    assert (examples.texts, examples.values) == (SIMPLIFIED[:2], ["好", "差"])


def test_tagged_characters_in_gb18030(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(
        "我 O\r\n在 O\r\n北 B-LOC\r\n京 I-LOC\r\n\r\n他 O\r\n在 O\r\n上 B-LOC\r\n海 I-LOC\r\n".encode("gb18030")
    )
    assert [example.text for example in read_tagged_sentences(path)] == ["我在北京", "他在上海"]
