"""The GPU path of a whole system against the plain one: sampling, kernels, packed sequences, graphs, resume."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import keel
from keel.data.corpus import Corpus
from keel.data.documents import Documents
from keel.data.masking_units import MaskingUnits
from keel.data.token_batch import TokenBatch
from keel.data.token_store import Tokens
from keel.data.tokenizer import Tokenizer
from keel.systems.bert import Bert
from keel.systems.electra import Electra
from keel.systems.ernie import Ernie
from keel.systems.rnn import Rnn
from keel.training.batch_loading import CpuBatches
from keel.training.counter_rng import CounterRng
from keel.training.cuda_graphs import StepGraphs
from keel.training.distributed import World
from keel.training.objective import Objective
from keel.training.plan import Plan, Train
from keel.training.step import Stepper

pytestmark = pytest.mark.gpu
SHAPE: dict[str, Any] = {"layers": 2, "width": 128, "head_dim": 64, "max_positions": 64, "sequence_length": 64}
TRAIN = Train(steps=8, batch=32, device="cuda", precision="bf16")


@pytest.fixture(params=[Bert, Ernie, Electra])
def learning(english_corpus: Path, request: pytest.FixtureRequest) -> tuple[Objective, Documents]:
    corpus = Corpus(english_corpus)
    tokenizer = Tokenizer.train(corpus, size=400)
    system = request.param(**SHAPE)
    torch.manual_seed(0)
    return system.build_objective(system.build_encoder(len(tokenizer)), tokenizer), Documents.of(
        Tokens.build(corpus, tokenizer, units=MaskingUnits() if system.needs_units else None)
    )


def take_all(objective: Objective, data: Documents, graphs: bool) -> tuple[list[dict[str, float]], list[Tensor]]:
    """The losses of eight steps, and the weights after them."""
    plan = Plan(TRAIN.steps, TRAIN, objective.phases())
    with World.join("cuda") as world:
        stepper = Stepper(objective.to("cuda").train(), data, TRAIN, world, lambda event: None)
        assert isinstance(stepper.graphs, StepGraphs)
        if not graphs:
            stepper.graphs = None
        taken = [stepper.train_step(plan.step_plan(step)) for step in range(TRAIN.steps)]
        assert not graphs or stepper.graphs.captured  # pyright: ignore[reportOptionalMemberAccess]
    losses = [{name: loss.item() for name, loss in each.losses.items()} for each in taken]
    return losses, [value.detach().cpu() for value in objective.parameters()]


def test_draws_on_the_gpu_are_the_cpus(learning: tuple[Objective, Documents]) -> None:
    objective, data = learning
    plan = Plan(TRAIN.steps, TRAIN, objective.phases())
    with World.join("cuda") as world:
        there = Stepper(objective.to("cuda"), data, TRAIN, world, lambda event: None).batches
        for step in (0, 1, 7):
            place = plan.step_plan(step)
            (batch,), _ = there.get(place, [range(place.batch_size)], [])
            (expected,), _ = CpuBatches(objective, data, TRAIN.seed, torch.device("cpu")).get(
                place, [range(place.batch_size)], []
            )
            pairs = zip(batch.tensors(), expected.tensors(), strict=True)
            assert all(torch.equal(found.cpu(), wanted) for found, wanted in pairs)


def test_graphs_give_the_bits_of_single_launches(learning: tuple[Objective, Documents]) -> None:
    objective, data = learning
    start = {name: value.clone() for name, value in objective.state_dict().items()}
    losses, weights = take_all(objective, data, graphs=True)
    objective.load_state_dict(start)
    again, same = take_all(objective, data, graphs=False)
    assert losses == again
    assert all(torch.equal(one, other) for one, other in zip(weights, same, strict=True))


def test_recurrent_layers_and_their_state_go_into_graphs(english_corpus: Path) -> None:
    corpus = Corpus(english_corpus)
    tokenizer = Tokenizer.train(corpus, size=400)
    system = Rnn(width=64, bidirectional=True, bptt=20)
    torch.manual_seed(0)
    objective = system.build_objective(system.build_encoder(len(tokenizer)), tokenizer)
    data = Documents.of(Tokens.build(corpus, tokenizer))
    start = {name: value.clone() for name, value in objective.state_dict().items()}
    losses, _ = take_all(objective, data, graphs=True)
    objective.load_state_dict(start)
    again, _ = take_all(objective, data, graphs=False)
    for one, other in zip(losses, again, strict=True):
        assert one == pytest.approx(other, rel=1e-3)
    objective.load_state_dict(start)
    batch = objective.batch(data, CounterRng(seed=0, step=0, first_example=0, batch_size=32), range(32))
    there, here = (objective.to(device).eval()(batch.to(device))[0]["next"].item() for device in ("cuda", "cpu"))
    assert there == pytest.approx(here, rel=1e-3)


def test_packed_and_padded_rows_give_the_same(learning: tuple[Objective, Documents]) -> None:
    objective, _ = learning
    encoder: Any = objective.encoder
    encoder.to("cuda").eval()
    lengths = [5, 64, 17, 1]
    ids = [torch.randint(5, 300, (length,), device="cuda") for length in lengths]
    starts = torch.tensor([0, 5, 69, 86], device="cuda")
    packed = TokenBatch(
        ids=torch.cat(ids)[None],
        lengths=torch.tensor(lengths, device="cuda"),
        sequence_starts=starts,
        position_ids=torch.cat([torch.arange(length, device="cuda") for length in lengths])[None],
        max_seqlen=64,
    )
    padded = TokenBatch.pad([row.tolist() for row in ids]).to("cuda")
    assert encoder.accepts_packed
    with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16):
        one, other = encoder.pooled_features(packed).float(), encoder.pooled_features(padded).float()
    exact = encoder.pooled_features(padded)  # in float32, by torch's own operations
    assert torch.allclose(one, other, atol=1e-2)
    assert (one - exact).norm() / exact.norm() < 2e-2


def test_a_run_that_was_stopped_ends_with_the_same_bits(english_corpus: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"batch": 32, "device": "cuda", "vocabulary": 400, "checkpoint_every": 4, **SHAPE}
    whole = keel.pretrain("bert", english_corpus, out=tmp_path / "whole", steps=12, **settings)

    def stop(event: dict[str, Any]) -> None:
        if event["event"] == "step" and event["step"] >= 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        keel.pretrain("bert", english_corpus, out=tmp_path / "cut", steps=12, log_every=1, on_event=stop, **settings)
    resumed = keel.pretrain("bert", english_corpus, out=tmp_path / "cut", steps=12, log_every=1, **settings)
    for name, value in whole.encoder.state_dict().items():
        assert torch.equal(value, resumed.encoder.state_dict()[name])
