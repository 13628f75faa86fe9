"""Small commands and what they say: segment, a mistyped system, a longer run, the card's command, info."""

import json
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import keel
from keel.cli import main
from keel.config import replace
from keel.data.sentence_splitting import detokenize

BERT = keel.Bert(layers=1, width=16, head_dim=16, max_positions=32, sequence_length=32, dropout=0.0)
SIZE = ["--system.layers", "1", "--system.width", "16", "--system.head_dim", "16", "--system.sequence_length", "32"]


def test_chinese_text_is_segmented(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jieba")
    assert main(["segment", "我来到北京清华大学"]) == 0
    assert capsys.readouterr().out == "我 来到 北京 清华大学\n"
    (tmp_path / "two.txt").write_text("我来到北京\n\n清华大学", encoding="utf-8")
    assert main(["segment", str(tmp_path / "two.txt"), "--json"]) == 0
    found = [json.loads(line)["words"] for line in capsys.readouterr().out.splitlines()]
    assert found == [["我", "来到", "北京"], [], ["清华大学"]]
    assert keel.segment(["我来到北京", "ok then"]) == [["我", "来到", "北京"], ["ok", "then"]]


def test_a_trained_segmenter_is_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.txt").write_text("我 来到 北京\n他 在 北京\n" * 4, encoding="utf-8")
    quick: dict[str, Any] = {"steps": 1, "batch": 4, "dev": None, "device": "cpu", "progress": False}
    model = keel.finetune(BERT, tmp_path / "train.txt", task="tag", format="segmented", out=tmp_path / "m", **quick)
    assert main(["segment", "我在北京", "--model", str(tmp_path / "m")]) == 0
    assert capsys.readouterr().out.split() == model.predict("我在北京").segmented_words
    keel.finetune(BERT, [("a", "x"), ("b", "y")] * 4, out=tmp_path / "other", **quick)
    assert main(["segment", "我在北京", "--model", str(tmp_path / "other")]) == 2
    assert "does not segment" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [[], ["--size", "mini"], ["--steps", "3"]])
@pytest.mark.parametrize("verb", ["pretrain", "finetune"])
def test_a_mistyped_system_is_reported_as_such(
    verb: str, flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "c.txt").write_text("some text\n")
    assert main([verb, "brt", str(tmp_path / "c.txt"), *flags, "--out", str(tmp_path / "m")]) == 2
    assert "'brt' is neither a system nor a model folder: did you mean 'bert'?" in capsys.readouterr().err


def test_a_finished_run_its_command_and_its_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my corpus.txt").write_text("the old boat was small .\na new boat .\n\n" * 30)
    out = tmp_path / "m"
    line = ["pretrain", "bert", str(tmp_path / "my corpus.txt"), "--batch", "2", "--device", "cpu", *SIZE]
    assert main([*line, "--steps", "2", "--out", str(out), "--quiet"]) == 0
    assert main([*line, "--steps", "4", "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert f"continue from the model {out} with another --out" in error
    command = keel.Model.load(out).card.command
    assert shlex.split(command) == ["keel", *line, "--steps", "2", "--out", str(out)]
    assert command in (out / "README.md").read_text(encoding="utf-8")
    assert main(["info", str(out), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["command"] == command
    differs = facts["not default"].split(", ")
    assert {"layers 1", "width 16", "steps 2", "batch 2"} <= {*differs}
    assert not [setting for setting in differs if setting.startswith(("lr ", "optimizer", "mask_rate", "tokenizer"))]


def test_the_card_of_a_python_run_has_the_call() -> None:
    quick: dict[str, Any] = {"steps": 1, "batch": 4, "dev": None, "device": "cpu"}
    model = keel.finetune(BERT, [("a", "x"), ("b", "y")] * 4, progress=False, **quick)
    call = model.card.command
    assert call.startswith("keel.finetune(keel.Bert(layers=1, width=16, ")
    assert call.endswith("..., steps=1, batch=4, dev=None, device='cpu')")
    again = keel.finetune(replace(BERT, layers=2), [("a", "x"), ("b", "y")] * 4, progress=False, **quick)
    assert "layers=2" in again.card.command


def test_words_are_joined_as_in_running_text() -> None:
    assert detokenize("it isn ' t here") == "it isn't here"
    words = ["He", "did", "n't", "go", "(", "now", ")", ",", "Anna", "'s", "boat", "costs", "$", "5", "!"]
    assert detokenize(" ".join(words)) == "He didn't go (now), Anna's boat costs $5!"
    parts = [detokenize(" ".join(words[:count])) for count in range(1, len(words) + 1)]
    assert all(later.startswith(earlier) for earlier, later in pairwise(parts))


def test_generated_words_are_detokenised(tmp_path: Path) -> None:
    quick: dict[str, Any] = {"steps": 30, "batch": 4, "lr": 1e-2, "device": "cpu", "progress": False}
    system = keel.Gpt(layers=1, width=16, head_dim=16, max_positions=32, sequence_length=32, dropout=0.0)
    text = ["the boat , the boat . the boat , the boat ."] * 40
    model = keel.pretrain(system, text, out=tmp_path / "m", tokenizer="words", **quick)
    found = keel.generate("the boat", model=model, tokens=12, temperature=0.5)
    assert " ," not in found
    assert " ." not in found
    assert "," in found or "." in found
