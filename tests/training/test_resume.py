"""A run that is killed or stopped and resumed ends with the same bits. As a script: the run that gets killed."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from keel.data.documents import Documents
from keel.data.token_store import Tokens
from keel.data.tokenizer import Tokenizer
from keel.errors import Interrupted
from keel.events import Event, OnEvent, ignore
from keel.systems.bert import Bert
from keel.training.loop import History, fit
from keel.training.loss_totals import validation_loss
from keel.training.plan import Train

VARIANTS: dict[str, dict[str, Any]] = {
    "eager-fp32": {"accumulate": 3},  # micro-batches of unequal size
    "eager-bf16": {"precision": "bf16"},
    "eager-muon": {"optimizer": "muon", "average": 0.6},
    "eager-masking": {},  # a schedule of the masking rate
    "compiled-fp32": {"compile": True},
    "compiled-bf16": {"compile": True, "precision": "bf16", "accumulate": 2},
}
EAGER = [variant for variant in VARIANTS if variant.startswith("eager")]
SYSTEMS: dict[str, dict[str, Any]] = {
    "eager-masking": {"mask_rate": 0.4, "final_mask_rate": 0.15, "mask_span": 10},
}
STEPS, EVERY = 12, 4


def train_bert(out: Path, variant: str, on_event: OnEvent = ignore) -> History:
    """The run of that variant: a tiny BERT with dropout, and evaluations between the checkpoints."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(3, 12, 400)
    tokens = SimpleNamespace(
        ids=generator.integers(5, 90, lengths.sum()).astype(np.uint16),
        starts=np.concatenate([[0], lengths.cumsum()]),
        documents=np.arange(0, 401, 4),
        units=None,
        word_starts=None,
    )
    learned, held = Documents.of(cast(Tokens, tokens)).split_held_out(0.1, seed=0)
    torch.manual_seed(0)
    system = Bert(layers=2, width=32, head_dim=16, max_positions=32, sequence_length=32, **SYSTEMS.get(variant, {}))
    special_tokens = cast(Tokenizer, SimpleNamespace(pad_id=0, cls_id=1, sep_id=2, mask_id=3))
    objective = system.build_objective(system.build_encoder(vocab_size=90), special_tokens)
    common: dict[str, Any] = {"device": "cpu", "threads": 1, "log_every": 1, "lr": 1e-2}
    every: dict[str, Any] = {"evaluate_every": EVERY + 1, "checkpoint_every": EVERY}
    train = Train(steps=STEPS, batch=8, **common, **every, **VARIANTS[variant])
    return fit(objective, learned, train, out, on_event, evaluate=validation_loss(held, train, max_examples=8))


def start(out: Path, variant: str, kill: int = 0) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, str(out), variant, str(kill)])


def main(out: str, variant: str, kill: str) -> None:
    def die(event: Event) -> None:
        if event["event"] == "step" and event["step"] == int(kill):
            while not list(Path(out).glob("checkpoints/step-*")):  # the first one may still be on its way to the disk
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)

    train_bert(Path(out), variant, die)


def outcome(out: Path) -> dict[str, Any]:
    """All that the last checkpoint holds, but for the clock."""
    folder = out / "checkpoints" / f"step-{STEPS:08d}"
    state = json.loads((folder / "state.json").read_text())
    tensors = load_file(folder / "weights.safetensors") | load_file(folder / "optimizer.safetensors")
    return {name: state[name] for name in ("losses", "evaluations", "best", "plan")} | tensors


def assert_same_bits(found: dict[str, Any], expected: dict[str, Any], case: str) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        same = torch.equal(found[name], value) if isinstance(value, torch.Tensor) else found[name] == value
        assert same, f"{name} differs after a run {case}"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The outcome of each eager variant, run once."""
    found: dict[str, Any] = {}
    for variant in EAGER:
        out = tmp_path_factory.mktemp(variant)
        train_bert(out, variant)
        found[variant] = outcome(out)
    return found


def random_step() -> int:
    """A step after the first checkpoint that is no checkpoint itself."""
    return random.SystemRandom().choice([step for step in range(EVERY + 1, STEPS) if step % EVERY])


@pytest.mark.parametrize("variant", EAGER)
def test_killed_run_resumes_to_the_same_bits(variant: str, uninterrupted: dict[str, Any], tmp_path: Path) -> None:
    step = random_step()
    assert start(tmp_path, variant, kill=step).wait() == -signal.SIGKILL
    events: list[Event] = []
    train_bert(tmp_path, variant, events.append)
    assert any("resuming from step" in event.get("text", "") for event in events)
    assert_same_bits(outcome(tmp_path), uninterrupted[variant], f"killed at step {step}")


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler for torch.compile")
@pytest.mark.parametrize("variant", ["compiled-fp32", "compiled-bf16"])
def test_killed_compiled_run_resumes_to_the_same_bits(variant: str, tmp_path: Path) -> None:
    # Each run in a process of its own: what one has compiled must not serve the other.
    step = random_step()
    assert start(tmp_path / "killed", variant, kill=step).wait() == -signal.SIGKILL
    assert start(tmp_path / "killed", variant).wait() == 0
    assert start(tmp_path / "whole", variant).wait() == 0
    assert_same_bits(outcome(tmp_path / "killed"), outcome(tmp_path / "whole"), f"killed at step {step}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_run_saves_at_once_and_resumes_to_the_same_bits(
    number: signal.Signals, uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    step = random_step()
    before = signal.getsignal(number)

    def stop(event: Event) -> None:
        if event["event"] == "step" and event["step"] == step:
            os.kill(os.getpid(), number)

    with pytest.raises(Interrupted, match=f"stopped at step {step}/{STEPS}, checkpoint saved") as stopped:
        train_bert(tmp_path, "eager-fp32", stop)
    assert stopped.value.exit_code == 130
    assert signal.getsignal(number) is before
    assert (tmp_path / "checkpoints" / f"step-{step:08d}").is_dir()
    train_bert(tmp_path, "eager-fp32")
    assert_same_bits(outcome(tmp_path), uninterrupted["eager-fp32"], f"stopped at step {step}")


def test_second_ctrl_c_stops_without_saving(tmp_path: Path) -> None:
    def insist(event: Event) -> None:
        if event["event"] == "step" and event["step"] == 2:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train_bert(tmp_path, "eager-fp32", insist)
    assert not (tmp_path / "checkpoints").exists()


def test_finished_run_is_not_run_again(uninterrupted: dict[str, Any], tmp_path: Path) -> None:
    first = train_bert(tmp_path, "eager-bf16")
    events: list[Event] = []
    again = train_bert(tmp_path, "eager-bf16", events.append)
    assert [event["event"] for event in events] == ["finished"]
    assert (again.steps, again.losses, again.evaluations) == (STEPS, first.losses, first.evaluations)
    assert_same_bits(outcome(tmp_path), uninterrupted["eager-bf16"], "run twice")


if __name__ == "__main__":
    main(*sys.argv[1:])
