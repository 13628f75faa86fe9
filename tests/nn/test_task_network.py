from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from keel.api.conversion import convert
from keel.api.evaluation import evaluate
from keel.api.finetuning import finetune
from keel.errors import UsageError
from keel.formats.vector_files import Vectors
from keel.model import Model
from keel.nn.task_network import BEGIN, END, MAX_BYTES, BigramEncoder, CharacterEncoder, HeadNetwork, character_units
from keel.systems.bert import Bert
from keel.systems.fasttext import FastText
from keel.systems.onehot import Onehot

WORDS = ["not", "good", "bad", "film", "a", "the", "it", "is", "was", "anna", "berlin", "sings", "in", "oslo", "peter"]
EXAMPLES = [
    ("it is good not bad", "yes"),
    ("it is bad not good", "no"),
    ("good film not a bad film", "yes"),
    ("bad film not a good film", "no"),
] * 6
"""A bag of words cannot tell these apart."""
TAGGED = [
    (["Anna", "sings", "in", "Berlin"], ["B-PER", "O", "O", "B-LOC"]),
    (["in", "Oslo", "Peter", "sings"], ["O", "B-LOC", "B-PER", "O"]),
    (["Xerxes", "sings"], ["B-PER", "O"]),
    (["xylophone", "sings"], ["O", "O"]),
] * 5
QUICK: dict[str, Any] = {"dev": None, "threads": 1, "lr": 1e-2, "batch": 6, "network_dropout": 0.0, "network_width": 12}


@pytest.fixture(scope="module")
def vectors() -> Model:
    matrix = np.random.default_rng(0).normal(size=(len(WORDS), 12)).astype(np.float32)
    return Model.of_vectors(Vectors(list(WORDS), matrix), title="words")


@pytest.mark.parametrize("kind", ["cnn", "rnn", "gru", "lstm"])
@pytest.mark.parametrize("freeze", [True, False])
def test_word_vectors_learn_order_by_a_network(vectors: Model, tmp_path: Path, kind: str, freeze: bool) -> None:
    finetune(vectors, EXAMPLES, network=kind, freeze=freeze, epochs=15, out=tmp_path / "m", **QUICK)  # pyright: ignore[reportArgumentType]
    model = Model.load(tmp_path / "m")
    assert evaluate(model, EXAMPLES).main_value == 1.0
    assert model.task is not None
    assert model.task.settings == {"network": kind, "network_width": 12, "network_dropout": 0.0}
    kept = torch.equal(model.encoder.state_dict()["words.weight"], vectors.encoder.state_dict()["words.weight"])
    assert kept is freeze
    convert(tmp_path / "m", tmp_path / "copy")
    texts = [text for text, _ in EXAMPLES]
    assert Model.load(tmp_path / "copy").predict(texts) == model.predict(texts)


def test_without_a_network_order_is_lost(vectors: Model) -> None:
    model = finetune(vectors, EXAMPLES, dev=None, threads=1, epochs=15, lr=1e-2)
    assert evaluate(model, EXAMPLES).main_value == 0.5


@pytest.mark.parametrize("freeze", [True, False])
def test_a_transformer_takes_a_network_and_stays_one_for_others(tmp_path: Path, freeze: bool) -> None:
    system = Bert(layers=1, width=16, head_dim=8, max_positions=32, sequence_length=32)
    parent = finetune(system, EXAMPLES, dev=None, epochs=1)
    model = finetune(parent, EXAMPLES, network="lstm", freeze=freeze, epochs=4, out=tmp_path / "m", **QUICK)
    again = Model.load(tmp_path / "m")
    texts = [text for text, _ in EXAMPLES]
    assert again.predict(texts) == model.predict(texts)
    assert '"BertModel"' in (tmp_path / "m" / "config.json").read_text()


@pytest.mark.parametrize("kind", ["cnn", "lstm"])
def test_characters_distinguish_words_without_vectors(vectors: Model, tmp_path: Path, kind: str) -> None:
    """Xerxes and xylophone are both unknown: only their characters and their case show a name."""
    finetune(vectors, TAGGED, task="tag", characters=kind, freeze=True, epochs=30, out=tmp_path / "m", **QUICK)  # pyright: ignore[reportArgumentType]
    model = Model.load(tmp_path / "m")
    assert evaluate(model, TAGGED).main_value == 1.0
    blind = finetune(vectors, TAGGED, task="tag", network="lstm", freeze=True, epochs=5, crf=True, **QUICK)
    assert evaluate(blind, TAGGED).main_value < 1.0


def test_words_are_read_the_same_whatever_stands_beside_them() -> None:
    torch.manual_seed(0)
    network = HeadNetwork(6, kind="gru", width=4, layers=2, dropout=0.5, characters="cnn").eval()
    x, counts, words = torch.randn(2, 5, 6), torch.tensor([5, 2]), torch.tensor([[0, 1, 2, 1, 0], [2, 1, 0, 0, 0]])
    characters = character_units(["a", "boat", "é" * 100])
    together = network(x, counts, words, characters)
    alone = network(x[1:, :2], counts[1:], words[1:, :2], characters)
    assert together.shape == (2, 5, network.width)
    assert torch.allclose(together[1, :2], alone[0], atol=1e-6)


@pytest.mark.parametrize("kind", ["cnn", "lstm"])
def test_the_characters_of_a_word_are_encoded_independently(kind: Any) -> None:
    reader = CharacterEncoder(kind, 0.5).eval()
    together = reader(character_units(["a", "boat", "in Oslo"]))
    for word, vector in zip(["a", "boat", "in Oslo"], together, strict=True):
        assert torch.allclose(reader(character_units([word]))[0], vector, atol=1e-6)
    assert together.shape == (3, reader.width)


def test_words_are_encoded_by_bytes_and_long_ones_cut() -> None:
    units = character_units(["né", "x" * 5000 + "y"])
    assert units.unit_ids[:5].tolist() == [BEGIN, ord("n"), 0xC3, 0xA9, END]
    assert units.unit_counts.tolist() == [5, MAX_BYTES + 2]
    assert units.unit_ids[-2:].tolist() == [ord("y"), END]


@pytest.mark.parametrize("system", [Onehot(), FastText().from_scratch()])
def test_what_has_no_vectors_of_words_takes_no_network(system: Any) -> None:
    with pytest.raises(UsageError, match="network needs a vector for each word, and this model has none"):
        finetune(system, EXAMPLES, network="lstm", **QUICK)


def test_flags_that_do_not_fit_are_refused(vectors: Model) -> None:
    with pytest.raises(UsageError, match="characters is for task='tag'"):
        finetune(vectors, EXAMPLES, characters="cnn", dev=None)
    with pytest.raises(UsageError, match="network_layers"):
        finetune(vectors, EXAMPLES, network="cnn", network_layers=0, dev=None)


def test_a_frozen_encoder_gives_in_training_what_it_gives_later() -> None:
    system = Bert(layers=1, width=16, head_dim=8, max_positions=32, sequence_length=32, dropout=0.5)
    parent = finetune(system, EXAMPLES, dev=None, epochs=1)
    task = finetune(parent, EXAMPLES, network="cnn", freeze=True, epochs=1, **QUICK).task
    assert task is not None
    task.train()
    assert task.network is not None
    assert task.network.training
    assert not task.encoder.training


def test_bigrams_are_those_of_a_word_with_its_neighbours() -> None:
    encoder, units = BigramEncoder(dropout=0.5).eval(), character_units(["中", "国", "人"])

    def read(*words: int) -> torch.Tensor:
        return encoder(torch.tensor([words]), torch.tensor([len(words)]), units)[0]

    with torch.no_grad():
        a, b, alone = read(0, 1, 2), read(2, 1, 0), read(1)
        padded = encoder(torch.tensor([[0, 1, 2, 0]]), torch.tensor([3]), units)[0]
    left, right = a.chunk(2, -1)
    assert torch.equal(right[0], left[1])  # 中国 is the right bigram of 中 and the left one of 国
    assert torch.equal(right[1], left[2])
    assert not torch.equal(a[1], b[1])
    assert not torch.equal(a[1], alone[0])
    assert torch.equal(padded[:3], a)


def test_a_tagger_learns_from_bigrams(tmp_path: Path) -> None:
    """The tag of "b" depends on its left neighbour, which a network without recurrence cannot see otherwise."""
    rows = [("a b", "O X"), ("c b", "O O"), ("b a", "O O"), ("b c", "O O")] * 8
    data = [(one.split(), tags.split()) for one, tags in rows]
    plain = finetune("word2vec", data, task="tag", dev=None, epochs=40, device="cpu")
    bigrams = finetune("word2vec", data, task="tag", characters="bigrams", dev=None, epochs=40, device="cpu")
    assert evaluate(plain, data).values["accuracy"].value < 1
    assert evaluate(bigrams, data).values["accuracy"].value == 1


def test_distinct_characters_have_distinct_bigrams() -> None:
    """By powers of 31, half of all Chinese characters had the hash of another: 国 and 庼, 有 and 滈."""
    encoder, units = BigramEncoder(dropout=0.0).eval(), character_units(["国", "庼", "有", "滈"])
    with torch.no_grad():
        vectors = encoder(torch.tensor([[0], [1], [2], [3]]), torch.ones(4).long(), units)[:, 0]
    assert len({tuple(vector.tolist()) for vector in vectors}) == 4
