"""Choosing: a row for each choice, a softmax over those of one text."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import keel
from keel.data.examples import Examples
from keel.data.multiple_choice_files import read_choices
from keel.data.predictions import ChoicePrediction, ChoicePredictions
from keel.data.token_batch import TokenBatch
from keel.errors import UsageError
from keel.tasks.classify import TextClassification
from keel.training.counter_rng import CounterRng
from tests.golden import texts
from tests.tasks.task_sample import TaskSample

SAMPLE = TaskSample(
    examples=texts.choices(40),
    inputs=[("the cook burns", ["the soup .", "the net ."]), ("the judge", ["reads", "signs", "hauls"])],
    bad_input="a text alone",
    file="data.jsonl",
    row=lambda example: json.dumps({"context": example[0][0], "choices": example[0][1], "label": example[1]}),
    bad_rows=['{"context": "a film", "choices": ["is good"], "label": 0}'],
)

WORDS = ["the", "a", "film", "story", "actor", "scene", "old", "new", "quiet", "loud", "red", "blue", "house", "garden"]
Item = tuple[tuple[str, list[str]], int]


def items(count: int, seed: int = 0) -> list[Item]:
    """The right choice is the only one that says "wonderful"; there are two to four."""
    rng = random.Random(seed)
    found: list[Item] = []
    for _ in range(count):
        choices = [" ".join(rng.choices(WORDS, k=rng.randint(1, 4))) for _ in range(rng.randint(2, 4))]
        right = rng.randrange(len(choices))
        choices[right] += " wonderful"
        found.append(((" ".join(rng.choices(WORDS, k=rng.randint(1, 9))), choices), right))
    return found


@pytest.fixture(scope="module")
def puzzles() -> Examples:
    return read_choices(items(12))


def chosen(task: TextClassification, examples: Examples) -> list[ChoicePrediction]:
    predictions = task.predict(examples)
    assert isinstance(predictions, ChoicePredictions)
    return predictions.predicted


def by_hand(task: TextClassification, examples: Examples) -> list[torch.Tensor]:
    """The score of each choice, one row at a time."""
    found = []
    for example in examples:
        scores = []
        for choice in example.choices:
            ids = [task.tokenizer.encode(text).ids for text in (example.text, choice)]
            inputs = task.system.build_inputs(task.tokenizer, *ids)
            rows = TokenBatch.pad([inputs.ids], [inputs.segments])
            scores.append(task.classifier(task.encoder.pool(task.encoder(rows), rows))[0, 0])
        found.append(torch.stack(scores))
    return found


def test_predictions_and_loss_equal_a_plain_loop(make_task: Callable[..., TextClassification], puzzles: Examples):
    task = make_task(puzzles, "choose").eval()
    with torch.no_grad():
        torch.nn.init.normal_(task.classifier.weight)
        scores = by_hand(task, puzzles)
        data = task.encode_examples(puzzles, batch_size=5)
        assert len(data) == 12
        assert len(data.example_indices) == sum(map(len, puzzles.choices))
        for answer, wanted in zip(chosen(task, puzzles), scores, strict=True):
            probabilities = wanted.softmax(0)
            assert answer.probabilities == pytest.approx(probabilities.tolist(), abs=1e-6)
            assert answer.index == int(probabilities.argmax())
        sampled: list[int] = []
        total = 0.0
        for step in range(0, 12, 4):
            rng = CounterRng(seed=3, step=step, first_example=step, batch_size=4)
            sampled += data.step_indices(rng, range(4)).tolist()
            batch = task.batch(data, rng, range(4))
            assert task.counts(batch)["loss"] == 4
            total += float(task(batch)[0]["loss"])
    assert sorted(sampled) == list(range(12))
    wanted = sum(-float(each.log_softmax(0)[label]) for each, label in zip(scores, puzzles.values, strict=True))
    assert total == pytest.approx(wanted, rel=1e-5)


def test_a_long_text_is_cut_from_its_front(make_task: Callable[..., TextClassification]):
    examples = read_choices([(("red " * 40 + "blue house", ["old garden", "new"]), 0), (("red", ["old", "new"]), 1)])
    task = make_task(examples, "choose", positions=16)
    events: list[str] = []
    data = task.encode_examples(examples, on_event=lambda event: events.append(event["text"]))
    (messages,) = events
    assert "1 of 2 examples are longer than 13 tokens" in messages
    assert data.lengths.tolist()[:2] == [16, 16]
    for row, choice in enumerate(("old garden", "new")):
        ids = data.ids[data.starts[row] : data.starts[row + 1]].tolist()
        tail = [*task.tokenizer.encode("blue house").ids, task.tokenizer.sep_id]
        end = [*task.tokenizer.encode(choice).ids, task.tokenizer.sep_id]
        assert ids[-len(tail + end) :] == tail + end


def test_choices_too_long_for_a_row_leave_room_for_the_text(make_task: Callable[..., TextClassification]):
    examples = read_choices([(("blue house", ["old " * 50, "new"]), 0)])
    task = make_task(examples, "choose", positions=16)
    data = task.encode_examples(examples)
    assert data.lengths.tolist() == [16, 6]
    assert data.ids[1:3].tolist() == task.tokenizer.encode("blue house").ids


def test_it_learns_saves_loads_and_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    train, test = tmp_path / "train.jsonl", tmp_path / "test.jsonl"
    for path, (count, seed) in {train: (200, 1), test: (60, 2)}.items():
        records = [
            {"context": text, "choices": choices, "label": label} for (text, choices), label in items(count, seed)
        ]
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    system = keel.Bert(
        layers=1, width=32, head_dim=16, max_positions=32, sequence_length=32, dropout=0.0, attention_dropout=0.0
    )
    out = tmp_path / "model"
    settings = {"task": "choose", "epochs": 8, "lr": 3e-3, "batch": 16}
    model = keel.finetune(system, train, test=test, out=out, **settings)
    assert model.card.scores["test"]["values"]["accuracy"]["value"] > 0.9
    again = keel.Model.load(out)
    scores = keel.evaluate(again, test)
    assert scores.values["accuracy"] == pytest.approx(keel.evaluate(model, test).values["accuracy"])
    accuracy: Any = scores.values["accuracy"]
    assert accuracy.low <= scores.main_value <= accuracy.high
    assert "random guessing" in str(scores)
    answer = again.predict(("the film", ["old red", "a wonderful story"]))
    assert (answer.index, answer.text) == (1, "a wonderful story")
    assert sum(answer.probabilities) == pytest.approx(1)
    assert [
        each.index for each in again.predict([("red", ["wonderful", "old"]), ("red", ["old", "new", "wonderful"])])
    ] == [0, 2]
    record = next(iter(keel.predict(again, test)))
    assert {"where", "text", "choice", "answer", "probability", "probabilities"} <= record.keys()
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == ["BertForMultipleChoice"]
    report = keel.check(train, task="choose")
    assert "choices" in str(next(iter(report.files.values())))
    from keel.cli import main

    assert main(["info", str(out)]) == 0
    messages = capsys.readouterr().out
    assert "a model for choose" in messages
    assert "the index of a choice" in messages
    with pytest.raises(UsageError, match=r"expects \(text, \[choice, choice, ...\]\)"):
        again.predict("red")


def test_transformers_reads_the_folder_with_equal_scores(
    tmp_path: Path, make_task: Callable[..., TextClassification], puzzles: Examples
):
    transformers = pytest.importorskip("transformers")
    task = make_task(puzzles, "choose").eval()
    torch.nn.init.normal_(task.classifier.weight)
    keel.Model(system=task.system, encoder=task.encoder, tokenizer=task.tokenizer, task=task).save(tmp_path / "m")
    theirs = transformers.AutoModelForMultipleChoice.from_pretrained(tmp_path / "m").eval()
    data = task.encode_examples(puzzles)
    for number, answer in enumerate(chosen(task, puzzles)):
        rows = data.padded_batch(np.flatnonzero(data.example_indices == number))
        assert rows.segments is not None
        mask = (torch.arange(rows.ids.shape[1]) < rows.lengths[:, None]).long()
        with torch.no_grad():
            found = theirs(
                input_ids=rows.ids[None], token_type_ids=rows.segments[None], attention_mask=mask[None]
            ).logits
        assert answer.probabilities == pytest.approx(found.softmax(1)[0].tolist(), abs=1e-5)


@pytest.mark.parametrize("system", ["word2vec", "fasttext", "cnn"])
def test_any_encoder_can_choose(system: str):
    settings = {"epochs": 6, "lr": 1e-2, "batch": 16}
    model = keel.finetune(system, items(120, 3), task="choose", dev=None, **settings)
    assert keel.evaluate(model, items(60, 4)).main_value > 0.8


def test_a_frozen_encoder_chooses_too(make_task: Callable[..., TextClassification], puzzles: Examples):
    task = make_task(puzzles, "choose", frozen=True)
    data = task.encode_examples(puzzles, batch_size=4)
    assert data.features is not None
    assert len(data.features) == len(data.example_indices)
    batch = task.batch(data, CounterRng(seed=0, step=0, first_example=0, batch_size=4), range(4))
    assert batch.features is not None
    index, members = data.expand_groups(
        data.step_indices(CounterRng(seed=0, step=0, first_example=0, batch_size=4), range(4))
    )
    assert torch.equal(batch.features, data.features[index])
    assert members is not None
    assert batch.targets.tolist() == [puzzles.values[data.example_indices[index[first]]] for first in members[:, 0]]
