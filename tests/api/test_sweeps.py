"""Sweeps: lists of settings, of which the best on dev is chosen."""

import json
from pathlib import Path
from typing import Any

import pytest

import keel
from keel.cli import main
from keel.errors import UsageError
from keel.events import Event

ROWS = [(f"good boat {n}", "x") for n in range(30)] + [(f"bad mud {n}", "y") for n in range(30)]
SYSTEM = keel.Transformer(width=16, head_dim=8, layers=1)


def test_the_best_setting_on_dev_is_used_for_all_seeds(tmp_path: Path) -> None:
    events: list[Event] = []
    call: dict[str, Any] = {"dev": ROWS, "epochs": 3, "batch": 8, "log_every": 1000}
    model = keel.finetune(SYSTEM, ROWS, lr=[1e-6, 1e-2], seeds=2, out=tmp_path / "m", on_event=events.append, **call)
    alone = keel.finetune(SYSTEM, ROWS, lr=1e-2, seeds=2, progress=False, **call)
    assert model.card.recipe["train"]["lr"] == 1e-2
    assert model.card.scores == alone.card.scores
    assert model.fingerprint() == alone.fingerprint()
    scored = [event["run"] for event in events if event["event"] == "scores"]
    assert scored == ["seed 0, lr 1e-06", "seed 0, lr 0.01", "seed 1, lr 0.01"]
    events.clear()
    again = keel.finetune(SYSTEM, ROWS, lr=[1e-6, 1e-2], seeds=2, out=tmp_path / "m", on_event=events.append, **call)
    assert again.fingerprint() == model.fingerprint()
    assert not any(event["event"] == "step" for event in events)  # nothing is trained again
    names = [run.name for run in keel.runs(tmp_path / "m").runs]
    assert names == ["m, seed 0, lr 1e-06", "m, seed 0, lr 0.01", "m, seed 1, lr 0.01"]


def test_all_combinations_are_tried_within_the_time_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "train.tsv"
    file.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in ROWS))
    words = ["finetune", "transformer", str(file), "--system.width", "16", "--system.head_dim", "8"]
    words += ["--lr", "1e-3,1e-2", "--batch", "8,16", "--epochs", "1"]
    assert main([*words, "--out", str(tmp_path / "all")]) == 0
    folders = {path.name for path in (tmp_path / "all" / "run").glob("seed-*")}
    assert folders == {f"seed-0,lr-{lr},batch-{batch}" for lr in ("0.001", "0.01") for batch in (8, 16)}
    capsys.readouterr()
    assert main([*words, "--sweep-minutes", "1e-6", "--out", str(tmp_path / "cut")]) == 0
    assert "cut to 1 of 4 settings" in capsys.readouterr().err
    assert len([*(tmp_path / "cut" / "run").glob("seed-*")]) == 1


def test_close_values_have_folders_of_their_own(tmp_path: Path) -> None:
    rates = [1e-3, 1.0000001e-3]
    keel.finetune(SYSTEM, ROWS, dev=ROWS, steps=1, lr=rates, out=tmp_path / "m", progress=False)
    folders = sorted(path.name for path in (tmp_path / "m" / "run").glob("seed-*"))
    assert folders == ["seed-0,lr-0.001", "seed-0,lr-0.0010000001"]


def test_the_choice_can_be_by_another_score() -> None:
    with pytest.raises(UsageError, match="matthews"):
        keel.finetune(SYSTEM, ROWS, dev=ROWS, steps=1, lr=[1e-3, 1e-2], select_by="mathews", progress=False)
    notes: list[Event] = []
    keel.finetune(SYSTEM, ROWS, dev=ROWS, epochs=1, lr=[1e-3, 1e-2], select_by="matthews", on_event=notes.append)
    assert any(event.get("text", "").startswith("sweep: matthews") for event in notes)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": [1e-3, 1e-2], "dev": None}, "dev"),
        ({"lr": []}, "lr needs different values"),
        ({"lr": [1e-3, 1e-3]}, "lr needs different values"),
        ({"lr": [1e-3, -1.0], "dev": ROWS}, "above 0"),
        ({"lr": 1e-3, "sweep_minutes": 1}, "sweep_minutes"),
    ],
)
def test_bad_lists_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        keel.finetune(SYSTEM, ROWS, epochs=1, progress=False, **settings)


def test_a_list_in_a_recipe(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text("".join(json.dumps({"text": a, "label": b}) + "\n" for a, b in ROWS))
    shape = "[system]\nname = 'transformer'\nwidth = 16\nhead_dim = 8\n"
    recipe = f'corpus = "{tmp_path}/train.jsonl"\n[train]\nlr = [0.001, 0.01]\nepochs = 1\n{shape}'
    (tmp_path / "sweep.toml").write_text(recipe)
    assert main(["finetune", "--recipe", str(tmp_path / "sweep.toml"), "--out", str(tmp_path / "m")]) == 0
    assert len([*(tmp_path / "m" / "run").glob("seed-0,lr-*")]) == 2


def test_an_unknown_score_is_refused_after_the_first_run_of_one_seed_too() -> None:
    rows = [("good", "x"), ("bad", "y")] * 10
    system = keel.Transformer(width=8, head_dim=8, layers=1)
    with pytest.raises(UsageError, match="binary_f1"):
        keel.finetune(system, rows, dev=rows, steps=1, select_by="binary_f2", progress=False)
