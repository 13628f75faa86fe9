"""One-hot: features equal those of scikit-learn, and a text of any length is one count vector."""

import re
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from keel.api.evaluation import evaluate
from keel.api.finetuning import finetune
from keel.api.pretraining import pretrain
from keel.api.vectors import nearest
from keel.data.corpus import Corpus
from keel.data.text_files import open_text
from keel.data.token_batch import TokenBatch
from keel.errors import KeelError, UsageError
from keel.model import Model
from keel.systems.onehot import Onehot, OnehotCounting, OnehotEncoder
from keel.training import linear_solver

TEXTS = [
    "the cat sat on the mat and the cat slept",
    "a dog barked at the cat",
    "birds sing in the morning",
    "the dog slept in the morning",
    "a bird sat on a dog",
    "cats and dogs and birds",
]


def learn(folder: Path, weighting: str) -> Model:
    return pretrain("onehot", Corpus.of(TEXTS), out=folder, vocabulary=40, held_out=0.0, weighting=weighting)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("weighting", ["binary", "count", "tfidf"])
def test_features_are_those_of_scikit_learn(tmp_path: Path, weighting: str) -> None:
    sklearn = pytest.importorskip("sklearn.feature_extraction.text")
    model = learn(tmp_path / "m", weighting)
    words = {model.tokenizer.token_of(number): number for number in range(len(model.tokenizer))}
    kinds = {
        "binary": sklearn.CountVectorizer(vocabulary=words, lowercase=False, token_pattern=r"\w+", binary=True),
        "count": sklearn.CountVectorizer(vocabulary=words, lowercase=False, token_pattern=r"\w+"),
        "tfidf": sklearn.TfidfVectorizer(vocabulary=words, lowercase=False, token_pattern=r"\w+"),
    }
    new = ["the the zebra and a cat", "sing dog sing"]
    expected = kinds[weighting].fit(TEXTS).transform([*TEXTS, *new]).toarray()
    np.testing.assert_allclose(Model.load(tmp_path / "m").encode([*TEXTS, *new]), expected, atol=1e-6)


@pytest.mark.parametrize("weighting", ["binary", "count", "tfidf"])
def test_pooled_features_equal_the_sum_of_one_hot_vectors(weighting: Any) -> None:
    encoder = Onehot(weighting=weighting).build_encoder(9)
    torch.nn.init.uniform_(encoder.weight)
    rows = TokenBatch.pad([[5, 6, 5, 7], [8], []])
    torch.testing.assert_close(encoder.pooled_features(rows), encoder.pool_features(encoder(rows), rows))
    assert encoder.embed(rows)[0].tolist() == torch.eye(9)[[5, 6, 5, 7]].tolist()


def test_memory_is_bounded_by_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Onehot(weighting="count").build_encoder(100_000)
    with pytest.raises(KeelError, match=r"5,000 words of 100,000 do not fit into memory: encode texts"):
        encoder.embed(TokenBatch.pad([[7] * 5000]))
    assert encoder.pooled_features(TokenBatch.pad([[7] * 5000]))[0, 7] == 5000
    monkeypatch.setattr("keel.text_vectors.MAX_BYTES", 1)
    with pytest.raises(UsageError, match=r"6 vectors of 23 numbers .*: pass fewer texts at once"):
        learn(tmp_path / "m", "binary").encode(TEXTS)


def test_nearest_texts_share_rare_words_and_words_are_equidistant(tmp_path: Path) -> None:
    model = learn(tmp_path / "m", "tfidf")
    assert nearest("the birds", model=model, among=TEXTS, top=1)[0].word in (TEXTS[2], TEXTS[5])
    assert nearest("the cat slept", model=model, among=TEXTS, top=1)[0].word == TEXTS[0]
    with pytest.raises(KeelError, match="onehot gives all words the same distance: use word2vec"):
        nearest("cat", model=model)
    assert model.encode("cat dog", pool="none").vectors.sum() == 2


def test_continued_pretraining_adds_to_the_counts(tmp_path: Path) -> None:
    first = learn(tmp_path / "m", "tfidf")
    second = pretrain(tmp_path / "m", Corpus.of(TEXTS), out=tmp_path / "n", held_out=0.0)
    assert isinstance(first.objective, OnehotCounting)
    assert isinstance(second.objective, OnehotCounting)
    assert first.objective.documents.item() == 6
    assert first.objective.holders[first.tokenizer.id_of("the")] == 4
    assert first.objective.words[first.tokenizer.id_of("the")] == 7
    assert torch.equal(2 * first.objective.words, second.objective.words)
    assert second.encoder.state_dict()["weight"][second.tokenizer.unknown_id] == 0


def test_the_loss_is_that_of_the_unigram_model(english_corpus: Path, tmp_path: Path) -> None:
    model = pretrain("onehot", english_corpus, out=tmp_path / "m", vocabulary=100, batch=50)
    assert isinstance(model.objective, OnehotCounting)
    share = (model.objective.words + 1) / (model.objective.words + 1).sum()
    entropy = -(share * share.log()).sum().item()
    assert model.card.scores["unigram"] == pytest.approx(entropy, rel=0.05)


WORDS = ["good fine great happy", "bad awful poor sad", "film plot scene actor story"]


def labelled(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Texts whose label follows from some of their words, with a tenth of wrong labels."""
    rng = np.random.default_rng(seed)
    examples = []
    for _ in range(count):
        label = int(rng.integers(2))
        words = [*rng.choice(WORDS[label].split(), 2), *rng.choice(WORDS[2].split(), 4)]
        examples.append((" ".join(rng.permutation(words)), str(label ^ int(rng.random() < 0.1))))
    return examples


def test_the_classifier_is_scikit_learns_logistic_regression_on_words_and_bigrams() -> None:
    linear, text = (pytest.importorskip(f"sklearn.{name}") for name in ("linear_model", "feature_extraction.text"))
    train, new = labelled(200), [each for each, _ in labelled(50, seed=1)]
    texts, labels = zip(*train, strict=True)
    model = finetune("onehot", train, dev=None, l2=0.5)
    vectorizers = [text.TfidfVectorizer(ngram_range=(n, n), sublinear_tf=True, norm=None).fit(texts) for n in (1, 2)]

    def features(texts: list[str]) -> np.ndarray:
        found = [vectorizers[0].transform(texts).toarray(), vectorizers[1].transform(texts).toarray() / 2**0.5]
        joined = np.concatenate(found, 1)
        return joined / np.linalg.norm(joined, axis=1, keepdims=True)

    # A softmax over two classes has two opposite vectors, whose penalties add to half of that of one logistic vector.
    peer = linear.LogisticRegression(C=1 / 0.5 * 2, tol=1e-8, max_iter=1000).fit(features(list(texts)), labels)
    mine = [each.confidence if each.label == "1" else 1 - each.confidence for each in model.predict(new)]
    np.testing.assert_allclose(mine, peer.predict_proba(features(new))[:, 1], atol=2e-3)


def test_regularisation_is_chosen_by_cross_validation_and_all_examples_are_used(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    model = finetune("onehot", labelled(300), out=tmp_path / "m", on_event=events.append)
    assert not any("held out" in event.get("text", "") for event in events)
    assert any("chosen by cross-validation" in event.get("text", "") for event in events)
    folds = model.card.scores["cross-validation"]
    assert len(folds["values"]) == 5
    assert 0.8 < folds["mean"] < 0.95, "a tenth of the labels is wrong"
    assert evaluate(model, labelled(200, seed=1)).main_value > 0.85
    loaded = Model.load(tmp_path / "m")
    texts = [text for text, _ in labelled(20, seed=2)]
    assert loaded.predict(texts) == model.predict(texts)
    again = finetune("onehot", labelled(300), out=tmp_path / "m")  # resumes a finished run
    assert again.card.scores["cross-validation"] == folds


def test_duplicates_share_a_fold_of_the_cross_validation() -> None:
    rng = np.random.default_rng(0)
    words = [f"w{number}" for number in range(60)]
    texts = [(" ".join(rng.choice(words, 6)), str(rng.integers(2))) for _ in range(150)]
    assert finetune("onehot", texts * 6).card.scores["cross-validation"]["mean"] < 0.65, "random labels"


@pytest.mark.parametrize(
    ("settings", "scored"),
    [
        ({}, {"cross-validation"}),
        ({"seeds": 2}, {"cross-validation", "dev", "dev_seeds"}),
        ({"l2": 0.5}, {"dev"}),
        ({"labels": "regression"}, {"dev"}),
    ],
)
def test_a_run_without_dev_always_has_a_score(settings: dict[str, Any], scored: set[str]) -> None:
    assert {*finetune("onehot", labelled(60), **settings).card.scores} == scored


def test_examples_too_many_to_cross_validate_have_a_dev_score(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("systems.onehot", "training.linear_solver"):
        monkeypatch.setattr(f"keel.{module}.HELD_OUT_FROM", 100)
    examples = [(f"{text} {number}", label) for number, (text, label) in enumerate(labelled(120))]
    assert {*finetune("onehot", examples).card.scores} == {"dev"}


def test_folds_may_have_more_ngrams_than_the_training_examples() -> None:
    scores = finetune("onehot", labelled(60), folds=5, dev="50%").card.scores
    assert len(scores["folds"]["values"]) == 5


def test_easy_data_is_not_regularised_into_low_confidence() -> None:
    """Any strength separates the classes; the rare words make the probabilities of a strong one flat."""
    rng = np.random.default_rng(0)
    examples = [
        (f"{'yes' if label else 'no'} {' '.join(rng.choice(WORDS[2].split(), 3))}", str(label)) for label in [0, 1] * 60
    ]
    model = finetune("onehot", examples)
    assert model.card.scores["cross-validation"]["mean"] == 1.0
    assert np.mean([each.confidence for each in model.predict([text for text, _ in examples])]) > 0.95


@pytest.mark.parametrize(("classes", "inverse"), [(2, 2.0), (3, 1.0)])
def test_the_note_names_scikit_learns_c(classes: int, inverse: float) -> None:
    events: list[dict[str, Any]] = []
    finetune("onehot", [(f"w{n % classes} x{n}", f"c{n % classes}") for n in range(30)], on_event=events.append)
    (found,) = (
        re.search(r"^L2 regularisation (\S+) \(C = (\S+) in", each.get("text", ""))
        for each in events
        if "L2" in each.get("text", "")
    )
    assert found
    assert float(found[1]) * float(found[2]) == pytest.approx(inverse, rel=1e-3)


def test_large_folds_are_solved_one_by_one_with_the_same_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    together = finetune("onehot", labelled(200)).card.scores["cross-validation"]
    widths: list[int] = []
    solve = linear_solver._Problem.solve

    def spy(self: Any, losses: Any, used: Tensor, l2: float, start: Tensor) -> Tensor:
        widths.append(used.shape[1])
        return solve(self, losses, used, l2, start)

    monkeypatch.setattr(linear_solver, "MAX_JOINT_BYTES", 0)
    monkeypatch.setattr(linear_solver._Problem, "solve", spy)
    assert finetune("onehot", labelled(200)).card.scores["cross-validation"] == together
    assert set(widths) == {1}
    assert len(widths) > 5 * len(linear_solver.STRENGTHS), "every fold, then all examples"


def test_the_last_solution_is_as_converged_as_those_of_the_folds() -> None:
    random = torch.Generator().manual_seed(0)
    columns = (torch.rand(300, 12, generator=random) ** 3 * 400).long()  # a few frequent words, many rare ones
    values = torch.rand(300, 12, generator=random) / 4
    targets = torch.randint(7, (300,), generator=random)
    columns[:, 0], values[:, 0] = targets + 7 * torch.randint(4, (300,), generator=random), 1.0  # tells the class
    rows = linear_solver.SparseRows(torch.arange(0, 3601, 12), columns.flatten(), values.flatten(), 400)

    def losses(logits: Tensor, targets: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(logits, targets, reduction="none")

    def weighed(weights: Tensor) -> float:
        total = losses(rows.matrix @ weights[:-1] + weights[-1], targets).sum()
        return float(total + found.l2 / 2 * weights[:-1].square().sum())

    found = linear_solver.fit_linear(rows, targets, 7, losses, 0.0, 0, lambda x, _: x[:, 0] * 0, groups=np.arange(300))
    problem = linear_solver._Problem(rows.matrix, rows.transposed, targets, 7)
    best = problem.zeros(1)
    for strength in linear_solver.STRENGTHS:
        best = problem.solve(losses, torch.ones(300, 1), strength, best)
    assert found.l2 == linear_solver.STRENGTHS[-1]
    assert weighed(torch.cat([found.weight, found.bias[None]])) < 1.005 * weighed(best)


@pytest.mark.parametrize("length", [{"steps": 5}, {"minutes": 1.0}, {"epochs": 2}])
def test_the_classifier_is_solved_in_one_step(length: dict[str, Any]) -> None:
    assert finetune("onehot", labelled(40), dev=None, batch=8).card.steps == 1
    with pytest.raises(UsageError, match=f"in one step: leave out {next(iter(length))}$"):
        finetune("onehot", labelled(40), dev=None, **length)


def test_predictions_need_no_dense_features(monkeypatch: pytest.MonkeyPatch) -> None:
    model = finetune("onehot", labelled(60), dev=None, l2=0.5)
    texts = [*(text for text, _ in labelled(10, seed=1)), "", "unknown words"]
    with monkeypatch.context() as dense:
        dense.setattr(OnehotEncoder, "inference_features", OnehotEncoder.pooled_features)
        expected = model.predict(texts)
    monkeypatch.delattr(OnehotEncoder, "pooled_features")
    found = model.predict(texts)
    assert [each.label for each in found] == [each.label for each in expected]
    np.testing.assert_allclose([each.confidence for each in found], [each.confidence for each in expected], atol=1e-6)


def test_one_example_needs_no_cross_validation() -> None:
    events: list[dict[str, Any]] = []
    model = finetune("onehot", [("a b", 2.5)], labels="regression", dev=None, on_event=events.append)
    assert model.predict("a b") == pytest.approx(2.5, abs=1e-3)
    assert not any("cross-validation" in event.get("text", "") for event in events)


def test_sparse_features_are_the_pooled_ones_without_zeros() -> None:
    model = finetune("onehot", labelled(40), dev=None, word_ngrams=3, l2=1.0)
    rows = model.tokenizer.encode_many([text for text, _ in labelled(10, seed=1)])
    batch = TokenBatch.pad(rows)
    starts = torch.tensor([0, *map(len, rows)]).cumsum(0)
    sparse = model.encoder.sparse_features(torch.tensor([*chain(*rows)]), starts)  # pyright: ignore[reportCallIssue]
    torch.testing.assert_close(sparse.matrix.to_dense(), model.encoder.pooled_features(batch))
    assert model.encoder.width == len(model.tokenizer) + model.system.ngrams  # pyright: ignore[reportAttributeAccessIssue]


def test_a_frozen_encoder_predicts_in_bf16(tmp_path: Path) -> None:
    model = finetune(
        learn(tmp_path / "m", "tfidf"), [("a cat", "x"), ("a dog", "y")] * 4, dev=None, freeze=True, precision="bf16"
    )
    assert model.predict("a dog").label == "y"


@pytest.mark.parametrize("labels", ["multi", "regression"])
def test_other_labels_are_fitted_by_their_own_loss(labels: Any) -> None:
    examples = [(text, float(label) if labels == "regression" else ["x", label]) for text, label in labelled(100)]
    model = finetune("onehot", examples, labels=labels)
    found = model.predict("bad awful poor sad")
    assert found > 0.5 if labels == "regression" else [each.label for each in found] == ["x", "1"]


def test_ngrams_are_for_labelled_texts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"labelled texts only: use keel finetune, or leave out"):
        pretrain("onehot", Corpus.of(TEXTS), out=tmp_path / "m", word_ngrams=2)


@pytest.mark.slow
def test_tfidf_does_as_well_as_scikit_learns_logistic_regression(data_dir: Path, tmp_path: Path) -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    folder = data_dir / "tasks" / "glue" / "SST-2"
    train, dev = (
        [(line.split("\t")[0], line.split("\t")[1]) for _, line in islice(open_text(folder / name), 1, 8001)]
        for name in ("train.tsv.xz", "dev.tsv")
    )
    texts, labels = zip(*train, strict=True)
    model = pretrain("onehot", Corpus.of(texts), out=tmp_path / "m", held_out=0.0)
    peer = linear.LogisticRegression(max_iter=1000).fit(model.encode(texts), labels)
    theirs = peer.score(model.encode([text for text, _ in dev]), [label for _, label in dev])
    tuned = finetune(model, train, dev=None, freeze=True)
    assert evaluate(tuned, dev).main_value > theirs - 0.015
