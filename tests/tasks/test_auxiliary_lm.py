"""The auxiliary language model loss on a task's sequences."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import keel
from keel.data.examples import read_examples
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.systems.gpt import Gpt, GptBatch
from keel.systems.rnn import Rnn, RnnBatch, RnnEncoder, RnnPretraining
from keel.systems.ulmfit import Ulmfit
from keel.tasks.auxiliary_lm import AuxiliaryLM, has_next_token
from keel.tasks.classify import TextClassification
from keel.training.counter_rng import CounterRng

RNN = Rnn(width=16, layers=1, dropout=0.0)
TEXTS = [("red house old", "good"), ("the film", "bad"), ("a quiet story and actor", "good"), ("blue garden", "bad")]
GPT = Gpt(layers=1, width=32, head_dim=16, max_positions=16, sequence_length=16)
ULMFIT = Ulmfit(width=8, hidden_size=12, layers=2)


def build_task(system: Any, tokenizer: Tokenizer, **settings: Any) -> TextClassification:
    torch.manual_seed(0)
    labels = read_examples(TEXTS, pair=False).labels
    return TextClassification(system, system.build_encoder(len(tokenizer)), tokenizer, labels, **settings).eval()


@pytest.mark.parametrize("system", [RNN, ULMFIT, GPT], ids=["rnn", "ulmfit", "gpt"])
def test_it_is_the_objectives_own_loss_on_the_same_sequences(system: Any, tokenizer: Tokenizer):
    task = build_task(system, tokenizer)
    objective = system.build_objective(task.encoder, tokenizer).eval()
    both = AuxiliaryLM(task, objective, 0.5).eval()
    data = task.encode_examples(read_examples(TEXTS, pair=False), batch_size=4)
    batch = both.batch(data, CounterRng(seed=0, step=0, first_example=0, batch_size=4), range(4))
    assert batch.inputs is not None
    with torch.no_grad():
        losses, _ = both(batch)
        alone = 0.0
        for number in range(4):
            ids = torch.from_numpy(data.ids[data.starts[number] : data.starts[number + 1]].astype(np.int64))[None]
            alone += float(objective(GptBatch(ids=ids) if system is GPT else RnnBatch(ids=ids[:, None]))[0]["next"])
        assert float(losses["language"]) == pytest.approx(0.5 * alone, rel=1e-5)
        assert float(losses["loss"]) == pytest.approx(float(task(batch)[0]["loss"]), rel=1e-6)
    counts = both.counts(batch)
    assert counts["language"] == (data.lengths - 1).sum()
    assert counts["loss"] == 4


def test_tokens_that_follow_in_padded_and_in_packed_rows(tokenizer: Tokenizer):
    task = build_task(RNN, tokenizer)
    data = task.encode_examples(read_examples(TEXTS, pair=False), batch_size=4)
    index = np.arange(4)
    lengths = data.lengths.tolist()
    padded, packed = has_next_token(data.padded_batch(index)), has_next_token(data.packed_batch(index))
    assert padded.sum(1).tolist() == [length - 1 for length in lengths]
    ends = (np.cumsum(lengths) - 1).tolist()
    assert packed[0, : sum(lengths)].tolist() == [float(place not in ends) for place in range(sum(lengths))]
    assert not packed[0, sum(lengths) :].any()


def test_finetune_reports_both_losses_and_takes_a_run_up_again(tmp_path: Path):
    corpus = ["the film was old . the house was red .", "a story of an actor . it was long ."] * 20
    base = keel.pretrain(RNN, keel.Corpus.of(corpus), out=tmp_path / "base", steps=5, tokenizer="words", held_out=0.0)
    events: list[dict[str, Any]] = []
    settings: dict[str, Any] = {
        "dev": None,
        "steps": 12,
        "batch": 4,
        "log_every": 4,
        "checkpoint_every": 4,
        "lm_loss": 0.5,
    }
    whole = keel.finetune(base, TEXTS, out=tmp_path / "whole", on_event=events.append, **settings)
    losses = [event["losses"] for event in events if event.get("event") == "step"]
    assert losses
    assert all(set(found) == {"loss", "language"} for found in losses)
    stopped = [0]

    def stop(event: dict[str, Any]) -> None:
        stopped[0] += event.get("event") == "step"
        if stopped[0] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        keel.finetune(base, TEXTS, out=tmp_path / "part", on_event=stop, **settings)
    again = keel.finetune(base, TEXTS, out=tmp_path / "part", **settings)
    assert again.fingerprint() == whole.fingerprint()
    with pytest.raises(UsageError, match="lm_loss"):
        keel.finetune(base, TEXTS, out=tmp_path / "part", **{**settings, "lm_loss": 0.25})  # pyright: ignore[reportArgumentType]
    loaded = keel.Model.load(tmp_path / "whole")
    assert loaded.fingerprint() == whole.fingerprint()
    with pytest.raises(KeelError, match="rnn does not generate text after fine-tuning for classify: use the model"):
        keel.generate("the film", model=loaded)
    plain = keel.finetune(base, TEXTS, **{**settings, "lm_loss": 0.0})  # pyright: ignore[reportArgumentType]
    assert plain.fingerprint() != whole.fingerprint()


def test_what_was_learned_of_words_beside_the_encoder_is_taken_along(tmp_path: Path):
    corpus = ["the film was old . the house was red ."] * 20
    base = keel.pretrain(RNN, keel.Corpus.of(corpus), out=tmp_path / "base", steps=20, tokenizer="words", held_out=0.0)
    assert isinstance(base.objective, RnnPretraining)
    with torch.no_grad():
        base.objective.bias.fill_(3.0)
        base.objective.bias[7] = 30.0  # of a word that everything is then taken for
    events: list[dict[str, Any]] = []
    settings: dict[str, Any] = {"dev": None, "steps": 1, "batch": 4, "log_every": 1}
    keel.finetune(base, TEXTS, on_event=events.append, lm_loss=1.0, **settings)
    (found,) = [event["losses"]["language"] for event in events if event.get("event") == "step"]
    assert found > 15


@pytest.mark.parametrize(
    ("system", "settings", "messages"),
    [
        (
            keel.Bert(layers=1, width=16, head_dim=16, max_positions=16, sequence_length=16),
            {},
            "not a left-to-right language model",
        ),
        (replace(RNN, bidirectional=True), {}, "not a left-to-right language model"),
        (RNN, {"mix": True}, "lm_loss .*leave out network, characters, mix$"),
        (RNN, {"network": "lstm"}, "lm_loss .*leave out network, characters, mix$"),
        (RNN, {"lm_loss": -1.0}, "0 or more"),
        (RNN, {"task": "tag"}, "^lm_loss is for task='classify' .*, not for tag: leave it out"),
    ],
)
def test_systems_without_a_causal_lm_are_refused(system: Any, settings: dict[str, Any], messages: str):
    with pytest.raises(UsageError, match=messages):
        keel.finetune(system, TEXTS, dev=None, **({"lm_loss": 0.5, "steps": 1} | settings))


def test_a_frozen_encoder_does_not_go_on(tokenizer: Tokenizer):
    task = build_task(RNN, tokenizer, frozen=True)
    assert isinstance(task.encoder, RnnEncoder)
    with pytest.raises(UsageError, match="leave out one of them"):
        AuxiliaryLM(task, RNN.build_objective(task.encoder, tokenizer), 0.5)
