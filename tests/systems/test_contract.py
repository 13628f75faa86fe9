"""What every system must do: learn from text or from labels, be saved, be tuned or used frozen, resume where it
stopped."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from keel.api.evaluation import evaluate
from keel.api.finetuning import finetune
from keel.api.pretraining import pretrain
from keel.config import to_dict
from keel.data.token_batch import TokenBatch
from keel.errors import Interrupted, KeelError, UsageError
from keel.model import Model
from keel.systems import SYSTEMS as ALL
from keel.systems.system import supports

SYSTEMS: dict[str, dict[str, Any]] = {
    "onehot": {"batch": 50},
    "wordclass": {"classes": 12, "batch": 20},
    "nnlm": {"width": 16, "hidden": 16, "steps": 60, "batch": 16, "lr": 1e-2, "device": "cpu"},
    "word2vec": {"width": 16, "chunk_length": 40, "batch": 4, "epochs": 5},
    "glove": {"width": 16, "batch": 4, "epochs": 5},
    "fasttext": {"width": 16, "chunk_length": 40, "batch": 4, "epochs": 40, "buckets": 500},
    "gpt": {
        "layers": 1,
        "width": 32,
        "head_dim": 16,
        "max_positions": 64,
        "sequence_length": 24,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "steps": 60,
        "batch": 8,
        "lr": 1e-2,
        "vocabulary": 400,
        "device": "cpu",
    },
    "rnn": {
        "width": 16,
        "layers": 1,
        "bptt": 10,
        "bidirectional": True,
        "steps": 60,
        "batch": 8,
        "lr": 3e-2,
        "device": "cpu",
    },
    "elmo": {
        "width": 16,
        "cell_size": 32,
        "character_filters": (8, 8),
        "highway_layers": 1,
        "bptt": 10,
        "softmax_samples": 60,
        "steps": 60,
        "batch": 8,
        "lr": 1e-2,
        "warmup": 5,
        "device": "cpu",
    },
    "ulmfit": {
        **dict.fromkeys(("dropout", "input_dropout", "layer_dropout"), 0.0),
        **dict(width=16, hidden_size=20, layers=2, bptt=10, steps=60, batch=8, lr=0.05, device="cpu"),  # noqa: C408
    },
    "cnn": {"width": 16, "filters": 16, "steps": 20, "batch": 4, "device": "cpu"},
    "transformer": {
        **dict(layers=2, width=32, head_dim=16, pre_norm=True, dropout=0.0, max_positions=64),  # noqa: C408
        **dict(steps=20, batch=4, lr=1e-2, device="cpu"),  # noqa: C408
    },
    "seq2seq": {"width": 16, "layers": 2, "dropout": 0.0, "steps": 20, "batch": 4, "lr": 1e-2, "device": "cpu"},
}
SETTINGS: dict[str, Any] = {"vocabulary": 200, "threads": 1, "log_every": 1}
NONZERO_WHEN_EMPTY = ("nnlm", "cnn", "rnn", "ulmfit", "elmo", "gpt", "transformer", "seq2seq")
EXAMPLES = [("a sailor", "who"), ("the judge", "who"), ("an anchor", "what"), ("the bread", "what")] * 5


def learn(name: str, corpus: Path, out: Path, **settings: Any) -> Model:
    """A new model, from text or, where there is nothing to learn from it, from labels."""
    settings = {**SETTINGS, **SYSTEMS[name], **settings}
    if not supports(ALL[name](), "pretrain"):
        return finetune(name, EXAMPLES, dev=None, out=out, **settings)
    return pretrain(name, corpus, out=out, **settings)


@pytest.fixture(scope="module", params=SYSTEMS)
def pretrained(request: pytest.FixtureRequest, english_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pretrained") / request.param
    learn(request.param, english_corpus, folder)
    return folder


@pytest.mark.parametrize("freeze", [True, False])
def test_tasks_take_it_frozen_or_tuned(pretrained: Path, tmp_path: Path, freeze: bool) -> None:
    base = Model.load(pretrained)
    tuned = finetune(base, EXAMPLES, dev=None, epochs=60, lr=0.1, batch=4, freeze=freeze)
    tuned.save(tmp_path / "tuned")
    again = Model.load(tmp_path / "tuned")
    assert again.system.name == base.system.name
    assert again.predict("the sailor, the sailor").label == "who"
    assert evaluate(again, EXAMPLES).main_value == 1.0
    before, after = base.encoder.state_dict(), again.encoder.state_dict()
    # The special tokens of a task may have vectors after those of words.
    moved = [name for name, value in before.items() if not torch.equal(value, after[name][: len(value)])]
    assert bool(moved) is not freeze


def test_a_task_may_have_another_dropout_but_no_other_shape(pretrained: Path) -> None:
    base = Model.load(pretrained)
    settings: dict[str, Any] = {"dev": None, "steps": 1, "lr": 1e-9, "batch": 4}
    known = to_dict(base.system)
    if "dropout" in known:
        tuned = finetune(base, EXAMPLES, dropout=0.25, **settings)
        assert to_dict(tuned.system)["dropout"] == 0.25
        old, new = base.encoder.state_dict(), tuned.encoder.state_dict()
        assert all(torch.allclose(new[name][: len(value)], value, atol=1e-6) for name, value in old.items())
    if "width" in known:
        with pytest.raises(UsageError, match=f"^width is fixed in a trained model: .* a new {base.system.name}"):
            finetune(base, EXAMPLES, width=48, **settings)
    for name in base.system.tunable:
        if name not in base.system.finetuning_fields:
            with pytest.raises(UsageError, match=f"^{name} is a setting of pre-training: leave it out, or change"):
                finetune(base, EXAMPLES, **{name: known[name]}, **settings)


@pytest.mark.parametrize("freeze", [True, False])
def test_words_are_tagged_frozen_or_tuned(pretrained: Path, tmp_path: Path, freeze: bool) -> None:
    tagged = [(words.split(), ["O", tag]) for words, tag in EXAMPLES]
    tuned = finetune(
        Model.load(pretrained), tagged, task="tag", dev=None, epochs=60, lr=0.1, batch=4, freeze=freeze, crf=True
    )
    tuned.save(tmp_path / "tuned")
    assert evaluate(Model.load(tmp_path / "tuned"), tagged).main_value == 1.0


def test_texts_have_vectors_and_the_folder_comes_back_the_same(pretrained: Path, tmp_path: Path) -> None:
    model = Model.load(pretrained)
    vectors = model.encode(["the sailor", "the judge and the sailor", ""])
    assert vectors.shape == (3, model.encoder.width)
    assert vectors[0].any()
    # The nnlm learns a vector for unknown words too, filters have a bias, and most networks read special tokens.
    assert not vectors[2].any() or model.system.name in NONZERO_WHEN_EMPTY
    model.save(tmp_path / "copy")
    one, two = ((folder / "model.safetensors").read_bytes() for folder in (pretrained, tmp_path / "copy"))
    assert one == two


@torch.inference_mode()
def test_the_last_of_all_layers_is_what_it_gives(pretrained: Path) -> None:
    model = Model.load(pretrained, device="cpu")
    rows = model.system.with_subword_units(TokenBatch.pad([[5, 6, 7], [8, 9]]), model.tokenizer)
    output = model.encoder.eval()(rows, all_layers=True)
    assert len(output.layers) == model.encoder.layer_count
    torch.testing.assert_close(output.layers[-1], output.top, rtol=0, atol=0)


def test_a_stopped_run_goes_on_to_the_same_bits(pretrained: Path, english_corpus: Path, tmp_path: Path) -> None:
    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["step"] == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        learn(pretrained.name, english_corpus, tmp_path / "cut", on_event=stop)
    cut = learn(pretrained.name, english_corpus, tmp_path / "cut")
    assert cut.fingerprint() == Model.load(pretrained).fingerprint()


def test_minutes_are_planned_by_steps_and_not_by_what_is_counted_once(english_corpus: Path, tmp_path: Path) -> None:
    plans: list[dict[str, Any]] = []

    def on_event(event: dict[str, Any]) -> None:
        if event["event"] == "plan":
            plans.append(event)

    settings = {**SETTINGS, **SYSTEMS["word2vec"], "epochs": 0, "minutes": 0.03}
    pretrain("word2vec", english_corpus, out=tmp_path / "words", on_event=on_event, **settings)
    assert plans[0]["steps"] > 200  # steps take about a millisecond, counting takes many


def test_a_run_of_other_settings_is_not_gone_on_with(tmp_path: Path) -> None:
    finetune("onehot", EXAMPLES, dev=None, out=tmp_path / "m", epochs=2, weighting="binary")
    with pytest.raises(UsageError, match="weighting"):
        finetune("onehot", EXAMPLES, dev=None, out=tmp_path / "m", epochs=2)


def test_word_classes_are_not_learned_from_labels() -> None:
    with pytest.raises(UsageError, match="keel pretrain wordclass"):
        finetune("wordclass", EXAMPLES, dev=None)


@pytest.mark.parametrize("name", ["wordclass", "nnlm", "word2vec", "glove", "fasttext"])
def test_one_distinct_word_is_too_few(name: str, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("word word word word\n" * 20)
    with pytest.raises(KeelError):
        pretrain(name, tmp_path / "one.txt", out=tmp_path / "m", **SETTINGS, **SYSTEMS[name])
