"""What vectors know, as verbs and as commands, from a folder and from a file."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keel
from keel.cli import main
from keel.errors import KeelError, UsageError
from keel.formats.vector_files import Vectors, write_vectors

WORDS = ["king", "queen", "man", "woman", "apple", "皇帝", "女皇", "男", "女"]
AXES = np.array([[2, 0, 1, 0], [2, 0, -1, 0], [-2, 0, 1, 0], [-2, 0, -1, 0], [0, 3, 0, 0]], np.float32)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """King is to queen what man is to woman, in English and in Chinese."""
    path = tmp_path_factory.mktemp("vectors") / "royal.vec"
    write_vectors(path, Vectors(WORDS, np.block([[AXES, 0 * AXES], [0 * AXES[:4], AXES[:4]]])), layout="text")
    return path


def test_a_file_answers_as_the_folder_made_of_it(file: Path, tmp_path: Path) -> None:
    keel.convert(file, tmp_path / "folder")
    keel.convert(tmp_path / "folder", tmp_path / "back.bin")
    for model in (file, tmp_path / "folder", tmp_path / "back.bin"):
        assert keel.nearest("king", model=model, top=1)[0].word == "queen"
        assert keel.analogy("king - man + woman", model=model, top=1)[0].word == "queen"
        assert keel.analogy("皇帝 - 男 + 女", model=model, top=1)[0].word == "女皇"
    with pytest.raises(UsageError, match="exists"):
        keel.convert(file, tmp_path / "back.bin")


def test_texts_of_ones_own_are_searched_by_their_words(file: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("the queen and the woman\nan apple\nthe king and the man\n")
    found = keel.nearest("king man", model=file, among=tmp_path / "notes.txt", top=2)
    assert found[0].word == "the king and the man"
    assert keel.similarity("king", "king", model=file) == pytest.approx(1.0)
    assert keel.similarity("king", "apple", model=file) == pytest.approx(0.0, abs=1e-6)


def test_vectors_are_judged_by_published_files(file: Path, tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("king\tqueen\t8\nman\twoman\t7\nking\tapple\t1\nking\tman\t5\n")
    (tmp_path / "questions.txt").write_text(": family\nman king woman queen\nking man queen woman\nx y z w\n")
    assert "4 pairs" in str(keel.evaluate(file, tmp_path / "pairs.tsv"))
    found = keel.evaluate(file, str(tmp_path / "questions.txt"), out=tmp_path / "out")
    assert (found.main_value, found.count) == (1, 2)
    assert '"unknown": 1' in (tmp_path / "out" / "scores.json").read_text()
    (tmp_path / "labels.tsv").write_text("text\tlabel\nthe old king\troyal\na red apple\tfruit\n")
    with pytest.raises(UsageError, match=r"royal\.vec has no task"):
        keel.evaluate(file, tmp_path / "labels.tsv")


def test_columns_of_a_benchmark_cannot_be_named(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_bytes("皇帝\t女皇\t8\n男\t女\t7\n皇帝\tapple\t1\n".encode("gb18030"))
    assert "3 pairs" in str(keel.evaluate(file, path, encoding="gb18030"))
    with pytest.raises(UsageError, match="text_column is for labelled examples"):
        keel.evaluate(file, path, text_column="1", encoding="gb18030")
    assert main(["evaluate", str(file), str(path), "--label-column", "3", "--encoding", "gb18030"]) == 2


def test_the_odd_one_out_of_words_between_commas(file: Path, tmp_path: Path) -> None:
    for words in ("皇帝、apple，女皇", "皇帝,apple, 女皇;", "皇帝；apple 女皇"):
        found = keel.odd(words, model=file)
        assert {one.word for one in found} == {"皇帝", "apple", "女皇"}
        assert found[0].word == "apple"
    write_vectors(
        tmp_path / "comma.vec", Vectors(["1,000", "1", "000", "a"], np.eye(4, dtype=np.float32)), layout="text"
    )
    known = keel.odd("1,000 a,1", model=tmp_path / "comma.vec")
    assert {one.word for one in known} == {"1,000", "a", "1"}, "what is known with its comma is one word"


def test_commands(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nearest", "king", "--model", str(file), "--top", "1"]) == 0
    assert capsys.readouterr().out.split()[1] == "queen"
    assert main(["analogy", "man - king + queen", "--model", str(file), "--by", "multiply"]) == 0
    assert "woman" in capsys.readouterr().out
    assert main(["similarity", "king", "queen", "--model", str(file)]) == 0
    assert -1 <= float(capsys.readouterr().out) <= 1
    assert main(["nearest", "kong", "--model", str(file)]) == 1
    assert "did you mean 'king'" in capsys.readouterr().err
    assert main(["odd", "king queen", "apple", "--model", str(file)]) == 0
    assert capsys.readouterr().out.split()[1] == "apple"
    (tmp_path / "questions.txt").write_text(": family\nman king woman queen\nx y z w\n")
    assert main(["evaluate", str(file), str(tmp_path / "questions.txt")]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "family 100.0% of 1, 1 more unknown"
    assert main(["odd", "king", "queen", "--model", str(file)]) == 2
    assert "needs three or more" in capsys.readouterr().err
    assert main(["similarity", "king", "--model", str(file)]) == 2


def test_words_of_a_vector_file_can_be_fine_tuned(file: Path) -> None:
    examples = [("the king", "royal"), ("an apple", "fruit"), ("the queen", "royal"), ("apple", "fruit")] * 5
    model = keel.finetune(file, examples, dev=None, epochs=20, lr=0.1, freeze=True)
    assert model.predict("queen").label == "royal"


def test_models_without_vectors_are_refused(tmp_path: Path) -> None:
    (tmp_path / "prose.txt").write_text("this is no file of vectors at all\n")
    with pytest.raises(KeelError):
        keel.nearest("this", model=tmp_path / "prose.txt")


def test_unknown_words_are_not_scored(file: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("the king\nan apple\n")
    with pytest.raises(KeelError, match="all words of 'zzzq' are unknown"):
        keel.similarity("zzzq", "king", model=file)
    with pytest.raises(KeelError, match="all words of 'zzzq qqqz' are unknown"):
        keel.nearest("zzzq qqqz", model=file, among=tmp_path / "notes.txt")
    assert keel.similarity("zzzq king", "king", model=file) == pytest.approx(1.0)


def test_info_of_a_file_of_vectors(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(file)]) == 0
    printed = capsys.readouterr().out
    for part in ("word2vec text", "words:          9", "width:          8", "norms:          2.24 to 3"):
        assert part in printed
    (tmp_path / "unit.txt").write_text("a 1 0\nb 0.6 0.8\na 0 1\n")
    assert main(["info", str(tmp_path / "unit.txt")]) == 0
    printed = capsys.readouterr().out
    for part in ("GloVe text", "words:          2", "normalised", "1 duplicate word"):
        assert part in printed
    (tmp_path / "prose.txt").write_text("this is prose\n")
    assert main(["info", str(tmp_path / "prose.txt")]) == 1
    assert "is no word vector file" in capsys.readouterr().err


BAD_FILES = {
    "header.vec": ("3 2\na 1 0\nb 0 1\n", ":1: the first line says 3 words, but 2 follow"),
    "short.vec": ("2 2\na 1 0\nb 0\n", ":3: the line has 1 numbers, but 2"),
    "nan.txt": ("a 1 0\nb nan 1\n", "the vector of 'b' contains NaN"),
    "mixed.txt": ("a 1 0\nb 0 1\nc 1 0 1\n", ":3: the line has 3 numbers, but 2"),
    "cut.bin": ("2 2\na \x00\x01\x02", "the file ends after 0"),
}


@pytest.mark.parametrize("name", BAD_FILES)
@pytest.mark.parametrize("words", ["nearest a --model FILE", "info FILE", "convert FILE OUT", "evaluate FILE PAIRS"])
def test_what_is_wrong_with_a_file_is_one_sentence(
    name: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, message = BAD_FILES[name]
    (tmp_path / name).write_text(text)
    (tmp_path / "pairs").write_text("a\tb\t1\n")
    given = {"FILE": tmp_path / name, "OUT": tmp_path / "out.vec", "PAIRS": tmp_path / "pairs"}
    assert main([str(given.get(word, word)) for word in words.split()]) == 1
    (sentence,) = capsys.readouterr().err.splitlines()
    assert message in sentence
    assert not (tmp_path / "out.vec").exists()


@pytest.mark.parametrize("name", ["out.csv", "out.pt", "out.txt.gz", "model.safetensors"])
def test_an_ending_that_is_not_written_is_refused(
    file: Path, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(file), str(tmp_path / name)]) == 2
    assert f"{name}: Keel writes vectors as .bin" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_tickets_of_ones_own_are_searched(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = ['1,"an apple, please"', "2,the queen and the woman", "3,man and king", "4,nothing that is known"]
    (tmp_path / "tickets.csv").write_text("id,message\n" + "\n".join(rows) + "\n")
    ask = ["nearest", "is my king a man", "--in", str(tmp_path / "tickets.csv"), "--model", str(file)]
    assert main([*ask, "--text-column", "message", "--top", "2"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.split(maxsplit=1) == ["1.0000", "man and king"]
    assert float(second.split()[0]) < 0.5
    assert main([*ask, "--text-column", "body"]) == 1
    assert "has no column 'body'" in capsys.readouterr().err
    assert main([*ask, "--approximate"]) == 2


def test_a_map_of_words(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = keel.word_map(file, out=tmp_path / "map.svg", pairs="king:queen man：woman", words="apple、皇帝")
    svg = path.read_text(encoding="utf-8")
    assert svg.count("<circle") == 6
    assert keel.word_map(file, out=path, pairs="king:queen man:woman").read_text().count("<polygon") == 2
    assert keel.word_map(file, out=tmp_path / "two.svg", words=["king", "女"]).read_text().count("<circle") == 2
    out = ["--out", str(tmp_path / "map.html")]
    assert main(["map", str(file), "--top", "5", "--pairs", "皇帝:女皇 男:女", *out]) == 0
    printed = capsys.readouterr()
    assert "9 words by PCA" in printed.err
    assert "in all dimensions: 1.00" in printed.err
    html = (tmp_path / "map.html").read_text(encoding="utf-8")
    assert html.count("<circle") == 9
    assert "royal.vec: a map" in html
    for wrong, message in {
        ("--words", "queen kong", *out): "did you mean 'king'",
        ("--words", "kong kang", *out): "'kong', 'kang'",
        ("--pairs", "king", *out): "is no pair",
        ("--words", "king", *out): "two words or texts or more",
        ("--out", str(tmp_path / "map.gif")): "must end in .svg",
        ("--out", str(tmp_path / "no" / "map.svg")): "cannot be written",
        ("--words", "king queen", "--by", "tsne", *out): "five points or more",
    }.items():
        assert main(["map", str(file), *wrong]) in (1, 2)
        assert message in capsys.readouterr().err


def test_a_map_page_fits_the_screen_and_leaves_out_unknown_words(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "map.html"
    line = ["map", str(file), "--words", "king queen man <b>", "--pairs", "king:queen man:nobody", "--out", str(out)]
    assert main([*line, "--title", "Kings & <queens>"]) == 0
    assert "unknown to the model: 'nobody', '<b>'" in capsys.readouterr().err
    html = out.read_text(encoding="utf-8")
    assert html.count("<circle") == 3
    assert html.count("<polygon") == 1
    assert "<h1>Kings &amp; &lt;queens&gt;</h1>" in html
    assert "<b>" not in html.replace("&lt;b&gt;", "")
    assert '<main class="fit">' in html
    assert html.count("<button") == 4
    assert not re.search(r"(src|href)=|https?://(?!www\.w3\.org/2000/svg)|@import", html.replace("link.href =", ""))


def test_neighbours_have_a_figure(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nearest", "king", "--model", str(file), "--top", "3", "--out", str(tmp_path / "near.html")]) == 0
    assert "near.html" in capsys.readouterr().err
    html = (tmp_path / "near.html").read_text(encoding="utf-8")
    assert html.count("<svg") == 2
    assert html.count("<rect") == 3
    assert html.count("<circle") == 4, "the word and its neighbours"
    texts = [f"the queen <{'x' * 200}>", "an apple"]
    picture = keel.nearest("king", model=file, among=texts, out=tmp_path / "near.svg")
    svg = (tmp_path / "near.svg").read_text(encoding="utf-8")
    assert svg.count("<rect") == len(picture) == 2
    assert "the queen &lt;xxx" in svg
    with pytest.raises(UsageError, match="must end in"):
        keel.nearest("king", model=file, out=tmp_path / "near.gif")


def test_of_many_uses_a_sample_is_compared(tmp_path: Path) -> None:
    file = tmp_path / "v.txt"
    file.write_text("2 2\nbank 1 0\nriver 0 1\n", encoding="utf-8")
    texts, notes = [f"bank {number}" for number in range(50)], list[str]()
    settings: dict[str, Any] = {"model": file, "sample": 5, "on_event": lambda event: notes.append(str(event))}
    found = keel.senses("bank", texts, **settings)
    assert len(found.uses) == 5
    assert any("50 times" in note for note in notes)
    assert keel.senses("bank", texts, **settings).uses == found.uses
    assert keel.senses("bank", texts, seed=1, **settings).uses != found.uses
    with pytest.raises(UsageError, match="sample"):
        keel.senses("bank", texts, model=file, sample=1)


def test_senses_and_layers_write_a_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["the <bank> of a river", "a bank lends money", "the old bank", "bank and bank"]
    system = keel.Bert(layers=2, width=16, head_dim=16, max_positions=32, sequence_length=32)
    examples = [(text, str(number % 2)) for number, text in enumerate(texts)] * 4
    settings: dict[str, Any] = {"steps": 1, "batch": 4, "dev": None, "mix": True, "device": "cpu", "progress": False}
    keel.finetune(system, examples, task="classify", out=tmp_path / "m", **settings)
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    line = ["senses", "bank", "--in", str(tmp_path / "texts.txt"), "--model", str(tmp_path / "m")]
    assert main([*line, "--beside", str(tmp_path / "m"), "--out", str(tmp_path / "s.html")]) == 0
    html = (tmp_path / "s.html").read_text(encoding="utf-8")
    assert html.count("<svg") == 2
    assert html.count("<rect") == 2 * 5 * 5
    assert "the &lt;[bank]&gt; of a river" in html
    assert main(["layers", str(tmp_path / "m"), "--out", str(tmp_path / "l.svg")]) == 0
    svg = (tmp_path / "l.svg").read_text(encoding="utf-8")
    assert svg.count("<rect") == 3
    capsys.readouterr()
    for wrong in ([*line, "--out", "s.gif"], ["layers", str(tmp_path / "m"), "--out", "l.txt"]):
        assert main(wrong) == 2
        assert "must end in .svg" in capsys.readouterr().err
