"""A model keeps everything through its folder, others read that folder unchanged, and it predicts."""

import errno
import json
import os
import pickle
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from keel.data.corpus import Corpus
from keel.data.examples import Labels
from keel.data.label_kinds import MultiLabel, Regression, SingleLabel
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.model import Model
from keel.model_card import Card
from keel.systems.bert import Bert
from keel.systems.gpt import Gpt
from keel.systems.system import System
from keel.systems.word2vec import Word2vec
from keel.tasks import TASKS

SYSTEM = Bert(
    layers=2,
    width=32,
    head_dim=8,
    mlp_ratio=2.7,
    max_positions=48,
    sequence_length=32,
    dropout=0.2,
    activation="gelu_tanh",
)
TEXTS = ["The sailor repairs the boat.", "Bread!", "A judge reads the heavy letter in the morning, says Anna.", ""]
PAIRS = [("The baker serves soup.", "It is warm."), ("Roses", "The gardener waters the orchard every Monday.")]


@pytest.fixture(scope="module")
def tokenizer(english_corpus: Path) -> Tokenizer:
    return Tokenizer.train(Corpus(english_corpus), size=300)


def build_model(
    tokenizer: Tokenizer, *, heads: bool = True, task: str = "", labels: Labels | None = None, **settings: Any
) -> Model:
    """A model with random weights, larger than at birth so that outputs differ."""
    torch.manual_seed(3)
    system = Bert(**{**SYSTEM.__dict__, **settings})
    encoder = system.build_encoder(len(tokenizer))
    objective = system.build_objective(encoder, tokenizer) if heads else None
    learned = TASKS[task](system, encoder, tokenizer, labels) if labels else None
    for module in (encoder, objective, learned):
        for name, parameter in module.named_parameters() if module else ():
            if not (module is not encoder and name.startswith("encoder.")):
                torch.nn.init.normal_(parameter, mean=float(parameter.ndim == 1 and "weight" in name), std=0.2)
    return Model(system=system, encoder=encoder, tokenizer=tokenizer, objective=objective, task=learned).to("cpu")


def weights(model: Model) -> dict[str, torch.Tensor]:
    parts = {"encoder": model.encoder, "objective": model.objective, "task": model.task}
    return {
        f"{part}.{name}": value
        for part, module in parts.items()
        if module
        for name, value in module.state_dict().items()
    }


def assert_equal(model: Model, other: Model) -> None:
    """Equal to the bit, in everything that is kept."""
    assert model.system == other.system
    assert model.tokenizer.fingerprint() == other.tokenizer.fingerprint()
    assert weights(model).keys() == weights(other).keys()
    assert all(torch.equal(value, weights(other)[name]) for name, value in weights(model).items())


ONE = Labels(kind=SingleLabel(), names=("bad", "好", "so-so"))
SHAPES: dict[str, tuple[dict[str, Any], str, bool]] = {
    "encoder only": ({"heads": False}, "BertModel", False),
    "pre-trained": ({"whole_word_masking": True, "mask_rate": 0.2}, "BertForPreTraining", False),
    "without next sentence": ({"pair_objective": "none"}, "BertForMaskedLM", True),
    "classify": ({"heads": False, "task": "classify", "labels": ONE}, "BertForSequenceClassification", False),
    "pair": ({"heads": False, "task": "pair", "labels": ONE}, "BertForSequenceClassification", False),
    "number": (
        {"heads": False, "task": "pair", "labels": Labels(kind=Regression())},
        "BertForSequenceClassification",
        False,
    ),
    "several": (
        {"heads": False, "task": "classify", "labels": Labels(kind=MultiLabel(), names=("a", "b"))},
        "BertForSequenceClassification",
        False,
    ),
    "task and heads": ({"task": "classify", "labels": ONE}, "BertForSequenceClassification", True),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_saved_is_loaded(tokenizer: Tokenizer, tmp_path: Path, shape: str) -> None:
    settings, named, extra = SHAPES[shape]
    model = build_model(tokenizer, **settings)
    model.save(tmp_path / "model")
    again = Model.load(tmp_path / "model")
    assert_equal(model, again)
    assert again.missing == (("masked language model head", "next sentence head") if model.objective is None else ())
    if model.task:
        assert again.task is not None
        assert (again.task.name, again.task.labels) == (model.task.name, model.task.labels)
        texts = PAIRS if model.task.pair else TEXTS
        assert again.predict(texts) == model.predict(texts)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["architectures"] == [named]
    assert config["vocab_size"] == len(tokenizer)
    assert (tmp_path / "model" / "keel.safetensors").exists() == extra
    again.save(tmp_path / "copy")
    for file in ("model.safetensors", "tokenizer.json"):
        assert (tmp_path / "copy" / file).read_bytes() == (tmp_path / "model" / file).read_bytes()


@pytest.mark.parametrize("shape", SHAPES)
def test_transformers_loads_the_folder_as_it_stands(tokenizer: Tokenizer, tmp_path: Path, shape: str) -> None:
    settings, named, _ = SHAPES[shape]
    model = build_model(tokenizer, **settings)
    model.save(tmp_path)
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    inputs = hf_tokenizer([a for a, _ in PAIRS], [b for _, b in PAIRS], padding=True, return_tensors="pt")
    lengths = inputs["attention_mask"].sum(1)
    rows = TokenBatch(ids=inputs["input_ids"], lengths=lengths, segments=inputs["token_type_ids"])
    ours = [model.system.build_inputs(tokenizer, *tokenizer.encode_many([a, b])) for a, b in PAIRS]
    assert [row.ids for row in ours] == [ids[:n] for ids, n in zip(rows.ids.tolist(), lengths.tolist(), strict=True)]
    real = torch.arange(rows.ids.shape[1]) < lengths[:, None]

    peer, report = getattr(transformers, named).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values())
    body = transformers.AutoModel.from_pretrained(tmp_path).eval()
    assert body.config.keel["system"] == "bert"
    with torch.inference_mode():
        output = model.encoder(rows)
        summary = model.encoder.pool(output, rows)
        found = body(**inputs)
        torch.testing.assert_close(output.top[real], found.last_hidden_state[real], rtol=1e-5, atol=1e-5)
        if named != "BertForMaskedLM":  # which has no pooler
            torch.testing.assert_close(summary, found.pooler_output, rtol=1e-5, atol=1e-5)
        if "PreTraining" in named or "MaskedLM" in named:
            automatic = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
            everywhere = torch.arange(rows.ids.shape[1]).expand_as(rows.ids)
            scores: torch.Tensor = model.objective.predict_masked(output.top, everywhere)  # type: ignore[union-attr, operator]
            torch.testing.assert_close(scores[real], automatic(**inputs).logits[real], rtol=1e-5, atol=1e-5)
        if model.task:
            automatic = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
            torch.testing.assert_close(
                model.task.predict_logits(model.task.select_features(rows)),
                automatic(**inputs).logits,
                rtol=1e-5,
                atol=1e-5,
            )
            if model.task.labels.names:
                assert tuple(peer.config.id2label.values()) == model.task.labels.names


def test_a_folder_that_transformers_saved_again(tokenizer: Tokenizer, tmp_path: Path) -> None:
    build_model(tokenizer).save(tmp_path / "ours")
    peer = transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "ours")
    with torch.no_grad():
        peer.bert.pooler.dense.bias.add_(1)
    peer.save_pretrained(tmp_path / "theirs")
    transformers.AutoTokenizer.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "theirs")
    model = Model.load(tmp_path / "theirs")
    assert torch.equal(model.encoder.state_dict()["pooler.bias"], peer.bert.pooler.dense.bias)
    assert model.system == SYSTEM
    assert model.tokenizer.encode_many(TEXTS) == tokenizer.encode_many(TEXTS)


def test_our_own_folder_must_have_all_that_it_names(tokenizer: Tokenizer, tmp_path: Path) -> None:
    build_model(tokenizer, heads=False, task="classify", labels=ONE).save(tmp_path / "classifier")
    build_model(tokenizer, heads=False).save(tmp_path / "body")
    shutil.copy(tmp_path / "body" / "model.safetensors", tmp_path / "classifier" / "model.safetensors")
    with pytest.raises(KeelError, match=r"lack classifier\.bias, classifier\.weight"):
        Model.load(tmp_path / "classifier")


def test_the_card_is_readme_and_configuration(tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = build_model(tokenizer)
    dev = {"main": "accuracy", "values": {"accuracy": {"value": 0.91234, "low": 0.9, "high": 0.93}}}
    model.card = Card(
        title="wiki",
        parent="tiny",
        text="12 tokens of a|b",
        steps=1200,
        seconds=90,
        scores={"mlm": 2.34567, "dev": dev},
    )
    model.save(tmp_path)
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    for part in (
        "# wiki",
        "| Parent | tiny |",
        "a&#124;b",
        "1,200",
        "1.5 minutes",
        "2.346",
        "accuracy 0.912 (0.900 to 0.930)",
    ):
        assert part in card
    assert card.startswith("---\nlibrary_name: transformers\npipeline_tag: fill-mask\n")
    assert Model.load(tmp_path).card == model.card


def test_a_folder_without_a_card_is_known_by_its_name(tokenizer: Tokenizer, tmp_path: Path) -> None:
    build_model(tokenizer).save(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config["keel"]["card"] = {"title": "named", "field_of_the_future": 1}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    assert Model.load(tmp_path / "model").card == Card(title="named")
    del config["keel"]
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    assert Model.load(tmp_path / "model").card == Card(title="model")


def test_saving_into_a_folder_that_is_taken(tokenizer: Tokenizer, tmp_path: Path) -> None:
    first, second = build_model(tokenizer, pair_objective="none"), build_model(tokenizer, heads=False)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "log.jsonl").write_text("{}")
    first.save(tmp_path)
    with pytest.raises(UsageError, match="not empty"):
        second.save(tmp_path)
    assert_equal(Model.load(tmp_path), first)
    (tmp_path / "notes.txt").write_text("mine")
    second.save(tmp_path, overwrite=True)
    assert_equal(Model.load(tmp_path), second)
    assert not (tmp_path / "keel.safetensors").exists()
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "run" / "log.jsonl").read_text() == "{}"
    with pytest.raises(UsageError, match="is a file"):
        second.save(tmp_path / "notes.txt", overwrite=True)
    with pytest.raises(KeelError, match="cannot write"):
        second.save(tmp_path / "notes.txt" / "model")


@pytest.mark.parametrize("fails_at", range(12))
def test_whenever_a_save_is_cut_off_the_folder_holds_the_old_model_or_the_new(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    old, new = (
        build_model(tokenizer, pair_objective="none"),
        build_model(tokenizer, heads=False, task="classify", labels=ONE),
    )
    old.save(tmp_path)

    class Killed(BaseException):
        pass

    calls = 0

    def cut_off(original: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > fails_at:
                raise Killed
            return original(*arguments, **named)

        return call

    with monkeypatch.context() as patch:
        for name in ("rename", "replace", "unlink", "rmdir"):
            patch.setattr(os, name, cut_off(getattr(os, name)))
        try:
            new.save(tmp_path, overwrite=True)
        except Killed:
            pass
        else:
            assert calls <= fails_at
    model = Model.load(tmp_path)
    assert_equal(model, new if model.task else old)
    assert (model.task is None) == (fails_at == 0)


def test_a_full_disk_loses_nothing(tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = build_model(tokenizer), build_model(tokenizer, heads=False)
    old.save(tmp_path / "model")

    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for folder in ("model", "new"):
        with pytest.raises(KeelError, match="no space left"):
            new.save(tmp_path / folder, overwrite=True)
    assert_equal(Model.load(tmp_path / "model"), old)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert not [path.name for path in (tmp_path / "model").iterdir() if path.name.startswith(".")]


def test_sentence_vectors(tokenizer: Tokenizer) -> None:
    model = build_model(tokenizer)
    vectors = model.encode(TEXTS)
    assert vectors.shape == (len(TEXTS), 32)
    assert vectors.dtype == np.float32
    for text, vector in zip(TEXTS, vectors, strict=True):
        alone = model.encode(text)
        assert alone.shape == (32,)
        np.testing.assert_allclose(alone, vector, rtol=1e-4, atol=1e-5)
    inputs_of = SYSTEM.build_inputs(tokenizer, tokenizer.encode(TEXTS[0]).ids).ids
    with torch.inference_mode():
        layers = model.encoder(TokenBatch.pad([inputs_of]), all_layers=True).layers
    for layer in (0, 1, 2, -1, -2):
        np.testing.assert_allclose(model.encode(TEXTS, layer=layer)[0], layers[layer][0].mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(model.encode(TEXTS, pool="cls")[0], layers[-1][0, 0], rtol=1e-4, atol=1e-5)
    assert model.encode([]).shape == (0, 32)
    with pytest.raises(UsageError, match="no layer 3"):
        model.encode(TEXTS, layer=3)
    with pytest.raises(UsageError, match="pool"):
        model.encode(TEXTS, pool="median")  # pyright: ignore[reportCallIssue, reportArgumentType]


@pytest.mark.parametrize("texts", [None, [None], ["fine", 5]])
def test_what_is_no_text_has_no_vector(tokenizer: Tokenizer, texts: Any) -> None:
    for pool in ("mean", "none"):
        with pytest.raises(UsageError, match=r"(None|5)(, not a| is no) text: give a string, or a list of strings"):
            build_model(tokenizer).encode(texts, pool=pool)


def test_token_vectors_have_offsets(tokenizer: Tokenizer) -> None:
    model = build_model(tokenizer)
    found = model.encode(TEXTS, pool="none")
    assert [len(text.tokens) for text in found] == [len(ids) for ids in tokenizer.encode_many(TEXTS)]
    for text, words in zip(TEXTS, found, strict=True):
        assert words.vectors.shape == (len(words.tokens), 32)
        covered = [text[start:end].lower() for start, end in words.offsets]
        assert covered == [token.removeprefix("##") for token in words.tokens]
    inputs_of = SYSTEM.build_inputs(tokenizer, tokenizer.encode(TEXTS[2]).ids).ids
    with torch.inference_mode():
        top = model.encoder(TokenBatch.pad([inputs_of])).top[0, 1:-1]
    np.testing.assert_allclose(found[2].vectors, top, rtol=1e-4, atol=1e-5)


def test_a_long_text_is_split_into_windows_with_a_note(tokenizer: Tokenizer) -> None:
    model = build_model(tokenizer)
    words = " ".join(["boat"] * 40 + ["judge"] * 40)
    ids = tokenizer.encode(words).ids
    notes: list[str] = []
    vector = model.encode([words, "boat"], on_event=lambda event: notes.append(event["text"]))[0]
    assert len(notes) == 1
    assert "1 of 2 texts" in notes[0]
    parts = [SYSTEM.build_inputs(tokenizer, ids[start : start + 30]).ids for start in range(0, len(ids), 30)]
    assert len(parts) > 1
    assert f"into {len(parts)} windows" in notes[0]
    with torch.inference_mode():
        everything = torch.cat([model.encoder(TokenBatch.pad([part])).top[0] for part in parts])
    np.testing.assert_allclose(vector, everything.mean(0), rtol=1e-4, atol=1e-5)
    assert model.encode(words, pool="none").vectors.shape == (len(ids), 32)
    with pytest.raises(KeelError, match="reads at most 32"):
        model.fill(f"{words} [MASK]")


def test_masks_are_filled_as_in_transformers(tokenizer: Tokenizer, tmp_path: Path) -> None:
    model = build_model(tokenizer)
    model.save(tmp_path)
    peer = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
    hf_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    inputs = hf_tokenizer("The [MASK] reads a [MASK].", return_tensors="pt")
    with torch.inference_mode():
        probabilities = peer(**inputs).logits[inputs["input_ids"] == tokenizer.mask_id].softmax(-1)
    for text in ("The [MASK] reads a [MASK].", "The ___ reads a __.", "The [mask] reads a ＿＿＿."):
        found = model.fill(text, top=4)
        assert [len(candidates) for candidates in found] == [4, 4]
        for candidates, expected in zip(found, probabilities, strict=True):
            words = expected.index_fill(0, torch.tensor(tokenizer.special_ids), 0)  # [UNK] is no word to fill in
            best = words.topk(4)
            assert [candidate.word for candidate in candidates] == [
                tokenizer.token_of(i) for i in best.indices.tolist()
            ]
            assert [candidate.probability for candidate in candidates] == pytest.approx(best.values.tolist(), rel=1e-4)
    with pytest.raises(UsageError, match="no mask"):
        model.fill("The sailor reads.")
    with pytest.raises(KeelError, match="no masked language model head"):
        build_model(tokenizer, heads=False).fill("The ___")


def test_chinese(chinese_corpus: Path, tmp_path: Path) -> None:
    model = build_model(Tokenizer.train(Corpus(chinese_corpus), size=1000))
    model.save(tmp_path)
    (candidates,) = Model.load(tmp_path).fill("厨师每天准备___包。")
    assert len(candidates) == 5
    assert sum(candidate.probability for candidate in candidates) <= 1
    words = Model.load(tmp_path).encode("王老师的帆船", pool="none")
    assert words.offsets == [(i, i + 1) for i in range(6)]
    assert "".join(words.tokens) == "王老师的帆船"


def test_predict_takes_one_or_many(tokenizer: Tokenizer) -> None:
    model = build_model(tokenizer, heads=False, task="classify", labels=ONE)
    one = model.predict(TEXTS[0])
    assert one.label in ONE.names
    assert model.predict(TEXTS)[0].label == one.label
    assert model.predict(TEXTS)[0].confidence == pytest.approx(one.confidence, rel=1e-4)
    assert model.predict([]) == []
    with pytest.raises(UsageError, match="item 2"):
        model.predict(["fine", ("a", "b")])
    with pytest.raises(UsageError, match="item 1 is None, but this model expects a text"):
        model.predict(None)
    pair = build_model(tokenizer, heads=False, task="pair", labels=ONE)
    assert pair.predict(PAIRS)[1].label == pair.predict(PAIRS[1]).label
    with pytest.raises(UsageError, match="a pair"):
        pair.predict("one text")
    with pytest.raises(KeelError, match="fine-tune"):
        build_model(tokenizer).predict("text")


def test_a_device_that_is_not_there(tokenizer: Tokenizer, tmp_path: Path) -> None:
    build_model(tokenizer).save(tmp_path)
    with pytest.raises(UsageError, match="device"):
        Model.load(tmp_path, device="gpu9")


@pytest.mark.parametrize("system", [SYSTEM, Gpt(layers=1, width=16, head_dim=8, sequence_length=32), Word2vec(width=8)])
def test_pickles_and_copies_answer_as_the_model_does(english_corpus: Path, system: System) -> None:
    torch.manual_seed(0)
    tokenizer = Tokenizer.train(Corpus(english_corpus), kind="words", size=300)
    encoder = system.build_encoder(len(tokenizer))
    task = TASKS["classify"](system, encoder, tokenizer, ONE)
    objective = system.build_objective(encoder, tokenizer)
    model = Model(system=system, encoder=encoder, tokenizer=tokenizer, objective=objective, task=task).to("cpu")
    model.tokenizer.compile()
    expected_predictions = model.predict(TEXTS)
    for other in (pickle.loads(pickle.dumps(model)), deepcopy(model)):
        assert_equal(model, other)
        assert other.predict(TEXTS) == expected_predictions
        assert other.task is not None
        assert other.task.encoder is other.encoder
        assert other.task.tokenizer is other.tokenizer


def test_a_model_is_loaded_on_the_gpu_if_there_is_one(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = Bert(layers=1, width=16, head_dim=16, max_positions=16, sequence_length=16)
    Model(system=system, encoder=system.build_encoder(len(tokenizer)), tokenizer=tokenizer).save(tmp_path / "m")
    devices: list[str] = []
    monkeypatch.setattr(Model, "to", lambda self, device: devices.append(device) or self)
    Model.load(tmp_path / "m")
    Model.load(tmp_path / "m", device="cpu")
    assert devices == ["auto", "cpu"]


def test_precision_is_checked_and_slow_bf16_reported(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_model(tokenizer).save(tmp_path / "m")
    with pytest.raises(UsageError, match="precision must be one of auto, fp32, bf16, not 'half'"):
        Model.load(tmp_path / "m", precision="half")  # pyright: ignore[reportArgumentType] - refused
    for native in (True, False):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda native=native: {"avx512_bf16": native}, raising=False)
        events: list[Any] = []
        loaded = Model.load(tmp_path / "m", device="cpu", precision="bf16", on_event=events.append)
        assert loaded.precision == "bf16"
        assert any("no bf16 instructions" in str(event) for event in events) == (not native)


def test_batches_of_a_cpu_are_small_with_little_padding(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model(tokenizer)
    plain = model.encode(TEXTS * 3)
    monkeypatch.setattr("keel.text_vectors.BATCH_TOKENS_CPU", 40)
    shapes: list[torch.Size] = []
    hook = model.encoder.register_forward_pre_hook(lambda _, given: shapes.append(given[0].ids.shape))
    np.testing.assert_allclose(model.encode(TEXTS * 3), plain, atol=1e-5)
    hook.remove()
    assert len(shapes) > 2
    assert max(shape.numel() for shape in shapes) <= 40
