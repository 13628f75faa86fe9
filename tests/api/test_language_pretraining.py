"""Pre-training on a corpus of several languages."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import keel
from keel.api.run_folder import TOKENIZER
from keel.errors import Interrupted, KeelError, UsageError
from keel.model import Model
from tests.systems.tiny_systems import TINY, of_line

SHAPE: dict[str, Any] = {"layers": 2, "width": 64, "head_dim": 32, "sequence_length": 32, "max_positions": 64}
RUN: dict[str, Any] = {"batch": 8, "lr": 1e-3, "threads": 1, "device": "cpu", "log_every": 1}
QUICK: dict[str, Any] = {"vocabulary": 400, **RUN, **SHAPE}


@pytest.fixture(scope="module")
def languages(english_corpus: Path, chinese_corpus: Path) -> dict[str, Any]:
    german = [f"Der Bauer {number} wohnt im Tal. Er sieht das Feld." for number in range(150)]
    return {"en": english_corpus, "de": german, "zh": chinese_corpus}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, languages: dict[str, Any]) -> Path:
    out = tmp_path_factory.mktemp("models") / "base"
    keel.pretrain("bert", languages, out=out, steps=4, **QUICK)
    return out


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = (folder / "run" / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def weights(model: Model) -> dict[str, torch.Tensor]:
    return model.tensors()


def test_the_log_has_the_shares_and_the_loss_of_each_language(base: Path) -> None:
    notes = " ".join(event["text"] for event in events(base, "note"))
    assert "repeats their text: en " in notes
    evaluations = events(base, "evaluation")
    assert [event["step"] for event in evaluations] == [0, 4]
    assert all(event["parts"].keys() == {"en", "de", "zh"} for event in evaluations)
    low, high = min(evaluations[0]["parts"].values()), max(evaluations[0]["parts"].values())
    assert low <= evaluations[0]["loss"] <= high
    assert evaluations[0]["loss"] == pytest.approx(sum(evaluations[0]["losses"].values()))
    (run,) = keel.runs(base).runs
    assert [point.value for point in run.curves["validation loss: de"]] == [
        event["parts"]["de"] for event in evaluations
    ]
    assert "validation loss by part | en " in (base / "README.md").read_text(encoding="utf-8")


def test_an_interrupted_run_ends_as_if_it_had_not_been(base: Path, languages: dict[str, Any], tmp_path: Path) -> None:
    def interrupt(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["step"] == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match="step 2/4"):
        keel.pretrain("bert", languages, out=tmp_path / "m", steps=4, on_event=interrupt, **QUICK)
    model = keel.pretrain("bert", languages, out=tmp_path / "m", steps=4, progress=False, **QUICK)
    expected = weights(Model.load(base))
    assert all(torch.equal(expected[name], value) for name, value in weights(model).items())


def test_another_smoothing_is_another_run(base: Path, languages: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="smoothing"):
        keel.pretrain("bert", languages, out=base, steps=4, language_smoothing=0.3, progress=False, **QUICK)
    others = {**languages, "de": languages["de"][:-1]}
    with pytest.raises(UsageError, match="overwrite"):
        keel.pretrain("bert", others, out=base, steps=4, progress=False, **QUICK)


def test_smoothing_is_no_part_of_a_run_on_one_language(english_corpus: Path, tmp_path: Path) -> None:
    keel.pretrain("bert", english_corpus, out=tmp_path / "m", steps=2, progress=False, **QUICK)
    state = next((tmp_path / "m" / "run" / "checkpoints").glob("*/*.json"))
    assert "smoothing" not in state.read_text(encoding="utf-8")
    before = [*(tmp_path / "m" / "run").glob(f"{TOKENIZER}*")]
    keel.pretrain("bert", english_corpus, out=tmp_path / "m", steps=2, language_smoothing=0.1, progress=False, **QUICK)
    assert [*(tmp_path / "m" / "run").glob(f"{TOKENIZER}*")] == before
    assert "parts" not in events(tmp_path / "m", "evaluation")[0]


@pytest.mark.parametrize("system", ["ngram", "word2vec", "glove", "fasttext", "elmo", "gpt", "electra", "wordclass"])
def test_every_kind_of_system_reads_several_languages(system: str, languages: dict[str, Any], tmp_path: Path) -> None:
    settings = {**of_line(TINY, system, {})}
    if "steps" in settings:
        settings["steps"] = 2
    notes: list[dict[str, Any]] = []
    model = keel.pretrain(
        system, languages, out=tmp_path / "m", on_event=notes.append, threads=1, device="cpu", **settings
    )
    assert len(model.tokenizer) > 20
    assert any("repeats their text" in event.get("text", "") for event in notes)


def test_next_sentence_prediction_names_the_language_of_one_document(languages: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(KeelError, match="de: "):
        keel.pretrain("bert", {**languages, "de": ["Ein Dokument. " * 60]}, out=tmp_path / "m", steps=2,
                      held_out=0.2, progress=False, **QUICK)  # fmt: skip
