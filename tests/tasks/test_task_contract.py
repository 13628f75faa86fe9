"""The contract of every member of TASKS: read, fine-tune, predict, score, save and load, refuse bad input."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import keel
from keel.errors import KeelError
from keel.metrics.scores import Scores
from keel.systems.system import System
from keel.systems.transformer import Transformer
from keel.tasks import TASKS

BERT = keel.Bert(layers=1, width=16, head_dim=16, max_positions=32, sequence_length=32, dropout=0.0)
TRANSFORMER = Transformer(layers=1, decoder_layers=1, width=16, head_dim=16, max_positions=32, dropout=0.0)


@dataclass(frozen=True, kw_only=True)
class Contract:
    """What the contract needs to know of one task."""

    file: str
    """Name of a labelled file."""
    rows: list[str]
    """Its lines, of two labels."""
    bad_rows: list[str]
    """Lines that must be refused."""
    inputs: list[Any]
    """Inputs of `predict`."""
    bad_input: Any
    system: System = BERT
    header: str = ""
    main_score: str = "accuracy"
    settings: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path, rows: list[str]) -> Path:
        path = folder / self.file
        path.write_text(self.header + "".join(f"{row}\n" for row in rows), encoding="utf-8")
        return path


CONTRACTS: dict[str, Contract] = {
    "classify": Contract(
        file="data.tsv",
        header="sentence\tlabel\n",
        rows=["a good film\tyes", "a bad film\tno"] * 6,
        bad_rows=["a good film\tyes\textra", "a bad film\tno"],
        inputs=["a good film", "bad"],
        bad_input=("a", "pair"),
    ),
    "pair": Contract(
        file="data.tsv",
        header="sentence1\tsentence2\tlabel\n",
        rows=["a film\ta movie\tyes", "a film\ta dog\tno"] * 6,
        bad_rows=["a film\ta movie\tyes"] * 4,  # only one class
        inputs=[("a film", "a movie"), ("a dog", "a film")],
        bad_input=3,
    ),
    "tag": Contract(
        file="data.conll",
        rows=["Rome B-LOC", "is O", "old O", "", "Ann B-PER", "sees O", "Rome B-LOC", ""] * 4,
        bad_rows=["Rome B-LOC", "is", "old O", ""],
        inputs=["Ann is old", ["Rome", "sees"]],
        bad_input=[["Rome", 3]],
        main_score="f1",
    ),
    "choose": Contract(
        file="data.jsonl",
        rows=[
            '{"context": "a film", "choices": ["is good", "eats"], "label": 0}',
            '{"context": "a dog", "choices": ["is good", "eats"], "label": 1}',
        ]
        * 6,
        bad_rows=['{"context": "a film", "choices": ["is good"], "label": 0}'],
        inputs=[("a film", ["is good", "eats"]), ("a dog", ["eats", "is good", "sees"])],
        bad_input="a text alone",
    ),
    "seq2seq": Contract(
        file="data.tsv",
        header="source\ttarget\n",
        rows=["one two\teins zwei", "two one\tzwei eins", "two\tzwei"] * 4,
        bad_rows=["one two\t", "two one\tzwei eins"],
        inputs=["one two", "two"],
        bad_input=3,
        system=TRANSFORMER,
        main_score="bleu",
    ),
}
"""One entry for each task; a new task needs one."""


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[keel.Model, Path, Path]]:
    """A model of a task, its folder and its training file; each is made once."""
    models: dict[str, tuple[keel.Model, Path, Path]] = {}

    def make(name: str) -> tuple[keel.Model, Path, Path]:
        if name not in models:
            contract, folder = CONTRACTS[name], tmp_path_factory.mktemp(name)
            data = contract.write(folder, contract.rows)
            model = keel.finetune(
                contract.system, data, task=name, out=folder / "model", dev=None, steps=2, batch=4, device="cpu"
            )
            models[name] = model, folder / "model", data
        return models[name]

    return make


def test_every_task_has_a_contract() -> None:
    assert CONTRACTS.keys() == TASKS.keys()
    assert {name: task.name for name, task in TASKS.items()} == {name: name for name in TASKS}


@pytest.mark.parametrize("name", TASKS)
def test_it_reads_its_files(name: str, tmp_path: Path) -> None:
    contract, task = CONTRACTS[name], TASKS[name]
    examples = task.read_examples(contract.write(tmp_path, contract.rows))
    assert len(examples) > 0
    labels = task.label_schema(examples)
    assert labels.kind == examples.kind
    task.check_scorable(examples, labels)
    assert all(str(tmp_path / contract.file) in example.location for example in examples)


@pytest.mark.parametrize("name", TASKS)
def test_it_predicts_and_survives_a_round_trip(name: str, tuned: Callable[[str], Any]) -> None:
    model, folder, _ = tuned(name)
    predictions = model.predict(CONTRACTS[name].inputs)
    assert len(predictions) == len(CONTRACTS[name].inputs)
    again = keel.Model.load(folder)
    assert again.task is not None
    assert (type(again.task), again.task.labels.kind) == (TASKS[name], model.task.labels.kind)
    assert repr(again.predict(CONTRACTS[name].inputs)) == repr(predictions)
    assert repr(model.predict(CONTRACTS[name].inputs[0])) == repr(predictions[0])


@pytest.mark.parametrize("name", TASKS)
def test_it_scores(name: str, tuned: Callable[[str], Any]) -> None:
    model, _, data = tuned(name)
    if name == "seq2seq":
        pytest.importorskip("sacrebleu")
    scores = keel.evaluate(model, data)
    assert isinstance(scores, Scores)
    assert scores.main == CONTRACTS[name].main_score
    assert scores.count == len(TASKS[name].read_examples(data))


@pytest.mark.parametrize("name", TASKS)
def test_it_refuses_bad_input(name: str, tmp_path: Path, tuned: Callable[[str], Any]) -> None:
    contract = CONTRACTS[name]
    path = contract.write(tmp_path, contract.bad_rows)
    with pytest.raises(KeelError, match=contract.file):
        keel.finetune(contract.system, path, task=name, dev=None, steps=1, device="cpu")
    with pytest.raises(KeelError):
        tuned(name)[0].predict([contract.bad_input])
    path.write_text("")
    with pytest.raises(KeelError, match=contract.file):
        TASKS[name].read_examples(path)
