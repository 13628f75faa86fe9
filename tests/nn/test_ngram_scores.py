"""Tag scores of n-grams: against a slow definition, and in taggers."""

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from keel.api.evaluation import evaluate
from keel.api.finetuning import finetune
from keel.errors import Interrupted
from keel.model import Model
from keel.nn.ngram_scores import UNSEEN, NgramScores, word_hash
from keel.systems.bert import Bert

SENTENCES = ["中国人民", "人民中国人", "中", "北京人"]
CHARACTERS = [
    (list("我在北京住"), ["O", "O", "B-LOC", "I-LOC", "O"]),
    (list("他在京北路"), ["O", "O", "O", "O", "O"]),
] * 4
"""Characters alone, or with the previous one, do not decide the first tag of 北京."""
QUICK: dict[str, Any] = {"task": "tag", "dev": None, "threads": 1, "device": "cpu"}


def ngrams_of(sentence: str, position: int) -> list[tuple[int, str]]:
    """Offset and text of the uni-, bi- and trigrams within two characters; "_" is beyond the sentence."""
    padded = f"__{sentence}__"[position : position + 5]
    return [(start, padded[start : start + size]) for size in (1, 2, 3) for start in range(6 - size)]


def hashes_of(sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
    flat = np.array([word_hash(character) for sentence in sentences for character in sentence], np.int64)
    return flat, np.cumsum([0, *map(len, sentences)])


def padded(sentences: list[str]) -> torch.Tensor:
    rows = [torch.tensor([word_hash(character) for character in sentence]) for sentence in sentences]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def test_each_ngram_has_its_own_score() -> None:
    """Against a slow definition: with one nonzero row, exactly the words with that n-gram in its place have a score."""
    module = NgramScores(200, 1).eval()
    module.count(*hashes_of(SENTENCES))
    words = [(text, index) for text in SENTENCES for index in range(len(text))]
    ngrams = {ngram for text, index in words for ngram in ngrams_of(text, index)}
    expected = Counter(tuple(ngram in ngrams_of(text, index) for text, index in words) for ngram in ngrams)
    found: Counter[tuple[bool, ...]] = Counter()
    mask = padded(SENTENCES) != 0
    with torch.no_grad():
        for row in range(sum(expected.values())):
            module.scores.weight.zero_()
            module.scores.weight[row] = 1.0
            found[tuple(map(bool, module(padded(SENTENCES))[mask][:, 0].tolist()))] += 1
    assert found == expected


def test_only_the_most_frequent_ngrams_are_kept_if_there_is_room_for_few() -> None:
    module = NgramScores(3, 1).eval()
    module.count(*hashes_of(["中中中中中中", "国国"]))
    with torch.no_grad():
        module.scores.weight.fill_(1.0)
        found = module(padded(["中中中中中", "国国国国国"]))
    assert found[0].sum() > 0
    assert found[1].sum() == 0


def test_rare_ngrams_are_dropped_more_often() -> None:
    module = NgramScores(1000, 1).train()
    module.count(*hashes_of(["甲乙丙丁戊"] * 2 + ["天地人日月"] * 200))
    with torch.no_grad():
        module.scores.weight.fill_(1.0)
    torch.manual_seed(0)
    rare, frequent = (module(padded([text] * 1000))[:, 2].mean().item() / 12 for text in ("甲乙丙丁戊", "天地人日月"))
    assert rare == pytest.approx(2 / (2 + UNSEEN), abs=0.02)
    assert frequent == pytest.approx(200 / (200 + UNSEEN), abs=0.01)
    assert module.eval()(padded(["甲乙丙丁戊"])).eq(12).all()


def test_a_crf_on_chinese_characters_has_them_by_default(tmp_path: Path) -> None:
    model = finetune("word2vec", CHARACTERS, crf=True, epochs=40, out=tmp_path / "m", **QUICK)
    assert evaluate(model, CHARACTERS).main_value == 1.0
    again = Model.load(tmp_path / "m")
    assert again.task is not None
    assert again.task.settings["window_ngrams"] == 1 << 19
    assert again.predict(["我在北京住"]) == model.predict(["我在北京住"])
    without = finetune("word2vec", CHARACTERS, crf=True, window_ngrams=0, epochs=40, **QUICK)
    assert without.task is not None
    assert without.task.settings == {"crf": True}


def test_other_taggers_have_them_if_requested() -> None:
    english = [(["in", "New", "York"], ["O", "B-LOC", "I-LOC"]), (["a", "New", "boat"], ["O", "O", "O"])] * 3
    system = Bert(layers=1, width=16, head_dim=8, max_positions=32, sequence_length=32)
    for base, data in (("word2vec", english), (system, CHARACTERS)):
        plain = finetune(base, data, crf=True, epochs=1, **QUICK)
        assert plain.task is not None
        assert "window_ngrams" not in plain.task.settings
    model = finetune("word2vec", english, crf=True, window_ngrams=500, epochs=30, **QUICK)
    assert evaluate(model, english).main_value == 1.0


def test_a_stopped_run_resumes_to_the_same_bits(tmp_path: Path) -> None:
    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["step"] == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    settings = QUICK | {
        "crf": True,
        "window_ngrams": 300,
        "network": "lstm",
        "network_width": 4,
        "steps": 8,
        "batch": 4,
    }
    settings |= {"width": 4, "log_every": 1}
    whole = finetune("word2vec", CHARACTERS, out=tmp_path / "whole", **settings)
    with pytest.raises(Interrupted):
        finetune("word2vec", CHARACTERS, out=tmp_path / "cut", on_event=stop, **settings)
    again = finetune("word2vec", CHARACTERS, out=tmp_path / "cut", **settings)
    assert whole.tensors()["ngrams.scores.weight"].any()
    for name, value in whole.tensors().items():
        assert torch.equal(again.tensors()[name], value), name
