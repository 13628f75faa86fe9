"""NNLM: losses equal their formulas and give probabilities; sampled losses reach the same ones."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from keel.api.pretraining import pretrain
from keel.data.documents import Documents
from keel.data.token_store import Tokens
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.nn.huffman import huffman_tree
from keel.systems.nnlm import NgramBatch, Nnlm, NnlmTraining
from keel.training.counter_rng import CounterRng
from keel.training.loop import fit
from keel.training.loss_totals import validation_loss
from keel.training.plan import Train

SPECIALS = cast(Tokenizer, SimpleNamespace(special_ids=[0, 1, 2, 3, 4], unknown_id=1, cls_id=2))
LOSSES = ["softmax", "negative", "nce", "hierarchical"]
WORDS = 12


def documents_of(ids: np.ndarray, starts: list[int]) -> Documents:
    bounds = np.arange(len(starts))
    tokens = SimpleNamespace(
        ids=ids.astype(np.uint16), starts=np.array(starts), documents=bounds, word_starts=None, units=None
    )
    return Documents.of(cast(Tokens, tokens))


@pytest.fixture(scope="module")
def documents() -> Documents:
    """A Markov chain: the next word depends on the last."""
    rng = np.random.default_rng(0)
    table = rng.dirichlet(np.full(WORDS - 5, 0.5), WORDS)
    ids = [5]
    while len(ids) < 6000:
        ids.append(5 + int(rng.choice(WORDS - 5, p=table[ids[-1]])))
    return documents_of(np.array(ids), [0, 1000, 2500, 2503, 6000])


def make(data: Documents, **fields: Any) -> NnlmTraining:
    torch.manual_seed(0)
    system = Nnlm(**{"width": 4, "hidden": 6, "order": 3, "negatives": 4, "chunk_length": 10, **fields})
    objective = system.build_objective(system.build_encoder(WORDS), SPECIALS)
    objective.setup(data)
    return objective


def test_context_does_not_cross_documents(documents: Documents) -> None:
    objective = make(documents, order=4, chunk_length=7)
    rows = objective.epoch_size(documents)
    batch = objective.batch(documents, CounterRng(seed=3, step=0, first_example=0), range(rows))
    ids = documents.read(torch.arange(6000)).tolist()
    starts = [0, 1000, 2500, 2503]
    expected = set()
    for place, word in enumerate(ids):
        first = max(start for start in starts if start <= place)
        before = ids[max(first, place - 3) : place]
        expected.add((*[2] * (3 - len(before)), *before, word))
    here = batch.present.bool()
    found = {tuple(ngram) for ngram in torch.cat([batch.context, batch.words[..., None]], -1)[here].tolist()}
    assert found == expected
    assert here.sum() == 6000  # every word once


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("direct", [False, True])
def test_losses_and_gradients_equal_the_formulas(documents: Documents, loss: Any, direct: bool) -> None:
    objective = make(documents, loss=loss, direct_connections=direct).double()
    torch.nn.init.normal_(objective.output.weight)
    batch = objective.batch(documents, CounterRng(seed=1, step=2, first_example=40), range(3))
    batch = NgramBatch(
        context=batch.context, words=batch.words, present=batch.present.double(), negatives=batch.negatives
    )
    objective(batch)[0][loss].backward()
    ours = {name: value.grad.clone() for name, value in objective.named_parameters() if value.grad is not None}
    objective.zero_grad()

    counts = np.bincount(documents.read(torch.arange(6000)).numpy(), minlength=WORDS).astype(float)
    q = counts**0.75 / (counts**0.75).sum()
    tree = huffman_tree(counts)
    total = torch.zeros((), dtype=torch.float64)
    for row in range(3):
        for place in range(10):
            x = torch.cat([objective.encoder.words.weight[word] for word in batch.context[row, place]])
            f = torch.tanh(objective.project.weight @ x + objective.project.bias)
            f = torch.cat([f, x]) if direct else f
            scores = objective.output.weight @ f + objective.output.bias
            word = int(batch.words[row, place])
            if loss == "softmax":
                total = total - (scores[word] - torch.log(torch.exp(scores).sum()))
            elif loss == "hierarchical":
                for node, sign in zip(tree.nodes[word], tree.signs[word], strict=True):
                    if sign:
                        total = total - torch.log(1 / (1 + torch.exp(-float(sign) * scores[int(node)])))
            else:
                negatives = batch.negatives[row, place].tolist()
                for number, other in enumerate([word, *negatives]):
                    odds = torch.exp(scores[other])
                    if loss == "nce":  # p(data | word) = p / (p + k q)
                        odds = odds / (len(negatives) * q[other])
                    total = total - torch.log((odds if number == 0 else 1) / (1 + odds))
    assert objective(batch)[0][loss].item() == pytest.approx(total.item(), rel=1e-6)
    objective.zero_grad()
    total.backward()
    for name, value in objective.named_parameters():
        torch.testing.assert_close(ours[name], value.grad, rtol=1e-5, atol=1e-6)
    assert len(ours) == 5


@pytest.mark.parametrize("loss", LOSSES)
def test_probabilities_sum_to_one(documents: Documents, loss: Any) -> None:
    objective = make(documents, loss=loss).double()
    torch.nn.init.normal_(objective.output.weight)
    features = objective.features(torch.tensor([[5, 6]])).expand(WORDS, -1)
    probabilities = objective.log_probs(features, torch.arange(WORDS)).exp()
    assert probabilities.sum().item() == pytest.approx(1.0)


def test_negatives_follow_the_noise_distribution(documents: Documents) -> None:
    objective = make(documents, loss="nce", negatives=50, sampling_power=0.5)
    negatives = objective.batch(documents, CounterRng(seed=0, step=0, first_example=0), range(600)).negatives
    counts = np.bincount(documents.read(torch.arange(6000)).numpy(), minlength=WORDS) ** 0.5
    found = torch.bincount(negatives.flatten(), minlength=WORDS) / negatives.numel()
    np.testing.assert_allclose(found.numpy(), counts / counts.sum(), atol=0.003)


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_learns_the_same_probabilities(documents: Documents, loss: Any) -> None:
    objective = make(documents, loss=loss, order=2, hidden=16, width=16, chunk_length=20, negatives=20)
    train = Train(epochs=10, batch=12, lr=0.02, warmup=0, evaluate_every=0, device="cpu")
    fit(objective, documents, train)
    found = validation_loss(documents, train)(objective)
    ids = documents.read(torch.arange(6000)).numpy()
    pairs = np.zeros((WORDS, WORDS))
    np.add.at(pairs, (ids[:-1], ids[1:]), 1)
    shares = pairs / pairs.sum(1, keepdims=True).clip(min=1)
    entropy = -(pairs * np.log(shares.clip(min=1e-9))).sum() / pairs.sum()
    assert entropy - 0.02 < found["softmax"] < entropy + 0.06
    assert found["loss"] == found["softmax"]
    if loss == "nce":  # normalized without a sum over the vocabulary
        features = objective.eval().features(torch.arange(5, WORDS)[:, None])
        totals = objective.output(features)[:, 5:].exp().sum(1)
        assert totals.log().abs().mean() < 0.1


def test_continued_pretraining_keeps_the_huffman_tree(english_corpus: Path, tmp_path: Path) -> None:
    quick: dict[str, Any] = {"batch": 8, "steps": 20, "device": "cpu"}
    shape: dict[str, Any] = {"vocabulary": 200, "width": 8, "hidden": 8, "loss": "hierarchical"}
    first = pretrain("nnlm", english_corpus, out=tmp_path / "a", **quick, **shape)
    (tmp_path / "other.txt").write_text("The heavy boat never hauls the anchor.\n\n" * 200)
    second = pretrain(tmp_path / "a", tmp_path / "other.txt", out=tmp_path / "b", **quick)
    one, two = cast(NnlmTraining, first.objective), cast(NnlmTraining, second.objective)
    assert torch.equal(one.counts_of_words, two.counts_of_words)
    assert not torch.equal(one.output.weight, two.output.weight)
    assert first.card.scores["softmax"] < math.log(200)


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="order must be 2 or more, not 1"):
        Nnlm(order=1)
    with pytest.raises(UsageError, match="negatives must be 1 or more"):
        Nnlm(negatives=0)
