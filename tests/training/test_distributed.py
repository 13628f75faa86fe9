"""Two processes compute what one does. As a script under torchrun: all checks with two processes, in one start."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from keel.data.corpus import Corpus
from keel.data.documents import Documents
from keel.data.examples import Labels
from keel.data.label_kinds import TextTarget
from keel.data.token_store import Tokens
from keel.data.tokenizer import Tokenizer
from keel.errors import Interrupted, KeelError
from keel.events import Event
from keel.systems.bert import Bert
from keel.systems.electra import Electra
from keel.systems.gpt import Gpt
from keel.systems.rnn import Rnn
from keel.systems.seq2seq import Seq2seq
from keel.systems.system import System
from keel.systems.transformer import Transformer
from keel.systems.ulmfit import Ulmfit
from keel.tasks.sequence_to_sequence import SequenceToSequence
from keel.training.counter_rng import CounterRng
from keel.training.distributed import World
from keel.training.loop import History, fit
from keel.training.loss_totals import validation_loss
from keel.training.objective import Objective, Tensors
from keel.training.plan import Train

STEPS, HALF = 20, 10
LEVELS: dict[str, dict[str, Any]] = {"ddp": {"layer_decay": 0.5, "unfreeze": "gradual"}, "fsdp": {"layer_decay": 0.5}}
"""Layer-wise settings that each strategy supports."""
BERT = Bert(layers=2, width=32, head_dim=16, max_positions=32, sequence_length=32, dropout=0.0, attention_dropout=0.0)
LONGER: dict[str, System] = {
    "bert": replace(BERT, sequence_length=16, final_sequence_length=32, final_share=0.4),
    "electra": Electra(
        layers=2, width=32, head_dim=16, max_positions=32, sequence_length=16, final_sequence_length=32,
        final_share=0.4, dropout=0.0, attention_dropout=0.0,
    ),
}  # fmt: skip
"""Those with a phase of longer sequences, whose position embeddings start as copies."""
RECURRENT: dict[str, System] = {
    "rnn": Rnn(width=16, layers=2, bidirectional=True, bptt=8, dropout=0.0),
    "ulmfit": Ulmfit(
        width=16, hidden_size=24, layers=2, bptt=8, dropout=0.0, input_dropout=0.0, layer_dropout=0.0, word_dropout=0.0,
        weight_dropout=0.0,
    ),
}  # fmt: skip
"""Those who hand a state from step to step."""
WAYS = [("ddp", 1), ("fsdp", 1), ("ddp", 2), ("fsdp", 2)]


def train_bert(out: Path, *, until: int = STEPS, system: System = BERT, **settings: Any) -> History | None:
    """20 steps of a tiny BERT without dropout, or of another; `until` stops it early by a signal, as a user would."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(3, 12, 200)
    tokens = SimpleNamespace(
        ids=generator.integers(5, 90, lengths.sum()).astype(np.uint16),
        starts=np.concatenate([[0], lengths.cumsum()]),
        documents=np.arange(0, 201, 4),
        units=None,
        word_starts=None,
    )
    data = Documents.of(cast(Tokens, tokens))
    torch.manual_seed(0)
    special_tokens = cast(Tokenizer, SimpleNamespace(pad_id=0, cls_id=1, sep_id=2, mask_id=3, end_id=2))
    return learn(
        system.build_objective(system.build_encoder(vocab_size=90), special_tokens), data, out, until=until, **settings
    )


def train_seq2seq(out: Path, *, system: System, **settings: Any) -> History | None:
    """20 steps of a system that writes numbers backwards."""
    random = np.random.default_rng(0)
    texts = [" ".join(map(str, random.integers(0, 99, size))) for size in random.integers(1, 5, 40)]
    tokenizer = Tokenizer.train(Corpus.of(texts), kind="bpe", size=300)
    torch.manual_seed(0)
    task = SequenceToSequence(system, system.build_encoder(len(tokenizer)), tokenizer, Labels(kind=TextTarget()))
    examples = SequenceToSequence.read_examples([(text, text[::-1]) for text in texts])
    return learn(task, task.encode_examples(examples, batch_size=10), out, **settings)


def learn(objective: Objective, data: Any, out: Path, *, until: int = STEPS, **settings: Any) -> History | None:
    common: dict[str, Any] = {"device": "cpu", "log_every": 1, "lr": 3e-3, "evaluate_every": HALF}
    train = Train(steps=STEPS, batch=10, checkpoint_every=HALF, **common, **settings)

    def stop(event: Event) -> None:
        if event["event"] == "step" and event["step"] == until < STEPS:
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        return fit(objective, data, train, out, stop, evaluate=validation_loss(data, train, max_examples=20))
    except Interrupted:
        return None


WRITERS: dict[str, tuple[Callable[..., History | None], System]] = {
    "gpt": (
        train_bert,
        Gpt(layers=2, width=32, head_dim=16, max_positions=32, sequence_length=32, dropout=0, attention_dropout=0),
    ),
    "seq2seq": (train_seq2seq, Seq2seq(width=16, attention_dim=16, dropout=0)),
    "transformer": (train_seq2seq, Transformer(layers=2, decoder_layers=2, width=32, head_dim=16, dropout=0)),
}


@dataclass(frozen=True, kw_only=True)
class Points(Tensors):
    x: Tensor
    y: Tensor


class Slope(Objective):
    """y = w x by least squares; row `bad` of step 3 is no number, so that one process alone has it."""

    def __init__(self, bad: int = -1) -> None:
        super().__init__()
        self.bad = bad
        self.weight = nn.Parameter(torch.zeros(1, 1))

    def epoch_size(self, data: None) -> int:
        return 100

    def batch(self, data: Tensor, rng: CounterRng, examples: range) -> Points:
        x = torch.arange(examples.start, examples.stop, dtype=torch.float32)[:, None] / 10
        return Points(x=x, y=torch.where((x * 10 == self.bad) & (rng.step == 3), torch.nan, 2 * x))

    def counts(self, batch: Points) -> dict[str, Tensor]:
        return {"square": torch.tensor(float(len(batch.x)))}

    def forward(self, batch: Points, state: None = None) -> tuple[dict[str, Tensor], None]:
        return {"square": (batch.x @ self.weight - batch.y).square().sum()}, None


def error_message(objective: Objective, train: Train, out: Path) -> str:
    """The message to the user when it cannot be done."""
    try:
        fit(objective, None, train, out)
    except KeelError as error:
        return str(error)
    return "done"


def main(folder: Path) -> None:
    results: dict[str, Any] = {}
    for strategy, accumulate in WAYS:
        history = train_bert(folder / f"two-{strategy}-{accumulate}", parallel=strategy, accumulate=accumulate)
        assert history
        results[f"{strategy}-{accumulate}"] = {"losses": history.losses, "evaluations": history.evaluations}
    for strategy, settings in LEVELS.items():
        history = train_bert(folder / f"levels-{strategy}", parallel=strategy, **settings)
        assert history
        results[f"levels-{strategy}"] = {"losses": history.losses, "evaluations": history.evaluations}
    for (name, system), strategy in product({**LONGER, **RECURRENT}.items(), ("ddp", "fsdp")):
        history = train_bert(folder / f"{name}-{strategy}", system=system, parallel=strategy)
        assert history
        results[f"{name}-{strategy}"] = {"losses": history.losses, "evaluations": history.evaluations}
    for (name, (train, system)), strategy in product(WRITERS.items(), ("ddp", "fsdp")):
        history = train(folder / f"{name}-{strategy}", system=system, parallel=strategy)
        assert history
        results[f"{name}-{strategy}"] = {"losses": history.losses, "evaluations": history.evaluations}
    for strategy in ("ddp", "fsdp"):
        train_bert(folder / f"two-then-one-{strategy}", until=HALF + 2, parallel=strategy)
        history = train_bert(folder / f"one-then-two-{strategy}", parallel=strategy)
        assert history
        results[f"one-then-two-{strategy}"] = {"losses": history.losses, "evaluations": history.evaluations}
    quick: dict[str, Any] = {"device": "cpu", "checkpoint_every": 20}
    results["nan"] = error_message(Slope(bad=7), Train(steps=10, batch=8, **quick), folder / "nan")
    results["shards"] = error_message(
        Slope(), Train(steps=10, batch=8, unfreeze="gradual", parallel="fsdp", **quick), folder / "shards"
    )
    results["few"] = error_message(Slope(), Train(steps=10, batch=1, **quick), folder / "few")
    results["clock"] = error_message(Slope(), Train(minutes=0.01, batch=8, **quick), folder / "clock")
    (folder / f"results-{os.environ['RANK']}.json").write_text(json.dumps(results))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where one process ran and two ran, and what both of the two results."""
    folder = tmp_path_factory.mktemp("parallel")
    for strategy in ("ddp", "fsdp"):
        train_bert(folder / f"one-then-two-{strategy}", until=HALF + 2)
    command = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", __file__, str(folder)]
    subprocess.run([sys.executable, *command], check=True, timeout=240)
    return folder


@pytest.fixture(scope="module")
def results(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results-0.json").read_text())


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[int, History]:
    """The same run in one process, by its number of micro-batches."""
    histories = {accumulate: train_bert(folder / f"alone-{accumulate}", accumulate=accumulate) for accumulate in (1, 2)}
    return {accumulate: history for accumulate, history in histories.items() if history}


def figures(evaluations: list[dict[str, float]]) -> list[float]:
    return [value for evaluation in evaluations for value in evaluation.values()]


def assert_same_figures(results: dict[str, Any], expected: History) -> None:
    assert [step for step, _ in results["losses"]] == [step for step, _ in expected.losses] == list(range(1, STEPS + 1))
    assert [loss for _, loss in results["losses"]] == pytest.approx([loss for _, loss in expected.losses], rel=1e-5)
    assert figures(results["evaluations"]) == pytest.approx(figures(expected.evaluations), rel=1e-5)


@pytest.mark.multi
@pytest.mark.parametrize(("strategy", "accumulate"), WAYS)
def test_two_processes_learn_as_one(
    strategy: str, accumulate: int, results: dict[str, Any], alone: dict[int, History]
) -> None:
    assert_same_figures(results[f"{strategy}-{accumulate}"], alone[accumulate])
    assert alone[1].losses[-1][1] < alone[1].losses[0][1]


@pytest.mark.multi
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_learn_level_by_level_as_one(strategy: str, results: dict[str, Any], tmp_path: Path) -> None:
    alone = train_bert(tmp_path, **LEVELS[strategy])
    assert alone
    assert_same_figures(results[f"levels-{strategy}"], alone)


@pytest.mark.multi
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", LONGER)
def test_two_start_a_longer_phase_as_one(name: str, strategy: str, results: dict[str, Any], tmp_path: Path) -> None:
    alone = train_bert(tmp_path, system=LONGER[name])
    assert alone
    assert_same_figures(results[f"{name}-{strategy}"], alone)


@pytest.mark.multi
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", RECURRENT)
def test_two_carry_their_states_as_one(name: str, strategy: str, results: dict[str, Any], folder: Path) -> None:
    alone = train_bert(folder / f"{name}-alone-{strategy}", system=RECURRENT[name])
    assert alone
    assert_same_figures(results[f"{name}-{strategy}"], alone)
    one, two = (
        load_file(folder / run / "checkpoints" / f"step-{STEPS:08d}" / "extra.safetensors")
        for run in (f"{name}-alone-{strategy}", f"{name}-{strategy}")
    )
    assert one
    for part, value in one.items():
        torch.testing.assert_close(two[part], value, rtol=1e-3, atol=1e-4)


@pytest.mark.multi
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", WRITERS)
def test_two_learn_to_write_as_one(name: str, strategy: str, results: dict[str, Any], tmp_path: Path) -> None:
    train, system = WRITERS[name]
    alone = train(tmp_path, system=system)
    assert alone
    assert_same_figures(results[f"{name}-{strategy}"], alone)


@pytest.mark.multi
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_go_on_where_one_stopped(strategy: str, results: dict[str, Any], alone: dict[int, History]) -> None:
    assert_same_figures(results[f"one-then-two-{strategy}"], alone[1])


@pytest.mark.multi
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_one_resumes_where_two_stopped(strategy: str, folder: Path, alone: dict[int, History]) -> None:
    out = folder / f"two-then-one-{strategy}"
    assert (out / "checkpoints" / f"step-{HALF + 2:08d}").is_dir()
    assert not (out / "checkpoints" / f"step-{STEPS:08d}").exists()
    history = train_bert(out)
    assert history
    assert_same_figures({"losses": history.losses, "evaluations": history.evaluations}, alone[1])


@pytest.mark.multi
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("file", ["weights.safetensors", "optimizer.safetensors"])
def test_checkpoint_has_one_format(strategy: str, file: str, folder: Path) -> None:
    one, two = (
        load_file(folder / run / "checkpoints" / f"step-{STEPS:08d}" / file) for run in ("alone-1", f"two-{strategy}-1")
    )
    assert one.keys() == two.keys()
    for name, value in one.items():
        torch.testing.assert_close(
            two[name], value, rtol=1e-3, atol=1e-4, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.multi
def test_every_process_reports_the_same(folder: Path, results: dict[str, Any]) -> None:
    assert "not finite before step 4; there is no checkpoint yet" in results["nan"]
    assert "use parallel ddp" in results["shards"]
    assert "a batch of 1 is too small for 2 processes" in results["few"]
    assert results["clock"] == "done"
    assert {name: results[name] for name in ("nan", "few", "clock")}.items() <= json.loads(
        (folder / "results-1.json").read_text()
    ).items()


@pytest.mark.parametrize(("size", "of"), [(1, 1), (1, 3), (2, 1), (2, 2), (3, 4)])
@pytest.mark.parametrize("rows", [12, 13, 31])
def test_parts_are_slices_of_the_rows(size: int, of: int, rows: int) -> None:
    worlds = [World(rank, size, torch.device("cpu")) for rank in range(size)]
    parts = [part for world in worlds for part in world.micro_batches(rows, of)]
    assert [row for part in parts for row in part] == list(range(rows))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


if __name__ == "__main__":
    main(Path(sys.argv[1]))
