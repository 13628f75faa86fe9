"""sentence-transformers folders keep their pooling and normalisation in every verb that makes sentence embeddings."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import keel
from keel.errors import KeelError, UsageError
from keel.model import Model
from keel.nn.pooling import SentencePooling
from keel.tasks.classify import TextClassification

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
TEXTS = ["a b c d", "e", "", "f g h i j k l m n o p q r s t u v w"]
FLAGS = {"mean": "mean_tokens", "max": "max_tokens", "first": "cls_token", "last": "lasttoken"}


def saved(folder: Path, mode: str = "mean", *more: str, config: Any = None) -> Any:
    """A folder as sentence-transformers writes it, and its encoder."""
    torch.manual_seed(1)
    size: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    size |= {"intermediate_size": 32, "max_position_embeddings": 24, "vocab_size": len(WORDS)}
    peer = transformers.BertModel(transformers.BertConfig(**size, initializer_range=0.3)).eval()
    peer.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    names = ["Transformer", "Pooling", *more]
    modules = [
        {"idx": i, "path": f"{i}_{name}" * bool(i), "type": f"sentence_transformers.models.{name}"}
        for i, name in enumerate(names)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    flags = {f"pooling_mode_{flag}": each == mode for each, flag in FLAGS.items()}
    (folder / "1_Pooling/config.json").write_text(json.dumps(config or {"word_embedding_dimension": 16, **flags}))
    return peer


@torch.inference_mode()
def reference(peer: Any, texts: list[str], mode: str, *, normalize: bool) -> np.ndarray:
    """Sentence embeddings, one text at a time."""
    found = []
    for text in texts:
        ids = [2, *(WORDS.index(word) for word in text.split()), 3]
        top = peer(torch.tensor([ids])).last_hidden_state[0]
        found.append({"mean": top.mean(0), "max": top.amax(0), "first": top[0], "last": top[-1]}[mode])
    vectors = torch.stack(found)
    return (torch.nn.functional.normalize(vectors) if normalize else vectors).numpy()


@pytest.mark.parametrize("mode", FLAGS)
@pytest.mark.parametrize("more", [(), ("Normalize",)], ids=["raw", "normalized"])
def test_embeddings_equal_the_reference_and_the_folder_keeps_them(
    mode: str, more: tuple[str, ...], tmp_path: Path
) -> None:
    peer = saved(tmp_path / "theirs", mode, *more)
    expected = reference(peer, TEXTS, mode, normalize=bool(more))
    model = Model.load(tmp_path / "theirs")
    np.testing.assert_allclose(model.encode(TEXTS), expected, atol=1e-5)
    cosine = float(expected[0] @ expected[1] / np.linalg.norm(expected[0]) / np.linalg.norm(expected[1]))
    assert keel.similarity(TEXTS[0], TEXTS[1], model=model) == pytest.approx(cosine, abs=1e-5)
    mean = reference(peer, TEXTS, "mean", normalize=False)
    np.testing.assert_allclose(model.encode(TEXTS, pool="mean"), mean, atol=1e-5)
    keel.convert(tmp_path / "theirs", tmp_path / "ours")
    np.testing.assert_allclose(keel.embed(TEXTS, model=tmp_path / "ours"), expected, atol=1e-5)
    config = json.loads((tmp_path / "ours/1_Pooling/config.json").read_text())
    assert [flag for flag, value in config.items() if value is True] == [f"pooling_mode_{FLAGS[mode]}"]


def test_a_long_text_is_pooled_over_all_its_windows(tmp_path: Path) -> None:
    peer = saved(tmp_path / "m", "max")
    long = " ".join("abcdefghijklmnopqrstuvwxyz" * 2)
    parts = [" ".join(long.split()[start : start + 22]) for start in range(0, 52, 22)]
    expected = reference(peer, parts, "max", normalize=False).max(0)
    np.testing.assert_allclose(Model.load(tmp_path / "m").encode(long), expected, atol=1e-5)


def test_a_maximum_length_truncates_embeddings_and_frozen_features(tmp_path: Path) -> None:
    peer = saved(tmp_path / "m", "mean")
    (tmp_path / "m/sentence_bert_config.json").write_text('{"max_seq_length": 10, "do_lower_case": true}')
    long, notes = "a b c d e f g h i j k l", []
    expected = reference(peer, [long[: 2 * 8]], "mean", normalize=False)  # [CLS], 8 tokens and [SEP]
    keel.convert(tmp_path / "m", tmp_path / "ours")
    config = json.loads((tmp_path / "ours/sentence_bert_config.json").read_text())
    assert config == {"max_seq_length": 10, "do_lower_case": True}
    for folder in ("m", "ours"):
        found = Model.load(tmp_path / folder).encode([long.upper()], on_event=notes.append)
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert ["1 of 1 texts are longer than 8 tokens" in event["text"] for event in notes] == [True, True]
    settings: dict[str, Any] = {"dev": None, "epochs": 1, "device": "cpu", "freeze": True}
    keel.finetune(tmp_path / "m", [(long, "x"), ("c d e", "y")] * 4, out=tmp_path / "tuned", **settings)
    task = Model.load(tmp_path / "tuned").task
    assert task is not None
    data = task.encode_examples(task.read_examples([(long, "x")]))
    np.testing.assert_allclose(task.select_features(data.padded_batch(np.arange(1))).detach(), expected, atol=1e-5)
    pairs: Any = keel.finetune(tmp_path / "m", [(long, "a", "x"), ("c", long, "y")] * 4, task="pair", **settings).task
    assert pairs.encode_examples(pairs.read_examples([(long, "a", "x")])).lengths.tolist() == [10, 3]
    with pytest.raises(UsageError, match="max_tokens"):
        keel.finetune(tmp_path / "m", [("a", "b", "x"), ("c", "d", "y")], task="pair", max_tokens=8, dev=None)


@pytest.mark.parametrize("freeze", [True, False])
def test_a_classifier_reads_the_sentence_embedding(freeze: bool, tmp_path: Path) -> None:
    peer = saved(tmp_path / "m", "mean", "Normalize")
    rows = [("a b", "x"), ("c d e", "y")] * 4
    settings: dict[str, Any] = {"dev": None, "epochs": 1, "device": "cpu", "freeze": freeze}
    notes: list[str] = []
    model = keel.finetune(
        tmp_path / "m", rows, out=tmp_path / "tuned", on_event=lambda event: notes.append(str(event)), **settings
    )
    assert any("sentence-transformers" in text for text in notes)
    task = Model.load(tmp_path / "tuned").task
    assert isinstance(task, TextClassification)
    assert (task.pool, task.head.normalize) == ("mean", True)
    assert Model.load(tmp_path / "tuned").sentence_pooling == model.sentence_pooling == SentencePooling("mean", True)
    if freeze:
        data = task.encode_examples(task.read_examples(rows))
        features = task.select_features(data.padded_batch(np.arange(2))).detach().numpy() / 4  # sqrt(16)
        np.testing.assert_allclose(features, reference(peer, ["a b", "c d e"], "mean", normalize=True), atol=1e-5)
    plain = keel.finetune(tmp_path / "m", rows, pool="default", **settings).task
    assert plain is not None
    assert plain.settings == {}


def test_modules_that_keel_lacks_are_reported(tmp_path: Path) -> None:
    saved(tmp_path / "dense", "mean", "Dense")
    notes: list[str] = []
    model = Model.load(tmp_path / "dense", on_event=lambda event: notes.append(event["text"]))
    assert model.sentence_pooling == SentencePooling("mean")
    assert "Dense" in notes[0]
    saved(tmp_path / "new", config={"pooling_mode": "cls"})
    assert Model.load(tmp_path / "new").sentence_pooling == SentencePooling("first")
    saved(tmp_path / "odd", config={"pooling_mode": "weightedmean"})
    notes.clear()
    Model.load(tmp_path / "odd", on_event=lambda event: notes.append(event["text"]))
    assert "weightedmean" in notes[0]


@pytest.mark.parametrize("text", ["{}", "[1]", '[{"type": "x"}]', "[" * 100_000, "nonsense"])
def test_damaged_modules_are_named(text: str, tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "modules.json").write_text(text)
    with pytest.raises(KeelError, match=r"modules\.json"):
        Model.load(tmp_path)
