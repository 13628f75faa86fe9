"""Span answers: loss and best spans equal plain loops; windows, "no answer", folders that transformers reads."""

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import keel
from keel.data.answer_files import read_answers
from keel.data.answer_spans import NO_ANSWER
from keel.data.corpus import Corpus
from keel.data.examples import Examples
from keel.data.predictions import SpanAnswer
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.localization import translate, using_language
from keel.metrics.item_scores import item_scores
from keel.metrics.slices import slice_by_label
from keel.model import Model
from keel.tasks import TASKS
from keel.tasks.answer import SpanAnswering
from keel.tasks.answer_windows import CONTEXT, PASSAGE, QUESTION
from keel.tasks.span_search import MAX_ANSWER_TOKENS, WindowLogits, best_spans
from keel.training.counter_rng import CounterRng
from tests.tasks.task_sample import TaskSample

NAMES, CITIES = ["Anna", "Ben", "Carl", "Dora", "Emil"], ["Oslo", "Rome", "Bern", "Lima", "Cairo"]
Item = tuple[tuple[str, str], Any]


def items(count: int, seed: int = 0, *, unanswerable: float = 0.0) -> list[Item]:
    """Who lives where; some ask for a person that the passage does not name."""
    rng = random.Random(seed)
    found: list[Item] = []
    for _ in range(count):
        people, cities = rng.sample(NAMES, 3), rng.sample(CITIES, 3)
        passage = " ".join(f"{one} lives in {two} ." for one, two in zip(people, cities, strict=True))
        if rng.random() < unanswerable:
            found.append(((passage, "Where does Zoe live ?"), []))
        else:
            chosen = rng.randrange(3)
            found.append(((passage, f"Where does {people[chosen]} live ?"), cities[chosen]))
    return found


def as_record(item: Item) -> str:
    (passage, question), answer = item
    answers = [{"text": answer, "answer_start": passage.index(answer)}] if answer else []
    return json.dumps({"context": passage, "question": question, "answers": answers})


SAMPLE = TaskSample(
    examples=items(40),
    inputs=[("Anna lives in Oslo .", "Where does Anna live ?"), ("Ben lives in Rome .", "Who lives in Rome ?")],
    bad_input="a question alone",
    file="data.jsonl",
    row=as_record,
    bad_rows=['{"context": "", "question": "Who?", "answers": {"text": ["Anna"], "answer_start": [0]}}'],
    main_score="answer_f1",
)


def make_task(examples: Examples, positions: int = 64) -> SpanAnswering:
    """A task on a little BERT with random weights."""
    torch.manual_seed(0)
    tokenizer = Tokenizer.train(Corpus.of([text for (text, _), _ in items(40)]), kind="words", size=100)
    system = keel.Bert(layers=1, width=32, head_dim=16, max_positions=positions, sequence_length=positions, dropout=0.0)
    labels = SpanAnswering.label_schema(examples)
    return SpanAnswering(system, system.build_encoder(len(tokenizer)), tokenizer, labels)


@pytest.fixture(scope="module")
def questions() -> Examples:
    return read_answers(items(7, 3, unanswerable=0.3))


def test_the_loss_equals_a_plain_loop(questions: Examples):
    task = make_task(questions).eval()
    torch.nn.init.normal_(task.classifier.weight)
    data = task.encode_examples(questions, batch_size=7)
    batch = task.batch(data, CounterRng(seed=1, step=0, first_example=0, batch_size=7), range(7))
    wanted = 0.0
    with torch.no_grad():
        for example in questions:
            question, passage = task.tokenizer.encode(example.text), task.tokenizer.encode(example.second or "")
            built = task.system.build_inputs(task.tokenizer, question.ids, passage.ids)
            inputs = TokenBatch.pad([built.ids], [built.segments])
            logits = task.classifier(task.encoder(inputs).top)[0]  # [time, 2]
            allowed = [0, *range(built.second_start, built.second_start + len(passage.ids))]
            answer: Any = example.label
            place = 0
            if answer.texts:
                (start, end), *_ = answer.spans
                place = 1 + passage.offsets.index((start, end))  # one token each
            for side in (0, 1):
                wanted -= float(logits[allowed, side].log_softmax(0)[place]) / 2
        assert float(task(batch)[0]["loss"]) == pytest.approx(wanted, rel=1e-5)


def test_the_best_spans_equal_a_plain_loop():
    rng = np.random.default_rng(0)
    windows = []
    for first, size in ((0, 50), (30, 45)):
        startable = np.arange(size) < 40 if first == 0 else np.arange(size) >= 10
        offsets = np.stack([np.arange(first, first + size) * 3, np.arange(first, first + size) * 3 + 2], 1)
        logits = rng.normal(size=(2, size))
        windows.append(WindowLogits(logits[0], logits[1], startable, offsets, 0.0))
    wanted = [
        (window.starts[i] + window.ends[j], int(window.offsets[i, 0]), int(window.offsets[j, 1]))
        for window in windows
        for i in np.flatnonzero(window.startable)
        for j in range(i, min(i + MAX_ANSWER_TOKENS, len(window.ends)))
    ]
    best = best_spans(windows, most=15)
    wanted = sorted(wanted, reverse=True)[:15]
    assert [(span.start, span.end) for span in best] == [(start, end) for _, start, end in wanted]
    assert [span.score for span in best] == pytest.approx([score for score, *_ in wanted])


def test_a_passage_without_tokens_has_no_answer():
    examples = read_answers([(("\u200b\x01", "Where ?"), []), (("Anna lives in Oslo .", "Where ?"), "Oslo")])
    task = make_task(examples)
    assert not task.tokenizer.encode("\u200b\x01").ids
    found = task.predict(examples).answers
    assert (found[0].text, found[0].probability) == ("", 1.0)
    assert found[1].text


def test_a_long_passage_has_windows_and_each_token_starts_in_one():
    passage = " ".join(f"{name} lives in {city} ." for name in NAMES for city in CITIES)
    examples = read_answers([((passage, "Where ?"), "Cairo")])
    task = make_task(examples, positions=40)
    notes: list[str] = []
    data = task.encode_examples(examples, on_event=lambda event: notes.append(event["text"]))
    assert "split into windows" in notes[0]
    assert data.lengths.max() <= 40
    roles, offsets = data.selected_roles, data.selected_offsets
    assert roles is not None
    assert offsets is not None
    tokens = task.tokenizer.encode(passage).offsets
    assert [tuple(pair) for pair in offsets[roles == PASSAGE].tolist()] == tokens
    assert (roles == CONTEXT).any()
    assert data.targets is not None
    # The answer is in every window that contains all of it, and nothing elsewhere.
    targets = data.targets.numpy()
    place = passage.index("Cairo")
    for first, last in zip(data.selected_starts[:-1], data.selected_starts[1:], strict=True):  # pyright: ignore
        starts = np.flatnonzero(targets[first:last, 0])
        assert len(starts) == 1
        held = (offsets[first:last] == [place, place + 5]).all(1) & (roles[first:last] != QUESTION)
        assert starts[0] == (np.flatnonzero(held)[0] if held.any() else 0)


@pytest.mark.parametrize("system", ["bert", "gpt"])
def test_transformers_reads_the_folder_with_equal_logits(system: str, tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    sizes: dict[str, Any] = {
        "layers": 1,
        "width": 32,
        "head_dim": 16,
        "max_positions": 64,
        "sequence_length": 64,
        "dropout": 0.0,
    }
    settings = keel.Bert(**sizes) if system == "bert" else keel.Gpt(**sizes, attention_dropout=0.0)
    model = keel.finetune(settings, items(20), task="answer", dev=None, steps=3, out=tmp_path / "m")
    theirs = transformers.AutoModelForQuestionAnswering.from_pretrained(tmp_path / "m").eval()
    assert type(theirs).__name__ == ("BertForQuestionAnswering" if system == "bert" else "GPT2ForQuestionAnswering")
    task, examples = model.task, read_answers(items(4, 9))
    assert isinstance(task, SpanAnswering)
    data = task.encode_examples(examples, labelled=False)
    assert data.selected is not None
    assert data.selected_starts is not None
    logits = dict[int, torch.Tensor]()
    for numbers, found in task.predict_all_logits(data, 4):
        logits |= dict(zip(numbers.tolist(), found, strict=True))
    for number in range(4):
        batch = data.padded_batch(np.array([number]))
        segments = {"token_type_ids": batch.segments} if system == "bert" else {}
        with torch.no_grad():
            output = theirs(input_ids=batch.ids, **segments)
        first, last = data.selected_starts[number : number + 2]
        for index in range(first, last):
            place = data.selected[index] - data.starts[number]
            wanted = [output.start_logits[0, place].item(), output.end_logits[0, place].item()]
            assert logits[index].tolist() == pytest.approx(wanted, abs=1e-5)
    config = theirs.config
    theirs.save_pretrained(tmp_path / "theirs")
    model.tokenizer.save(tmp_path / "theirs")
    if system == "bert":  # a folder that transformers wrote
        assert config.num_labels == 2
        again = keel.Model.load(tmp_path / "theirs")
        assert isinstance(again.task, SpanAnswering)
        assert repr(again.predict(SAMPLE.inputs)) == repr(model.predict(SAMPLE.inputs))


def test_word_vectors_learn_by_a_reader_with_aligned_questions(tmp_path: Path):
    settings: dict[str, Any] = {"task": "answer", "epochs": 12, "lr": 5e-3, "batch": 16, "network_width": 32}
    model = keel.finetune("word2vec", items(300, 1), dev=None, out=tmp_path / "m", network_dropout=0.1, **settings)
    assert isinstance(model.task, SpanAnswering)
    assert model.task.align is not None
    assert keel.evaluate(model, items(40, 2)).main_value > 0.8
    again = keel.Model.load(tmp_path / "m")
    assert repr(again.predict(SAMPLE.inputs)) == repr(model.predict(SAMPLE.inputs))
    assert json.loads((tmp_path / "m" / "config.json").read_text())["architectures"] == ["Word2vecModel"]


def test_no_answer_is_predicted_where_training_has_it(tmp_path: Path):
    system = keel.Bert(layers=1, width=32, head_dim=16, max_positions=64, sequence_length=64, dropout=0.0)
    train, dev = items(200, 1, unanswerable=0.5), items(60, 2, unanswerable=0.5)
    notes: list[str] = []
    model = keel.finetune(
        system, train, task="answer", dev=dev, epochs=6, lr=3e-3, batch=16, on_event=lambda e: notes.append(str(e))
    )
    assert isinstance(model.task, SpanAnswering)
    assert any("null threshold" in text for text in notes)
    assert model.task.settings["null_threshold"] == model.task.null_threshold
    scores = keel.evaluate(model, dev)
    with using_language("zh"):
        assert not re.search("answer|accuracy", translate(str(scores)))
    assert scores.values["unanswerable_accuracy"].value > 0.9
    assert "end before start" in scores.note
    found = model.predict(("Anna lives in Oslo .", "Where does Zoe live ?"))
    assert isinstance(found, SpanAnswer)
    assert found.text == ""
    assert sum(each.probability for each in found.alternatives) == pytest.approx(1)
    out = tmp_path / "answers"
    list(keel.predict(model, dev, out=out))
    answers = json.loads((out / "predictions.json").read_text())
    assert [answers[str(number)] == "" for number in range(5)] == [
        each.text == "" for each in model.predict([text for text, _ in dev[:5]])
    ]
    assert {*json.loads((out / "null_odds.json").read_text())} == {*answers}
    assert json.loads((out / "nbest_predictions.json").read_text())["0"][0].keys() >= {"text", "probability"}


def test_a_threshold_that_dev_cannot_tune_is_reported():
    system = keel.Bert(layers=1, width=16, head_dim=16, max_positions=64, sequence_length=64)
    notes: list[str] = []
    train, dev = items(20, 1, unanswerable=0.5), items(4, 2)
    keel.finetune(system, train, task="answer", dev=dev, steps=1, on_event=lambda event: notes.append(str(event)))
    assert any("not tuned" in text for text in notes)


def absent_items(count: int, seed: int) -> list[Item]:
    """A third of the questions are about a person of other passages: only the match with this one tells."""
    rng = random.Random(seed)
    found: list[Item] = []
    for _ in range(count):
        people, cities = rng.sample([f"name{n}" for n in range(20)], 4), rng.sample([f"city{n}" for n in range(20)], 3)
        passage = " ".join(f"{one} lives in {two} ." for one, two in zip(people, cities, strict=False))
        queried = 3 if rng.random() < 1 / 3 else rng.randrange(3)
        found.append(((passage, f"Where does {people[queried]} live ?"), [cities[queried]] if queried < 3 else []))
    return found


def test_a_reader_without_cls_learns_both_kinds_of_questions(tmp_path: Path):
    settings: dict[str, Any] = {"task": "answer", "epochs": 18, "lr": 5e-3, "batch": 16, "network_width": 32}
    settings |= {"network_dropout": 0.1, "width": 32}
    model = keel.finetune("word2vec", absent_items(600, 1), dev=None, out=tmp_path / "m", **settings)
    scores = keel.evaluate(model, absent_items(150, 2))
    assert scores.values["answerable_f1"].value > 0.9
    assert scores.values["unanswerable_accuracy"].value > 0.8
    again = keel.Model.load(tmp_path / "m")
    assert isinstance(again.task, SpanAnswering)
    assert again.task.null_classifier is not None
    inputs = [text for text, _ in absent_items(20, 3)]
    assert repr(again.predict(inputs)) == repr(model.predict(inputs))


def test_a_folder_without_the_weights_of_its_null_score_is_refused(tmp_path: Path):
    settings: dict[str, Any] = {"task": "answer", "steps": 1, "network_width": 8, "width": 8, "pooled_null": False}
    keel.finetune("word2vec", items(20), dev=None, out=tmp_path / "m", **settings)
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert "pooled_null" not in config["keel"]["task"]
    assert keel.Model.load(tmp_path / "m").predict(SAMPLE.inputs)  # as folders of earlier versions
    config["keel"]["task"]["pooled_null"] = True
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    with pytest.raises(KeelError, match="null_classifier"):
        keel.Model.load(tmp_path / "m")


def test_the_pooled_null_score_is_the_probability_of_no_answer():
    examples = read_answers([*absent_items(5, 1), (("\u200b\x01", "Where ?"), [])])
    torch.manual_seed(0)
    tokenizer = Tokenizer.train(Corpus.of([text for (text, _), _ in items(40)]), kind="words", size=100)
    system = keel.Word2vec(width=8)
    task = SpanAnswering(
        system, system.build_encoder(len(tokenizer)), tokenizer, SpanAnswering.label_schema(examples),
        network="lstm", network_width=4, align=True, pooled_null=True,
    ).eval()  # fmt: skip
    assert task.null_classifier is not None
    torch.nn.init.constant_(task.null_classifier.weight, 0.0)
    task.null_classifier.bias.data = torch.tensor([0.5, -1.0])
    data = task.encode_examples(examples, batch_size=6)
    assert data.selected_starts is not None
    assert data.selected_roles is not None
    logits = torch.zeros(len(data.selected_roles), 2)
    for numbers, part in task.predict_all_logits(data, 6):
        logits[numbers] = part
    for first, last in zip(data.selected_starts[:-2], data.selected_starts[1:-1], strict=True):
        kept = torch.from_numpy(data.selected_roles[first:last] != QUESTION)
        null = logits[first:last][kept].softmax(0)[0]
        assert null.tolist() == pytest.approx([1 / (1 + np.exp(-0.5)), 1 / (1 + np.exp(1.0))])
    assert logits.isfinite().all()  # also without a passage


def test_equal_ids_are_refused_before_anything_is_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    system = keel.Bert(layers=1, width=16, head_dim=16, max_positions=32, sequence_length=32, dropout=0.0)
    model = keel.finetune(system, items(20), task="answer", dev=None, steps=1, progress=False)
    monkeypatch.setattr(SpanAnswering, "predict", lambda *_, **__: pytest.fail("something was predicted"))
    records = [{**json.loads(as_record(item)), "id": name} for item, name in zip(items(3), "aba", strict=True)]
    file = tmp_path / "data.jsonl"
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    with pytest.raises(KeelError, match=r"data.jsonl:3: the id 'a' is also that of .*data.jsonl:1"):
        list(keel.predict(model, file, out=tmp_path / "answers"))


def test_ask_answers_by_a_span(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from keel.cli import main

    system = keel.Bert(layers=1, width=16, head_dim=16, max_positions=32, sequence_length=32, dropout=0.0)
    model = keel.finetune(system, items(20), task="answer", dev=None, steps=2, out=tmp_path / "m")
    passage = "Anna lives in Oslo ."
    answer = keel.ask(passage, "Where does Anna live ?", model=model)
    assert isinstance(answer, SpanAnswer)
    assert passage[answer.start : answer.end] == answer.text != ""
    assert main(["ask", passage, "Where does Anna live ?", "--model", str(tmp_path / "m"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["answer"], printed["start"]) == (answer.text, answer.start)
    assert main(["ask", passage, "Where does Anna live ?", "--model", str(tmp_path / "m"), "--lang", "zh"]) == 0
    assert f"（字符 {answer.start} 到 {answer.end}）" in capsys.readouterr().out


def test_bad_use_is_refused():
    task = TASKS["answer"]
    with pytest.raises(KeelError, match="questions without answers"):
        task.label_schema(read_answers([("Anna lives in Oslo .", "Where ?")]))
    with pytest.raises(KeelError, match="no answer occurs in its passage"):
        task.label_schema(read_answers([(("Anna lives in Oslo .", "Where ?"), "Rome")]))
    with pytest.raises(UsageError, match="onehot has no vector for each word"):
        keel.finetune("onehot", items(10), task="answer", dev=None)


def test_answers_are_not_written_to_a_folder_with_the_name_of_a_file(questions: Examples, tmp_path: Path):
    task = make_task(questions)
    model = Model(system=task.system, tokenizer=task.tokenizer, encoder=task.encoder, task=task)
    for name in ("predictions.json", "scored.csv"):
        with pytest.raises(UsageError, match="name a folder"):
            keel.predict(model, items(2), out=tmp_path / name)
    assert not [*tmp_path.iterdir()]


def test_slices_by_label_are_answerable_and_unanswerable_questions(questions: Examples):
    slices = slice_by_label(questions)
    unanswerable = [index for index, value in enumerate(questions.values) if not value.texts]
    assert slices["unanswerable"] == unanswerable
    assert sorted(slices["answerable"] + unanswerable) == [*range(len(questions))]


def test_a_slice_has_the_scores_that_its_questions_define(tmp_path: Path):
    examples = items(12, 3, unanswerable=0.5)
    system = keel.Bert(layers=1, width=16, head_dim=16, max_positions=32, sequence_length=32, dropout=0.0)
    model = keel.finetune(system, examples, task="answer", dev=None, steps=1)
    scores = keel.evaluate(model, examples, slice="label")
    head, rows = scores.slice_rows()
    shown = {row[0]: dict(zip(head, row, strict=True)) for row in rows}
    assert shown["answerable"]["unanswerable accuracy"] == "-" == shown["unanswerable"]["answerable F1"]
    assert sum(each.count for each in scores.slices) == 12
    scores.write(tmp_path)


def test_an_error_names_a_missing_answer(questions: Examples):
    task = make_task(questions).eval()
    task.null_threshold = -1e9  # never answers
    scores = task.score(questions, task.predict(questions))
    assert {error.predicted for error in scores.errors} == {NO_ANSWER}


def test_passages_are_counted_and_not_questions(questions: Examples):
    notes: list[str] = []
    passage = " ".join(["Anna lives in Oslo ."] * 20)
    given = read_answers([((passage, "Where does Anna live ?"), "Oslo"), ((passage, "Who lives in Oslo ?"), "Anna")])
    make_task(questions, 32).encode_examples(given, on_event=lambda event: notes.append(event["text"]))
    assert any("1 passage is too long" in text for text in notes)


def test_scores_by_item_add_up_to_the_main_score(questions: Examples):
    task = make_task(questions).eval()
    predictions = task.predict(questions)
    scores, by_item = task.score(questions, predictions), item_scores(questions, predictions)
    assert (by_item.name, by_item.value) == (scores.main, pytest.approx(scores.main_value))


def test_long_questions_come_in_small_batches_on_a_cpu(questions: Examples, monkeypatch: pytest.MonkeyPatch):
    task = make_task(questions)
    wanted = task.predict(questions).answers
    sizes: list[int] = []
    forward = task.encoder.forward

    def count(batch: TokenBatch, **settings: Any) -> Any:
        sizes.append(batch.ids.numel())
        return forward(batch, **settings)

    monkeypatch.setattr(task.encoder, "forward", count)
    monkeypatch.setattr("keel.tasks.task.MAX_PADDED_CPU", 60)
    assert [answer.text for answer in task.predict(questions).answers] == [answer.text for answer in wanted]
    assert len(sizes) > 2
    assert max(sizes) <= 60
