"""The whole path, small: raw text to a fine-tuned BERT, resumed, continued, refused."""

import dataclasses
import json
import os
import random
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import keel
from keel.api import run_folder
from keel.api.evaluation import evaluate
from keel.api.finetuning import finetune
from keel.api.inference import predict
from keel.api.pretraining import pretrain
from keel.errors import Interrupted, KeelError, UsageError
from keel.model import Model
from keel.systems.bert import Bert
from keel.systems.gpt import Gpt
from keel.training.checkpoint import SUMS, file_checksum

SMALL: dict[str, Any] = {"layers": 2, "width": 64, "head_dim": 32, "sequence_length": 32, "max_positions": 64}
QUICK: dict[str, Any] = {"vocabulary": 300, "batch": 8, "lr": 1e-3, "threads": 1, "device": "cpu", **SMALL}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, english_corpus: Path) -> Path:
    out = tmp_path_factory.mktemp("models") / "base"
    pretrain("bert", english_corpus, out=out, steps=6, **QUICK)
    return out


@pytest.fixture
def reviews() -> list[tuple[str, str]]:
    return [("the farmer is good", "good"), ("the pilot was bad", "bad")] * 16


def weights(model: Model) -> dict[str, torch.Tensor]:
    assert model.objective is not None
    return model.objective.state_dict()


def test_the_folder_holds_all_that_is_needed(base: Path) -> None:
    assert {"config.json", "model.safetensors", "tokenizer.json", "vocab.txt", "README.md", "run"} <= {
        p.name for p in base.iterdir()
    }
    log = [json.loads(line) for line in (base / "run" / "log.jsonl").read_text().splitlines()]
    assert [event["step"] for event in log if event["event"] == "evaluation"] == [0, 6]
    assert all(event["losses"].keys() == {"mlm", "nsp"} for event in log if event["event"] in ("step", "evaluation"))
    model = Model.load(base)
    assert model.card.steps == 6
    assert {"mlm", "nsp"} <= model.card.scores.keys()


def test_the_same_call_again_does_nothing_more(base: Path, english_corpus: Path) -> None:
    before = weights(Model.load(base))
    steps: list[dict[str, Any]] = []
    again = pretrain("bert", english_corpus, out=base, steps=6, on_event=steps.append, **QUICK)
    assert not [event for event in steps if event["event"] == "step"]
    assert all(torch.equal(before[name], value) for name, value in weights(again).items())


def test_an_interrupted_run_ends_as_if_it_had_not_been(base: Path, english_corpus: Path, tmp_path: Path) -> None:
    def interrupt(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["step"] == 3:
            import os
            import signal

            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match="step 3/6"):
        pretrain("bert", english_corpus, out=tmp_path / "m", steps=6, log_every=1, on_event=interrupt, **QUICK)
    assert not (tmp_path / "m" / "model.safetensors").exists()
    model = pretrain("bert", english_corpus, out=tmp_path / "m", steps=6, **QUICK)
    expected = weights(Model.load(base))
    assert all(torch.equal(expected[name], value) for name, value in weights(model).items())


def test_a_probe_scores_the_result_in_the_same_run(
    english_corpus: Path, reviews: list[tuple[str, str]], tmp_path: Path
) -> None:
    model = pretrain("bert", english_corpus, out=tmp_path / "m", steps=2, probe=reviews, **QUICK)
    assert Model.load(tmp_path / "m").card.scores["probe"]["main"] == "accuracy"
    assert model.task is None
    with pytest.raises(KeelError, match="cannot be held out"):
        pretrain("bert", english_corpus, out=tmp_path / "n", steps=2, probe=[("a text", "a"), ("b", "b")] * 2, **QUICK)
    assert not (tmp_path / "n").exists()
    received: list[dict[str, Any]] = []
    pairs: dict[str, Any] = {
        "probe": [("a", "b"), ("c", "d")] * 10,
        "probe_task": "seq2seq",
        "on_event": received.append,
    }
    with pytest.raises(UsageError, match="needs an encoder-decoder"):
        pretrain("bert", english_corpus, out=tmp_path / "n", steps=2, **pairs, **QUICK)
    assert not any(event.get("event") == "step" for event in received)
    with pytest.raises(UsageError, match="probe_task"):
        pretrain("bert", english_corpus, out=tmp_path / "n", steps=2, probe=reviews, probe_task="parse", **QUICK)


def test_ramp_phases_and_average_in_one_run(english_corpus: Path, tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    settings = {
        **QUICK,
        "minutes": 0.05,
        "ramp": 0.3,
        "average": 0.2,
        "final_sequence_length": 48,
        "schedule": "trapezoid",
    }
    model = pretrain("bert", english_corpus, out=tmp_path / "m", on_event=events.append, **settings)
    (plan,) = [event["text"] for event in events if event["event"] == "plan"][:1]
    assert "batch size 2 from step 0" in plan
    assert "batch size 5 from step" in plan  # 8 rows of 32 tokens are as many tokens as 5 of 48
    assert "cool-down from step" in plan
    assert "average from step" in plan
    assert model.system.max_length == 48
    assert model.card.seconds < 0.05 * 60 * 3


@pytest.mark.parametrize(("name", "value"), [("lr", 2e-3), ("vocabulary", 200), ("held_out", 0.3), ("mask", 0.3)])
def test_a_changed_setting_is_named(base: Path, english_corpus: Path, name: str, value: float) -> None:
    with pytest.raises(UsageError, match=name):
        pretrain("bert", english_corpus, out=base, steps=6, **{**QUICK, name: value})  # pyright: ignore[reportArgumentType]


def test_a_changed_way_of_fine_tuning_is_named(base: Path, reviews: list[tuple[str, str]], tmp_path: Path) -> None:
    finetune(base, reviews, out=tmp_path / "m", epochs=1, device="cpu")
    with pytest.raises(UsageError, match="from_scratch"):
        finetune(base, reviews, out=tmp_path / "m", epochs=1, device="cpu", from_scratch=True)
    with pytest.raises(UsageError, match="examples"):
        finetune(base, reviews[:-2], out=tmp_path / "m", epochs=1, device="cpu")
    finetune(base, reviews, out=tmp_path / "m", epochs=1, device="cpu", from_scratch=True, overwrite=True)


def test_the_model_of_another_verb_is_not_replaced_without_overwrite(
    english_corpus: Path, reviews: list[tuple[str, str]], tmp_path: Path
) -> None:
    out, words = tmp_path / "m", {"device": "cpu", "threads": 1}
    pretrain("ngram", english_corpus, out=out, **words)
    with pytest.raises(UsageError, match=r"run of keel pretrain: choose another out, or pass overwrite"):
        finetune("fasttext", reviews, out=out, **words)
    assert Model.load(out).system.name == "ngram"
    finetune("fasttext", reviews, out=out, overwrite=True, **words)
    with pytest.raises(UsageError, match="run of keel finetune"):
        pretrain("ngram", english_corpus, out=out, **words)
    with pytest.raises(UsageError, match="this run was started with system = 'fasttext', not 'cnn'"):
        finetune("cnn", reviews, out=out, **words)


def test_overwrite_takes_nothing_of_the_users_own(
    base: Path, reviews: list[tuple[str, str]], tmp_path: Path, english_corpus: Path
) -> None:
    out = tmp_path / "m"
    finetune(base, reviews, out=out, epochs=1, device="cpu")
    (out / "notes.txt").write_text("mine")
    with pytest.raises(KeelError):
        finetune(base, tmp_path / "missing.tsv", out=out, overwrite=True)
    assert Model.load(out).task is not None
    finetune(base, reviews, out=out, epochs=1, device="cpu", overwrite=True)
    assert (out / "notes.txt").read_text() == "mine"
    foreign = tmp_path / "project"
    (foreign / "run").mkdir(parents=True)
    (foreign / "config.json").write_text("{}")
    for overwrite in (False, True):
        with pytest.raises(UsageError, match="not empty"):
            pretrain("bert", english_corpus, out=foreign, steps=2, overwrite=overwrite)
    assert (foreign / "config.json").read_text() == "{}"


def contents(folder: Path) -> dict[str, bytes]:
    """Every file, less the locks and tokenizers of runs."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path): path.read_bytes() for path in files if not path.parent.name.startswith("tokenizer-")}


def test_what_is_to_be_overwritten_outlives_every_refusal(
    base: Path, reviews: list[tuple[str, str]], tmp_path: Path, english_corpus: Path
) -> None:
    out, empty = tmp_path / "m", tmp_path / "empty.txt"
    empty.write_text("")
    pretrain("bert", english_corpus, out=out, steps=2, **QUICK)
    before, fingerprint = contents(out), Model.load(out).fingerprint()
    overwriting: dict[str, Any] = {"out": out, "overwrite": True}
    refusals: dict[str, Any] = {
        "holds no text": lambda: pretrain("bert", empty, steps=2, **overwriting, **QUICK),
        "at least two documents": lambda: pretrain("bert", ["one text alone"], steps=2, **overwriting, **QUICK),
        "only one class": lambda: finetune(base, [("the farmer", "good")] * 4, **overwriting),
        "has no examples": lambda: finetune(base, empty, **overwriting),
        "no column 'mood'": lambda: finetune(
            base, [{"text": "a", "label": "b"}] * 4, label_column="mood", **overwriting
        ),
        "needs an encoder-decoder": lambda: finetune(base, reviews, task="seq2seq", **overwriting),
        "not a left-to-right language model": lambda: finetune(base, reviews, lm_loss=0.5, **overwriting),
    }
    for messages, refusal in refusals.items():
        with pytest.raises(KeelError, match=messages):
            refusal()
        assert contents(out) == before, messages
    assert Model.load(out).fingerprint() == fingerprint
    (out / "run").rename(tmp_path / "run")
    before = contents(out)
    for messages, refusal in refusals.items():  # a model without its run
        with pytest.raises(KeelError, match=messages):
            refusal()
        assert contents(out) == before
        with pytest.raises(UsageError, match="contains a model"):
            pretrain("bert", english_corpus, out=out, steps=2, **QUICK)
    new = pretrain("bert", english_corpus, out=out, steps=3, overwrite=True, **QUICK)
    assert Model.load(out).fingerprint() == new.fingerprint() != fingerprint


def stop_at(kind: str, error: type[BaseException] = KeyboardInterrupt) -> Any:
    def stop(event: dict[str, Any]) -> None:
        if event["event"] == kind and error is Interrupted:
            os.kill(os.getpid(), signal.SIGTERM)
        elif event["event"] == kind:
            raise error

    return stop


def test_an_overwrite_that_was_stopped_before_it_learned_has_taken_nothing(
    english_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "m"
    first = pretrain("bert", english_corpus, out=out, steps=2, **QUICK)
    before = contents(out)
    again: dict[str, Any] = {**QUICK, "out": out, "steps": 4, "log_every": 1, "overwrite": True}
    for error in (KeyboardInterrupt, MemoryError):
        with pytest.raises(error):
            pretrain("bert", english_corpus, on_event=stop_at("evaluation", error), **again)
        assert contents(out) == before
    with monkeypatch.context() as patch:  # a process that is killed puts nothing back
        patch.setattr(run_folder, "_restore", lambda run: None)
        with pytest.raises(KeyboardInterrupt):
            pretrain("bert", english_corpus, on_event=stop_at("evaluation"), **again)
    assert contents(out) != before
    assert Model.load(out).fingerprint() == first.fingerprint()
    pretrain("bert", english_corpus, out=out, steps=2, **QUICK)
    steps = [event["step"] for event in map(json.loads, (out / "run" / "log.jsonl").read_text().splitlines())
             if event["event"] == "step"]  # fmt: skip
    assert steps == [2], "it was whole already"


def test_a_run_of_a_version_without_span_masking_is_resumed(english_corpus: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {**QUICK, "steps": 4, "log_every": 1}
    out = tmp_path / "m"
    with pytest.raises(Interrupted):
        pretrain("bert", english_corpus, out=out, on_event=stop_at("step", Interrupted), **settings)
    (path,) = (out / "run" / "checkpoints").glob("step-*/state.json")
    state = json.loads(path.read_text())
    for name in ("mask_span", "final_mask_rate"):
        del state["settings"][f"system.{name}"]
    path.write_text(json.dumps(state))
    sums = json.loads((path.parent / SUMS).read_text())
    (path.parent / SUMS).write_text(json.dumps(sums | {path.name: file_checksum(path)}))
    with pytest.raises(UsageError, match=r"system.mask_span = 1, not 10"):
        pretrain("bert", english_corpus, out=out, mask_span=10, **settings)
    found = pretrain("bert", english_corpus, out=out, **settings)
    assert found.fingerprint() == pretrain("bert", english_corpus, out=tmp_path / "n", **settings).fingerprint()


def test_an_overwrite_that_was_stopped_while_it_learned_resumes(english_corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "m"
    pretrain("bert", english_corpus, out=out, steps=2, **QUICK)
    overwriting: dict[str, Any] = {**QUICK, "steps": 4, "log_every": 1}
    with pytest.raises(Interrupted, match=r"step 1/4, checkpoint saved: rerun the command .* without overwrite"):
        pretrain("bert", english_corpus, out=out, overwrite=True, on_event=stop_at("step", Interrupted), **overwriting)
    assert not (out / "model.safetensors").exists()
    assert [path.name for path in out.iterdir()] == ["run"]
    messages: list[str] = []
    found = pretrain(
        "bert", english_corpus, out=out, on_event=lambda event: messages.append(event.get("text", "")), **overwriting
    )
    assert "resuming from step 1/4" in messages
    assert found.fingerprint() == pretrain("bert", english_corpus, out=tmp_path / "n", **overwriting).fingerprint()


def test_an_overwrite_that_cannot_remove_the_old_run_keeps_the_new_one(
    english_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "m"
    pretrain("bert", english_corpus, out=out, steps=2, **QUICK)
    with monkeypatch.context() as patch:  # a process that is killed while it removes
        patch.setattr(run_folder.shutil, "rmtree", lambda path, ignore_errors=False: None)
        new = pretrain("bert", english_corpus, out=out, overwrite=True, steps=3, **QUICK)
    assert (out / ".run.replaced").exists()
    assert Model.load(out).fingerprint() == new.fingerprint()
    assert pretrain("bert", english_corpus, out=out, steps=3, **QUICK).fingerprint() == new.fingerprint()
    assert not (out / ".run.replaced").exists()


def test_a_run_that_waits_to_be_replaced_is_known_for_ours(english_corpus: Path, tmp_path: Path) -> None:
    """Killed just after it was moved, there is a model and no run/."""
    out = tmp_path / "m"
    first = pretrain("bert", english_corpus, out=out, steps=2, **QUICK)
    (out / "run").rename(out / ".run.waiting")
    assert pretrain("bert", english_corpus, out=out, steps=2, **QUICK).fingerprint() == first.fingerprint()
    assert not (out / ".run.waiting").exists()


def test_a_run_on_another_text_is_refused_and_leaves_nothing(english_corpus: Path, tmp_path: Path) -> None:
    out, other = tmp_path / "m", tmp_path / "other.txt"
    other.write_text(english_corpus.read_text()[5000:])
    settings: dict[str, Any] = {"out": out, "width": 16, "layers": 1, "steps": 2, "device": "cpu"}
    pretrain("rnn", english_corpus, **settings)
    before = contents(out)
    with pytest.raises(UsageError, match=r"started with the text of english.txt, not the text of other.txt: use that"):
        pretrain("rnn", other, **settings)
    assert contents(out) == before
    assert len([*out.glob("run/tokenizer-*")]) == 1


def test_a_task_on_other_examples_is_refused_and_leaves_nothing(base: Path, tmp_path: Path) -> None:
    one, other = tmp_path / "one.tsv", tmp_path / "other.tsv"
    one.write_text("text\tlabel\n" + "a good film\tgood\na bad film\tbad\n" * 8)
    other.write_text("text\tlabel\n" + "a fine film\tgood\na bad film\tbad\n" * 8)
    settings: dict[str, Any] = {"out": tmp_path / "m", "steps": 1, "device": "cpu"}
    finetune(base, one, **settings)
    before = contents(tmp_path / "m")
    with pytest.raises(UsageError, match=r"started with the examples of .*one\.tsv, not the .* of .*other\.tsv"):
        finetune(base, other, **settings)
    with pytest.raises(UsageError, match=r"another version or part of the examples of .*one\.tsv"):
        finetune(base, one, dev="25%", **settings)
    assert contents(tmp_path / "m") == before


@pytest.mark.parametrize(("name", "batch"), [("rnn", 1000), ("word2vec", 1000), ("onehot", 1000), ("rnn", 8)])
def test_a_batch_larger_than_the_text_gets_a_note(english_corpus: Path, tmp_path: Path, name: str, batch: int) -> None:
    messages: list[str] = []
    length = {"rnn": "bptt", "word2vec": "chunk_length"}.get(name, "")
    shape = {"width": 4, length: 200, "steps": 1} if length else {}
    settings: dict[str, Any] = {"batch": batch, "device": "cpu", "threads": 1, **shape}
    pretrain(
        name,
        english_corpus,
        out=tmp_path / "m",
        on_event=lambda event: messages.append(event.get("text", "")),
        **settings,
    )
    notes = [
        text
        for text in messages
        if re.fullmatch(r"the text has [\d,]+ sequences, and a batch of 1,000 repeats it .*", text)
    ]
    assert len(notes) == (batch == 1000 and name != "onehot"), "what counts takes each row once"


@pytest.mark.parametrize("name", ["rnn", "ulmfit"])
def test_a_text_of_one_word_gets_a_note(tmp_path: Path, name: str) -> None:
    (tmp_path / "one.txt").write_text("hello\n")
    messages: list[str] = []
    settings: dict[str, Any] = {"width": 4, "layers": 1, "steps": 1, "device": "cpu"}
    out = tmp_path / "m"
    pretrain(
        name, tmp_path / "one.txt", out=out, on_event=lambda event: messages.append(event.get("text", "")), **settings
    )
    assert any(text.endswith("0 tokens held out (the text is too short)") for text in messages)
    assert any("the text has 1 sequence," in text and "use more text" in text for text in messages)


@pytest.mark.parametrize("name", ["ngram", "wordclass"])
def test_count_based_models_refuse_continued_pretraining_before_encoding(
    english_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    shape: dict[str, Any] = {"classes": 4} if name == "wordclass" else {"order": 2}
    pretrain(name, english_corpus, out=tmp_path / "m", **shape)
    monkeypatch.setattr("keel.api.pretraining.Tokens.build", None)
    with pytest.raises(UsageError, match=f"cannot continue pre-training: run `keel pretrain {name}`"):
        pretrain(tmp_path / "m", english_corpus, out=tmp_path / "n")
    assert not (tmp_path / "n").exists()


def test_texts_in_memory(english_corpus: Path, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    texts = english_corpus.read_text().split("\n\n")
    model = pretrain("bert", texts, out=tmp_path / "list", steps=1, **QUICK)
    from_frame = pretrain("bert", pandas.DataFrame({"text": texts}), out=tmp_path / "frame", steps=1, **QUICK)
    assert all(torch.equal(value, weights(from_frame)[name]) for name, value in weights(model).items())
    again = pretrain(model, texts, out=tmp_path / "again", steps=1, batch=8, device="cpu")
    assert again.card.parent == "list"
    frame = pandas.DataFrame({"text": ["a good film", "a bad film"] * 8, "label": ["good", "bad"] * 8})
    tuned = finetune(model, frame, dev=frame, epochs=1, device="cpu")
    assert tuned.card.scores["dev"]["count"] == 16


def test_a_continued_run_can_be_repeated_by_its_recipe(base: Path, english_corpus: Path, tmp_path: Path) -> None:
    from keel.cli import main

    pretrain(base, english_corpus, out=tmp_path / "next", steps=1, batch=8, device="cpu")
    recipe = tmp_path / "next" / "run" / "recipe.toml"
    words = ["pretrain", str(base), str(english_corpus), "--recipe", str(recipe), "--out", str(tmp_path / "again")]
    assert main(words) == 0


def test_continued_pretraining_of_a_folder(base: Path, chinese_corpus: Path, tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    model = pretrain(
        base, chinese_corpus, out=tmp_path / "next", steps=3, batch=8, device="cpu", on_event=events.append
    )
    assert len([event for event in events if event["event"] == "evaluation"]) == 2
    assert model.card.parent == "base"
    assert "base" in (tmp_path / "next" / "README.md").read_text()
    with pytest.raises(UsageError, match="width"):
        pretrain(base, chinese_corpus, out=tmp_path / "other", steps=3, width=128)
    with pytest.raises(UsageError, match="starts from"):
        pretrain(base, chinese_corpus, out=base, steps=3)


def test_unknown_tokens_get_a_note(
    base: Path, english_corpus: Path, chinese_corpus: Path, reviews: list[tuple[str, str]], tmp_path: Path
) -> None:
    def warnings_of(verb: Any, *sources: Any, **settings: Any) -> list[str]:
        received: list[str] = []
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        verb(
            *sources,
            out=out,
            steps=1,
            batch=4,
            on_event=lambda event: received.append(event.get("text", "")),
            **settings,
        )
        return [text for text in received if re.search(r": \d+% of the tokens are unknown to (base|the model): ", text)]

    assert len(warnings_of(pretrain, base, chinese_corpus)) == 1
    assert len(warnings_of(pretrain, "bert", chinese_corpus, tokenizer=str(base), **SMALL)) == 1
    assert not warnings_of(pretrain, base, english_corpus)
    assert (
        len(warnings_of(finetune, base, [("水手在船上", "sea"), ("面包师做面包", "food")] * 8, dev=None, seeds=2)) == 1
    )
    assert not warnings_of(finetune, base, reviews)


def test_one_document_is_singular_in_notes(tmp_path: Path) -> None:
    received: list[dict[str, Any]] = []
    pretrain("onehot", keel.Corpus.of(["a b c d. " * 9]), out=tmp_path / "m", held_out=0, on_event=received.append)
    notes = [event["text"] for event in received if "for training" in event.get("text", "")]
    assert len(notes) == 1
    assert " tokens in 1 document for training, 0 tokens held out" in notes[0]


def test_one_missing_head_is_singular_in_notes(base: Path, english_corpus: Path, tmp_path: Path) -> None:
    received: list[dict[str, Any]] = []
    headless = dataclasses.replace(Model.load(base), missing=("next sentence head",))
    pretrain(headless, english_corpus, out=tmp_path / "m", steps=1, batch=4, on_event=received.append)
    assert "base lacks next sentence head: randomly initialised" in [event.get("text") for event in received]


def test_continued_pretraining_of_a_hugging_face_folder_without_heads(
    tmp_path: Path, english_corpus: Path, base: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    transformers.AutoModel.from_pretrained(base).save_pretrained(tmp_path / "theirs")
    transformers.AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "theirs")
    events: list[dict[str, Any]] = []
    pretrain(
        tmp_path / "theirs",
        english_corpus,
        out=tmp_path / "ours",
        steps=2,
        batch=8,
        sequence_length=32,
        on_event=events.append,
    )
    messages = " ".join(event.get("text", "") for event in events)
    assert re.search("lacks .*, .*: randomly initialised", messages)
    assert transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "ours").config.vocab_size == 300


def test_finetune_evaluate_predict(base: Path, reviews: list[tuple[str, str]], tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    model = finetune(
        base, reviews, out=tmp_path / "m", test=reviews, epochs=30, lr=1e-3, device="cpu", on_event=events.append
    )
    assert "held out as dev" in " ".join(event.get("text", "") for event in events)
    assert model.card.scores["test"]["values"]["accuracy"]["value"] == 1.0
    scores = evaluate(tmp_path / "m", reviews, out=tmp_path / "scores")
    assert scores.main_value == 1.0
    assert {path.name for path in (tmp_path / "scores").iterdir()} == {
        "scores.json", "labels.tsv", "confusion.tsv", "errors.tsv"
    }  # fmt: skip
    found = list(predict(tmp_path / "m", ["the farmer is good", "the pilot was bad"]))
    assert [record["label"] for record in found] == ["good", "bad"]
    assert model.predict("the farmer is good").label == "good"
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "m")
    assert set(theirs.config.id2label.values()) == {"good", "bad"}


def test_frozen_scratch_seeds_and_folds(base: Path, reviews: list[tuple[str, str]]) -> None:
    parent = Model.load(base)
    frozen = finetune(parent, reviews, freeze=True, epochs=1, device="cpu")
    assert all(
        torch.equal(value, frozen.encoder.state_dict()[name])
        for name, value in parent.encoder.state_dict().items()
        if "pooler" not in name
    )
    scratch = finetune(parent, reviews, from_scratch=True, epochs=1, device="cpu")
    assert not torch.allclose(parent.encoder.state_dict()["words.weight"], scratch.encoder.state_dict()["words.weight"])
    several = finetune(parent, reviews, seeds=2, folds=2, epochs=1, device="cpu")
    assert len(several.card.scores["dev_seeds"]["values"]) == 2
    assert len(several.card.scores["folds"]["values"]) == 2


def test_a_label_that_was_not_learned_is_found_before_training(base: Path, reviews: list[tuple[str, str]]) -> None:
    events: list[dict[str, Any]] = []
    with pytest.raises(KeelError, match="'ugly'"):
        finetune(base, reviews, test=[("a film", "ugly")], on_event=events.append)
    assert not [event for event in events if event["event"] == "step"]


def test_what_is_refused(base: Path, reviews: list[tuple[str, str]], english_corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(UsageError, match="not empty"):
            pretrain("bert", english_corpus, out=tmp_path / "full", overwrite=overwrite, steps=2)
    assert (tmp_path / "full" / "thesis.txt").read_text() == "mine"
    with pytest.raises(UsageError, match="has no task"):
        evaluate(base, reviews)
    with pytest.raises(UsageError, match="classify"):
        finetune(base, reviews, task="clasify")
    with pytest.raises(UsageError, match="'brt' is neither a system nor a model folder: did you mean 'bert'"):
        pretrain("brt", english_corpus, out=tmp_path / "x")
    with pytest.raises(UsageError, match=r"'models/none' is neither .* use one of .*, or an existing path"):
        finetune("models/none", reviews)
    nothing: Any = None
    with pytest.raises(UsageError, match="None cannot be trained: give a system"):
        pretrain(nothing, english_corpus, out=tmp_path / "x")
    with pytest.raises(UsageError, match="lr"):
        finetune(base, reviews, learning_rate=1e-3)  # pyright: ignore[reportCallIssue]
    with pytest.raises(UsageError, match="tiny"):
        pretrain("bert", english_corpus, out=tmp_path / "x", size="huge")
    with pytest.raises(KeelError):
        pretrain("bert", [""], out=tmp_path / "empty", steps=2)


def test_labels_that_occur_once_are_learned_without_dev(base: Path) -> None:
    events: list[dict[str, Any]] = []
    rows = [(f"text number {number}", f"class {number}") for number in range(12)]
    model = finetune(base, rows, epochs=1, device="cpu", on_event=events.append)
    assert "dev" not in model.card.scores
    assert any("each has a label of its own" in event.get("text", "") for event in events)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("threads", -2),
        ("threads", 100_000),
        ("warmup", -1.0),
        ("clip", -1.0),
        ("beta1", 2.0),
        ("width", 0),
        ("layers", -1),
        ("layers", 100_000),
        ("dropout", 1.5),
        ("held_out", 1.0),
        ("sample", 0),
    ],
)
def test_settings_without_sense(english_corpus: Path, tmp_path: Path, setting: str, value: float) -> None:
    with pytest.raises(UsageError, match=setting):
        pretrain("bert", english_corpus, out=tmp_path / "m", **{"steps": 1, **QUICK, setting: value})  # pyright: ignore[reportArgumentType]
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("share", ["0%", "100%", "150%", "x%"])
def test_shares_without_sense(base: Path, reviews: list[tuple[str, str]], share: str) -> None:
    with pytest.raises(UsageError, match="between 0% and 100%"):
        finetune(base, reviews, dev=share)


WORDS: dict[str, Any] = {"epochs": 1, "batch": 4, "width": 8, "chunk_length": 40, "threads": 1}


def test_rare_words_are_left_out_by_default(tmp_path: Path) -> None:
    few = ["a cat sat on the mat", "the dog sat on a rug"]
    with pytest.raises(KeelError, match=r"no word of .* has a count of 5 or more: .* min_count=1"):
        pretrain("word2vec", few, out=tmp_path / "few", **WORDS)
    assert not (tmp_path / "few" / "config.json").exists()
    assert len(pretrain("word2vec", few, out=tmp_path / "few", min_count=1, **WORDS).tokenizer) == 13
    with pytest.raises(UsageError, match="min_count must be 0 or more"):
        pretrain("word2vec", few, out=tmp_path / "other", min_count=-1, **WORDS)


def test_a_model_of_words_cuts_and_joins_later_text_as_it_did_its_corpus(tmp_path: Path, chinese_corpus: Path) -> None:
    pretrain("word2vec", chinese_corpus, out=tmp_path / "chinese", **WORDS)
    loaded = Model.load(tmp_path / "chinese")
    assert [loaded.tokenizer.token_of(number) for number in loaded.tokenizer.encode("船长检查").ids] == ["船长", "检查"]
    rng = random.Random(0)
    texts = [" ".join(rng.choice(["new york", "red", "blue", "green"]) for _ in range(8)) for _ in range(60)]
    filler = [" ".join(f"w{rng.randrange(300)}" for _ in range(8)) for _ in range(400)]
    pretrain("word2vec", texts + filler, out=tmp_path / "english", phrases=1, **WORDS)
    assert Model.load(tmp_path / "english").encode("new york").any()
    assert keel.nearest("new_york", model=tmp_path / "english")


def test_rare_byte_pairs_are_left_out_unless_a_vocabulary_size_is_given(tmp_path: Path) -> None:
    often, seldom = "水手早上修理帆船。", "船长晚上检查地图！"
    (tmp_path / "text.txt").write_text("\n".join([often] * 30 + [seldom] * 5), encoding="utf-8")
    messages: list[str] = []

    def train_bpe(**settings: Any) -> tuple[Model, set[str]]:
        messages.clear()
        system = Gpt(layers=1, width=8, head_dim=8, sequence_length=16)
        model = keel.pretrain(
            system, tmp_path / "text.txt", steps=1, batch=1, held_out=0.0, device="cpu", **settings,
            on_event=lambda event: messages.append(event.get("text", "")),
        )  # fmt: skip
        return model, {model.tokenizer.decode([number]) for number in range(len(model.tokenizer))}

    run: dict[str, Any] = {"out": tmp_path / "model"}
    model, few = train_bpe(**run)
    assert "水手早上修理帆船" in few
    assert "船长晚上检查地图" not in few
    count = f"{len(model.tokenizer):,} BPE tokens (merges with a count of 10 or more); change with vocabulary"
    assert any(count in text for text in messages)
    assert any("looks like Chinese" in text and "tokenizer='characters'" in text for text in messages)
    again, _ = train_bpe(**run)
    assert again.tokenizer.fingerprint() == model.tokenizer.fingerprint()
    requested, many = train_bpe(out=tmp_path / "asked", vocabulary=Gpt.default_vocab_size)
    assert {"水手早上修理帆船", "船长晚上检查地图"} < many
    assert not any("BPE tokens" in text for text in messages)
    kept = [next((tmp_path / name / "run").glob("tokenizer*")).name for name in ("model", "asked")]
    assert kept[0] != kept[1], "who asks for a number is not given what another run has kept"
    counted, _ = train_bpe(out=tmp_path / "counted", min_count=2)
    assert counted.tokenizer.fingerprint() == requested.tokenizer.fingerprint()
    full, _ = train_bpe(out=tmp_path / "exact", vocabulary=270)
    assert len(full.tokenizer) == 270


def test_what_a_settings_object_leaves_out_is_the_default(
    base: Path, english_corpus: Path, reviews: list[tuple[str, str]], tmp_path: Path
) -> None:
    common: dict[str, Any] = {"vocabulary": 300, "threads": 1, "device": "cpu"}
    out = tmp_path / "onehot"
    pretrain("onehot", english_corpus, out=out, train=keel.Train(seed=3), **common)  # one epoch, by default
    timed = dataclasses.replace(keel.Train(epochs=0.1), lr=1e-3)
    model = pretrain("gpt", english_corpus, out=tmp_path / "gpt", train=timed, **common, **SMALL)
    settings = model.card.recipe["train"]
    assert (settings["epochs"], settings["lr"], settings["warmup"], settings["beta2"]) == (0.1, 1e-3, 0.02, 0.95)
    tuned = finetune(base, reviews, train=dataclasses.replace(keel.Train(lr=5e-4), batch=8), device="cpu", dev=None)
    assert tuned.card.recipe["train"]["epochs"] == round(2_500 / len(reviews))
    with pytest.raises(UsageError, match="length of the run"):
        finetune(base, reviews, train=keel.Train(epochs=0))


def test_predict_refuses_what_is_wrong_before_iteration(base: Path) -> None:
    with pytest.raises(KeelError):
        predict("no such model", ["a text"])
    with pytest.raises(UsageError, match="has no task"):
        predict(base, ["a text"])


def test_continued_pretraining_keeps_the_settings_of_the_run(
    base: Path, english_corpus: Path, reviews: list[tuple[str, str]], tmp_path: Path
) -> None:
    before = Model.load(base).card.recipe["train"]
    again = pretrain(base, english_corpus, out=tmp_path / "same", device="cpu").card.recipe["train"]
    assert {name: again[name] for name in keel.Train.INHERITED} == {name: before[name] for name in keel.Train.INHERITED}
    assert again["batch"] != keel.Bert.pretraining_defaults.batch
    other = pretrain(base, english_corpus, out=tmp_path / "other", batch=4, steps=2, device="cpu").card.recipe["train"]
    assert (other["batch"], other["steps"], other["lr"]) == (4, 2, before["lr"])
    tuned = finetune(base, reviews, dev=None, steps=2, batch=3, device="cpu")  # its settings are those of a task
    after = pretrain(tuned, english_corpus, out=tmp_path / "tuned", steps=1, device="cpu").card.recipe["train"]
    assert after["batch"] == keel.Bert.pretraining_defaults.batch


def test_a_run_that_stays_on_the_unigram_plateau_gets_a_warning(
    english_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keel.api.pretraining.PLATEAU_STEPS", 20)

    def plateau_notes(lr: float) -> list[str]:
        texts: list[str] = []
        pretrain(
            "gpt", english_corpus, out=tmp_path / f"lr{lr}", **QUICK | {"steps": 60, "lr": lr},
            on_event=lambda event: texts.append(event.get("text", "")),
        )  # fmt: skip
        return [text for text in texts if "token frequencies" in text and "warmup" in text]

    assert len(plateau_notes(1e-6)) == 1
    assert not plateau_notes(3e-3)


def test_a_variant_of_published_folders_is_no_new_system(
    reviews: list[tuple[str, str]], english_corpus: Path, tmp_path: Path
) -> None:
    variant: dict[str, Any] = {"variant": "distilbert"}
    for system, settings in (("bert", variant), (Bert(variant="roberta"), {}), ("electra", variant)):
        with pytest.raises(UsageError, match="variant"):
            pretrain(system, english_corpus, out=tmp_path / "m", **settings)
    with pytest.raises(UsageError, match="variant"):
        finetune(Bert(variant="roberta"), reviews)
    assert not (tmp_path / "m").exists()


def test_settings_of_another_kind_are_refused(tmp_path: Path) -> None:
    wrong: Any = keel.Columns()
    with pytest.raises(UsageError, match=r"train must be keel\.Train"):
        keel.pretrain("bert", ["a text"] * 4, out=tmp_path / "m", train=wrong)
