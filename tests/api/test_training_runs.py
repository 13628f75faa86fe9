"""Comparison of trainings by their logs."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import keel
from keel.cli import main
from keel.errors import KeelError, UsageError
from keel.events import Event
from keel.training.run_log import RunLog

ROWS = [(f"good boat {n}", "x") for n in range(20)] + [(f"bad mud {n}", "y") for n in range(20)]
SYSTEM = keel.Transformer(width=8, head_dim=8, layers=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name, lr in (("slow", 1e-4), ("fast", 1e-2)):
        train = keel.Train(steps=8, log_every=2, lr=lr)
        keel.finetune(SYSTEM, ROWS, train=train, dev=ROWS, out=folder / name, progress=False)
    train = keel.Train(steps=4, log_every=1)
    keel.finetune(SYSTEM, ROWS, train=train, dev=ROWS, seeds=2, out=folder / "seeds", progress=False)
    return folder


def test_curves_settings_and_scores(folder: Path) -> None:
    found = keel.runs([folder / "slow", folder / "fast"])
    assert [run.name for run in found.runs] == ["slow", "fast"]
    assert found.differing_settings == {"lr": [1e-4, 1e-2]}
    for run in found.runs:
        logged = [json.loads(line) for line in (run.folder / "run" / "log.jsonl").read_text().splitlines()]
        losses = [(event["step"], event["loss"]) for event in logged if event["event"] == "step"]
        assert [(each.step, each.value) for each in run.curves["training loss"]] == losses
        assert [each.step for each in run.curves["learning rate"]] == [2, 4, 6, 8]
        seconds = [each.seconds for each in run.curves["training loss"]]
        assert seconds == sorted(seconds)
        assert run.complete
        assert run.scores["dev"] == keel.Model.load(run.folder).card.scores["dev"]
    assert "differing_settings" in found.to_dict()


def test_rounding_errors_of_settings_are_not_shown(folder: Path) -> None:
    found = keel.runs([folder / "slow", folder / "fast"])
    found.runs[0].settings["lr"] = 5e-5 * 6
    _, rows = found.settings_table()
    assert rows == [["lr", "0.0003", "0.01"]]


def test_each_seed_is_a_run_with_its_own_scores(folder: Path) -> None:
    found = keel.runs(folder / "seeds")
    assert [(run.name, run.settings["seed"], run.steps) for run in found.runs] == [
        ("seeds, seed 0", 0, 4),
        ("seeds, seed 1", 1, 4),
    ]
    mean = keel.Model.load(folder / "seeds").card.scores["dev_seeds"]
    assert [run.scores["dev"]["values"]["accuracy"]["value"] for run in found.runs] == mean["values"]


def test_each_fold_is_a_run_with_its_own_scores(tmp_path: Path) -> None:
    rows = [(text, label) for (text, _), label in zip(ROWS, "xyyxyxxyyy" * 4, strict=True)]
    train, events = keel.Train(steps=4, log_every=1), list[Event]()
    keel.finetune(SYSTEM, rows, train=train, dev=None, folds=3, out=tmp_path / "m", on_event=events.append)
    scores = {event["run"]: event["values"]["accuracy"]["value"] for event in events if event["event"] == "scores"}
    assert len({*scores.values()}) > 1
    runs = [run for run in keel.runs(tmp_path / "m").runs if "fold" in run.name]
    shown = {run.name.partition(", ")[2]: run.scores["dev"]["values"]["accuracy"]["value"] for run in runs}
    assert shown == scores
    # The first fold has its own curve: that of the folder in which its checkpoints are.
    losses = [event["loss"] for event in events if event["event"] == "step"]
    assert [each.value for each in runs[0].curves["training loss"]] == losses[:4]


def test_a_folder_of_folders_a_page_and_event_files(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["runs", str(folder), "--out", str(tmp_path / "runs.html"), "--tensorboard", str(tmp_path / "events")]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("slow", "fast", "seeds, seed 1", "lr", "accuracy"))
    page = (tmp_path / "runs.html").read_text()
    assert page.count("<polyline") == 2 * 2 * 4  # loss and learning rate, by step and by time, of four trainings
    assert "://" not in page
    files = sorted(path.parent.relative_to(tmp_path / "events").as_posix() for path in tmp_path.rglob("*.keel"))
    assert files == ["fast", "seeds/seed-0", "seeds/seed-1", "slow"]
    assert main([*words[:2], "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 4


def test_tables_fit_into_a_terminal(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long names of runs are a numbered list; narrow tables have the names in them."""
    monkeypatch.setenv("COLUMNS", "80")
    long = tmp_path / "a folder with a name of forty characters or so"
    shutil.copytree(folder / "seeds", long)
    capsys.readouterr()
    assert main(["runs", str(long), str(folder / "slow"), str(folder / "fast")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line[:3] for line in lines[:5]] == ["1  ", "2  ", "3  ", "4  ", ""]
    assert f"{long.name}, seed 1" in lines[1]
    (lr,) = [line.split() for line in lines if line.startswith("lr ")]
    assert lr[-2:] == ["0.0001", "0.01"]  # in the order of the list
    assert main(["runs", str(folder / "slow"), str(folder / "fast")]) == 0
    narrow = capsys.readouterr().out.splitlines()
    assert "dev accuracy" in narrow[0]
    assert [line.split()[0] for line in narrow[1:3]] == ["slow", "fast"]


def test_a_resumed_run_has_each_step_once(tmp_path: Path) -> None:
    def stop(event: Event) -> None:
        if event["event"] == "step" and event["step"] == 6:
            raise KeyboardInterrupt

    train = keel.Train(steps=8, log_every=1, checkpoint_every=4)
    call: dict[str, Any] = {"train": train, "dev": None, "out": tmp_path / "m"}
    with pytest.raises(KeyboardInterrupt):
        keel.finetune(SYSTEM, ROWS, on_event=stop, **call)
    (half,) = keel.runs(tmp_path / "m").runs
    assert (half.complete, half.steps) == (False, 6)
    keel.finetune(SYSTEM, ROWS, progress=False, **call)
    (run,) = keel.runs(tmp_path / "m").runs
    assert run.complete
    assert [each.step for each in run.curves["training loss"]] == [*range(1, 9)]
    keel.finetune(SYSTEM, ROWS, progress=False, **call)  # done already
    assert len(keel.runs(tmp_path / "m").runs) == 1


def test_equal_names_become_paths(folder: Path, tmp_path: Path) -> None:
    for name in ("one/a", "two/a", "two/b"):
        shutil.copytree(folder / "slow", tmp_path / name)
    assert [run.name for run in keel.runs(tmp_path).runs] == ["one/a", "two/a", "two/b"]


def test_what_is_no_run_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder"):
        keel.runs(tmp_path / "nothing")
    with pytest.raises(UsageError, match=r"no run/log\.jsonl"):
        keel.runs(tmp_path)
    with pytest.raises(UsageError, match=r"\.html"):
        keel.runs(folder / "slow", out=tmp_path / "runs.png")
    log = tmp_path / "log.jsonl"
    log.write_text('{"event": "start", "verb": "finetune"}\nnonsense\n{"event": "note"}\n')
    with pytest.raises(KeelError, match=r"log\.jsonl:2"):
        RunLog.read(log)
    log.write_text('{"event": "start", "verb": "finetune"}\n{"event": "st')  # still being written
    assert RunLog.read(log).verb == "finetune"


STEP = {
    "event": "step",
    "step": 1,
    "steps": 2,
    "seconds_per_step": 0.1,
    "losses": {},
    "loss": 1.0,
    "lr": 0.1,
    "time": 0,
}


@pytest.mark.parametrize(
    "line",
    [
        json.dumps({name: value for name, value in STEP.items() if name != "seconds_per_step"}),
        json.dumps(STEP | {"step": 2, "loss": "high"}),
        json.dumps(STEP | {"losses": None}),
        json.dumps({"event": "checkpoint", "step": 1}),
        json.dumps({"event": "scores", "on": "dev"}),
        '{"event": "note", "text": "caf\xff',
    ],
)
def test_a_damaged_event_is_named_by_its_line(tmp_path: Path, line: str) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(f'{json.dumps(STEP)}\n{line}\n{{"event": "note"}}\n'.encode("latin-1"))
    with pytest.raises(KeelError, match=r"log\.jsonl:2: "):
        RunLog.read(log)
