"""The scikit-learn face: what an estimator must do, and that it learns."""

import pickle
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from keel.api.sklearn_classifier import Classifier
from keel.data.corpus import Corpus
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError
from keel.model import Model
from keel.systems.bert import Bert

WORDS = ["wonderful", "dreadful", "film", "story", "the", "a", "was", "very"]
TEXTS = [f"{['the', 'a', 'was', 'very'][n % 4]} {WORDS[n % 2]} {WORDS[2 + n // 2 % 2]}" for n in range(48)]
LEARN: dict[str, Any] = {"steps": 40, "batch": 16, "lr": 5e-3, "device": "cpu"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A little BERT that knows nothing yet."""
    system = Bert(
        layers=1, width=32, head_dim=16, max_positions=32, sequence_length=32, dropout=0.0, attention_dropout=0.0
    )
    tokenizer = Tokenizer.train(Corpus.of([" ".join(WORDS)] * 4), kind="words", size=50)
    path = tmp_path_factory.mktemp("models") / "little"
    Model(system=system, encoder=system.build_encoder(len(tokenizer)), tokenizer=tokenizer).save(path)
    return path


@pytest.mark.parametrize("classes", [["good", "bad"], [2, 10], [1.0, 0.0], [True, False]])
def test_it_learns_and_gives_back_the_classes_it_was_given(folder: Path, classes: list[Any]) -> None:
    labels = np.array([classes[n % 2] for n in range(48)])
    model = Classifier(folder, **LEARN).fit(TEXTS, labels)
    assert model.classes_.tolist() == sorted(classes)
    assert model.predict(TEXTS).tolist() == labels.tolist()
    assert model.score(TEXTS, labels) == 1.0
    probabilities = model.predict_proba(TEXTS)
    assert probabilities.sum(1) == pytest.approx(1)
    assert (model.classes_[probabilities.argmax(1)] == labels).all()


@pytest.mark.parametrize("threshold", [0.001, 0.999])
def test_a_threshold_is_that_of_the_models_positive_class(folder: Path, threshold: float) -> None:
    labels = [(2, 10)[n % 2] for n in range(48)]  # as names, 10 comes before 2
    model = Classifier(folder, threshold=threshold, **{**LEARN, "steps": 2}).fit(TEXTS, labels)
    assert [str(each) for each in model.predict(TEXTS)] == [each.label for each in model.model_.predict(TEXTS)]
    assert {*model.predict(TEXTS).tolist()} == {2 if threshold < 0.5 else 10}


def test_pairs(folder: Path) -> None:
    pairs = [(TEXTS[(7 * n) % 48], text) for n, text in enumerate(TEXTS)]
    labels = [WORDS[n % 2] for n in range(48)]
    model = Classifier(folder, task="pair", **{**LEARN, "steps": 80}).fit(pairs, labels)
    assert model.score(pairs, labels) > 0.9


def test_parameters_can_be_read_set_and_cloned(folder: Path) -> None:
    model = Classifier(folder, lr=1e-3, seed=3)
    assert model.get_params() == {"base": folder, "task": "classify", "lr": 1e-3, "seed": 3}
    copy: Any = clone(model)
    assert copy is not model
    assert copy.get_params() == model.get_params()
    copy.set_params(lr=1e-4, task="pair")
    assert copy.get_params() == {"base": folder, "task": "pair", "lr": 1e-4, "seed": 3}
    assert model.get_params()["lr"] == 1e-3
    assert is_classifier(model)


def test_a_loaded_model_can_be_the_base(folder: Path) -> None:
    model: Any = clone(Classifier(Model.load(folder), **LEARN))
    labels = [n % 2 for n in range(48)]
    assert model.fit(TEXTS, labels).score(TEXTS, labels) == 1.0


def test_cross_validation_pipeline_and_search(folder: Path) -> None:
    labels = np.array(["good", "bad"] * 24)
    assert cross_val_score(Classifier(folder, **LEARN), TEXTS, labels, cv=2).mean() > 0.9
    shout = FunctionTransformer(lambda texts: [text.upper() for text in texts])
    pipeline = make_pipeline(shout, Classifier(folder, **LEARN)).fit(TEXTS, labels)
    assert pipeline.predict(TEXTS[:2]).tolist() == ["good", "bad"]
    search = GridSearchCV(Classifier(folder, **LEARN), {"lr": [1e-9, 5e-3]}, cv=2).fit(TEXTS, labels)
    assert search.best_params_ == {"lr": 5e-3}


def test_a_fitted_pipeline_can_be_pickled_and_copied(folder: Path) -> None:
    labels = np.array(["good", "bad"] * 24)
    pipeline = make_pipeline(FunctionTransformer(list), Classifier(Model.load(folder), **LEARN)).fit(TEXTS, labels)
    wanted = pipeline.predict_proba(TEXTS)
    for other in (pickle.loads(pickle.dumps(pipeline)), deepcopy(pipeline)):
        assert np.array_equal(other.predict_proba(TEXTS), wanted)
        assert other.predict(TEXTS).tolist() == labels.tolist()


def test_unsupported_calls_are_refused(folder: Path) -> None:
    for expected in (KeelError, NotFittedError):
        with pytest.raises(expected, match="call fit first"):
            Classifier(folder).predict(["a film"])
    with pytest.raises(KeelError, match="item 1 of X is nan: give texts"):
        Classifier(folder).fit(["a", float("nan")], ["x", "y"])
    with pytest.raises(KeelError, match="2 texts and y 1 labels"):
        Classifier(folder).fit(["a", "b"], ["x"])
    for missing in (None, float("nan")):
        with pytest.raises(KeelError, match=f"item 1 of y is {missing}: give every text a label"):
            Classifier(folder, **LEARN).fit(["a", "b", "c"], [0, missing, 1])
    with pytest.raises(KeelError, match="only one class"):
        Classifier(folder, **LEARN).fit(["a", "b"], ["x", "x"])
    with pytest.raises(KeelError, match="learning_rate"):
        Classifier(folder, learning_rate=0.1).fit(["a", "b"], ["x", "y"])
