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
from keel.data.corpus import Corpus
from keel.data.token_batch import TokenBatch
from keel.errors import Interrupted, KeelError, UsageError
from keel.model import Model
from keel.systems import SYSTEMS
from keel.systems.system import supports
from tests.systems.tiny_systems import LEARNED, TINY, of_line, tiny_settings

SETTINGS: dict[str, Any] = {"vocabulary": 200, "threads": 1, "log_every": 1, "device": "cpu"}
LABELS_ONLY: dict[str, Any] = {"steps": 20, "batch": 4, "lr": 1e-2}
ZERO_WHEN_EMPTY = ("onehot", "wordclass", "word2vec", "glove", "fasttext")
"""Systems whose vector of a text is a mean over its words; all others also read special tokens or add a bias."""
TUNED_LR = {"bert": 5e-3}
"""Learning rate of the whole encoder where 0.1 diverges (layer norm after the residual), also of descendants."""
POOL: dict[str, Any] = {"bert": "mean"}
"""Pooling where the default, [CLS] of a frozen encoder of few steps, says too little, also of descendants."""
EXAMPLES = [("a sailor", "who"), ("the judge", "who"), ("an anchor", "what"), ("the bread", "what")] * 5


def learn(name: str, corpus: Path, out: Path, **settings: Any) -> Model:
    """A new model, from text or, where there is nothing to learn from it, from labels."""
    settings = {**SETTINGS, **tiny_settings(name), **settings}
    if not supports(SYSTEMS[name](), "pretrain"):
        settings = {**LABELS_ONLY, **settings}
        return finetune(name, EXAMPLES, dev=None, out=out, **settings)
    return pretrain(name, corpus, out=out, **settings)


@pytest.fixture(scope="module", params=SYSTEMS)
def pretrained(request: pytest.FixtureRequest, english_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pretrained") / request.param
    learn(request.param, english_corpus, folder)
    return folder


@pytest.fixture
def encoder_folder(pretrained: Path) -> Path:
    """The folder of a system that has vectors: a count-based language model has none."""
    if Model.load(pretrained).encoder.width == 0:
        with pytest.raises(KeelError, match="vectors"):
            finetune(pretrained, EXAMPLES, dev=None, steps=1)
        pytest.skip("it has no vectors")
    return pretrained


@pytest.mark.parametrize("freeze", [True, False])
def test_tasks_take_it_frozen_or_tuned(encoder_folder: Path, tmp_path: Path, freeze: bool) -> None:
    base = Model.load(encoder_folder)
    lr = 0.1 if freeze else of_line(TUNED_LR, base.system.name, 0.1)
    pool = of_line(POOL, base.system.name, "default")
    fixed = freeze or base.system.finetuning_policy.solves  # the solution of a convex problem on its features
    epochs = 60 if freeze or not fixed else 1
    tuned = finetune(base, EXAMPLES, dev=None, epochs=epochs, lr=lr, batch=4, freeze=freeze, pool=pool)
    tuned.save(tmp_path / "tuned")
    again = Model.load(tmp_path / "tuned")
    assert again.system.name == base.system.name
    assert again.predict("the sailor, the sailor").label == "who"
    assert evaluate(again, EXAMPLES).main_value == 1.0
    before, after = base.encoder.state_dict(), again.encoder.state_dict()
    # The special tokens of a task may have vectors after those of words.
    moved = [name for name, value in before.items() if not torch.equal(value, after[name][: len(value)])]
    assert bool(moved) is not fixed


def test_a_task_may_have_another_dropout_but_no_other_shape(encoder_folder: Path) -> None:
    base = Model.load(encoder_folder)
    settings: dict[str, Any] = {"dev": None, "epochs": 1, "lr": 1e-9, "batch": 20}
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
def test_words_are_tagged_frozen_or_tuned(encoder_folder: Path, tmp_path: Path, freeze: bool) -> None:
    tagged = [(words.split(), ["O", tag]) for words, tag in EXAMPLES]
    base = Model.load(encoder_folder)
    lr = 0.1 if freeze else of_line(TUNED_LR, base.system.name, 0.1)
    tuned = finetune(base, tagged, task="tag", dev=None, epochs=60, lr=lr, batch=4, freeze=freeze, crf=True)
    tuned.save(tmp_path / "tuned")
    assert evaluate(Model.load(tmp_path / "tuned"), tagged).main_value == 1.0


def test_texts_have_vectors_and_the_folder_comes_back_the_same(encoder_folder: Path, tmp_path: Path) -> None:
    model = Model.load(encoder_folder)
    vectors = model.encode(["the sailor", "the judge and the sailor", ""])
    assert vectors.shape == (3, model.encoder.width)
    assert vectors[0].any()
    assert vectors[2].any() == (model.system.name not in ZERO_WHEN_EMPTY)
    model.save(tmp_path / "copy")
    one, two = ((folder / "model.safetensors").read_bytes() for folder in (encoder_folder, tmp_path / "copy"))
    assert one == two


@torch.inference_mode()
def test_the_last_of_all_layers_is_what_it_gives(encoder_folder: Path) -> None:
    model = Model.load(encoder_folder, device="cpu")
    rows = model.system.with_subword_units(TokenBatch.pad([[5, 6, 7], [8, 9]]), model.tokenizer)
    output = model.encoder.eval()(rows, all_layers=True)
    assert len(output.layers) == model.encoder.layer_count
    torch.testing.assert_close(output.layers[-1], output.top, rtol=0, atol=0)


def test_a_stopped_run_resumes_to_the_same_bits(pretrained: Path, english_corpus: Path, tmp_path: Path) -> None:
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

    settings = {**SETTINGS, **tiny_settings("word2vec"), "steps": 0, "minutes": 0.03}
    pretrain("word2vec", english_corpus, out=tmp_path / "words", on_event=on_event, **settings)
    assert plans[0]["steps"] > 200  # steps take about a millisecond, counting takes many


def test_a_run_of_other_settings_is_not_resumed(tmp_path: Path) -> None:
    finetune("onehot", EXAMPLES, dev=None, out=tmp_path / "m", weighting="binary")
    with pytest.raises(UsageError, match="weighting"):
        finetune("onehot", EXAMPLES, dev=None, out=tmp_path / "m")


def test_word_classes_are_not_learned_from_labels() -> None:
    with pytest.raises(UsageError, match="keel pretrain wordclass"):
        finetune("wordclass", EXAMPLES, dev=None)


@pytest.mark.parametrize("name", ["wordclass", "nnlm", "word2vec", "glove", "fasttext"])
def test_one_distinct_word_is_too_few(name: str, tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("word word word word\n" * 20)
    with pytest.raises(KeelError):
        pretrain(name, tmp_path / "one.txt", out=tmp_path / "m", **{**SETTINGS, **tiny_settings(name)})


def test_a_system_without_tiny_settings_gets_those_of_its_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    for table in (TINY, LEARNED):
        monkeypatch.delitem(table, "bert")
    assert {"layers", "width", "head_dim", "steps"} <= tiny_settings("bert").keys()


@pytest.mark.parametrize("name", ["word2vec", "glove", "fasttext"])
def test_threads_are_those_of_torch_and_the_card_names_nondeterminism(name: str, tmp_path: Path) -> None:
    before = torch.get_num_threads()
    corpus = Corpus.of(["the sea the boat the wind the sailor " * 5] * 8)
    settings: dict[str, Any] = {"width": 8, "epochs": 1, "min_count": 1, "held_out": 0.0}
    try:
        torch.set_num_threads(1)
        first, second = (pretrain(name, corpus, out=tmp_path / part, **settings) for part in "ab")
    finally:
        torch.set_num_threads(before)
    assert first.card.hardware.endswith("CPU, 1 thread")
    assert all(torch.equal(value, second.tensors()[key]) for key, value in first.tensors().items())
    several = pretrain(name, corpus, out=tmp_path / "c", threads=2, **settings)
    assert several.card.hardware.endswith("CPU, 2 threads, nondeterministic (Hogwild)")
    assert torch.get_num_threads() == before
