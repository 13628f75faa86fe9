"""What a text's vector is made from."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from keel.api.finetuning import finetune
from keel.data.examples import Examples
from keel.data.token_batch import TokenBatch
from keel.errors import UsageError
from keel.model import Model
from keel.nn.pooling import Pool, pool_tokens, sif_weights
from tests.tiny_task import MakeTask

LENGTHS = [3, 1, 5]


@pytest.fixture
def top() -> torch.Tensor:
    """[3, 5, 4]: all below zero, so that padding, were it read, would be the largest."""
    return -torch.rand(3, 5, 4, generator=torch.Generator().manual_seed(0)) - 1


def expected(row: torch.Tensor, strategy: Pool) -> torch.Tensor:
    ways = {"mean": row.mean(0), "max": row.amax(0), "first": row[0], "last": row[-1]}
    return torch.cat([ways["last"], ways["max"], ways["mean"]]) if strategy == "concat" else ways[strategy]


def test_word_vectors_weigh_words_by_rank() -> None:
    """a / (a + p) with Zipf's p, after two special tokens; a rare word counts more, an unknown word most."""
    weights = sif_weights(6, [0, 1])
    harmonic = sum(1 / rank for rank in (1, 2, 3, 4, 5))
    wanted = [1e-3 / (1e-3 + 1 / (rank * harmonic)) for rank in (1, 1, 1, 2, 3, 4, 5)]
    np.testing.assert_allclose(weights, wanted, rtol=1e-5)


def test_a_text_of_word_vectors_is_their_weighted_mean() -> None:
    model = Model.load("english-words", device="cpu")
    words = ["the", "guitar"]
    vectors, weights = model.encode(words), sif_weights(model.encoder.vocab_size, model.tokenizer.special_ids)
    the, guitar = (float(weights[model.tokenizer.encode(word).ids[0]]) for word in words)
    wanted = (the * vectors[0] + guitar * vectors[1]) / (the + guitar)
    np.testing.assert_allclose(model.encode("the guitar"), wanted, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(model.encode("the guitar", pool="sif"), wanted, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(model.encode("the guitar", pool="mean"), vectors.mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(model.encode_layers("the guitar", pool="sif")[-1], wanted, rtol=1e-4, atol=1e-6)
    with pytest.raises(UsageError, match="rank in a vocabulary, which bert does not have"):
        Model.load("chinese", device="cpu").encode("你好", pool="sif")


@pytest.mark.parametrize("strategy", ["concat", "mean", "max", "first", "last"])
def test_every_row_is_summed_up_without_its_padding(top: torch.Tensor, strategy: Pool) -> None:
    padded = TokenBatch(ids=torch.zeros(3, 5, dtype=torch.long), lengths=torch.tensor(LENGTHS))
    wanted = torch.stack([expected(row[:length], strategy) for row, length in zip(top, LENGTHS, strict=True)])
    torch.testing.assert_close(pool_tokens(top, padded, strategy), wanted)
    end_to_end = torch.cat([row[:length] for row, length in zip(top, LENGTHS, strict=True)])[None]
    packed = TokenBatch(
        ids=torch.zeros(1, 9, dtype=torch.long),
        lengths=torch.tensor(LENGTHS),
        sequence_starts=torch.tensor([0, 3, 4]),
        max_seqlen=8,
    )
    torch.testing.assert_close(pool_tokens(end_to_end, packed, strategy), wanted)


@pytest.mark.parametrize("frozen", [True, False])
def test_a_task_reads_the_pooled_vectors(make_task: MakeTask, reviews: Examples, frozen: bool) -> None:
    task = make_task(reviews, pool="concat", frozen=frozen).eval()
    assert task.classifier.in_features == 3 * task.encoder.width
    assert not task.get_parameter("encoder.pooler.weight").requires_grad  # nothing would train it
    data = task.encode_examples(reviews)
    assert (data.features is not None) == frozen
    rows = data.padded_batch(np.arange(4))
    picked = task.select_features(rows)
    torch.testing.assert_close(picked, pool_tokens(task.encoder(rows).top, rows, "concat"))
    if data.features is not None:
        torch.testing.assert_close(data.features[:4], picked, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(task.predict_logits(picked), task.classifier(picked))
    assert task.settings == {"pool": "concat"}
    assert make_task(reviews).settings == {}


SETTINGS: dict[str, Any] = {"dev": None, "device": "cpu", "epochs": 1}


@pytest.mark.parametrize("strategy", ["concat", "max"])
def test_a_folder_remembers_it(strategy: Pool, make_task: MakeTask, reviews: Examples, tmp_path: Path) -> None:
    task = make_task(reviews)
    base = Model(system=task.system, encoder=task.encoder, tokenizer=task.tokenizer)
    tuned = finetune(base, reviews, pool=strategy, out=tmp_path / "m", **SETTINGS)
    again = Model.load(tmp_path / "m")
    texts = ["a wonderful film", "a dreadful story of it"]
    for one, other in zip(tuned.predict(texts), again.predict(texts), strict=True):
        assert one.label == other.label
        assert one.confidence == pytest.approx(other.confidence, abs=1e-6)
    # Their own classifier would read [CLS]: what they find is an encoder without one.
    transformers = pytest.importorskip("transformers")
    assert transformers.BertModel.from_pretrained(tmp_path / "m", output_loading_info=True)[1]["missing_keys"] == set()
    with pytest.raises(ValueError, match="keel-bert"):
        transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "m")
    assert again.card.recipe["pool"] == strategy


def test_the_model_that_it_starts_from_stays_as_it_was(make_task: MakeTask, reviews: Examples) -> None:
    task = make_task(reviews)
    base = Model(system=task.system, encoder=task.encoder, tokenizer=task.tokenizer)
    before = base.fingerprint()
    tuned = finetune(base, reviews, pool="max", **SETTINGS)
    assert all(parameter.requires_grad for parameter in base.encoder.parameters())
    assert base.fingerprint() == before != tuned.fingerprint()


def test_another_way_is_another_run(make_task: MakeTask, reviews: Examples, tmp_path: Path) -> None:
    task = make_task(reviews)
    base = Model(system=task.system, encoder=task.encoder, tokenizer=task.tokenizer)
    finetune(base, reviews, pool="max", out=tmp_path / "m", **SETTINGS)
    with pytest.raises(UsageError, match="pool"):
        finetune(base, reviews, pool="mean", out=tmp_path / "m", **SETTINGS)


def test_what_has_no_vector_for_each_word_is_refused(reviews: Examples) -> None:
    with pytest.raises(UsageError, match="leave out pool"):
        finetune("onehot", reviews, pool="max", **SETTINGS)
