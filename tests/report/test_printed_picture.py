import zlib
from pathlib import Path
from xml.etree.ElementTree import Element

import pytest

import keel
from keel.errors import MissingExtra, UsageError
from keel.report.html_page import picture_file, tag, write_picture


def picture(text: str) -> Element:
    shape = tag("rect", x="0", y="0", width="60", height="20", class_="mark")
    return tag("svg", shape, tag("text", text, x="2", y="14"), viewBox="0 0 60 20", width="60", height="20")


def test_a_png_has_the_light_colours_of_the_picture(tmp_path: Path) -> None:
    path = write_picture(tmp_path / "a.png", picture(""))
    width, height, (red, green, blue) = first_pixel(path.read_bytes())
    assert (width, height) == (120, 40)  # two dots per CSS pixel
    assert (red, green, blue) == (0x1F, 0x5F, 0x8B)


def first_pixel(png: bytes) -> tuple[int, int, tuple[int, ...]]:
    """Width, height and the first pixel of a PNG of 8 bits per channel; a filter changes nothing in the first pixel."""
    width, height = int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")
    assert png[24] == 8
    data, start = b"", 8
    while start < len(png):
        size, kind = int.from_bytes(png[start : start + 4], "big"), png[start + 4 : start + 8]
        data += png[start + 8 : start + 8 + size] if kind == b"IDAT" else b""
        start += size + 12
    return width, height, tuple(zlib.decompress(data)[1:4])


def test_a_pdf_has_its_text_and_its_size(tmp_path: Path) -> None:
    path = keel.figure("rnn", text="潮水 退了", out=tmp_path / "rnn.pdf") and tmp_path / "rnn.pdf"
    content = path.read_bytes()
    assert content.startswith(b"%PDF-")
    assert b"/FontFile" in content or b"/ObjStm" in content
    assert [*tmp_path.iterdir()] == [path]


def test_other_endings_are_refused_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"\.svg, \.pdf, \.png or \.html"):
        picture_file("a.jpg")
    monkeypatch.setitem(__import__("sys").modules, "typst", None)
    with pytest.raises(MissingExtra, match=r"keel-nlp\[figures\]"):
        keel.figure("rnn", out=tmp_path / "a.pdf")
    assert picture_file("a.svg") == Path("a.svg")
