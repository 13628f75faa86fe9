"""Pairs in both orders: who is named first makes no difference."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import keel
from keel.data.examples import Examples, read_examples
from keel.data.token_batch import TokenBatch
from keel.errors import UsageError
from keel.tasks.classify import TextClassification
from keel.training.counter_rng import CounterRng
from tests.golden import texts
from tests.tasks.task_sample import TaskSample

SAMPLE = TaskSample(
    examples=texts.pairs(48),
    inputs=[("the cook burns the soup .", "a strange cake"), ("the judge", "the boat is small .")],
    bad_input=3,
    header="sentence1\tsentence2\tlabel\n",
    row=lambda example: "\t".join([*example[0], example[1]]),
    bad_rows=["a film\ta movie\tyes"] * 4,  # only one class
)

PAIRS = [("the old film", "a story"), ("red house", "blue house and garden"), ("quiet", "loud actor"), ("new", "new")]


@pytest.fixture
def pairs() -> Examples:
    return read_examples([(*pair, label) for pair, label in zip(PAIRS, (0.5, 1.5, 2.25, 3.0), strict=True)], pair=True)


def swap_pairs(examples: Examples) -> Examples:
    return read_examples([(each.second, each.text, each.label) for each in examples], pair=True)


def both(make_task: Callable[..., TextClassification], examples: Examples, **settings: object) -> TextClassification:
    task = make_task(examples, "pair", orders="both", **settings).eval()
    torch.nn.init.normal_(task.classifier.weight)
    torch.nn.init.normal_(task.classifier.bias)
    return task


def test_the_two_summaries_are_added_before_the_linear_layer(
    make_task: Callable[..., TextClassification], pairs: Examples
):
    task = both(make_task, pairs)
    found = task.predict(pairs)
    with torch.no_grad():
        for (one, two), answer in zip(PAIRS, found, strict=True):
            total = torch.zeros(task.encoder.width)
            for texts in ((one, two), (two, one)):
                inputs = task.system.build_inputs(task.tokenizer, *(task.tokenizer.encode(text).ids for text in texts))
                rows = TokenBatch.pad([inputs.ids], [inputs.segments])
                total += task.encoder.pool(task.encoder(rows), rows)[0]
            assert answer == pytest.approx(float(task.classifier(total)), abs=1e-5)


def test_turned_pairs_get_the_same_answer_which_one_order_does_not_give(
    make_task: Callable[..., TextClassification], pairs: Examples
):
    task = both(make_task, pairs)
    assert list(task.predict(pairs)) == pytest.approx(list(task.predict(swap_pairs(pairs))), abs=1e-5)
    one = make_task(pairs, "pair").eval()
    torch.nn.init.normal_(one.classifier.weight)
    assert list(one.predict(pairs)) != pytest.approx(list(one.predict(swap_pairs(pairs))), abs=1e-3)


@pytest.mark.parametrize("positions", [16, 17])
def test_windows_of_both_orders_stand_side_by_side(make_task: Callable[..., TextClassification], positions: int):
    long = ("red " * 30).strip(), ("blue " * 17).strip()
    examples = read_examples([(*long, 1.5), ("old", "new", 0.5)], pair=True)
    task = both(make_task, examples, positions=positions)
    events: list[str] = []
    data = task.encode_examples(examples, batch_size=2, on_event=lambda event: events.append(event["text"]))
    windows = (len(data.example_indices) - 2) // 2
    assert f"1 of 2 examples are longer than {positions - 3} tokens: split into {windows} windows" in events[0]
    assert data.weights.tolist() == pytest.approx([1 / windows] * 2 * windows + [1, 1])
    assert len(data) == windows + 1
    assert list(task.predict(examples)) == pytest.approx(list(task.predict(swap_pairs(examples))), abs=1e-5)
    batch = task.batch(data, CounterRng(seed=0, step=0, first_example=0, batch_size=len(data)), range(len(data)))
    assert float(task.counts(batch)["loss"]) == pytest.approx(2)
    assert batch.inputs is not None
    assert batch.group_members is not None
    with torch.no_grad():
        logits = task._head_output(task.select_features(batch.inputs), None)
        values = task.combine_groups(logits, batch.group_members)[:, 0]
        wanted = ((values - batch.targets).square() * batch.weights).sum()
        assert float(task(batch)[0]["loss"]) == pytest.approx(float(wanted), rel=1e-5)


def test_it_is_kept_with_the_model_and_others_do_not_take_it_for_theirs(tmp_path: Path):
    data = [(one, two, label) for (one, two), label in zip(PAIRS * 4, ["yes", "no", "no", "yes"] * 4, strict=True)]
    system = keel.Bert(layers=1, width=16, head_dim=16, max_positions=16, sequence_length=16)
    model = keel.finetune(system, data, task="pair", orders="both", out=tmp_path / "m", dev=None, epochs=1)
    again = keel.Model.load(tmp_path / "m")
    answers = [(found.label, round(found.confidence, 5)) for found in again.predict(PAIRS)]
    assert answers == [(found.label, round(found.confidence, 5)) for found in model.predict(PAIRS)]
    swapped = [(found.label, round(found.confidence, 5)) for found in again.predict([(b, a) for a, b in PAIRS])]
    assert answers == swapped
    assert "ForSequenceClassification" not in (tmp_path / "m/config.json").read_text()


def test_where_there_is_no_order_it_is_refused():
    data = [("a b", "c", "yes"), ("a", "b", "no")] * 4
    with pytest.raises(UsageError, match="leave out orders"):
        keel.finetune("fasttext", data, task="pair", orders="both", dev=None)
    with pytest.raises(UsageError, match="orders is for task='pair', not for classify"):
        keel.finetune("cnn", [("a", "yes"), ("b", "no")] * 4, orders="both", dev=None)


def test_groups_are_sampled_whole(make_task: Callable[..., TextClassification], pairs: Examples):
    task = both(make_task, pairs)
    data = task.encode_examples(pairs, batch_size=3)
    index, members = data.expand_groups(np.array([2, 0]))
    assert index.tolist() == [4, 5, 0, 1]
    assert members is not None
    assert members.tolist() == [[0, 1], [2, 3]]


def test_siamese_encoding_compares_the_vectors_of_both_texts(
    make_task: Callable[..., TextClassification], pairs: Examples
):
    task = make_task(pairs, "pair", pair_encoding="siamese").eval()
    torch.nn.init.normal_(task.classifier.weight)

    def pooled(text: str) -> torch.Tensor:
        inputs = task.system.build_inputs(task.tokenizer, task.tokenizer.encode(text).ids)
        batch = TokenBatch.pad([inputs.ids], [inputs.segments])
        return task.encoder.pool(task.encoder(batch), batch)[0]

    found = task.predict(pairs, batch=2)
    data = task.encode_examples(pairs, batch_size=4)
    batch = task.batch(data, CounterRng(seed=0, step=0, first_example=0, batch_size=4), range(4))
    with torch.no_grad():
        values = []
        for (one, two), answer in zip(PAIRS, found, strict=True):
            u, v = pooled(one), pooled(two)
            values.append(float(task.classifier(torch.cat([u, v, (u - v).abs(), u * v]))))
            assert answer == pytest.approx(values[-1], abs=1e-4)
        loss = sum((value - label) ** 2 for value, label in zip(values, (0.5, 1.5, 2.25, 3.0), strict=True))
        assert float(task(batch)[0]["loss"]) == pytest.approx(loss, rel=1e-4)


def test_word_vectors_distinguish_equal_texts_from_different_ones(tmp_path: Path):
    """By the mean of all words of both texts, (a, a) and (b, b) would equal (a, b)."""
    words = [f"word{number}" for number in range(12)]
    pairs = [(one, two, "same" if one == two else "other") for one in words for two in words]
    balanced = [pair for pair in pairs if pair[2] == "other"] + [pair for pair in pairs if pair[2] == "same"] * 11
    model = keel.finetune("word2vec", balanced, task="pair", out=tmp_path / "m", dev=None, epochs=20, lr=3e-2)
    assert keel.evaluate(model, balanced).main_value > 0.9
    folder = keel.Model.load(tmp_path / "m")
    assert [each.label for each in folder.predict(PAIRS)] == [each.label for each in model.predict(PAIRS)]


def test_a_bag_of_words_is_not_compared():
    data = [("a b", "c", "yes"), ("a", "b", "no")] * 4
    with pytest.raises(UsageError, match="pair_encoding"):
        keel.finetune("fasttext", data, task="pair", pair_encoding="siamese", dev=None)
    with pytest.raises(UsageError, match="orders"):
        keel.finetune("word2vec", data, task="pair", pair_encoding="siamese", orders="both", dev=None)
