"""The contract of every member of TASKS: read, fine-tune, predict, score, save and load, refuse bad input."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import keel
from keel.errors import KeelError
from keel.metrics.scores import Scores
from keel.systems.transformer import Transformer
from keel.tasks import TASKS
from tests.tasks.task_sample import sample_of

BERT = keel.Bert(layers=1, width=16, head_dim=16, max_positions=32, sequence_length=32, dropout=0.0)
TRANSFORMER = Transformer(layers=1, decoder_layers=1, width=16, head_dim=16, max_positions=32, dropout=0.0)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[keel.Model, Path, Path]]:
    """A model of a task, its folder and its training file; each is made once."""
    models: dict[str, tuple[keel.Model, Path, Path]] = {}

    def make(name: str) -> tuple[keel.Model, Path, Path]:
        if name not in models:
            sample, folder = sample_of(name), tmp_path_factory.mktemp(name)
            data, system = sample.write(folder), TRANSFORMER if sample.generates else BERT
            model = keel.finetune(
                system, data, task=name, out=folder / "model", dev=None, steps=2, batch=4, device="cpu"
            )
            models[name] = model, folder / "model", data
        return models[name]

    return make


def test_a_task_has_the_name_that_it_is_listed_by() -> None:
    assert {name: task.name for name, task in TASKS.items()} == {name: name for name in TASKS}


@pytest.mark.parametrize("name", TASKS)
def test_it_reads_its_files(name: str, tmp_path: Path) -> None:
    sample, task = sample_of(name), TASKS[name]
    examples = task.read_examples(sample.write(tmp_path))
    assert len(examples) > 0
    labels = task.label_schema(examples)
    assert labels.kind == examples.kind
    task.check_scorable(examples, labels)
    assert all(str(tmp_path / sample.file) in example.location for example in examples)


@pytest.mark.parametrize("name", TASKS)
def test_it_predicts_and_survives_a_round_trip(name: str, tuned: Callable[[str], Any]) -> None:
    model, folder, _ = tuned(name)
    predictions = model.predict(sample_of(name).inputs)
    assert len(predictions) == len(sample_of(name).inputs)
    again = keel.Model.load(folder)
    assert again.task is not None
    assert (type(again.task), again.task.labels.kind) == (TASKS[name], model.task.labels.kind)
    assert repr(again.predict(sample_of(name).inputs)) == repr(predictions)
    assert repr(model.predict(sample_of(name).inputs[0])) == repr(predictions[0])


@pytest.mark.parametrize("name", TASKS)
def test_it_scores(name: str, tuned: Callable[[str], Any]) -> None:
    model, _, data = tuned(name)
    if name == "seq2seq":
        pytest.importorskip("sacrebleu")
    scores = keel.evaluate(model, data)
    assert isinstance(scores, Scores)
    assert scores.main == sample_of(name).main_score
    assert scores.count == len(TASKS[name].read_examples(data))


@pytest.mark.parametrize("name", TASKS)
def test_it_refuses_bad_input(name: str, tmp_path: Path, tuned: Callable[[str], Any]) -> None:
    sample = sample_of(name)
    path = sample.write(tmp_path, sample.bad_rows)
    with pytest.raises(KeelError, match=sample.file):
        keel.finetune(TRANSFORMER if sample.generates else BERT, path, task=name, dev=None, steps=1, device="cpu")
    with pytest.raises(KeelError):
        tuned(name)[0].predict([sample.bad_input])
    path.write_text("")
    with pytest.raises(KeelError, match=sample.file):
        TASKS[name].read_examples(path)
