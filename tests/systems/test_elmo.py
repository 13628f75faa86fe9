"""ELMo: characters are encoded once per word, two language models, a state carried on."""

import dataclasses
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keel.config import replace
from keel.data.corpus import Corpus
from keel.data.documents import Documents
from keel.data.token_batch import TokenBatch
from keel.data.token_store import Tokens
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.systems.elmo import (
    BOS,
    EMPTY,
    EOS,
    WORD_BEGIN,
    WORD_END,
    DistinctWords,
    Elmo,
    ElmoBatch,
    ElmoLayer,
    ElmoPretraining,
)
from keel.training.counter_rng import CounterRng
from keel.training.loop import fit
from keel.training.muon import orthogonalize
from keel.training.optimizers import make_optimizer
from keel.training.plan import Train

SMALL = Elmo(
    width=8,
    cell_size=12,
    character_filters=(4, 3, 5),
    character_dim=4,
    highway_layers=1,
    dropout=0.0,
    bptt=6,
    softmax_samples=0,
)
TEXTS = [
    "the captain saw a ship. the ship was old and the sea was calm.",
    "a judge reads the incomprehensibilities of law. nobody is surprised at all.",
    "bread is baked in the morning. the baker sells it until noon.",
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(Corpus.of(TEXTS), kind="words", size=100, lowercase=False)


@pytest.fixture(scope="module")
def documents(tokenizer: Tokenizer) -> Documents:
    return Documents.of(Tokens.build(Corpus.of(TEXTS), tokenizer))


def training(tokenizer: Tokenizer, **fields: Any) -> ElmoPretraining:
    torch.manual_seed(0)
    system = replace(SMALL, **fields)
    return system.build_objective(system.build_encoder(len(tokenizer)), tokenizer)


def batch(objective: ElmoPretraining, documents: Documents, step: int = 0, rows: int = 2) -> ElmoBatch:
    return objective.batch(
        documents, CounterRng(seed=0, step=step, first_example=step * rows, batch_size=rows), range(rows)
    )


def test_words_are_bytes_between_boundary_characters_and_sentences_have_special_tokens(tokenizer: Tokenizer) -> None:
    long = "x" * 5000
    (ids,) = tokenizer.encode_many([f"sea Zoë {long}"], oov_ids=True)
    units = SMALL.subword_units([tokenizer.cls_id, tokenizer.sep_id, tokenizer.unknown_id, *ids], tokenizer)
    words = [part.tolist() for part in units.unit_ids.tensor_split(units.unit_starts[1:])]
    assert words[:3] == [[WORD_BEGIN, BOS, WORD_END], [WORD_BEGIN, EOS, WORD_END], [WORD_BEGIN, WORD_END]]
    assert words[3:5] == [[WORD_BEGIN, *b"sea", WORD_END], [WORD_BEGIN, *"Zoë".encode(), WORD_END]]
    assert words[5] == [WORD_BEGIN, *b"x" * 48, WORD_END]


def test_short_words_are_read_as_if_all_the_room_after_them_were(tokenizer: Tokenizer) -> None:
    objective = training(tokenizer)
    table = objective.table.long()
    characters, windows = DistinctWords.of(table, objective.encoder.room, tile=16)
    assert len(characters.short) > len(characters.long) > 0
    assert len(characters.short) % 16 == len(characters.long) % 16 == 0
    assert characters.short.shape[1] < characters.long.shape[1] == 50
    by_kind = objective.encoder.encode_words(characters)[windows]
    whole = objective.encoder.encode_words(DistinctWords(short=table, long=table[:0]))
    torch.testing.assert_close(by_kind, whole)


def test_the_characters_of_a_word_are_encoded_once_per_batch(tokenizer: Tokenizer, documents: Documents) -> None:
    objective = training(tokenizer)
    sampled = batch(objective, documents, rows=8)
    words = len({*sampled.word_index.flatten().tolist()})
    assert words == len(sampled.words.short) + len(sampled.words.long) < sampled.word_index.numel()
    every = torch.cat([F.pad(sampled.words.short, (0, 50 - objective.encoder.room), value=EMPTY), sampled.words.long])
    separate = dataclasses.replace(
        sampled,
        words=DistinctWords(short=every[sampled.word_index.flatten()], long=every[:0]),
        word_index=torch.arange(sampled.word_index.numel()).view(sampled.word_index.shape),
    )
    gradients = []
    for each in (sampled, separate):
        losses, _ = objective(each)
        gradients.append(
            [*losses.values(), *torch.autograd.grad(losses["next"] + losses["previous"], [*objective.parameters()])]
        )
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_the_loss_is_that_of_a_plain_network(tokenizer: Tokenizer, documents: Documents) -> None:
    """Character by character, word by word and layer by layer with torch's own modules, with the full softmax."""
    objective = training(tokenizer, cell_clip=0.0, projection_clip=0.0)
    sampled = batch(objective, documents)
    encoder = objective.encoder
    rng, numbers = CounterRng(seed=0, step=0, first_example=0, batch_size=2), torch.arange(2)
    directions = [
        documents.read_streams(rng, numbers, 6, end=objective.eos_id, backwards=back) for back in (False, True)
    ]
    ids = torch.stack(directions, 1)
    assert torch.equal(ids[..., 1:], sampled.targets)
    losses, _ = objective(sampled)
    for direction, name in enumerate(("next", "previous")):
        total = 0.0
        for row in ids[:, direction]:
            x = torch.stack([_word(objective, number) for number in row[:-1].tolist()])
            for layer in encoder.stack:
                output = _lstm(layer, direction)(x)[0]
                x = x + output if layer.residual else output
            total += F.cross_entropy(x @ objective.output.T + objective.bias, row[1:], reduction="sum").item()
        assert losses[name].item() == pytest.approx(total, rel=1e-5)


def _word(objective: ElmoPretraining, number: int) -> Tensor:
    """One word: every filter at every place, the strongest, one highway, the projection."""
    encoder: Any = objective.encoder
    characters = encoder.characters.weight[objective.table[number].long()]  # [50, character width]
    found = []
    for conv in encoder.filters.windows:
        size = conv.weight.shape[2]
        windows = [characters[start : start + size].T for start in range(50 - size + 1)]
        found.append(torch.stack([(conv.weight * place).sum((1, 2)) + conv.bias for place in windows]).amax(0).relu())
    x = torch.cat(found)
    half = len(x)
    for highway in encoder.highways:
        gate = torch.sigmoid(highway.weight[:half] @ x + highway.bias[:half])
        x = gate * torch.relu(highway.weight[half:] @ x + highway.bias[half:]) + (1 - gate) * x
    return encoder.project.weight @ x + encoder.project.bias


def _lstm(layer: Any, direction: int) -> nn.LSTM:
    cells, width = layer.projection.shape[1:]
    theirs = nn.LSTM(width, cells, proj_size=width)

    def transpose(gates: Tensor) -> Tensor:
        return torch.cat([gates.chunk(4, -1)[number] for number in (0, 1, 3, 2)], -1).movedim(-1, 0)

    weights = {
        "weight_ih_l0": transpose(layer.into[direction]),
        "weight_hh_l0": transpose(layer.recurrent[direction]),
    }
    weights |= {"weight_hr_l0": layer.projection[direction].T, "bias_ih_l0": transpose(layer.bias[direction])}
    theirs.load_state_dict({**weights, "bias_hh_l0": torch.zeros(4 * cells)})
    return theirs


def test_state_is_carried_from_window_to_window(tokenizer: Tokenizer, documents: Documents) -> None:
    objective, twice = training(tokenizer), training(tokenizer, bptt=12)
    state, halves = objective.initial_state(2), []
    for step in range(2):
        losses, state = objective(batch(objective, documents, step), state)
        halves.append(losses)
    whole, _ = twice(batch(twice, documents), twice.initial_state(2))
    for name in ("next", "previous"):
        torch.testing.assert_close(halves[0][name] + halves[1][name], whole[name])
    forgetful = objective(batch(objective, documents, 1), objective.initial_state(2))[0]
    assert not torch.isclose(forgetful["next"], halves[1]["next"])


def test_a_row_means_the_same_whatever_stands_beside_it(tokenizer: Tokenizer) -> None:
    objective = training(tokenizer)
    texts = tokenizer.encode_many(["the sea", "bread is baked in the morning"], oov_ids=True)
    inputs = [SMALL.build_inputs(tokenizer, ids).ids for ids in texts]
    outputs = []
    for rows in ([inputs[0]], inputs):
        with_units = SMALL.with_subword_units(TokenBatch.pad(rows), tokenizer)
        outputs.append(objective.encoder(with_units, all_layers=True))
    assert len(outputs[0].layers) == objective.encoder.layer_count == 3
    for one, other in zip(outputs[0].layers, outputs[1].layers, strict=True):
        torch.testing.assert_close(one[0], other[0, : len(inputs[0])])


def test_each_direction_sees_its_own_side_alone(tokenizer: Tokenizer) -> None:
    objective = training(tokenizer)
    ids = tokenizer.encode_many(["the old ship", "the old sea", "a old ship"])
    rows = SMALL.with_subword_units(
        TokenBatch.pad([SMALL.build_inputs(tokenizer, each).ids for each in ids]), tokenizer
    )
    with torch.no_grad():
        vectors = objective.encoder(rows).top[:, 2]  # of "old"
    forwards, backwards = vectors.chunk(2, -1)
    assert torch.equal(forwards[0], forwards[1])
    assert not torch.allclose(forwards[0], forwards[2])
    torch.testing.assert_close(backwards[0], backwards[2])
    assert not torch.allclose(backwards[0], backwards[1])


def test_evaluation_uses_the_full_softmax(tokenizer: Tokenizer, documents: Documents) -> None:
    drawing, whole = training(tokenizer, softmax_samples=12), training(tokenizer)
    streams = batch(drawing, documents)
    exactly = whole(streams)[0]["next"].item()
    assert drawing(streams)[0]["next"].item() != pytest.approx(exactly)
    assert drawing.eval()(streams)[0]["next"].item() == pytest.approx(exactly)


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "within"), [("fp32", 1e-2), ("bf16", 5e-2)])
def test_a_gpu_learns_the_same_by_graphs(
    tokenizer: Tokenizer, documents: Documents, precision: Any, within: float
) -> None:
    """Eight steps, of which the last are replayed."""
    found, output = [], []

    def on_event(event: dict[str, Any]) -> None:
        output.append(str(event.get("text", "")))

    kinds: list[tuple[str, Any]] = [("cpu", "fp32"), ("cuda", precision)]
    for device, kind in kinds:
        train = Train(steps=8, batch=4, lr=1e-3, warmup=0, log_every=1, device=device, precision=kind)
        history = fit(training(tokenizer, softmax_samples=12), documents, train, None, on_event)
        found.append([loss for _, loss in history.losses])
    assert found[1] == pytest.approx(found[0], rel=within)
    assert not [text for text in output if "cannot be captured" in text]


def test_each_gate_of_each_direction_is_a_matrix_to_muon(tokenizer: Tokenizer) -> None:
    objective = training(tokenizer)
    layer = objective.encoder.stack[0]
    assert isinstance(layer, ElmoLayer)
    before = {name: weight.detach().clone() for name, weight in layer.named_parameters()}
    optimizer = make_optimizer(objective, Train(steps=1, optimizer="muon", lr=1.0, weight_decay=0.0))
    gradients = {name: torch.randn_like(weight) for name, weight in layer.named_parameters()}
    for name, weight in layer.named_parameters():
        weight.grad = gradients[name]
    optimizer.step()
    for name, gates in (("into", 4), ("recurrent", 4), ("projection", 1)):
        moved = before[name] - layer.get_parameter(name).detach()
        for one, other in zip(moved, gradients[name], strict=True):  # [width, gates x cells] or [cells, width]
            for part, gradient in zip(one.chunk(gates, 1), other.chunk(gates, 1), strict=True):
                transposed = orthogonalize((gradient if len(gradient) < gradient.shape[1] else gradient.mT)[None])[0]
                expected = 0.2 * max(part.shape) ** 0.5 * transposed
                torch.testing.assert_close(part if len(part) < part.shape[1] else part.mT, expected)
    moved = before["bias"] - layer.bias.detach()
    torch.testing.assert_close(moved, gradients["bias"].sign(), rtol=0, atol=1e-3)  # AdamW's first step


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_the_biases_of_two_directions_do_not_decay(name: Literal["adamw", "muon"], tokenizer: Tokenizer) -> None:
    objective = training(tokenizer)
    before = {which: value.detach().clone() for which, value in objective.named_parameters()}
    optimizer = make_optimizer(objective, Train(steps=1, optimizer=name, lr=0.1, weight_decay=0.5))
    for parameter in objective.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for which, value in objective.named_parameters():
        kept = 1.0 if which.endswith("bias") else 0.95
        torch.testing.assert_close(value.detach(), before[which] * kept, msg=which)


def test_settings_that_make_no_network_are_refused() -> None:
    with pytest.raises(UsageError, match="character_filters"):
        Elmo(character_filters=())
    with pytest.raises(UsageError, match="max_characters"):
        Elmo(max_characters=4)
    with pytest.raises(UsageError, match="cell_size"):
        Elmo(cell_size=0)
