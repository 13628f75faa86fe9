"""Ensembles: the mean of several models' predictions."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keel
from keel.cli import main
from keel.data.answer_files import read_answers
from keel.errors import UsageError
from keel.tasks.answer import SpanAnswering
from keel.tasks.span_search import MAX_ANSWER_TOKENS

PAIRS = [(("a b", "b a"), "same"), (("a c", "d e"), "other"), (("c a", "a c"), "same"), (("b e", "d a"), "other")]
SINGLE = [("a b c", "x"), ("d e f", "y"), ("a c e", "x"), ("e f a", "y")]
ROWS: dict[str, tuple[str, list[Any]]] = {
    "single-label": ("classify", SINGLE),
    "multi-label": ("classify", [("a b", ["x", "y"]), ("c d", ["y"]), ("a d", ["x"]), ("e", ["x", "z"])]),
    "regression": ("classify", [("a b", 0.5), ("c d", 1.5), ("a d", 2.5), ("e", 0.25)]),
    "pair": ("pair", PAIRS),
    "choose": ("choose", [(("a", ["b", "c d"]), 0), (("b", ["c", "d", "e"]), 2), (("c", ["a", "b"]), 1)]),
    "tag": ("tag", [(["a", "b"], ["B-PER", "O"]), (["c", "a", "d"], ["O", "B-LOC", "I-LOC"])] * 2),
}


def trained(task: str, rows: list[Any], seed: int, **settings: Any) -> keel.Model:
    system = keel.Transformer(width=8, head_dim=8, layers=1)
    train = keel.Train(steps=2, lr=0.02, seed=seed)
    return keel.finetune(system, rows, task=task, dev=None, train=train, progress=False, **settings)


@pytest.mark.parametrize("kind", [*ROWS, "crf"])
def test_probabilities_and_numbers_are_averaged(kind: str) -> None:
    task, rows = ROWS["tag" if kind == "crf" else kind]
    head = {"crf": True} if kind == "crf" else {}
    one, two = (trained(task, rows, seed, **head) for seed in (0, 1))
    found = [list(keel.predict(models, rows)) for models in (one, two, [one, two], [one, one])]

    def figures(records: list[dict[str, Any]]) -> list[Any]:
        fields = ("number", "probabilities", "probability", "labels", "tags", "choice", "label")
        return [[record[name] for name in fields if name in record] for record in records]

    assert figures(found[0]) != figures(found[1])
    if kind != "crf":  # the mean of equal probabilities; a CRF decodes sequences, an ensemble single words
        assert figures(found[3]) == figures(found[0])
    if kind == "regression":
        mean = np.mean([[record["number"] for record in records] for records in found[:2]], axis=0)
        assert [record["number"] for record in found[2]] == pytest.approx(mean)
    assert keel.evaluate([one, two], rows).count == len(rows)


def test_the_mean_of_probabilities_decides() -> None:
    one, two = (trained("classify", SINGLE, seed) for seed in (0, 1))
    examples = one.task.read_examples([text for text, _ in SINGLE])  # pyright: ignore[reportOptionalMemberAccess]
    probabilities = [model.task.predict(examples).estimates for model in (one, two)]  # pyright: ignore
    mean = np.mean(probabilities, axis=0)
    records = list(keel.predict([one, two], SINGLE))
    assert [record["label"] for record in records] == ["xy"[each] for each in mean.argmax(1)]
    assert [record["probability"] for record in records] == pytest.approx(mean.max(1), abs=1e-4)


def test_labels_in_another_order_are_matched_by_name() -> None:
    model = trained("classify", SINGLE, 0)
    assert model.task is not None
    turned = replace(model, task=trained("classify", SINGLE, 0).task)
    assert turned.task is not None
    turned.task.labels = replace(turned.task.labels, names=("y", "x"))
    turned.task.classifier.weight.data = turned.task.classifier.weight.data.flip(0)
    turned.task.classifier.bias.data = turned.task.classifier.bias.data.flip(0)
    assert list(keel.predict([model, turned], SINGLE)) == list(keel.predict(model, SINGLE))


def test_models_that_do_not_fit_are_refused_in_one_sentence() -> None:
    model = trained("classify", SINGLE, 0)
    others = {
        "fine-tuned for classify, and model 2 for pair": trained("pair", PAIRS, 0),
        "'z' is a label of one": trained("classify", [*SINGLE, ("f", "z")], 0),
        "different labels": trained("classify", ROWS["regression"][1], 0),
        "has no task": replace(model, task=None),
    }
    for message, other in others.items():
        with pytest.raises(UsageError, match=message):
            keel.predict([model, other], SINGLE)
        with pytest.raises(UsageError, match=message):
            keel.evaluate([model, other], SINGLE)
    with pytest.raises(UsageError, match="empty"):
        keel.predict([], SINGLE)
    texts = trained("seq2seq", [("a b", "b a"), ("c", "d")], 0)
    with pytest.raises(UsageError, match=r"seq2seq.*give one model"):
        keel.predict([texts, texts], ["a"])


def passages(count: int, *, empty: int = 0, size: int = 3) -> list[Any]:
    """Who has which colour; the first `empty` questions have no answer."""
    rng = random.Random(size)
    found: list[Any] = []
    for number in range(count):
        facts = [f"n{rng.randrange(9)} has c{rng.randrange(9)} ." for _ in range(size)]
        name, _, answer, _ = facts[rng.randrange(size)].split()
        question = "what has z ?" if number < empty else f"what has {name} ?"
        found.append(((" ".join(facts), question), [] if number < empty else answer))
    return found


def answering(seed: int, *, empty: int = 0, positions: int = 32, count: int = 40) -> keel.Model:
    system = keel.Bert(width=16, head_dim=8, layers=1, max_positions=positions, sequence_length=positions, dropout=0.0)
    train = keel.Train(steps=12, lr=0.01, seed=seed)
    return keel.finetune(system, passages(count, empty=empty), task="answer", dev=None, train=train, progress=False)


def test_the_logits_of_answers_are_averaged(tmp_path: Path) -> None:
    one, two = answering(0, empty=10), answering(1, empty=10)
    tasks = [model.task for model in (one, two) if isinstance(model.task, SpanAnswering)]
    rows = passages(20, empty=5, size=12)  # more tokens than one window
    records = [list(keel.predict(models, rows)) for models in (one, two, [one, two], [one, one])]
    assert records[0] != records[1]
    assert records[3] == records[0]
    examples = read_answers(rows)
    tasks[0].null_threshold, tasks[1].null_threshold = 0.5, 1.0
    found = list(keel.predict([one, two], rows))
    several = 0
    for number in range(len(rows)):
        windows = [task.window_logits(examples.take([number]))[0] for task in tasks]
        several += len(windows[0]) > 1
        scores: dict[tuple[int, int], float] = {}
        for a, b in zip(*windows, strict=True):
            for i in np.flatnonzero(a.startable):
                for j in range(i, min(i + MAX_ANSWER_TOKENS, len(a.ends))):
                    score = (a.starts[i] + b.starts[i] + a.ends[j] + b.ends[j]) / 2
                    span = int(a.offsets[i, 0]), int(a.offsets[j, 1])
                    scores[span] = max(score, scores.get(span, -np.inf))
        null = min((a.null + b.null) / 2 for a, b in zip(*windows, strict=True))
        start, end = max(scores, key=lambda span: scores[span])
        expected = "" if null - scores[start, end] > 0.75 else rows[number][0][0][start:end]
        assert found[number]["answer"] == expected
    assert several == len(rows)
    folder = tmp_path / "answers"
    assert list(keel.predict([one, two], rows, out=folder)) == found
    assert [*json.loads((folder / "predictions.json").read_text()).values()] == [each["answer"] for each in found]
    assert keel.evaluate([one, two], rows).count == len(rows)


def test_answers_of_other_tokens_are_refused() -> None:
    model, abstaining = answering(0), answering(1)
    assert isinstance(abstaining.task, SpanAnswering)
    abstaining.task.null_threshold = 0.0
    others = {
        "different tokenizers": answering(0, count=3),
        "windows of 29 and of 61 tokens": answering(0, positions=64),
        "only one of model 1 and model 2 was trained with unanswerable": abstaining,
    }
    for message, other in others.items():
        with pytest.raises(UsageError, match=message):
            keel.predict([model, other], passages(2))


def test_folders_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    for seed, folder in enumerate(folders):
        trained("classify", SINGLE, seed).save(folder)
    file = tmp_path / "test.tsv"
    file.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in SINGLE))
    expected = list(keel.predict(folders, file))
    capsys.readouterr()
    assert main(["predict", *map(str, folders), str(file)]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == expected
    assert main(["predict", *map(str, folders), str(file), "--out", str(tmp_path / "scored.jsonl")]) == 0
    scored = [json.loads(line) for line in (tmp_path / "scored.jsonl").read_text().splitlines()]
    assert [row["confidence"] for row in scored] == pytest.approx([row["probability"] for row in expected], abs=1e-4)
    capsys.readouterr()
    assert main(["evaluate", *map(str, folders), str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["count"] == 4
    assert main(["evaluate", *map(str, folders)]) == 2
    assert "give a FILE after it" in capsys.readouterr().err
    (tmp_path / "unfinished").mkdir()
    for name, fault in (("c", "there is no file or model folder"), ("unfinished", "is not a model folder")):
        for verb in ("predict", "evaluate"):
            assert main([verb, *map(str, folders), str(tmp_path / name), str(file)]) == 1
            error = capsys.readouterr().err
            assert fault in error
            assert name in error
