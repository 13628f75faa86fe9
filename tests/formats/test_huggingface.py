"""Folders of transformers' own making give the same numbers here; what cannot be read is refused in a sentence."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from keel.api.conversion import convert
from keel.data.examples import Labels
from keel.data.label_kinds import MultiLabel
from keel.data.token_batch import TokenBatch
from keel.errors import KeelError
from keel.model import Model
from keel.systems.bert import Bert, BertPretraining
from keel.tasks.classify import TextClassification

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz", *(f"##{c}" for c in "abcdefghij")]
SMALL: dict[str, Any] = {
    "vocab_size": len(WORDS),
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 56,
    "max_position_embeddings": 40,
    "initializer_range": 0.2,
}
ROWS = TokenBatch.pad(
    [[2, 7, 8, 9, 3, 11, 12, 3], [2, 20, 4, 21, 3]], [[0, 0, 0, 0, 0, 1, 1, 1], [0] * 5]
)  # the second row is padded


def saved(folder: Path, kind: str = "BertForPreTraining", **settings: Any) -> Any:
    """A model of transformers with random weights, saved with a vocabulary."""
    torch.manual_seed(1)
    model = getattr(transformers, kind)(transformers.BertConfig(**SMALL | settings)).eval()
    for name, parameter in model.named_parameters():  # norms and biases start as ones and zeros, which hide mix-ups
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=float("LayerNorm.weight" in name), std=0.3)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    return model


def replace_tensors(folder: Path, change: Any) -> None:
    """Change the tensors of a folder."""
    tensors = load_file(folder / "model.safetensors")
    changed = change(tensors)
    save_file(tensors if changed is None else changed, folder / "model.safetensors")


def configure(folder: Path, **settings: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def theirs(model: Any) -> Any:
    mask = (torch.arange(ROWS.ids.shape[1]) < ROWS.lengths[:, None]).long()
    with torch.inference_mode():
        return model(ROWS.ids, attention_mask=mask, token_type_ids=ROWS.segments, output_hidden_states=True)


def assert_same(ours: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal within 1e-5 wherever there is a token."""
    real = torch.arange(ROWS.ids.shape[1]) < ROWS.lengths[:, None]
    if ours.ndim == 3:
        ours, expected = ours[real], expected[real]
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


def assert_same_as(folder: Path, peer: Any) -> Model:
    """Every layer, the summary and every head of the folder's model equal the peer's."""
    model = Model.load(folder)
    expected = theirs(peer)
    with torch.inference_mode():
        output = model.encoder(ROWS, all_layers=True)
        assert len(output.layers) == len(expected.hidden_states)
        for layer, theirs_layer in zip(output.layers, expected.hidden_states, strict=True):
            assert_same(layer, theirs_layer)
        summary = model.encoder.pool(output, ROWS)
        if (pooled := getattr(expected, "pooler_output", None)) is not None:
            assert_same(summary, pooled)
        words = getattr(expected, "prediction_logits", None)
        if words is None and isinstance(peer, transformers.BertForMaskedLM):
            words = expected.logits
        if words is not None:
            assert isinstance(model.objective, BertPretraining)
            everywhere = torch.arange(ROWS.ids.shape[1]).expand_as(ROWS.ids)
            assert_same(model.objective.predict_masked(output.top, everywhere), words)
        if (following := getattr(expected, "seq_relationship_logits", None)) is not None:
            assert isinstance(model.objective, BertPretraining)
            assert_same(model.objective.predict_next(summary), following)
        if isinstance(peer, transformers.BertForSequenceClassification):
            assert model.task is not None
            assert_same(model.task.predict_logits(model.task.select_features(ROWS)), expected.logits)
    return model


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"hidden_size": 26, "intermediate_size": 100},  # 100 / 26 is no short fraction, as TinyBERT's 1200 / 312
        {"num_attention_heads": 6, "type_vocab_size": 3, "layer_norm_eps": 1e-5},
        {"hidden_act": "gelu_new"},
        {"hidden_act": "gelu_pytorch_tanh"},
        {"hidden_act": "relu"},
        {"hidden_act": "silu", "num_hidden_layers": 1},
        {"vocab_size": len(WORDS) + 7},  # padded to a round number
    ],
    ids=str,
)
def test_equal_outputs_and_back_again(tmp_path: Path, settings: dict[str, Any]) -> None:
    peer = saved(tmp_path / "theirs", **settings)
    model = assert_same_as(tmp_path / "theirs", peer)
    model.save(tmp_path / "ours")
    again, report = transformers.AutoModelForPreTraining.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values())
    assert_same(theirs(again.eval()).prediction_logits, theirs(peer).prediction_logits)
    before, after = peer.config.to_dict(), again.config.to_dict()
    assert {name: before[name] for name in SMALL if name != "initializer_range"} == {
        name: after[name] for name in SMALL if name != "initializer_range"
    }


@pytest.mark.parametrize(
    ("kind", "missing"),
    [
        ("BertModel", ("masked language model head", "next sentence head")),
        ("BertForMaskedLM", ("pooler", "next sentence head")),
        ("BertForPreTraining", ()),
        ("BertForSequenceClassification", ("masked language model head", "next sentence head")),
    ],
)
def test_every_class_is_read_and_what_it_lacks_is_known(tmp_path: Path, kind: str, missing: tuple[str, ...]) -> None:
    model = assert_same_as(tmp_path, saved(tmp_path, kind))
    assert model.missing == missing
    assert isinstance(model.system, Bert)
    assert model.system.predicts_pairs == (kind != "BertForMaskedLM")


def test_old_names_buffers_copies_and_half_precision(tmp_path: Path) -> None:
    peer = saved(tmp_path)

    def age(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        old = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
            for name, tensor in tensors.items()
        }
        old["bert.embeddings.position_ids"] = torch.arange(40)[None]
        old["cls.predictions.decoder.weight"] = old["bert.embeddings.word_embeddings.weight"].clone()
        old["cls.predictions.decoder.bias"] = old.pop("cls.predictions.bias")
        return old

    replace_tensors(tmp_path, age)
    assert_same_as(tmp_path, peer)
    peer.half().save_pretrained(tmp_path)
    model = assert_same_as(tmp_path, peer.float())
    assert {parameter.dtype for parameter in model.encoder.parameters()} == {torch.float32}


def test_a_config_without_type_or_classes(tmp_path: Path) -> None:
    peer = saved(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["model_type"], config["architectures"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert_same_as(tmp_path, peer)


def test_shards(tmp_path: Path) -> None:
    peer = saved(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    peer.save_pretrained(tmp_path, max_shard_size="10KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    assert_same_as(tmp_path, peer)


def test_another_tasks_head_is_left_out_with_a_note(tmp_path: Path) -> None:
    saved(tmp_path, "BertForMultipleChoice")
    multiple_choice = Model.load(tmp_path).task
    assert multiple_choice is not None
    assert multiple_choice.name == "choose"
    configure(tmp_path, architectures=["BertForRanking"])
    notes: list[str] = []
    model = Model.load(tmp_path, on_event=lambda event: notes.append(event["text"]))
    assert model.task is None
    assert len(notes) == 1
    assert "classifier" in notes[0]
    assert "BertForRanking" in notes[0]


def test_unknown_extra_heads_are_left_out_with_a_note(tmp_path: Path) -> None:
    peer = saved(tmp_path / "theirs")
    heads = {"cls.chain.weight": torch.zeros(3, 24), "cls.graft.weight": torch.zeros(24), "lm_head.bias": torch.ones(2)}
    replace_tensors(tmp_path / "theirs", lambda tensors: tensors.update(heads))
    assert_same_as(tmp_path / "theirs", peer)
    notes: list[str] = []
    model = Model.load(tmp_path / "theirs", on_event=lambda event: notes.append(event["text"]))
    assert all(name in notes[0] for name in heads)
    model.save(tmp_path / "ours")
    replace_tensors(tmp_path / "ours", lambda tensors: tensors.update(heads))  # ours has no unknown tensors
    assert_refused(tmp_path / "ours", "cls.chain.weight")


def test_labels_come_with_the_classifier(tmp_path: Path) -> None:
    names = {0: "bad", 1: "so-so", 2: "good"}
    saved(tmp_path, "BertForSequenceClassification", id2label=names, label2id={v: k for k, v in names.items()})
    model = Model.load(tmp_path)
    assert model.task is not None
    assert model.task.labels.names == ("bad", "so-so", "good")
    configure(tmp_path, id2label={"0": "LABEL_0", "1": "LABEL_1"})  # left over from another head
    model = Model.load(tmp_path)
    assert model.task is not None
    assert model.task.labels.names == ("LABEL_0", "LABEL_1", "LABEL_2")


def drop(*names: str) -> Any:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in names:
            del tensors[name]

    return change


def with_tensor(name: str, tensor: torch.Tensor) -> Any:
    return lambda tensors: tensors.update({name: tensor})


QUERY = "bert.encoder.layer.1.attention.self.query.weight"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (drop(QUERY), [QUERY]),
        (drop("cls.predictions.bias"), ["cls.predictions.bias"]),
        (drop("bert.pooler.dense.bias"), ["bert.pooler.dense.bias"]),
        (with_tensor(QUERY, torch.zeros(24, 23)), [QUERY, "24x23", "24x24"]),
        (with_tensor(QUERY, torch.zeros(24, 24, dtype=torch.int64)), [QUERY, "int64"]),
        (with_tensor("bert.embeddings.word_embeddings.weight", torch.zeros(10, 24)), ["10x24", f"{len(WORDS)}x24"]),
        (with_tensor("bert.encoder.layer.3.output.dense.weight", torch.zeros(24, 56)), ["bert.encoder.layer.3.output"]),
        (with_tensor("bert.adapter.weight", torch.zeros(3)), ["bert.adapter.weight"]),
        (with_tensor("cls.predictions.scale", torch.zeros(3)), ["cls.predictions.scale"]),
        (
            with_tensor("cls.predictions.decoder.weight", torch.ones(len(WORDS), 24)),
            ["decoder.weight", "word_embeddings"],
        ),
    ],
    ids=[
        *(
            "a matrix",
            "half a head",
            "half a pooler",
            "shape",
            "type",
            "vocabulary",
            "layer",
            "unknown",
            "unknown in a head",
            "untied",
        )
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path: Path, change: Any, named: list[str]) -> None:
    saved(tmp_path)
    replace_tensors(tmp_path, change)
    assert_refused(tmp_path, *named)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"model_type": "deberta"}, ["deberta"]),
        ({"hidden_act": "mish"}, ["hidden_act", "mish", "gelu_new"]),
        ({"position_embedding_type": "relative_key"}, ["position_embedding_type", "relative_key"]),
        ({"is_decoder": True}, ["is_decoder"]),
        ({"pruned_heads": {"0": [1]}}, ["pruned"]),
        ({"num_attention_heads": 5}, ["num_attention_heads 5"]),
        ({"hidden_size": "wide"}, ["hidden_size", "whole number"]),
        ({"vocab_size": None}, ["vocab_size", "whole number"]),
        ({"num_hidden_layers": 2.5}, ["2.5"]),
        ({"keel": {"system": "bart"}}, ["bart"]),
    ],
    ids=str,
)
def test_settings_that_cannot_be_held_are_named(tmp_path: Path, settings: dict[str, Any], named: list[str]) -> None:
    saved(tmp_path)
    configure(tmp_path, **settings)
    assert_refused(tmp_path, "config.json", *named)


def assert_refused(folder: Path, *named: str) -> None:
    with pytest.raises(KeelError) as caught:
        Model.load(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert str(folder) in message
    for text in named:
        assert text in message


def test_what_is_no_model_folder_is_reported_in_one_sentence(tmp_path: Path) -> None:
    assert_refused(tmp_path / "nowhere", "does not exist")
    assert_refused(tmp_path, "no config.json")
    (tmp_path / "file").write_text("")
    assert_refused(tmp_path / "file", "is empty", "file of word vectors")
    folder = tmp_path / "model"
    saved(folder)
    (folder / "vocab.txt").rename(folder / "vocab.old")
    assert_refused(folder, "tokenizer")
    (folder / "vocab.old").rename(folder / "vocab.txt")
    whole = (folder / "model.safetensors").read_bytes()
    for size in (0, 5, 100, len(whole) // 2, len(whole) - 1):
        (folder / "model.safetensors").write_bytes(whole[:size])
        assert_refused(folder, "model.safetensors", "truncated or damaged")
    (folder / "model.safetensors").unlink()
    assert_refused(folder, "no model.safetensors")
    (folder / "config.json").write_text("{")
    assert_refused(folder, "config.json cannot be read")
    (folder / "config.json").write_text("[]")
    assert_refused(folder, "config.json")


def test_a_tokenizer_with_more_tokens_than_vectors(tmp_path: Path) -> None:
    saved(tmp_path)
    with open(tmp_path / "vocab.txt", "a") as file:
        file.write("one-more\n")
    assert_refused(tmp_path, str(len(WORDS)), str(len(WORDS) + 1))


class Bomb:
    def __reduce__(self) -> Any:
        return (Path("opened").touch, ())


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_pickle_is_never_opened(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "model"
    saved(folder)
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Bomb(), protocol=2))
    assert_refused(folder, "pickle", "keel convert")
    with pytest.raises(KeelError):
        convert(folder, tmp_path / "out")
    assert not (tmp_path / "opened").exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    "kind", ["BertForPreTraining", "BertModel", "BertForSequenceClassification", "BertForMaskedLM"]
)
def test_convert_makes_an_ordinary_folder_of_a_pickled_one(tmp_path: Path, kind: str, zipped: bool) -> None:
    source, target = tmp_path / "old", tmp_path / "new"
    peer = saved(source, kind)
    (source / "model.safetensors").unlink()
    torch.save(peer.state_dict(), source / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    assert_refused(source, "keel convert")
    convert(source, target)
    assert_same_as(target, peer)
    _, report = getattr(transformers, kind).from_pretrained(target, output_loading_info=True)
    assert not any(report.values())
    assert (target / "tokenizer.json").exists()
    with pytest.raises(KeelError, match="not empty"):
        convert(source, target)
    convert(source, target, overwrite=True)


def test_a_flipped_bit_is_found_and_named(tmp_path: Path) -> None:
    saved(tmp_path / "theirs")
    Model.load(tmp_path / "theirs").save(tmp_path / "ours")
    path = tmp_path / "ours" / "model.safetensors"
    data = bytearray(path.read_bytes())
    header = 8 + int.from_bytes(data[:8], "little")
    start, _ = json.loads(data[8:header])[QUERY]["data_offsets"]
    data[header + start + 7] ^= 1
    path.write_bytes(data)
    assert_refused(tmp_path / "ours", QUERY, "checksum")


def test_a_body_needs_no_mask_in_its_vocabulary(tmp_path: Path) -> None:
    peer = saved(tmp_path, "BertModel")
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS).replace("[MASK]", "[unused]") + "\n", encoding="utf-8")
    assert_same_as(tmp_path, peer)


def test_more_positions_than_a_row_may_have(tmp_path: Path) -> None:
    peer = saved(tmp_path, "BertModel", max_position_embeddings=5000)
    assert assert_same_as(tmp_path, peer).system.max_length == 4096


def test_heads_beside_those_of_the_named_class_are_kept(tmp_path: Path) -> None:
    saved(tmp_path / "theirs")
    base = Model.load(tmp_path / "theirs")
    labels = Labels(kind=MultiLabel(), names=("a", "b", "c"))
    base.task = TextClassification(base.system, base.encoder, base.tokenizer, labels)
    base.save(tmp_path / "both")
    config = json.loads((tmp_path / "both" / "config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert config["problem_type"] == "multi_label_classification"
    assert "pipeline_tag: text-classification" in (tmp_path / "both" / "README.md").read_text()
    both = Model.load(tmp_path / "both")
    assert both.missing == ()
    assert both.task is not None
    assert both.task.labels == labels
    assert both.objective is not None
    assert base.objective is not None
    for name, tensor in base.objective.state_dict().items():
        assert torch.equal(both.objective.state_dict()[name], tensor)
