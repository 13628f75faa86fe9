"""ModernBERT folders of transformers give the same numbers here, and what Keel writes gives them there."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers

import keel
from keel.data.token_batch import TokenBatch
from keel.errors import KeelError
from keel.model import Model
from keel.systems.bert import BertPretraining
from keel.systems.modernbert import ModernBert

TEXT = "the sailor repairs the boat and the baker serves bread to the judge"
ROWS = TokenBatch.pad([[5, *range(7, 27), 6], [5, 20, 14, 21, 6], [5, 6]])
"""Longer than the local windows of 8, and padded."""
INSIDE = torch.arange(ROWS.ids.shape[1]) < ROWS.lengths[:, None]
SMALL: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 40,
    "max_position_embeddings": 40,
    "local_attention": 8,
    "initializer_range": 0.2,
    "vocab_size": 300,
    "pad_token_id": 3,
    "cls_token_id": 1,
    "bos_token_id": 1,
    "sep_token_id": 2,
    "eos_token_id": 2,
}
CLASSES = (
    *("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"),
    *("ForMultipleChoice", "ForQuestionAnswering"),
)


def write_tokenizer(folder: Path) -> int:
    """Tokenizer files as published: byte-level BPE with BERT's special tokens at the end; returns its size."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer: Any = trainers.BpeTrainer(
        vocab_size=290, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    inner.train_from_iterator([TEXT] * 3, trainer)
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]"]
    inner.add_special_tokens([*special, AddedToken("[MASK]", lstrip=True)])
    begin, end = (inner.token_to_id(token) for token in ("[CLS]", "[SEP]"))
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", begin), ("[SEP]", end)]
    )
    inner.save(str(folder / "tokenizer.json"))
    names = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    config = {**names, "mask_token": "[MASK]", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return inner.get_vocab_size()


def saved(folder: Path, kind: str, **settings: Any) -> Any:
    """A model of transformers with random weights."""
    folder.mkdir()
    vocab_size = write_tokenizer(folder)
    torch.manual_seed(1)
    shape: dict[str, Any] = {**SMALL, "vocab_size": vocab_size, **settings}
    config = transformers.ModernBertConfig(**shape)
    model = getattr(transformers, f"ModernBert{kind}")(config).eval()
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=float("norm.weight" in name), std=0.3)
    model.save_pretrained(folder)
    return model


@torch.inference_mode()
def theirs(model: Any) -> Any:
    ids, mask = ROWS.ids, INSIDE.long()
    if "MultipleChoice" in type(model).__name__:
        ids, mask = ids[:, None], mask[:, None]
    return model(ids, attention_mask=mask, output_hidden_states=True)


def assert_close(ours: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal to 1e-5, at tokens."""
    if ours.ndim == 3:
        ours, expected = ours[INSIDE], expected[INSIDE]
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def assert_same(model: Model, peer: Any, kind: str) -> None:
    """Every layer and the head of the class equal the peer's."""
    expected = theirs(peer)
    output = model.encoder.eval()(ROWS, all_layers=True)
    if kind != "ForMultipleChoice":
        for layer, theirs_layer in zip(output.layers, expected.hidden_states, strict=True):
            assert_close(layer, theirs_layer)
    if kind == "ForMaskedLM":
        assert isinstance(model.objective, BertPretraining)
        everywhere = torch.arange(ROWS.ids.shape[1]).expand_as(ROWS.ids)
        assert_close(model.objective.predict_masked(output.top, everywhere), expected.logits)
    elif kind == "ForTokenClassification":
        assert model.task is not None
        assert_close(model.task.eval().predict_logits(output.top), expected.logits)
    elif kind == "ForQuestionAnswering":
        assert model.task is not None
        logits = model.task.classifier(model.task.project_tokens(output.top))  # type: ignore[operator]
        assert_close(logits, torch.stack([expected.start_logits, expected.end_logits], -1))
    elif kind != "Model":
        assert model.task is not None
        task = model.task.eval()
        assert_close(task.predict_logits(task.select_features(ROWS)).view_as(expected.logits), expected.logits)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("kind", CLASSES)
def test_every_class_gives_equal_outputs_in_both_directions(kind: str, pooling: str, tmp_path: Path) -> None:
    peer = saved(tmp_path / "theirs", kind, classifier_pooling=pooling)
    model = Model.load(tmp_path / "theirs")
    assert isinstance(model.system, ModernBert)
    assert model.system.classifier_pooling == pooling
    assert_same(model, peer, kind)
    model.save(tmp_path / "ours")
    config = json.loads((tmp_path / "ours/config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("modernbert", [f"ModernBert{kind}"])
    again, report = getattr(transformers, f"ModernBert{kind}").from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not any(report.values())
    for found, expected in zip(theirs(again.eval()).to_tuple(), theirs(peer).to_tuple(), strict=True):
        if isinstance(found, torch.Tensor):
            assert_close(found, expected)
    assert_same(Model.load(tmp_path / "ours"), peer, kind)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_local_and_global_layers_and_wavelengths_are_theirs(implementation: str, tmp_path: Path) -> None:
    ropes = {"full_attention": {"rope_theta": 500.0}, "sliding_attention": {"rope_theta": 20.0}}
    ropes = {name: {"rope_type": "default", **each} for name, each in ropes.items()}
    every = {"layer_types": ["full_attention", "sliding_attention"] * 2, "local_attention": 6}
    saved(tmp_path / "m", "ForMaskedLM", rope_parameters=ropes, **every)
    model = Model.load(tmp_path / "m")
    assert isinstance(model.system, ModernBert)
    found = model.system
    assert (found.global_attn_every_n_layers, found.local_attention) == (2, 6)
    assert (found.global_rope_theta, found.local_rope_theta) == (500.0, 20.0)
    peer: Any = transformers.ModernBertForMaskedLM.from_pretrained(
        tmp_path / "m", attn_implementation=implementation
    ).eval()
    assert_same(model, peer, "ForMaskedLM")
    model.save(tmp_path / "ours")
    config = transformers.AutoConfig.from_pretrained(tmp_path / "ours")
    assert config.layer_types == every["layer_types"]
    assert [config.rope_parameters[name]["rope_theta"] for name in ropes] == [500.0, 20.0]


def test_published_config_files_are_read(tmp_path: Path) -> None:
    """The fields of answerdotai/ModernBERT-base, which transformers 4 wrote."""
    saved(tmp_path / "m", "ForMaskedLM")
    path = tmp_path / "m/config.json"
    config = json.loads(path.read_text())
    config = {name: value for name, value in config.items() if name not in ("layer_types", "rope_parameters")}
    old = {"global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
    old |= {"position_embedding_type": "absolute", "classifier_pooling": "mean", "reference_compile": None}
    path.write_text(json.dumps({**config, **old}))
    assert_same(
        Model.load(tmp_path / "m"),
        transformers.ModernBertForMaskedLM.from_pretrained(tmp_path / "m").eval(),
        "ForMaskedLM",
    )
    path.write_text(json.dumps({**config, **old, "local_rope_theta": None}))
    system = Model.load(tmp_path / "m").system
    assert isinstance(system, ModernBert)
    assert system.local_rope_theta == 160000.0, "transformers 4 takes the other one"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layer_types": ["full_attention", "full_attention", "sliding_attention", "full_attention"]}, "layer_types"),
        ({"layer_types": ["sliding_attention"] * 4}, "layer_types"),
        ({"layer_types": 3}, "layer_types"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "'yarn'"),
        ({"rope_parameters": {"full_attention": {"rope_theta": "x"}}}, "global_rope_theta"),
        ({"norm_bias": True}, "norm_bias"),
        ({"hidden_activation": "tanh"}, "hidden_activation"),
        ({"local_attention": 0}, "local_attention"),
    ],
)
def test_what_keel_does_not_have_is_refused(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    saved(tmp_path / "m", "ForMaskedLM")
    path = tmp_path / "m/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    with pytest.raises(KeelError, match=message) as caught:
        Model.load(tmp_path / "m")
    assert "config.json" in str(caught.value)


def test_texts_pairs_and_masks_are_read_as_transformers_does(tmp_path: Path) -> None:
    peer = saved(tmp_path / "m", "ForMaskedLM")
    model = Model.load(tmp_path / "m")
    tokenizer: Any = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / "m")
    one, two = "the boat and the judge", "serves bread"
    ids = model.tokenizer.encode_many([one, two])
    assert model.system.build_inputs(model.tokenizer, ids[0]).ids == tokenizer(one)["input_ids"]
    pair = model.system.build_inputs(model.tokenizer, *ids)
    assert pair.ids == tokenizer(one, two)["input_ids"]
    assert not any(pair.segments)
    with torch.inference_mode():
        masked = tokenizer(f"the{tokenizer.mask_token} serves", return_tensors="pt")
        position = masked["input_ids"][0].tolist().index(tokenizer.mask_token_id)
        logits = peer(masked["input_ids"], attention_mask=masked["attention_mask"]).logits[0, position]
    found = keel.fill("the[MASK] serves", model=model, top=1)[0][0]
    shares = logits.softmax(-1)
    shares[tokenizer.all_special_ids] = 0
    assert found.probability == pytest.approx(float(shares.max()), abs=1e-5)


def test_attention_weights_are_theirs(tmp_path: Path) -> None:
    saved(tmp_path / "m", "Model")
    peer: Any = transformers.ModernBertModel.from_pretrained(tmp_path / "m", attn_implementation="eager").eval()
    model = Model.load(tmp_path / "m")
    view = keel.attention(TEXT, model=model)
    ids = model.system.build_inputs(model.tokenizer, model.tokenizer.encode(TEXT).ids).ids
    with torch.inference_mode():
        expected = peer(torch.tensor([ids]), output_attentions=True).attentions
    found = torch.from_numpy(view.weights)
    assert len(ids) > 10
    torch.testing.assert_close(found, torch.stack([*expected])[:, 0], rtol=1e-5, atol=1e-5)


def test_conversion_keeps_the_outputs(tmp_path: Path) -> None:
    peer = saved(tmp_path / "theirs", "ForSequenceClassification", num_labels=3)
    keel.convert(tmp_path / "theirs", tmp_path / "ours")
    assert_same(Model.load(tmp_path / "ours"), peer, "ForSequenceClassification")
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "ours").eval()
    assert_close(theirs(again).logits, theirs(peer).logits)
