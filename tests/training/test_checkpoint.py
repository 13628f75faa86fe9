"""A checkpoint is there whole or not at all, whatever happens to the machine."""

import errno
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from keel.errors import KeelError
from keel.events import Event, ignore
from keel.training import checkpoint
from keel.training.checkpoint import Checkpoints, run_lock, write_folder
from keel.training.distributed import World
from keel.training.objective import Objective
from keel.training.optimizers import make_optimizer
from keel.training.plan import Train

ALONE = World(0, 1, torch.device("cpu"))


class Layer(Objective):
    def __init__(self, value: float = 0.0) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        nn.init.constant_(self.linear.weight, value)


def optimizer_of(objective: Objective) -> torch.optim.Optimizer:
    return make_optimizer(objective, Train(steps=1, device="cpu"))


def start_saving(checkpoints: Checkpoints, step: int, extra: dict[str, Tensor] | None = None, **state: Any) -> Layer:
    """Begin to write a checkpoint whose weights tell its step; gives what is being saved."""
    objective = Layer(float(step))
    optimizer = optimizer_of(objective)
    for parameter in objective.parameters():
        parameter.grad = torch.ones_like(parameter)
        optimizer.state[parameter] = {
            "step": torch.tensor(float(step)),
            "exp_avg": torch.full_like(parameter, step + 0.25),
            "exp_avg_sq": torch.full_like(parameter, step + 0.5),
        }
    checkpoints.save(step, objective, optimizer, state, ALONE, extra or {})
    return objective


def save(checkpoints: Checkpoints, step: int, **given: Any) -> None:
    start_saving(checkpoints, step, **given)
    checkpoints.wait()


def weight_of(checkpoints: Checkpoints, step: int) -> float:
    objective = Layer()
    checkpoints.load(step, objective, optimizer_of(objective))
    return objective.linear.weight.mean().item()


def extra_of(checkpoints: Checkpoints, step: int) -> dict[str, Tensor]:
    objective = Layer()
    return checkpoints.load(step, objective, optimizer_of(objective))


def names_in(folder: Path | None) -> list[str]:
    assert folder is not None
    return sorted(path.name for path in folder.iterdir())


def newest(checkpoints: Checkpoints) -> tuple[int | None, list[str]]:
    """The step that a new run would resume from, and its notes about the others."""
    events: list[Event] = []
    state = checkpoints.latest(events.append)
    return (state["step"] if state else None), [event["text"] for event in events]


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    """Two whole checkpoints, of steps 2 and 4."""
    found = Checkpoints(tmp_path / "checkpoints", keep=2)
    save(found, 2)
    save(found, 4)
    return found


def test_what_is_saved_comes_back(checkpoints: Checkpoints) -> None:
    objective = Layer()
    optimizer = optimizer_of(objective)
    checkpoints.load(4, objective, optimizer)
    assert (objective.linear.weight == 4).all()
    for parameter in objective.parameters():
        moments = optimizer.state[parameter]
        assert moments["step"] == 4
        assert (moments["exp_avg"] == 4.25).all()
        assert (moments["exp_avg_sq"] == 4.5).all()
    assert newest(checkpoints) == (4, [])


def test_nothing_saved_is_no_state(tmp_path: Path) -> None:
    assert newest(Checkpoints(tmp_path / "nowhere", keep=1)) == (None, [])


@pytest.mark.parametrize("file", ["weights.safetensors", "optimizer.safetensors", "state.json", "sums.json"])
@pytest.mark.parametrize("harm", ["flip", "truncate", "empty", "delete"])
def test_damaged_checkpoint_is_reported_and_skipped(checkpoints: Checkpoints, file: str, harm: str) -> None:
    path = checkpoints.path(4) / file
    content = bytearray(path.read_bytes())
    if harm == "delete":
        path.unlink()
    elif harm == "flip":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    else:
        path.write_bytes(content[:-3] if harm == "truncate" else b"")
    step, notes = newest(checkpoints)
    assert step == 2
    assert len(notes) == 1
    assert str(checkpoints.path(4)) in notes[0]
    assert "using the previous one" in notes[0]


@pytest.mark.parametrize("keep", [1, 2])
def test_damaged_checkpoint_is_replaced_when_its_step_comes_again(keep: int, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep)
    for step in (2, 4, 6):
        save(checkpoints, step)
    for step in (4, 6)[-keep:]:
        (checkpoints.path(step) / "weights.safetensors").write_bytes(b"")
    assert newest(checkpoints)[0] is None
    save(checkpoints, 3)
    assert newest(checkpoints) == (3, [])
    save(checkpoints, 6)
    assert newest(checkpoints) == (6, [])
    assert checkpoints.steps() == [3, 6][-keep:]


def test_last_few_and_best_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step, best in ((1, 1), (2, 2), (3, 2), (4, 2), (5, 2)):
        save(checkpoints, step, best_step=best)
    assert checkpoints.steps() == [2, 4, 5]


def test_what_a_killed_save_left_is_swept_up(checkpoints: Checkpoints) -> None:
    torn = checkpoints.path(5).with_name(".step-00000005.new")
    torn.mkdir()
    (torn / "weights.safetensors").write_bytes(b"half")
    assert newest(checkpoints) == (4, [])
    save(checkpoints, 6)
    assert names_in(checkpoints.folder) == ["step-00000004", "step-00000006"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EACCES])
@pytest.mark.parametrize("where", ["save_file", "file_checksum", "_sync"])
def test_failed_save_loses_nothing(
    checkpoints: Checkpoints, number: int, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, "it failed")

    monkeypatch.setattr(checkpoint, where, fail)
    with pytest.raises(
        KeelError, match="it failed" if number == errno.EACCES else "no space left on the disk.*free some"
    ):
        save(checkpoints, 6)
    monkeypatch.undo()
    assert names_in(checkpoints.folder) == ["step-00000002", "step-00000004"]
    assert newest(checkpoints) == (4, [])
    save(checkpoints, 6)
    assert newest(checkpoints) == (6, [])


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Nothing is written before it is set."""
    gate = threading.Event()

    def wait_and_save(tensors: dict[str, Tensor], path: Path) -> None:
        assert gate.wait(10)
        save_file(tensors, path)

    monkeypatch.setattr(checkpoint, "save_file", wait_and_save)
    yield gate
    gate.set()


def test_what_changes_while_it_is_written_is_saved_as_it_was(checkpoints: Checkpoints, gate: threading.Event) -> None:
    losses, mean = [1.0], torch.ones(3)
    objective = start_saving(checkpoints, 6, losses=losses, extra={"mean": mean})
    with torch.no_grad():
        objective.linear.weight.fill_(99)
    losses.append(2.0)
    mean.fill_(99)
    assert checkpoints.steps() == [2, 4]  # none is dropped before the new one stands
    gate.set()
    checkpoints.wait()
    assert checkpoints.steps() == [4, 6]
    assert weight_of(checkpoints, 6) == 6
    assert extra_of(checkpoints, 6)["mean"].tolist() == [1, 1, 1]
    state = checkpoints.latest(ignore)
    assert state
    assert state["losses"] == [1.0]


@pytest.mark.parametrize("then", ["save", "latest"])
def test_next_save_and_latest_wait_for_the_one_being_written(
    then: str, checkpoints: Checkpoints, gate: threading.Event
) -> None:
    start_saving(checkpoints, 6)
    threading.Timer(0.1, gate.set).start()
    if then == "save":
        save(checkpoints, 8)
        assert checkpoints.steps() == [6, 8]
    else:
        assert newest(checkpoints) == (6, [])


@pytest.mark.parametrize("then", ["wait", "save", "latest"])
def test_failed_save_is_reported_once_by_the_next_call(
    then: str, checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "it failed")

    monkeypatch.setattr(checkpoint, "save_file", fail)
    start_saving(checkpoints, 6)
    calls = {"wait": checkpoints.wait, "save": lambda: save(checkpoints, 8), "latest": lambda: newest(checkpoints)}
    with pytest.raises(KeelError, match="no space left on the disk"):
        calls[then]()
    checkpoints.wait()
    assert newest(checkpoints) == (4, [])


def test_kill_while_writing_loses_that_checkpoint_alone(checkpoints: Checkpoints) -> None:
    code = "import os, signal, sys; from pathlib import Path; import torch; from keel.training import checkpoint\n"
    code += "from keel.training.objective import Objective; from keel.training.distributed import World\n"
    code += "objective = Objective(); objective.weight = torch.nn.Parameter(torch.zeros(3))\n"
    code += "checkpoint.file_checksum = lambda path: os.kill(os.getpid(), signal.SIGKILL)\n"
    code += "checkpoints = checkpoint.Checkpoints(Path(sys.argv[1]), keep=1)\n"
    code += "optimizer = torch.optim.AdamW(objective.parameters())\n"
    code += "checkpoints.save(6, objective, optimizer, {}, World(0, 1, torch.device('cpu'))); checkpoints.wait()"
    assert subprocess.run([sys.executable, "-c", code, str(checkpoints.folder)]).returncode == -signal.SIGKILL
    assert names_in(checkpoints.folder) == [".step-00000006.new", "step-00000002", "step-00000004"]
    assert newest(checkpoints) == (4, [])
    save(checkpoints, 6)
    assert names_in(checkpoints.folder) == ["step-00000004", "step-00000006"]


def test_what_else_was_saved_comes_back(checkpoints: Checkpoints) -> None:
    extra = {"mean": torch.randn(3, 4), "count": torch.tensor(7)}
    save(checkpoints, 6, extra=extra)
    found = extra_of(checkpoints, 6)
    assert found.keys() == extra.keys()
    assert all(torch.equal(found[name], value) for name, value in extra.items())
    assert extra_of(checkpoints, 4) == {}
    assert names_in(checkpoints.path(4)) == ["optimizer.safetensors", "state.json", "sums.json", "weights.safetensors"]


@pytest.mark.parametrize("harm", ["flip", "delete"])
def test_damage_to_what_else_was_saved_is_found(checkpoints: Checkpoints, harm: str) -> None:
    save(checkpoints, 6, extra={"mean": torch.randn(3, 4)})
    path = checkpoints.path(6) / "extra.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content) if harm == "flip" else path.unlink()
    step, notes = newest(checkpoints)
    assert step == 4
    assert "extra.safetensors" in notes[0]


def test_full_disk_is_reported_in_one_sentence(tmp_path: Path) -> None:
    # The system's own refusal in the middle of a file: a limit on file sizes fails as a full disk would.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(
            KeelError, match=r"no space left on the disk to write .*: free some space and rerun the command"
        ):
            write_folder(tmp_path / "new", lambda folder: save_file({"a": torch.zeros(9999)}, folder / "a.safetensors"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


def test_folder_appears_only_when_whole(tmp_path: Path) -> None:
    seen: list[bool] = []

    def write(folder: Path) -> None:
        (folder / "one").write_text("1")
        seen.append((tmp_path / "new").exists())

    write_folder(tmp_path / "new", write)
    assert seen == [False]
    assert [path.name for path in tmp_path.rglob("*")] == ["new", "one"]


def interrupted(folder: Path) -> None:
    (folder / "half").write_text("half")
    raise KeyboardInterrupt


@pytest.mark.parametrize("attempts", [1, 2])
def test_interrupted_write_does_not_hinder_the_next(attempts: int, tmp_path: Path) -> None:
    for _ in range(attempts):
        with pytest.raises(KeyboardInterrupt):
            write_folder(tmp_path / "new", interrupted)
        assert not (tmp_path / "new").exists()
    write_folder(tmp_path / "new", lambda folder: (folder / "whole").touch())
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["whole"]


def test_two_runs_into_one_folder_are_refused(tmp_path: Path) -> None:
    code = "import sys, pathlib; from keel.training.checkpoint import run_lock\n"
    code += "with run_lock(pathlib.Path(sys.argv[1])): print('in')"
    other = [sys.executable, "-c", code, str(tmp_path / "run")]
    with run_lock(tmp_path / "run"):
        refused = subprocess.run(other, capture_output=True, text=True)
        with pytest.raises(KeelError, match=r"another run is writing into .*run: wait for it, or choose another out"):
            run_lock(tmp_path / "run").__enter__()
    assert "another run is writing into" in refused.stderr
    assert not refused.stdout
    with run_lock(tmp_path / "run"):  # free again
        shutil.rmtree(tmp_path / "run")
