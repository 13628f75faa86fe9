"""A small model and its files, and a way to run commands inside this process."""

from collections.abc import Callable
from pathlib import Path

import pytest

from keel.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, english_corpus: Path, tiny: list[str]) -> Path:
    """With `base`, a pre-trained model; `tuned` and `mixed`, that model fine-tuned; and labelled files."""
    folder = tmp_path_factory.mktemp("cli")
    sea = [f"the sailor paints boat number {number}" for number in range(20)]
    food = [f"the baker serves cake number {number}" for number in range(20)]
    rows = [
        f"{text}\t{label}"
        for pair in zip(sea, food, strict=True)
        for text, label in zip(pair, ("sea", "food"), strict=True)
    ]
    (folder / "train.tsv").write_text("\n".join(["sentence\tlabel", *rows[:30]]) + "\n")
    (folder / "test.tsv").write_text("\n".join(["sentence\tlabel", *rows[30:]]) + "\n")
    assert main(["pretrain", "bert", str(english_corpus), *tiny, "--steps", "3", "--out", str(folder / "base")]) == 0
    tuning = ["--epochs", "1", "--test", str(folder / "test.tsv"), "--out", str(folder / "tuned")]
    assert main(["finetune", str(folder / "base"), str(folder / "train.tsv"), *tuning]) == 0
    mixing = ["--mix", "--epochs", "1", "--out", str(folder / "mixed")]
    assert main(["finetune", str(folder / "base"), str(folder / "train.tsv"), *mixing]) == 0
    return folder


@pytest.fixture(scope="session")
def ngram(tmp_path_factory: pytest.TempPathFactory, english_corpus: Path) -> Path:
    """The folder of a language model."""
    folder = tmp_path_factory.mktemp("language") / "ngram"
    assert main(["pretrain", "ngram", str(english_corpus), "--system.order", "3", "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command: exit code, stdout, stderr."""

    def run(*words: str | Path) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture(scope="session")
def tiny() -> list[str]:
    """Flags for a BERT that is trained in a moment."""
    shape = ["--size", "tiny", "--system.layers", "1", "--system.width", "64", "--system.sequence_length", "16"]
    return [*shape, "--text.vocabulary", "300", "--batch", "4"]


@pytest.fixture
def refused() -> Callable[..., None]:
    """Hold the result of a command to: this exit code, one sentence with these parts in it, nothing on stdout."""

    def refused(result: tuple[int, str, str], code: int, *parts: str) -> None:
        found, out, err = result
        sentence = err.splitlines()[-1]
        assert found == code, err
        assert not out
        assert sentence.startswith("keel: ")
        assert "Traceback" not in err
        assert "bug" not in err
        for part in parts:
            assert part in sentence

    return refused


@pytest.fixture(scope="session")
def small() -> list[str]:
    """Flags for a Transformer that is trained in a moment."""
    shape = ["--system.layers", "1", "--system.decoder_layers", "1", "--system.width", "16", "--system.head_dim", "8"]
    return [*shape, "--system.max_positions", "24", "--text.vocabulary", "280", "--batch", "4", "--steps", "2"]


@pytest.fixture(scope="session")
def desk(tmp_path_factory: pytest.TempPathFactory, small: list[str]) -> Path:
    """With train, val and test on both sides, and `ende`, a seq2seq model."""
    desk = tmp_path_factory.mktemp("rewrite")
    for name, count in (("train", 12), ("val", 4), ("test", 3)):
        for side, word in (("en", "boat"), ("de", "Boot")):
            (desk / f"{name}.{side}").write_text("".join(f"{word} {number}\n" for number in range(count)))
    sides = [str(desk / f"train.{side}") for side in ("en", "de")]
    held = [str(desk / f"val.{side}") for side in ("en", "de")]
    words = ["finetune", "transformer", *sides, "--task", "seq2seq", "--dev", *held, *small]
    assert main([*words, "--out", str(desk / "ende")]) == 0
    return desk
