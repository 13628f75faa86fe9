"""What vectors know, as verbs and as commands, from a folder and from a file."""

from pathlib import Path

import numpy as np
import pytest

import keel
from keel.cli import main
from keel.errors import KeelError, UsageError
from keel.formats.vectors import Vectors, write_vectors

WORDS = ["king", "queen", "man", "woman", "apple", "皇帝", "女皇", "男", "女"]
AXES = np.array([[2, 0, 1, 0], [2, 0, -1, 0], [-2, 0, 1, 0], [-2, 0, -1, 0], [0, 3, 0, 0]], np.float32)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """King is to queen what man is to woman, in English and in Chinese."""
    path = tmp_path_factory.mktemp("vectors") / "royal.vec"
    write_vectors(path, Vectors(WORDS, np.block([[AXES, 0 * AXES], [0 * AXES[:4], AXES[:4]]])), form="text")
    return path


def test_a_file_answers_as_the_folder_made_of_it(file: Path, tmp_path: Path) -> None:
    keel.convert(file, tmp_path / "folder")
    keel.convert(tmp_path / "folder", tmp_path / "back.bin")
    for model in (file, tmp_path / "folder", tmp_path / "back.bin"):
        assert keel.nearest("king", model=model, top=1)[0].word == "queen"
        assert keel.analogy("king - man + woman", model=model, top=1)[0].word == "queen"
        assert keel.analogy("皇帝 - 男 + 女", model=model, top=1)[0].word == "女皇"
    with pytest.raises(UsageError, match="is there already"):
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
    with pytest.raises(UsageError, match=r"royal\.vec knows no task yet"):
        keel.evaluate(file, tmp_path / "labels.tsv")


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
    assert "takes three or more" in capsys.readouterr().err
    assert main(["similarity", "king", "--model", str(file)]) == 2
    assert main(["nearest", "king"]) == 2


def test_words_of_a_vector_file_can_be_fine_tuned(file: Path) -> None:
    examples = [("the king", "royal"), ("an apple", "fruit"), ("the queen", "royal"), ("apple", "fruit")] * 5
    model = keel.finetune(file, examples, dev=None, epochs=20, lr=0.1, freeze=True)
    assert model.predict("queen").name == "royal"


def test_what_has_no_vectors_says_so(tmp_path: Path) -> None:
    (tmp_path / "prose.txt").write_text("this is no file of vectors at all\n")
    with pytest.raises(KeelError):
        keel.nearest("this", model=tmp_path / "prose.txt")


def test_unknown_words_are_not_scored(file: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("the king\nan apple\n")
    with pytest.raises(KeelError, match="knows no word of 'zzzq'"):
        keel.similarity("zzzq", "king", model=file)
    with pytest.raises(KeelError, match="knows no word of 'zzzq qqqz'"):
        keel.nearest("zzzq qqqz", model=file, among=tmp_path / "notes.txt")
    assert keel.similarity("zzzq king", "king", model=file) == pytest.approx(1.0)
