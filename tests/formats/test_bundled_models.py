"""Models in the package: found by name wherever a model is expected, small, fast to load, and as their cards say."""

import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM

import keel
from keel.api import model_loading
from keel.api.model_loading import DEFAULTS, default_model
from keel.cli import main
from keel.errors import UsageError
from keel.events import ignore
from keel.formats.bundled_models import FOLDER, bundled_models, locate

MOST_BYTES = {
    "english": 28e6,
    "chinese": 22e6,
    "multilingual": 40e6,
    "english-gpt": 22e6,
    "english-words": 4e6,
    "chinese-words": 4e6,
}
PERSONAL = re.compile(r"[\w.+-]+@[\w-]+\.\w+|\+?\d[\d ()-]{8,}\d")
CHINESE = "中国的首都是北[MASK]。"


def test_every_bundled_model_is_a_default_within_its_size() -> None:
    names = {name for each in DEFAULTS.values() for name in each.values()}
    assert set(bundled_models()) <= names
    for name, folder in bundled_models().items():
        assert sum(path.stat().st_size for path in folder.iterdir()) <= MOST_BYTES[name]
        card = (folder / "README.md").read_text(encoding="utf-8")
        assert card.startswith("---\nlicense:")
        for word in ("Training data", "Licence", "Time"):
            assert f"| {word} |" in card
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        assert config["keel"]["card"]["title"] == name
        assert "/" not in config["keel"]["card"]["command"]
        assert not PERSONAL.search((folder / "tokenizer.json").read_text(encoding="utf-8"))


def test_a_file_or_folder_comes_before_a_bundled_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert locate("chinese") == FOLDER / "chinese"
    (tmp_path / "chinese").mkdir()
    assert locate("chinese") == Path("chinese")
    assert locate("klingon") == Path("klingon")


def test_loading_takes_less_than_half_a_second_of_cpu_time() -> None:
    keel.Model.load("chinese")
    start = time.process_time()
    keel.Model.load("chinese")
    assert time.process_time() - start < 1.0, "with two threads, half of it"


def test_the_chinese_encoder_fills_masks_by_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert keel.fill(CHINESE)[0][0].word == "京"
    assert main(["fill", CHINESE]) == 0
    out, err = capsys.readouterr()
    assert out.split()[1] == "京"
    assert "model: chinese, which comes with Keel; choose another one with --model" in err


def test_texts_are_embedded_and_compared_without_a_model() -> None:
    first, second = keel.embed(["今天天气很好", "今天天气不错"])
    assert first.shape == (384,)
    cosine = float(first @ second / np.linalg.norm(first) / np.linalg.norm(second))
    assert keel.similarity("今天天气很好", "今天天气不错") == pytest.approx(cosine, abs=1e-5)
    assert keel.similarity("今天天气很好", "股票市场下跌") < cosine


def test_without_a_model_for_the_language_one_must_be_named() -> None:
    with pytest.raises(UsageError, match="Keel comes with no causal language model for Chinese: choose a model with"):
        default_model("causal language model", "你好", ignore)


@pytest.mark.parametrize(
    ("text", "expected", "notes"),
    [
        ("The farmer has seen the boat.", "english", 1),
        ("Der Bauer hat das Boot gesehen.", "english", 2),
        ("die me", "english", 1),
        ("42", "english", 1),
        ("今天天气很好", "chinese", 1),
        ("Он не видел лодку.", "", 0),
        ("谷に住む農夫は誰も見なかった。", "", 0),
        ("Ο αγρότης δεν είδε κανέναν.", "", 0),
    ],
)
def test_the_language_of_a_text_decides(text: str, expected: str, notes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = {"english": Path("english"), "chinese": Path("chinese")}
    monkeypatch.setattr(model_loading, "bundled_models", lambda: folders)
    events: list[dict[str, Any]] = []
    if not expected:
        with pytest.raises(UsageError, match="choose a model with"):
            default_model("encoder", text, events.append)
        return
    assert default_model("encoder", text, events.append) == expected
    assert len(events) == notes
    folders["multilingual"] = Path("multilingual")
    assert default_model("encoder", "Он не видел лодку.", events.append) == "multilingual"


def test_a_name_is_a_model_where_a_folder_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "chinese"]) == 0
    assert "24,844,546" in capsys.readouterr().out
    texts = [("很好", "正"), ("很差", "负")] * 4
    tuned = keel.finetune("chinese", texts, dev=None, steps=1, progress=False)
    assert tuned.card.parent == "chinese"
    with pytest.raises(UsageError, match="did you mean 'chinese'"):
        keel.finetune("chinees", texts)


def test_a_converted_copy_has_equal_outputs_in_transformers(tmp_path: Path) -> None:
    keel.convert("chinese", tmp_path / "copy")
    theirs = AutoModelForMaskedLM.from_pretrained(tmp_path / "copy")
    ours = keel.Model.load("chinese", device="cpu")
    ids = ours.system.build_inputs(ours.tokenizer, ours.tokenizer.encode(CHINESE).ids).ids
    position = ids.index(ours.tokenizer.mask_id)
    with torch.inference_mode():
        probabilities = theirs(torch.tensor([ids])).logits[0, position].softmax(-1)
    for word, probability in ours.fill(CHINESE, top=3)[0]:
        assert float(probabilities[ours.tokenizer.encode(word).ids[0]]) == pytest.approx(probability, abs=1e-5)


def test_no_personal_data_is_predicted() -> None:
    """The masks of an address and of a phone number are not filled by one."""
    model, mask = keel.Model.load("chinese", device="cpu"), "[MASK]"
    for prompt in (f"电子邮件：{4 * mask}@{2 * mask}.com", f"电话：{11 * mask}"):
        assert PERSONAL.search(prompt.replace(mask, "1")), "what would be found"
        for words in model.fill(prompt):
            prompt = prompt.replace(mask, words[0].word, 1)
        assert not PERSONAL.search(prompt)
