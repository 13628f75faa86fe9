from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from keel.data.corpus import Corpus
from keel.data.documents import Documents
from keel.data.token_batch import TokenBatch
from keel.data.token_store import Tokens
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.model import Model
from keel.nn.recurrent import CELLS, Cell, RecurrentLayers, RecurrentState
from keel.systems.bert import Bert
from keel.systems.onehot import Onehot
from keel.systems.rnn import Rnn, RnnPretraining
from keel.systems.system import System
from keel.systems.ulmfit import Ulmfit
from keel.training.counter_rng import CounterRng
from keel.training.muon import orthogonalize
from keel.training.optimizers import make_optimizer
from keel.training.parameter_groups import layer_groups
from keel.training.plan import Train

SMALL = Rnn(width=8, layers=2, dropout=0.0, bptt=6)


@pytest.fixture(scope="module")
def tokenizer(english_corpus: Path) -> Tokenizer:
    return Tokenizer.train(Corpus(english_corpus), kind="words", size=150)


@pytest.fixture(scope="module")
def documents(english_corpus: Path, tokenizer: Tokenizer) -> Documents:
    return Documents.of(Tokens.build(Corpus(english_corpus), tokenizer))


def training(tokenizer: Tokenizer, system: Rnn = SMALL) -> RnnPretraining:
    torch.manual_seed(0)
    return system.build_objective(system.build_encoder(len(tokenizer)), tokenizer).eval()


def step(cell: Cell, weights: list[Tensor], x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """One place of one layer by the formulas: H_t (and C_t) from X_t and H_{t-1}."""
    w_x, w_h, b_x, b_h = weights
    if cell == "rnn":
        return torch.tanh(x @ w_x.T + h @ w_h.T + b_x + b_h), c
    if cell == "gru":
        (x_r, x_z, x_n), (h_r, h_z, h_n) = (x @ w_x.T + b_x).chunk(3, -1), (h @ w_h.T + b_h).chunk(3, -1)
        keep = torch.sigmoid(x_z + h_z)
        return (1 - keep) * torch.tanh(x_n + torch.sigmoid(x_r + h_r) * h_n) + keep * h, c
    i, f, g, o = (x @ w_x.T + h @ w_h.T + b_x + b_h).chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


@pytest.mark.parametrize("cell", CELLS)
def test_layers_follow_the_formulas(cell: Cell) -> None:
    torch.manual_seed(1)
    stack = RecurrentLayers(cell, 5, 4, 2)
    x = torch.randn(3, 7, 5)
    layers, state = stack(x)
    for number, layer in enumerate(stack.forwards):
        h = c = torch.zeros(3, 4)
        for place in range(7):
            h, c = step(cell, list(layer.parameters()), x[:, place], h, c)
            assert torch.allclose(h, layers[number][:, place], atol=1e-6)
        assert torch.allclose(h, state.hidden[:, number], atol=1e-6)
        assert (state.cells is None) is (cell != "lstm")
        assert state.cells is None or torch.allclose(c, state.cells[:, number], atol=1e-6)
        x = layers[number]


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("both", [False, True])
def test_padding_is_not_seen(cell: Cell, both: bool) -> None:
    torch.manual_seed(2)
    stack = RecurrentLayers(cell, 5, 4, 2, bidirectional=both)
    vectors, lengths = torch.randn(3, 6, 5), torch.tensor([3, 6, 1])
    together, _ = stack(vectors, lengths)
    for row, length in enumerate(lengths.tolist()):
        alone, _ = stack(vectors[row : row + 1, :length])
        for one, other in zip(together, alone, strict=True):
            assert torch.allclose(one[row, :length], other[0], atol=1e-6)
    assert together[-1].shape == (3, 6, stack.width)


def test_both_directions_equal_torch_s_own_layer() -> None:
    stack = RecurrentLayers("lstm", 5, 4, 1, bidirectional=True)
    theirs = torch.nn.LSTM(5, 4, batch_first=True, bidirectional=True)
    parameters = [*stack.forwards[0].parameters(), *stack.backwards[0].parameters()]
    for one, other in zip(theirs.parameters(), parameters, strict=True):
        one.data.copy_(other)
    x = torch.randn(2, 5, 5)
    assert torch.allclose(stack(x)[0][0], theirs(x)[0], atol=1e-6)


def test_weights_are_as_many_however_long_the_text() -> None:
    stack = RecurrentLayers("lstm", 4, 4, 1)
    before = sum(weight.numel() for weight in stack.parameters())
    assert before == 4 * (4 * 4 + 4 * 4 + 4 + 4)
    outputs = {length: stack(torch.zeros(1, length, 4))[0][0].shape[1] for length in (1, 50)}
    assert outputs == {1: 1, 50: 50}


def test_products_keep_all_bits_under_autocast() -> None:
    stack = RecurrentLayers("gru", 4, 4, 1)
    x = torch.randn(2, 3, 4)
    with torch.autocast("cpu", torch.bfloat16):
        layers, state = stack(x)
    assert layers[0].dtype == state.hidden.dtype == torch.float32
    assert torch.equal(layers[0], stack(x)[0][0])


@pytest.mark.parametrize(
    "system", [SMALL, replace(SMALL, cell="gru", tie_embeddings=False), replace(SMALL, bidirectional=True)]
)
def test_two_windows_with_state_are_one_long_window(system: Rnn, documents: Documents, tokenizer: Tokenizer) -> None:
    short = training(tokenizer, system)
    long = training(tokenizer, replace(system, bptt=2 * system.bptt))
    state, sums, losses = short.initial_state(3), dict[str, Tensor](), dict[str, Tensor]()
    windows = [
        short.batch(documents, CounterRng(seed=0, step=n, first_example=3 * n, batch_size=3), range(3))
        for n in range(2)
    ]
    for batch in windows:
        losses, state = short(batch, state)
        sums = {name: sums.get(name, 0) + loss for name, loss in losses.items()}
    wanted, after = long(long.batch(documents, CounterRng(seed=0, step=0, first_example=0, batch_size=3), range(3)))
    assert sums.keys() == wanted.keys() == ({"next", "previous"} if system.bidirectional else {"next"})
    for name, loss in wanted.items():
        assert torch.allclose(sums[name], loss, rtol=1e-5)
    for one, other in zip(state.tensors(), after.tensors(), strict=True):
        assert torch.allclose(one, other, atol=1e-6)
    zero, _ = short(windows[1])
    assert not torch.allclose(zero["next"], losses["next"], rtol=1e-5)  # what was read before matters


def test_losses_are_of_each_direction_s_own_next_word(documents: Documents, tokenizer: Tokenizer) -> None:
    objective = training(tokenizer, replace(SMALL, bidirectional=True))
    batch = objective.batch(documents, CounterRng(seed=0, step=0, first_example=0, batch_size=2), range(2))
    losses, _ = objective(batch)
    counts = objective.counts(batch)
    assert counts["next"] == counts["previous"] == counts["tokens"] == 2 * SMALL.bptt
    encoder = objective.encoder
    assert batch.ids.shape[1] == 2
    assert encoder.backwards is not None
    networks = [("next", encoder.forwards), ("previous", encoder.backwards)]
    for ids, (name, network) in zip(batch.ids.unbind(1), networks, strict=True):
        layers, _ = network(encoder.words(ids[:, :-1]))
        log_probs = (layers[-1] @ encoder.words.weight.T + objective.bias).log_softmax(-1)
        assert torch.allclose(-log_probs.gather(2, ids[:, 1:, None]).sum(), losses[name], rtol=1e-5)


def test_a_writer_reads_word_by_word_what_training_reads_at_once(documents: Documents, tokenizer: Tokenizer) -> None:
    objective = training(tokenizer)
    batch = objective.batch(documents, CounterRng(seed=0, step=0, first_example=0, batch_size=2), range(2))
    state, loss = objective.new_state(2), torch.zeros(())
    for place in range(SMALL.bptt):
        scores, state = objective.step(batch.ids[:, 0, place, None], state)
        loss = loss - scores.log_softmax(-1).gather(1, batch.ids[:, 0, place + 1, None]).sum()
    assert torch.allclose(loss, objective(batch)[0]["next"], rtol=1e-5)


def test_a_writer_takes_ids_to_where_its_weights_are(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    objective = training(tokenizer).to("meta")  # stands for a GPU, but for autocast, which it lacks
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    looked_up: list[Tensor] = []
    objective.encoder.words.register_forward_pre_hook(lambda _, given: looked_up.append(given[0]))
    objective.step(torch.tensor([[1, 2]]), objective.new_state(1))
    assert [ids.device.type for ids in looked_up] == ["meta"]


def test_each_direction_knows_its_own_side_alone(tokenizer: Tokenizer) -> None:
    torch.manual_seed(0)
    encoder = replace(SMALL, bidirectional=True).build_encoder(len(tokenizer)).eval()
    ids = torch.tensor([[2, 10, 11, 12, 13, 2]])
    rows = TokenBatch(ids=ids, lengths=torch.tensor([6]))
    changed = replace(rows, ids=torch.tensor([[2, 10, 11, 40, 13, 2]]))
    before, after = (encoder(each, all_layers=True).layers for each in (rows, changed))
    assert [layer.shape for layer in before] == [(1, 6, 16)] * 3
    moved = [(one != other).any(-1)[0] for one, other in zip(before[1:], after[1:], strict=True)]
    for layer, (one, other) in enumerate(zip(before[1:], after[1:], strict=True)):
        assert moved[layer].all()
        left, right = (one[..., :8] != other[..., :8]).any(-1)[0], (one[..., 8:] != other[..., 8:]).any(-1)[0]
        assert left.tolist() == [False] * 3 + [True] * 3
        assert right.tolist() == [True] * 4 + [False] * 2


def test_a_text_begins_as_in_training(tokenizer: Tokenizer) -> None:
    end = tokenizer.sep_id
    assert SMALL.build_inputs(tokenizer, [7, 8]).ids == [end, 7, 8, end]
    pair = SMALL.build_inputs(tokenizer, [7, 8], [9])
    assert (pair.ids, pair.segments, pair.first_start) == ([end, 7, 8, end, 9, end], [0, 0, 0, 0, 1, 1], 1)


def test_texts_of_a_batch_do_not_disturb_each_other(tokenizer: Tokenizer) -> None:
    model = Model(
        system=SMALL, encoder=replace(SMALL, bidirectional=True).build_encoder(len(tokenizer)), tokenizer=tokenizer
    )
    texts = ["the sailor repairs the boat in the morning", "a judge"]
    together, alone = model.encode(texts), [model.encode(text) for text in texts]
    for one, other in zip(together, alone, strict=True):
        assert torch.allclose(torch.from_numpy(one), torch.from_numpy(other), atol=1e-6)


@pytest.mark.parametrize("system", [SMALL, Ulmfit(width=8, hidden_size=12, layers=2)])
def test_a_state_is_carried_from_text_to_text_with_carry(system: System, tokenizer: Tokenizer) -> None:
    model = Model(system=system, encoder=system.build_encoder(len(tokenizer)), tokenizer=tokenizer)
    texts = ["a judge", "the sailor repairs the boat", "a judge"]
    alone, carried = (model.encode(texts, carry=carry) for carry in (False, True))
    assert torch.allclose(torch.from_numpy(alone[0]), torch.from_numpy(alone[2]), atol=1e-6)
    assert torch.allclose(torch.from_numpy(alone[0]), torch.from_numpy(carried[0]), atol=1e-6)
    assert not torch.allclose(torch.from_numpy(alone[2]), torch.from_numpy(carried[2]), atol=1e-4)


def test_what_has_no_state_carries_none(tokenizer: Tokenizer) -> None:
    for system in (replace(SMALL, bidirectional=True), Bert(width=64, layers=1), Onehot()):
        model = Model(system=system, encoder=system.build_encoder(len(tokenizer)), tokenizer=tokenizer)
        with pytest.raises(UsageError, match=f"this {system.name} has no recurrent state .*: leave out carry"):
            model.encode(["a judge"], carry=True)


@pytest.mark.parametrize(("cell", "gates"), [("rnn", 1), ("gru", 3), ("lstm", 4)])
def test_each_gate_is_a_matrix_to_muon(cell: Cell, gates: int, tokenizer: Tokenizer) -> None:
    objective = training(tokenizer, replace(SMALL, cell=cell))
    weight = objective.encoder.forwards.forwards[0].get_parameter("weight_hh_l0")
    optimizer = make_optimizer(objective, Train(steps=1, optimizer="muon", lr=1.0, weight_decay=0.0))
    before, weight.grad = weight.detach().clone(), torch.randn_like(weight)
    expected = [0.2 * 8**0.5 * orthogonalize(part[None])[0] for part in weight.grad.split(8)]
    assert len(expected) == gates
    optimizer.step()
    torch.testing.assert_close(before - weight.detach(), torch.cat(expected))


@pytest.mark.parametrize("tied", [True, False])
def test_words_are_in_the_topmost_level_where_they_are_the_softmax_too(tied: bool, tokenizer: Tokenizer) -> None:
    objective = training(tokenizer, replace(SMALL, tie_embeddings=tied))
    head, *_, last = layer_groups(objective)
    lowest = objective.encoder.forwards.forwards[0]
    assert {*head} == {objective.bias, objective.encoder.words.weight if tied else objective.output}
    assert {*last} == ({*lowest.parameters()} if tied else {objective.encoder.words.weight})


@pytest.mark.parametrize(("field", "value"), [("layers", 0), ("width", 0), ("bptt", 0), ("dropout", 1.0)])
def test_settings_that_make_no_sense_are_refused(field: str, value: Any) -> None:
    with pytest.raises(UsageError, match=field):
        Rnn(**{field: value})


def test_state_of_one_layer_and_back() -> None:
    state = RecurrentState(hidden=torch.randn(3, 2, 4), cells=torch.randn(3, 2, 4))
    again = RecurrentState.of([state.layer(0), state.layer(1)])
    for one, other in zip(state.tensors(), again.tensors(), strict=True):
        assert torch.equal(one, other)
