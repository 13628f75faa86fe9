"""Results as the command line prints them: once, on stdout."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run

TEXTS = {"good": "fine boat bread sun", "bad": "dull rain mud fog", "odd": "blue clock stair"}


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "reviews.tsv"
    words = [(word, label) for label, text in TEXTS.items() for word in text.split()]
    rows = [f"the {word} and a {other}\t{label}" for word, label in words for other in ("house", "road", "door")]
    path.write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    return path


def test_scores_are_printed_once_on_stdout(run: Run, reviews: Path, tmp_path: Path) -> None:
    code, out, err = run("finetune", "onehot", reviews, "--dev", reviews, "--test", reviews, "--out", tmp_path / "m")
    assert code == 0, err
    assert [out.count(f"{name}: accuracy ") for name in ("dev", "test")] == [1, 1]
    assert "accuracy" not in err
    assert "macro F1" in out
    code, out, err = run(
        "finetune", "onehot", reviews, "--dev", reviews, "--test", reviews, "--seeds", 2, "--out", tmp_path / "seeds"
    )
    assert code == 0, err
    assert "test seeds: accuracy " in out
    assert [err.count(f"{name} (seed {seed})") for name in ("dev", "test") for seed in (0, 1)] == [1] * 4
    code, out, _ = run("evaluate", tmp_path / "m", reviews)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines() if len(line.split()) == 5 and line.split()[-1].isdigit()] == [
        "bad", "good", "odd",
    ]  # fmt: skip
    code, out, _ = run("evaluate", tmp_path / "m", reviews, "--json")
    assert json.loads(out)["by_label"]["odd"]["support"] == 9
    info = run("info", tmp_path / "m")[1]
    assert "accuracy" in info


def test_a_loss_name_does_not_read_as_a_sign(run: Run, english_corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "m"
    code, printed, err = run("pretrain", "word2vec", english_corpus, "--steps", 2, "--system.width", 8, "--out", out)
    assert code == 0, err
    assert "validation loss (negative sampling): " in printed
    card = (out / "README.md").read_text()
    assert "validation loss (negative sampling) |" in card
    for text in (printed, err, card, run("info", out)[1]):
        assert "negative " not in text.replace("negative sampling", "")


def test_suspects_with_and_without_a_number(run: Run, reviews: Path, tmp_path: Path) -> None:
    assert run("finetune", "onehot", reviews, "--dev", "none", "--out", tmp_path / "m")[0] == 0
    rows = reviews.read_text().splitlines()
    rows[4] = rows[4].replace("\tgood", "\todd")
    noisy = tmp_path / "noisy.tsv"
    noisy.write_text("\n".join(rows) + "\n")
    code, out, err = run("evaluate", tmp_path / "m", noisy, "--suspects")
    assert code == 0, err
    assert f"{noisy}:5: odd is rather good" in out
    code, out, _ = run("evaluate", tmp_path / "m", noisy, "--suspects", 1, "--json")
    found = json.loads(out)["suspects"]["found"]
    assert [(each["where"], each["label"], each["predicted"]) for each in found] == [(f"{noisy}:5", "odd", "good")]
    assert "has seen" in run("evaluate", tmp_path / "m", reviews, "--suspects")[2]
