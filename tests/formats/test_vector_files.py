"""gensim and we read each other's vectors; files of others' making are read; a fault is reported in one sentence."""

import bz2
import errno
import gzip
import lzma
import os
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import gensim
import numpy as np
import pytest
from gensim.models import KeyedVectors

from keel.errors import KeelError, UsageError
from keel.events import Event
from keel.formats import vector_files as module
from keel.formats.vector_files import Vectors, layout_of, read_vectors, write_vectors

THEIRS = Path(gensim.__file__).parent / "test" / "test_data"
Layout = Literal["text", "binary", "glove"]
LAYOUTS: tuple[Layout, ...] = ("text", "binary", "glove")
WORDS = ["the", "of", "naïve", "皇帝", "2000", "</s>", "nan", "\u00a0", "\u3000", "%s", "x" * 100_000, "🙂"]


def make_vectors(words: list[str], width: int = 7, seed: int = 0) -> Vectors:
    """Vectors of every size of number that a float32 has."""
    generator = np.random.default_rng(seed)
    matrix = generator.normal(size=(len(words), width)) * 10.0 ** generator.integers(-40, 38, (len(words), width))
    return Vectors(words, matrix.astype(np.float32))


def assert_equal(ours: Vectors, expected: Vectors) -> None:
    assert ours.words == expected.words
    assert ours.matrix.dtype == np.float32
    assert ours.matrix.tobytes() == expected.matrix.tobytes()


def read(path: Path) -> tuple[Vectors, list[str]]:
    """The vectors and the notes about them."""
    events: list[Event] = []
    vectors = read_vectors(path, on_event=events.append)
    return vectors, [event["text"] for event in events]


def load(path: Path, layout: Layout, **settings: Any) -> Any:
    """What gensim makes of a file."""
    headless = {"no_header": True} if layout == "glove" else {}
    return KeyedVectors.load_word2vec_format(path, binary=layout == "binary", **headless, **settings)


def as_ours(peer: Any) -> Vectors:
    return Vectors(list(peer.index_to_key), peer.vectors)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("width", [1, 2, 50, 300])
@pytest.mark.parametrize("block", [1 << 8, 1 << 22])
def test_round_trip(tmp_path: Path, layout: Layout, width: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    monkeypatch.setattr(module, "SAMPLE", max(block, 1 << 14))
    vectors = make_vectors(WORDS + [f"word{number}" for number in range(500)], width)
    write_vectors(tmp_path / "vectors", vectors, layout=layout)
    again, notes = read(tmp_path / "vectors")
    assert_equal(again, vectors)
    assert notes == [f"{tmp_path / 'vectors'}: {module.LAYOUTS[layout]}, 512 words of {width} dimensions"]
    assert [path.name for path in tmp_path.iterdir()] == ["vectors"]


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # gensim forgets to close a file without header
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gensim_reads_what_we_write(tmp_path: Path, layout: Layout) -> None:
    vectors = make_vectors(WORDS, 20)
    write_vectors(tmp_path / "vectors", vectors, layout=layout)
    peer = as_ours(load(tmp_path / "vectors", layout))
    assert peer.words == vectors.words
    np.testing.assert_allclose(peer.matrix, vectors.matrix, rtol=0 if layout == "binary" else 1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_we_read_what_gensim_writes(tmp_path: Path, layout: Layout) -> None:
    vectors = make_vectors(WORDS, 20)
    peer = KeyedVectors(20)
    peer.add_vectors(vectors.words, vectors.matrix)
    peer.save_word2vec_format(tmp_path / "vectors", binary=layout == "binary", write_header=layout != "glove")
    ours, notes = read(tmp_path / "vectors")
    assert ours.words == vectors.words
    np.testing.assert_allclose(ours.matrix, vectors.matrix, rtol=0 if layout == "binary" else 1e-6)
    assert module.LAYOUTS[layout] in notes[0]


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("euclidean_vectors.bin", "binary"),
        ("poincare_vectors.bin", "binary"),
        ("high_precision.kv.bin", "binary"),
        ("high_precision.kv.txt", "text"),
        ("word2vec_pre_kv_c", "text"),
        ("EN.1-10.cbow1_wind5_hs0_neg10_size300_smpl1e-05.txt", "text"),
        ("IT.1-10.cbow1_wind5_hs0_neg10_size300_smpl1e-05.txt", "text"),
        ("toy-model.vec", "text"),
        ("lee_fasttext.vec", "text"),
        ("crime-and-punishment.vec", "text"),
        ("test_glove.txt", "glove"),
    ],
)
def test_files_in_gensims_wheel(name: str, layout: Layout) -> None:
    assert layout_of(THEIRS / name)
    ours, notes = read(THEIRS / name)
    assert_equal(ours, as_ours(load(THEIRS / name, layout)))
    assert module.LAYOUTS[layout] in notes[0]
    assert len(notes) == 1


@pytest.mark.parametrize(
    ("name", "count"), [("w2v_keyedvectors_load_test.modeldata", 2), ("pang_lee_polarity_fasttext.vec", 5)]
)
def test_bytes_that_are_not_utf8_are_replaced_as_gensim_does_it(name: str, count: int) -> None:
    ours, notes = read(THEIRS / name)
    assert_equal(ours, as_ours(load(THEIRS / name, "text", unicode_errors="replace")))
    assert notes[-1] == f"{THEIRS / name}: invalid UTF-8 in {count} words replaced by U+FFFD"


@pytest.mark.parametrize("name", ["toy-model.bin", "varembed_morfessor.bin", "questions-words.txt", "testcorpus.txt"])
def test_files_in_gensims_wheel_that_are_no_vectors(name: str) -> None:
    assert not layout_of(THEIRS / name)
    with pytest.raises(KeelError, match=f"{name}.* is no word vector file"):
        read_vectors(THEIRS / name)


def test_a_file_whose_header_is_wrong_in_gensims_wheel() -> None:
    with pytest.raises(KeelError, match=r"pretrained\.vec:1: the first line says 3 words, but 1 follow"):
        read_vectors(THEIRS / "pretrained.vec")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress, "zst"])
def test_compressed(tmp_path: Path, layout: Layout, pack: Callable[[bytes], bytes] | str) -> None:
    if isinstance(pack, str):
        pack = pytest.importorskip("zstandard").ZstdCompressor().compress
    assert not isinstance(pack, str)
    path = tmp_path / "vectors"
    vectors = make_vectors([f"word{number}" for number in range(2000)], 40)
    write_vectors(path, vectors, layout=layout)
    path.write_bytes(packed := pack(path.read_bytes()))
    assert layout_of(path)
    assert_equal(read_vectors(path), vectors)
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(KeelError, match=r"vectors is damaged or truncated .*: download or compress it again"):
        read_vectors(path)


def test_numbers_are_those_of_python(tmp_path: Path) -> None:
    rng = random.Random(1)
    signs, digits = ("", "-", "+"), "0123456789"
    numbers = ["0", "-0", "0.0", ".5", "5.", "1e5", "1E+05", "1e-45", "3.4e38", "1e22", "1e23", "9007199254740993"]
    numbers += ["0." + "0" * 40 + "1", "1" + "0" * 30, "8999999999999999", "0.1" + "9" * 30, "16777217", "1e-0400"]
    for _ in range(20_000):
        whole = "".join(rng.choices(digits, k=rng.randint(1, 9)))
        part = "".join(rng.choices(digits, k=rng.choice((0, 3, 6, 8, 17))))
        power = rng.choice(("", "", f"e{rng.randint(-30, 25)}", f"E+{rng.randint(0, 9):02}"))
        numbers.append(f"{rng.choice(signs)}{whole}{'.' if part else ''}{part}{power}")
    (tmp_path / "vectors").write_text("".join(f"w{place} {number}\n" for place, number in enumerate(numbers)))
    ours = read_vectors(tmp_path / "vectors").matrix[:, 0]
    assert ours.tobytes() == np.array([float(number) for number in numbers]).astype(np.float32).tobytes()


@pytest.mark.parametrize(
    "text",
    [
        b"2 3\r\na 1 2 3\r\nb 4 5 6\r\n",
        b"2\t3\na\t1\t2\t3\nb\t4\t5\t6",
        b"\xef\xbb\xbf2 3\na 1 2 3\nb 4 5 6\n",
        b"\xef\xbb\xbfa 1 2 3\nb 4 5 6\n",
        b"a  1  2 3  \nb 4 5 6 \n\n \n\n",
        b"2 3\na 1 2 3 \nb 4 5 6 \n\n",
        b"2 3 \na 1e0 0.2e+1 +3\nb 4 5 6",
    ],
)
def test_ways_to_write_a_line(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "vectors").write_bytes(text)
    expected = Vectors(["a", "b"], np.array([[1, 2, 3], [4, 5, 6]], np.float32))
    assert_equal(read_vectors(tmp_path / "vectors"), expected)
    assert layout_of(tmp_path / "vectors")


def test_words_with_spaces_in_glove(tmp_path: Path) -> None:
    """As in the file of 840 billion words."""
    vectors = make_vectors([". . .", "the", "at name@domain.com", "2 b", "a"], 5)
    write_vectors(tmp_path / "vectors", vectors, layout="glove")
    assert_equal(read_vectors(tmp_path / "vectors"), vectors)


@pytest.mark.parametrize("newline", [b"", b"\n"])
def test_binary_with_and_without_newlines(tmp_path: Path, newline: bytes) -> None:
    vectors = make_vectors(["the", "of", "皇帝"], 10)
    pairs = zip(vectors.words, vectors.matrix, strict=True)
    rows = [b"%b %b%b" % (word.encode(), row.tobytes(), newline) for word, row in pairs]
    (tmp_path / "vectors").write_bytes(b"3 10\n" + b"".join(rows))
    assert_equal(read_vectors(tmp_path / "vectors"), vectors)


def test_a_copy_that_differs_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, vectors = tmp_path / "x.txt", Vectors(["a", "b"], np.eye(2, dtype=np.float32))
    path.write_bytes(b"old")
    monkeypatch.setattr(module, "read_vectors", lambda path: Vectors(["a", "c"], vectors.matrix))
    with pytest.raises(KeelError, match="differ when they are read back"):
        write_vectors(path, vectors, layout="text")
    assert path.read_bytes() == b"old"


def test_small_binary_files_are_never_taken_for_text(tmp_path: Path) -> None:
    path = tmp_path / "vectors"
    for seed in range(300):
        generator = np.random.default_rng(seed)
        shape = (int(generator.integers(2, 5)), int(generator.integers(2, 5)))
        vectors = Vectors(["1", "b", "3", "d"][: shape[0]], generator.normal(size=shape).astype(np.float32))
        write_vectors(path, vectors, layout="binary")
        assert layout_of(path)
        assert_equal(read_vectors(path), vectors)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("block", [16, 1 << 22])
def test_of_duplicates_the_first_is_kept(
    tmp_path: Path, layout: Layout, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    path = tmp_path / "vectors"
    vectors = make_vectors(["a", "b", "c", "d", "e"])
    write_vectors(path, vectors, layout=layout)
    path.write_bytes(path.read_bytes().replace(b"c ", b"a ").replace(b"d ", b"a "))
    monkeypatch.setattr(module, "SAMPLE", max(block, 200))
    kept = Vectors(["a", "b", "e"], vectors.matrix[[0, 1, 4]])
    ours, notes = read(path)
    assert_equal(ours, kept)
    assert notes[1:] == [f"{path}: 2 duplicate words skipped; the first vector of each counts"]


def test_memory_is_the_matrix_and_a_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 1 << 16)
    monkeypatch.setattr(module, "SAMPLE", 1 << 16)
    words = [str(number) for number in range(8000)]
    vectors = Vectors(words, np.random.default_rng(0).normal(size=(8000, 300)).astype(np.float32))
    for layout in LAYOUTS:
        write_vectors(tmp_path / layout, vectors, layout=layout)
        read_vectors(tmp_path / layout)  # compiles
        tracemalloc.start()
        try:
            read_vectors(tmp_path / layout)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert vectors.matrix.nbytes < peak < 1.4 * vectors.matrix.nbytes


GOOD = b"the 1 2 3\nof 4 5 6\nand 7 8 9\n"
BINARY = b"2 3\nthe " + np.arange(3, dtype="<f4").tobytes() + b"of " + np.ones(3, "<f4").tobytes()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", " is empty: give a file of word vectors"),
        (b"\n \n", " is empty: give a file"),
        (b"once upon a time\nthere was\n", " is no word vector file .* give another file"),
        (b"\x00\x01\x02" * 100, " is no word vector file"),
        (b"5 3\n" + GOOD, ":1: the first line says 5 words, but 3 follow: download the file again if"),
        (b"2 3\n" + GOOD, ":1: the first line says 2 words, but 3 follow: .* correct that line"),
        (b"3 3\n", ":1: the first line says 3 words, but 0 follow"),
        (b"0 3\n", ":1: the first line says 0 words of 3 numbers, which is not plausible"),
        (b"3 0\n" + GOOD, ":1: the first line says 3 words of 0 numbers"),
        (b"3 4\n" + GOOD, ":2: the line has 3 numbers, but 4 are expected"),
        (b"3 3 3 3 3\n" + GOOD, ":1: the line has 4 numbers, but 3"),
        (GOOD + b"a 1 2", ":4: the line has 2 numbers, but 3 are expected .* truncated"),
        (GOOD + b"a", ":4: the line has 0 numbers, but 3"),
        (b"4 3\n" + GOOD + b"a 1 2", ":5: the line has 2 numbers, but 3"),
        (b"the 1 2 3\nof 4 5 6 7\nand 7 8 9", ":2: the line has 4 numbers, but 3"),
        (b"the 1 2\nof 4 5 6\nand 7 8 9", ":1: the line has 2 numbers, but 3"),
        (b"the 1 2 3\nof 4 x 6\nand 7 8 9", ":2: expected a word and 3 numbers, but 'x' is no number"),
        (b"the 1 2 3\nof 4 1e 6\nand 7 8 9", ":2: .* but '1e' is no number"),
        (b"the 1 2 3\nof 4 - 6\nand 7 8 9", ":2: .* but '-' is no number"),
        (b"the 1 2 3\n 4 5 6\nand 7 8 9", ":2: the word is empty: remove the line"),
        (b"the 1 2 3\n\nand 7 8 9", ":2: the word is empty"),
        (b"the 1 2 3\nof 4 nan 6\nand 7 8 9", ":2: the vector of 'of' contains NaN, infinity"),
        (b"the 1 2 3\nof 4 5 6\nand 7 8 -inf", ":3: the vector of 'and' contains NaN, infinity"),
        (b"the 1 2 3\nof 4 1e39 6\nand 7 8 9", ":2: the vector of 'of' contains .* too large for float32: remove that"),
        (b"the 1 2 3\nof 4 1e399 6\nand 7 8 9", ":2: the vector of 'of' contains .* too large"),
        (BINARY[:-1], ":1: the first line says 2 words of 3 numbers, but the file ends after 1: .* download it again"),
        (BINARY[:-14], ":1: the first line says 2 words of 3 numbers, but the file ends after 1"),
        (BINARY[:8] + b"\x00", ":1: .* but the file ends after 0"),
        (BINARY + b"and", ":1: the first line says 2 words of 3 numbers, but more data follows"),
        (BINARY.replace(b"2 3", b"999999999999999 3"), ":1: the first line says 9{15} words .* ends after 2"),
        (
            BINARY.replace(b"2 3", b"2 999999999999999"),
            ":1: the first line says 2 words of 9{15} numbers, which is not plausible",
        ),
        (BINARY.replace(b"of ", b" "), ", word 2: the word is empty: remove it"),
        (BINARY.replace(b"\x00\x00\x80?", b"\x00\x00\xc0\x7f"), ", word 1: the vector of 'the' contains NaN"),
    ],
)
@pytest.mark.parametrize("block", [5, 1 << 22])
def test_faults_are_reported(
    tmp_path: Path, content: bytes, message: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK", block)
    (tmp_path / "vectors").write_bytes(content)
    with pytest.raises(KeelError, match=f"vectors{message}") as caught:
        read_vectors(tmp_path / "vectors")
    assert "\n" not in str(caught.value)


def test_what_is_wrong_far_into_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 1000)
    monkeypatch.setattr(module, "SAMPLE", 1000)
    path = tmp_path / "vectors"
    lines = [f"word{number} 0.5 -0.25 3e-2" for number in range(5000)]
    lines[4321] = "word4321 0.5 nan 3e-2"
    path.write_text("\n".join(lines))
    with pytest.raises(KeelError, match="vectors:4322: the vector of 'word4321'"):
        read_vectors(path)


def test_no_line_and_no_word_is_endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK", 100)
    monkeypatch.setattr(module, "SAMPLE", 100)
    monkeypatch.setattr(module, "LONGEST", 1000)
    (tmp_path / "text").write_text("the 1 2\nof 1 2\n" + "x" * 5000)
    with pytest.raises(KeelError, match="text has a line of more than 1000 bytes"):
        read_vectors(tmp_path / "text")
    (tmp_path / "binary").write_bytes(BINARY.replace(b"2 3", b"9 3") + b"\x00" * 5000)
    with pytest.raises(KeelError, match="binary, word 3: the word has no end; the file is damaged: download it again"):
        read_vectors(tmp_path / "binary")


def test_what_is_no_file_of_vectors(tmp_path: Path) -> None:
    (tmp_path / "prose").write_text("12 5\nand then a line of prose\n")
    (tmp_path / "list").write_text("chapter 1\nchapter 2\n")
    (tmp_path / "empty").touch()
    assert not any(layout_of(tmp_path / name) for name in ("prose", "list", "empty", "missing", "."))
    with pytest.raises(KeelError, match=r"there is no file .*missing: check the name"):
        read_vectors(tmp_path / "missing")
    with pytest.raises(KeelError, match="is a folder"):
        read_vectors(tmp_path)


@pytest.mark.parametrize(
    ("word", "layout", "message"),
    [
        ("", "glove", "'' is empty"),
        ("a b", "text", "'a b' contains whitespace, which word2vec text cannot represent .*: rename it"),
        ("a b", "binary", "'a b' contains whitespace"),
        ("a\nb", "glove", "contains whitespace"),
        ("a\tb", "glove", "contains whitespace"),
        (" a", "glove", "contains whitespace"),
        ("a 5", "glove", "'a 5' contains whitespace"),
        ("\ud800", "text", "has a lone surrogate"),
        ("the", "text", "'the' is a duplicate"),
    ],
)
def test_words_that_cannot_be_written(tmp_path: Path, word: str, layout: Layout, message: str) -> None:
    with pytest.raises(KeelError, match=message):
        write_vectors(tmp_path / "vectors", make_vectors(["the", word]), layout=layout)
    assert not [*tmp_path.iterdir()]


def test_numbers_and_paths_that_cannot_be_written(tmp_path: Path) -> None:
    vectors = make_vectors(["the", "of"])
    with pytest.raises(KeelError, match="the vector of 'of' contains NaN"):
        write_vectors(
            tmp_path / "vectors", Vectors(vectors.words, np.array([[1.0], [np.nan]], np.float32)), layout="text"
        )
    with pytest.raises(KeelError, match="no vectors to write"):
        write_vectors(tmp_path / "vectors", Vectors([], np.empty((0, 5), np.float32)), layout="text")
    with pytest.raises(UsageError, match=r"leave out \.gz"):
        write_vectors(tmp_path / "vectors.gz", vectors, layout="text")
    (tmp_path / "file").touch()
    with pytest.raises(KeelError, match=r"cannot write .*file/vectors: "):
        write_vectors(tmp_path / "file" / "vectors", vectors, layout="text")
    (tmp_path / "folder").mkdir()
    with pytest.raises(KeelError, match=r"cannot write .*folder: Is a directory"):
        write_vectors(tmp_path / "folder", vectors, layout="text")
    assert {path.name for path in tmp_path.iterdir()} == {"file", "folder"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_full_disk_leaves_the_old_file(tmp_path: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "vectors"
    old = make_vectors(["the", "of"])
    write_vectors(path, old, layout=layout)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(KeelError, match=r"no space left on the disk to write .*vectors: free some"):
            write_vectors(path, make_vectors(["a", "b", "c"]), layout=layout)
    assert [one.name for one in tmp_path.iterdir()] == ["vectors"]
    assert_equal(read_vectors(path), old)


def test_an_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: Any) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_encode", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_vectors(tmp_path / "vectors", make_vectors(["the"]), layout="text")
    assert not [*tmp_path.iterdir()]
