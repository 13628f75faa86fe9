"""Classes, several labels and numbers are learned, and a prediction depends on its own text alone."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from keel.data.examples import Columns, Examples, read_examples
from keel.data.predictions import Prediction
from keel.errors import KeelError
from keel.tasks.classify import TextClassification
from keel.training.loop import fit
from keel.training.plan import Train
from tests.golden import texts
from tests.tasks.task_sample import TaskSample

SAMPLE = TaskSample(
    examples=texts.single_label(48),
    inputs=["the captain hauls the net .", "a heavy cake is what the cook burns .", "the boat and the judge"],
    bad_input=("a", "pair"),
    header="sentence\tlabel\n",
    bad_rows=["a good film\tyes\textra", "a bad film\tno"],
)

MakeTask = Callable[..., TextClassification]
Sentences = Callable[..., list[tuple[str, str]]]


def learn(task: TextClassification, examples: Examples, out: Path, steps: int = 60) -> None:
    train = Train(steps=steps, batch=16, lr=5e-3, device="cpu")
    fit(task, task.encode_examples(examples, batch_size=16), train, out)


def test_classes_are_learned(make_task: MakeTask, make_sentences: Sentences, reviews: Examples, tmp_path: Path) -> None:
    task = make_task(reviews)
    learn(task, reviews, tmp_path)
    unseen = read_examples(make_sentences(100, ["good", "bad"], seed=9), pair=False)
    scores = task.score(unseen, task.predict(unseen))
    assert scores.main_value > 0.95
    answer = task.predict(read_examples(["the wonderful film"], pair=False))[0]
    assert isinstance(answer, Prediction)
    assert answer.label == "good"
    assert answer.confidence > 0.9


def test_pairs_are_learned(make_task: MakeTask, make_sentences: Sentences, tmp_path: Path) -> None:
    def pairs(seed: int) -> Examples:
        """The label is that of the second text: which text a word stands in is what matters."""
        ones = make_sentences(200, ["good", "bad"], seed, longest=4)
        twos = make_sentences(200, ["bad", "bad", "good", "good"], seed + 1, longest=4)
        return read_examples([((a, b), label) for (a, _), (b, label) in zip(ones, twos, strict=True)], pair=True)

    task = make_task(pairs(0), "pair")
    learn(task, pairs(0), tmp_path, steps=150)
    unseen = pairs(5)
    assert task.score(unseen, task.predict(unseen)).main_value > 0.9


def test_several_labels_are_learned(make_task: MakeTask, make_sentences: Sentences, tmp_path: Path) -> None:
    def several(seed: int) -> Examples:
        ones = make_sentences(200, ["good", "bad"], seed, longest=4)
        twos = make_sentences(200, ["odd", "bad", "good"], seed + 1, longest=4)
        return read_examples([(f"{a} {b}", [x, y]) for (a, x), (b, y) in zip(ones, twos, strict=True)], pair=False)

    task = make_task(several(0))
    learn(task, several(0), tmp_path, steps=250)
    unseen = several(5)
    assert task.score(unseen, task.predict(unseen)).main_value > 0.9
    answer = task.predict(read_examples(["a wonderful and strange story"], pair=False))[0]
    assert isinstance(answer, list)
    assert {found.label for found in answer} == {"good", "odd"}


def test_numbers_are_learned(make_task: MakeTask, make_sentences: Sentences, tmp_path: Path) -> None:
    def numbers(seed: int) -> Examples:
        worth = {"good": 2.5, "odd": 1.0, "bad": -0.5}
        pairs = [(text, worth[label]) for text, label in make_sentences(150, list(worth), seed)]
        return read_examples(pairs, pair=False, columns=Columns(labels="regression"))

    task = make_task(numbers(0))
    learn(task, numbers(0), tmp_path, steps=150)
    unseen = numbers(5)
    scores = task.score(unseen, task.predict(unseen))
    assert scores.values["pearson"].value > 0.9
    assert task.predict(unseen)[0] == pytest.approx(unseen[0].label, abs=0.7)


def test_a_head_on_a_frozen_encoder_learns_and_the_encoder_does_not_move(
    make_task: MakeTask, make_sentences: Sentences, reviews: Examples, tmp_path: Path
) -> None:
    sentiments = read_examples(make_sentences(96, ["good", "bad", "odd"]), pair=False)
    trained = make_task(sentiments)
    learn(trained, sentiments, tmp_path / "first")
    task = make_task(reviews)
    task = TextClassification(task.system, trained.encoder, task.tokenizer, reviews.labels, frozen=True)
    before = {name: value.clone() for name, value in task.encoder.state_dict().items()}
    learn(task, reviews, tmp_path / "second")
    changed = {name for name, value in task.encoder.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"pooler.weight", "pooler.bias"}
    assert task.score(reviews, task.predict(reviews)).main_value > 0.9


def test_neither_batch_nor_neighbours_change_a_prediction(make_task: MakeTask, make_sentences: Sentences) -> None:
    pairs = make_sentences(50, ["good", "bad"], seed=2, longest=150)  # up to three windows
    examples = read_examples(pairs, pair=False)
    task = make_task(examples)
    torch.nn.init.normal_(task.classifier.weight)
    task.train()
    together = task.predict(examples, batch=32).estimates
    assert task.training
    alone = np.concatenate([task.predict(examples[n : n + 1], batch=1).estimates for n in range(len(examples))])
    assert alone == pytest.approx(together, abs=1e-5)
    assert together.std() > 0.01


def test_windows_are_averaged(make_task: MakeTask) -> None:
    examples = read_examples([("film " * 62 + "wonderful " * 62, "a"), ("story", "b")], pair=False)
    task = make_task(examples)
    torch.nn.init.normal_(task.classifier.weight)
    data = task.encode_examples(examples, labelled=False)
    assert np.bincount(data.example_indices).tolist() == [3, 1]
    logits = (
        torch.cat([response for index, response in task.predict_all_logits(data, 1) if index[0] < 3]).mean(0).numpy()
    )
    assert task.predict(data).estimates[0] == pytest.approx(np.exp(logits) / np.exp(logits).sum(), abs=1e-5)


def test_labels_in_a_file_do_not_matter_for_predictions(make_task: MakeTask, reviews: Examples) -> None:
    task = make_task(reviews)
    strange = read_examples([("a film", "unheard of")], pair=False)
    assert task.predict(strange).estimates == pytest.approx(
        task.predict(read_examples(["a film"], pair=False)).estimates
    )


def test_the_head_is_what_hugging_face_calls_sequence_classification(make_task: MakeTask, reviews: Examples) -> None:
    task = make_task(reviews)
    assert {name for name, _ in task.named_parameters() if not name.startswith("encoder.")} == {
        "classifier.weight",
        "classifier.bias",
    }
    data = task.encode_examples(reviews)
    rows = data.padded_batch(np.arange(4))
    task.eval()
    output = task.encoder(rows)
    expected = task.classifier(task.encoder.pool(output, rows))
    torch.testing.assert_close(task.predict_logits(task.select_features(rows)), expected)


@pytest.mark.parametrize(
    "text", ["".join(f"it is film number {n}\n" for n in range(9)), "a long film\n\na bad one .\n"]
)
def test_texts_without_labels_are_not_taken_for_tagged_words(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(KeelError, match=r"a\.txt has no labels: name their column with label_column"):
        TextClassification.label_schema(read_examples(tmp_path / "a.txt", pair=False))
