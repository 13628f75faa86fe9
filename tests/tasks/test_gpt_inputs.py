"""GPT-1's way to write tasks down: start, delimiter and extract, whose vectors are learned with the task."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import keel
from keel.data.examples import read_examples
from keel.errors import KeelError
from keel.systems.gpt import TASK_TOKENS, Gpt
from keel.tasks.choose import MultipleChoice

GPT = Gpt(layers=1, width=32, head_dim=16, max_positions=32, sequence_length=32, dropout=0.0, attention_dropout=0.0)
CORPUS = ["the film was old . the house was red .", "a story of an actor . it was long and quiet ."] * 20
TEXTS = [("red house old", "good"), ("the film", "bad"), ("a quiet story and actor", "good"), ("long film", "bad")]
QUICK: dict[str, Any] = {"dev": None, "steps": 6, "batch": 4}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> keel.Model:
    out = tmp_path_factory.mktemp("gpt") / "base"
    return keel.pretrain(GPT, keel.Corpus.of(CORPUS), out=out, steps=5, batch=4, vocabulary=300, held_out=0.0)


def rows_of(model: keel.Model, examples: Any) -> list[list[int]]:
    assert model.task is not None
    data = model.task.encode_examples(examples, labelled=False)
    return [data.ids[a:b].tolist() for a, b in zip(data.starts[:-1], data.starts[1:], strict=True)]


def test_the_four_inputs_id_by_id(base: keel.Model):
    start, delimiter, extract = range(len(base.tokenizer), len(base.tokenizer) + 3)

    def ids(text: str) -> list[int]:
        return base.tokenizer.encode(text).ids

    alone = keel.finetune(base, TEXTS, **QUICK)
    assert [alone.tokenizer.token_of(number) for number in (start, delimiter, extract)] == list(TASK_TOKENS)
    texts = read_examples(["the film"], pair=False)
    assert rows_of(alone, texts) == [[start, *ids("the film"), extract]]

    entailed = [("the film", "old", "yes"), ("the house", "long", "no")] * 4
    pair = keel.finetune(base, entailed, task="pair", **QUICK)
    pairs = read_examples([("the film", "old")], pair=True)
    one = [start, *ids("the film"), delimiter, *ids("old"), extract]
    assert rows_of(pair, pairs) == [one]

    alike = [("the film", "old", 0.5), ("the house", "long", 1.25)] * 4
    similar = keel.finetune(base, alike, task="pair", **QUICK)
    assert rows_of(similar, pairs) == [one, [start, *ids("old"), delimiter, *ids("the film"), extract]]
    there, back = similar.predict([("the film", "old"), ("old", "the film")])
    assert there == pytest.approx(back, abs=1e-5)
    forced = keel.finetune(base, alike, task="pair", orders="given", **QUICK)
    assert rows_of(forced, pairs) == [one]

    questions = [(("the film was", ["old", "a house", "long"]), 0), (("the actor was", ["quiet", "it"]), 1)] * 4
    chooser = keel.finetune(base, questions, task="choose", **QUICK)
    assert rows_of(chooser, MultipleChoice.read_examples([("the film was", ["old", "a house"])])) == [
        [start, *ids("the film was"), delimiter, *ids(choice), extract] for choice in ("old", "a house")
    ]


def test_the_head_reads_the_last_position_and_new_special_tokens_learn(base: keel.Model):
    before = {name: tensor.clone() for name, tensor in base.encoder.state_dict().items()}
    model = keel.finetune(base, TEXTS, lr=1e-3, **QUICK)
    old, new = len(base.tokenizer), len(model.tokenizer)
    assert new == old + 3 == model.encoder.vocab_size
    assert all(torch.equal(tensor, before[name]) for name, tensor in base.encoder.state_dict().items())
    assert len(base.tokenizer) == base.encoder.vocab_size == old
    assert base.tokenizer.special_token_id(TASK_TOKENS[0]) is None
    words = model.encoder.word_embeddings()
    assert words is not None
    again = keel.finetune(base, TEXTS, lr=1e-9, **QUICK).encoder.word_embeddings()
    assert again is not None
    assert torch.allclose(again[:old], before["words.weight"], atol=1e-6)
    assert not torch.allclose(words[old], again[old], atol=1e-5)
    assert torch.allclose(words[old + 1], again[old + 1], atol=1e-5), "no row of one text has a delimiter"


def test_a_grown_model_is_saved_loaded_and_taken_up_again(base: keel.Model, tmp_path: Path):
    settings: dict[str, Any] = {**QUICK, "steps": 12, "log_every": 4, "checkpoint_every": 4, "lm_loss": 0.5}
    whole = keel.finetune(base, TEXTS, out=tmp_path / "whole", **settings)
    loaded = keel.Model.load(tmp_path / "whole")
    assert loaded.fingerprint() == whole.fingerprint()
    assert [str(each) for each in loaded.predict([text for text, _ in TEXTS])] == [
        str(each) for each in whole.predict([text for text, _ in TEXTS])
    ]
    assert loaded.tokenizer.fingerprint() == whole.tokenizer.fingerprint()
    assert "pipeline_tag: feature-extraction" in (tmp_path / "whole" / "README.md").read_text()
    steps = [0]

    def stop(event: dict[str, Any]) -> None:
        steps[0] += event.get("event") == "step"
        if steps[0] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        keel.finetune(base, TEXTS, out=tmp_path / "part", on_event=stop, **settings)
    assert keel.finetune(base, TEXTS, out=tmp_path / "part", **settings).fingerprint() == whole.fingerprint()
    further = keel.finetune(loaded, TEXTS, **QUICK)
    assert len(further.tokenizer) == len(whole.tokenizer), "marks are added once"
    scratch = keel.finetune(loaded, TEXTS, from_scratch=True, **QUICK)
    assert scratch.encoder.vocab_size == whole.encoder.vocab_size
    (tmp_path / "whole" / "keel.safetensors").unlink()
    with pytest.raises(KeelError, match=r"whole lacks keel\.safetensors, .* of its task: copy the whole folder"):
        keel.Model.load(tmp_path / "whole")


def test_a_weight_that_is_one_number_is_taken_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def counting(name: str) -> None:
        make = getattr(Gpt, name)

        def refuse(*given: Any) -> torch.nn.Module:
            found = make(*given)
            found.register_buffer("seen", torch.tensor(0.0))
            return found

        monkeypatch.setattr(Gpt, name, refuse)

    counting("build_encoder")
    counting("build_objective")
    settings: dict[str, Any] = {"steps": 1, "batch": 4, "vocabulary": 300, "held_out": 0.0}
    counted = keel.pretrain(GPT, keel.Corpus.of(CORPUS), out=tmp_path / "base", **settings)
    with torch.no_grad():
        counted.encoder.get_buffer("seen").fill_(7.0)
    tuned = keel.finetune(counted, TEXTS, lm_loss=0.5, **QUICK)
    assert tuned.encoder.get_buffer("seen") == 7.0


def test_gpt_1_has_an_auxiliary_lm_loss(tmp_path: Path):
    first = keel.pretrain(
        replace(GPT, pre_norm=False),
        keel.Corpus.of(CORPUS),
        out=tmp_path / "base",
        steps=5,
        batch=4,
        vocabulary=300,
        held_out=0.0,
    )
    events: list[dict[str, Any]] = []
    keel.finetune(first, TEXTS, on_event=events.append, log_every=1, **QUICK)
    assert any("lm_loss=0.5, 0 for none" in event.get("text", "") for event in events)
    assert all(set(event["losses"]) == {"loss", "language"} for event in events if event.get("event") == "step")
    events.clear()
    keel.finetune(first, TEXTS, on_event=events.append, lm_loss=0.0, log_every=1, **QUICK)
    assert all(set(event["losses"]) == {"loss"} for event in events if event.get("event") == "step")
    events.clear()
    for settings in ({"freeze": True}, {"mix": True}):
        keel.finetune(first, TEXTS, on_event=events.append, **settings, **QUICK)
    assert not any("lm-loss" in event.get("text", "") for event in events)


def test_gpt_from_scratch_has_its_special_tokens():
    model = keel.finetune(GPT, TEXTS * 3, **QUICK)
    assert model.tokenizer.special_token_id(TASK_TOKENS[2]) == len(model.tokenizer) - 1
    assert model.encoder.vocab_size == len(model.tokenizer)
