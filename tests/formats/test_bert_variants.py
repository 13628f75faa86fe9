"""RoBERTa and DistilBERT folders of transformers give the same numbers here, and what Keel writes gives them there."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers

import keel
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.model import Model
from keel.systems.bert import Bert, BertPretraining

TEXT = "the sailor repairs the boat and the baker serves bread to the judge"
ROWS = TokenBatch.pad([[5, 7, 8, 9, 6, 11, 12, 6], [5, 20, 14, 21, 6]])
SMALL: dict[str, dict[str, Any]] = {
    "Roberta": {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40}
    | {"max_position_embeddings": 34, "type_vocab_size": 1, "initializer_range": 0.2},
    "DistilBert": {"dim": 24, "n_layers": 2, "n_heads": 2, "hidden_dim": 40, "max_position_embeddings": 32}
    | {"initializer_range": 0.2},
}
KINDS = [
    (name, kind)
    for name in SMALL
    for kind in ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForMultipleChoice")
]


def write_tokenizer(folder: Path, name: str) -> int:
    """Write the tokenizer files of such a folder; returns the vocabulary size."""
    if name == "DistilBert":
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted({*TEXT.split()}), *"abcdefghijklmnopqrstuvwxyz"]
        (folder / "vocab.txt").write_text("\n".join(words) + "\n")
        return len(words)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    inner = tokenizers.ByteLevelBPETokenizer()
    inner.train_from_iterator([TEXT] * 3, vocab_size=300, special_tokens=special)
    inner.save_model(str(folder))
    return inner.get_vocab_size()


def saved(folder: Path, name: str, kind: str, **settings: Any) -> Any:
    """A model of transformers with random weights."""
    folder.mkdir()
    torch.manual_seed(1)
    size = SMALL[name] | {"vocab_size": write_tokenizer(folder, name)} | settings
    model = getattr(transformers, f"{name}{kind}")(getattr(transformers, f"{name}Config")(**size)).eval()
    for tensor_name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=float("orm.weight" in tensor_name), std=0.3)
    model.save_pretrained(folder)
    return model


@torch.inference_mode()
def theirs(model: Any) -> Any:
    mask = (torch.arange(ROWS.ids.shape[1]) < ROWS.lengths[:, None]).long()
    ids = torch.where(mask.bool(), ROWS.ids, 1 if "Roberta" in type(model).__name__ else 0)
    if "MultipleChoice" in type(model).__name__:
        ids, mask = ids[:, None], mask[:, None]
    return model(ids, attention_mask=mask, output_hidden_states=True)


def assert_close(ours: torch.Tensor, expected: torch.Tensor) -> None:
    if ours.ndim == 3:
        inside = torch.arange(ROWS.ids.shape[1]) < ROWS.lengths[:, None]
        ours, expected = ours[inside], expected[inside]
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def assert_same(model: Model, peer: Any, kind: str) -> None:
    """Every layer and every head equal the peer's."""
    expected = theirs(peer)
    output = model.encoder(ROWS, all_layers=True)
    if kind != "ForMultipleChoice":
        for layer, theirs_layer in zip(output.layers, expected.hidden_states, strict=True):
            assert_close(layer, theirs_layer)
    if getattr(expected, "pooler_output", None) is not None:
        assert_close(model.encoder.pool(output, ROWS), expected.pooler_output)
    if kind == "ForMaskedLM":
        assert isinstance(model.objective, BertPretraining)
        everywhere = torch.arange(ROWS.ids.shape[1]).expand_as(ROWS.ids)
        assert_close(model.objective.predict_masked(output.top, everywhere), expected.logits)
    elif kind != "Model":
        assert model.task is not None
        tagged = kind == "ForTokenClassification"
        features = output.top if tagged else model.task.select_features(ROWS)
        assert_close(
            model.task.classifier(features) if tagged else model.task.predict_logits(features), expected.logits
        )


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_every_class_gives_equal_outputs_in_both_directions(name: str, kind: str, tmp_path: Path) -> None:
    peer = saved(tmp_path / "theirs", name, kind)
    model = Model.load(tmp_path / "theirs")
    assert isinstance(model.system, Bert)
    assert model.system.variant == name.lower()
    assert_same(model, peer, kind)
    model.save(tmp_path / "ours")
    config = json.loads((tmp_path / "ours/config.json").read_text())
    assert (config["model_type"], config["architectures"]) == (name.lower(), [f"{name}{kind}"])
    again, report = getattr(transformers, f"{name}{kind}").from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values())
    key = "last_hidden_state" if kind == "Model" else "logits"
    assert_close(getattr(theirs(again.eval()), key), getattr(theirs(peer), key))
    assert_same(Model.load(tmp_path / "ours"), peer, kind)


@pytest.mark.parametrize("name", SMALL)
def test_texts_pairs_and_masks_are_read_as_transformers_does(name: str, tmp_path: Path) -> None:
    peer = saved(tmp_path / "m", name, "ForMaskedLM")
    model = Model.load(tmp_path / "m")
    kind = transformers.RobertaTokenizer if name == "Roberta" else transformers.DistilBertTokenizer
    tokenizer = kind.from_pretrained(tmp_path / "m")
    one, two = "the boat and the judge", "serves bread"
    ids = model.tokenizer.encode_many([one, two])
    assert model.system.build_inputs(model.tokenizer, ids[0]).ids == tokenizer(one)["input_ids"]
    pair = model.system.build_inputs(model.tokenizer, *ids)
    assert pair.ids == tokenizer(one, two)["input_ids"]
    assert not any(pair.segments)
    with torch.inference_mode():
        inputs = tokenizer([one], return_tensors="pt")
        hidden = peer(**inputs, output_hidden_states=True).hidden_states[-1]
        np.testing.assert_allclose(keel.embed([one], model=model), hidden.mean(1), atol=1e-5)
        masked = tokenizer(f"the{tokenizer.mask_token} serves", return_tensors="pt")
        position = masked["input_ids"][0].tolist().index(tokenizer.mask_token_id)
        best = peer(**masked).logits[0, position].softmax(-1).max()
    candidates = keel.fill("the[MASK] serves", model=model, top=1)[0]
    assert candidates[0].probability == pytest.approx(float(best), abs=1e-5)
    assert "Ġ" not in candidates[0].word


@pytest.mark.parametrize("name", SMALL)
def test_fine_tuned_folders_load_there(name: str, tmp_path: Path) -> None:
    saved(tmp_path / "m", name, "Model")
    rows = [("the sailor", "x"), ("the judge", "y")] * 4
    model = keel.finetune(tmp_path / "m", rows, dev=None, epochs=1, device="cpu", out=tmp_path / "tuned")
    auto: Any = transformers.AutoModelForSequenceClassification
    peer, report = auto.from_pretrained(tmp_path / "tuned", output_loading_info=True)
    assert not any(report.values())
    assert_same(model, peer.eval(), "ForSequenceClassification")
    scores = keel.evaluate(tmp_path / "tuned", rows)
    assert scores.count == 8
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "tuned")
    ids = model.tokenizer.encode("the boat").ids
    assert tokenizer("the boat")["input_ids"] == model.system.build_inputs(model.tokenizer, ids).ids


def test_the_head_of_a_class_wins_over_an_unused_pooler(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    peer = saved(tmp_path / "m", "Roberta", "ForSequenceClassification")
    tensors = load_file(tmp_path / "m/model.safetensors")
    tensors["roberta.pooler.dense.weight"], tensors["roberta.pooler.dense.bias"] = torch.ones(24, 24), torch.ones(24)
    save_file(tensors, tmp_path / "m/model.safetensors")
    assert_same(Model.load(tmp_path / "m"), peer, "ForSequenceClassification")


def test_a_tokenizer_json_keeps_the_special_tokens(tmp_path: Path) -> None:
    saved(tmp_path / "m", "Roberta", "Model")
    transformers.RobertaTokenizer.from_pretrained(tmp_path / "m").save_pretrained(tmp_path / "m")
    tokenizer = Tokenizer.load(tmp_path / "m")
    assert (tokenizer.cls_id, tokenizer.pad_id, tokenizer.sep_id) == (0, 1, 2)
