"""GPT is causal, predicts every token of a text once, and continues from its cache as if from the start."""

import json
import os
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import keel
from keel.data.corpus import Corpus
from keel.data.documents import Documents
from keel.data.token_batch import TokenBatch
from keel.data.token_store import Tokens
from keel.data.tokenizer import Tokenizer
from keel.errors import UsageError
from keel.formats.architectures import GPT2
from keel.kernels import attention, gelu, layer_norm
from keel.kernels.full_softmax import softmax_loss
from keel.nn.incremental_decoding import DecodingGraph
from keel.systems import gpt
from keel.systems.gpt import Gpt, GptEncoder, GptPretraining
from keel.training.counter_rng import CounterRng
from keel.training.parameter_groups import layer_groups

KINDS: dict[str, dict[str, Any]] = {"gpt2": {}, "gpt1": {"pre_norm": False}, "sink": {"sink": True}}
TEXTS = [f"The {who} sees ship {number}.\nThe {who} is glad." for number in range(12) for who in ("sailor", "judge")]


def small(**settings: Any) -> Gpt:
    return Gpt(**{"layers": 2, "width": 32, "head_dim": 16, "max_positions": 24, "sequence_length": 24, **settings})


def build_objective(system: Gpt, tokenizer: Tokenizer) -> GptPretraining:
    torch.manual_seed(0)
    return system.build_objective(system.build_encoder(len(tokenizer)), tokenizer).eval()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(Corpus.of(TEXTS), kind="bpe", size=300)


@pytest.fixture(scope="module")
def data(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Documents:
    corpus = Corpus.of(TEXTS, sentences="none")
    return Documents.of(Tokens.build(corpus, tokenizer, tmp_path_factory.mktemp("tokens") / "t"))


@pytest.fixture(params=KINDS)
def objective(request: pytest.FixtureRequest, tokenizer: Tokenizer) -> GptPretraining:
    return build_objective(small(**KINDS[request.param]), tokenizer)


def rows_of(ids: Tensor) -> TokenBatch:
    return TokenBatch(ids=ids, lengths=torch.full((len(ids),), ids.shape[1]))


@torch.no_grad()
def test_nothing_is_seen_of_what_comes_later(objective: GptPretraining) -> None:
    ids = torch.randint(objective.encoder.vocab_size, (2, 12))
    changed = ids.clone()
    changed[:, 7:] = 0
    one, other = (objective.encoder(rows_of(each)).top for each in (ids, changed))
    assert torch.equal(one[:, :7], other[:, :7])
    assert not torch.allclose(one[:, 7:], other[:, 7:], atol=1e-4)


@torch.no_grad()
def test_reading_on_from_the_cache_is_reading_from_the_start(objective: GptPretraining) -> None:
    ids = torch.randint(objective.encoder.vocab_size, (3, 20))
    whole = objective.encoder(rows_of(ids)).top
    state = objective.new_state(3)
    parts = []
    for start, end in ((0, 5), (5, 6), (6, 7), (7, 20)):
        vectors, state = objective.read(ids[:, start:end], state)
        parts.append(vectors)
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=2e-6, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 3])
def test_steps_give_what_the_blocks_give(objective: GptPretraining, rows: int) -> None:
    ids = torch.randint(objective.encoder.vocab_size, (rows, 20))
    wanted = objective.encoder(rows_of(ids)).top @ objective.encoder.words.weight.T
    scores, state = objective.step(ids[:, :4], objective.new_state(rows))
    for place in range(4, 20):
        torch.testing.assert_close(scores, wanted[:, place - 1], atol=2e-5, rtol=0)
        scores, state = objective.step(ids[:, place : place + 1], state)
    torch.testing.assert_close(scores, wanted[:, -1], atol=2e-5, rtol=0)
    for _ in range(4):
        scores, state = objective.step(ids[:, :1], state)
    with pytest.raises(UsageError, match="25 tokens"):
        objective.step(ids[:, :1], state)


@torch.no_grad()
def test_a_slot_that_a_graph_looks_up_is_the_same_slot(objective: GptPretraining) -> None:
    ids = torch.randint(objective.encoder.vocab_size, (2, 6))
    _, state = objective.step(ids[:, :5], objective.new_state(2))
    one, other = state.memory, state.memory.clone()
    found = objective.step_function(other)(ids[:, 5], torch.tensor([state.count]))
    torch.testing.assert_close(found, objective.step_function(one)(ids[:, 5], state.count))
    torch.testing.assert_close(found, objective.step(ids)[0], atol=2e-5, rtol=0)
    torch.testing.assert_close(one, other)


@torch.no_grad()
def test_what_is_recorded_may_fill_the_context(tokenizer: Tokenizer) -> None:
    objective = build_objective(small(sink=True, max_positions=66, sequence_length=66), tokenizer)
    ids = torch.randint(objective.encoder.vocab_size, (1, 66))
    scores, state = objective.step(ids[:, :2])
    for place in range(2, 66):
        scores, state = objective.step(ids[:, place : place + 1], state, lambda name, layer, value: None)
    torch.testing.assert_close(scores, objective.step(ids)[0], atol=2e-5, rtol=0)


@torch.no_grad()
def test_rows_that_were_taken_have_room_for_the_next_place(objective: GptPretraining) -> None:
    _, state = objective.step(torch.zeros(2, 5, dtype=torch.long), objective.new_state(2))
    taken = state.index_select(torch.tensor([1, 0, 1]))
    _, after = objective.step(torch.zeros(3, 1, dtype=torch.long), taken)
    assert after.memory is taken.memory, "nothing is copied a second time"
    assert not taken.memory[..., after.count :, :].any()


@torch.no_grad()
@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_captured_step_gives_what_the_blocks_give(kind: str, tokenizer: Tokenizer) -> None:
    objective = build_objective(small(**KINDS[kind], max_positions=200, sequence_length=200), tokenizer).to("cuda")
    ids = torch.randint(objective.encoder.vocab_size, (3, 150), device="cuda")
    wanted = objective.encoder(rows_of(ids).to("cuda")).top @ objective.encoder.words.weight.T
    scores, state = objective.step(ids[:, :4], objective.new_state(3))
    for place in range(4, 150):
        torch.testing.assert_close(scores, wanted[:, place - 1], atol=1e-4, rtol=0)
        scores, state = objective.step(ids[:, place : place + 1], state)
        if place == 20:
            assert isinstance(state.graph, DecodingGraph)
            assert state.graph.graph is not None


@torch.no_grad()
def test_steps_see_that_weights_have_changed(tokenizer: Tokenizer) -> None:
    objective = build_objective(small(), tokenizer)
    ids = torch.tensor([[1, 2, 3]])
    before, _ = objective.step(ids[:, 2:], objective.step(ids[:, :2])[1])
    objective.encoder.words.weight.mul_(2)
    after, _ = objective.step(ids[:, 2:], objective.step(ids[:, :2])[1])
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, objective.step(ids)[0], atol=2e-5, rtol=0)


@torch.no_grad()
def test_rows_of_the_cache_are_taken_in_any_order(objective: GptPretraining) -> None:
    ids = torch.randint(objective.encoder.vocab_size, (3, 6))
    order = torch.tensor([2, 0, 2, 1])
    _, state = objective.step(ids, objective.new_state(3))
    more = torch.randint(objective.encoder.vocab_size, (4, 1))
    scores, _ = objective.step(more, state.index_select(order))
    wanted, _ = objective.step(torch.cat([ids[order], more], 1))
    torch.testing.assert_close(scores, wanted, atol=2e-6, rtol=0)


def test_more_than_the_context_is_refused(objective: GptPretraining) -> None:
    with pytest.raises(UsageError, match="context of 24"):
        objective.step(torch.zeros(1, 25, dtype=torch.long))


@torch.no_grad()
def test_recorded_attention_sums_to_one_and_looks_back_alone(objective: GptPretraining) -> None:
    found: list[Tensor] = []
    objective.encoder(rows_of(torch.zeros(1, 5, dtype=torch.long)), record=lambda *item: found.append(item[2]))
    added = int(objective.system.sink)
    assert [tuple(each.shape) for each in found] == [(1, 2, 5 + added, 5 + added)] * 2
    for each in found:
        torch.testing.assert_close(each.sum(-1), torch.ones(1, 2, 5 + added))
        assert not each.triu(1).any()


def test_the_sink_is_never_predicted_and_learns(tokenizer: Tokenizer, data: Documents) -> None:
    objective = build_objective(small(sink=True, sequence_length=16), tokenizer)
    batch = objective.batch(data, CounterRng(seed=0, step=0, first_example=0, batch_size=2), range(2))
    losses, _ = objective(batch)
    assert objective.counts(batch)["next"] == 2 * 16
    assert objective.encoder.sink is not None
    (gradient,) = torch.autograd.grad(losses["next"], objective.encoder.sink)
    assert gradient.any()


def test_an_epoch_reads_every_token_once_with_an_end_after_each_document(data: Documents, tokenizer: Tokenizer) -> None:
    objective = build_objective(small(sequence_length=10), tokenizer)
    count = objective.epoch_size(data)
    batch = objective.batch(data, CounterRng(seed=3, step=0, first_example=0, batch_size=count), range(count))
    everything = [number for text in tokenizer.encode_many(TEXTS) for number in [*text, tokenizer.end_id]]
    assert data.concatenated_size == len(everything)
    starts = batch.ids[:, 0].tolist()
    rows = sorted(batch.ids[:, 1:].tolist())
    ring = everything * 2
    assert rows == sorted(ring[start : start + 10] for start in range(0, len(everything), 10))
    assert [row[0] for row in batch.ids.tolist()] == starts
    later = objective.batch(data, CounterRng(seed=3, step=1, first_example=count, batch_size=count), range(count))
    assert sorted(later.ids[:, 1:].tolist()) != rows  # it is cut elsewhere


@torch.no_grad()
@pytest.mark.parametrize("stride", [1, 7, 16])
def test_windows_predict_each_token_once_as_a_plain_loop_does(
    data: Documents, tokenizer: Tokenizer, stride: int
) -> None:
    objective = build_objective(small(sequence_length=16), tokenizer)
    count = objective.window_count(data, stride)
    batch = objective.window_batch(data, stride, range(count))
    losses, _ = objective(batch)
    text = [number for ids in tokenizer.encode_many(TEXTS) for number in [*ids, tokenizer.end_id]]
    ids, total, ends, done = torch.tensor([tokenizer.end_id, *text]), 0.0, 0.0, 0
    while done < len(text):
        end = min(len(text), 16 if not done else done + stride)
        window = ids[max(0, end - 16) : end]
        scores = objective.encoder(rows_of(window[None])).top[0] @ objective.encoder.words.weight.T
        each = F.cross_entropy(scores, ids[max(0, end - 16) + 1 : end + 1], reduction="none")[-(end - done) :].double()
        total += float(each.sum())
        ends += float(each[ids[done + 1 : end + 1] == tokenizer.end_id].sum())
        done = end
    assert objective.counts(batch)["next"].tolist() == [len(text), len(text) - len(TEXTS)]
    assert losses["next"].tolist() == pytest.approx([total, total - ends], rel=1e-5)


def test_words_are_the_head_of_the_language_model_and_positions_its_input(objective: GptPretraining) -> None:
    head, *blocks, lowest = layer_groups(objective)
    layer_norm = [] if objective.encoder.norm is None else [*objective.encoder.norm.parameters()]
    assert {*head} == {objective.encoder.words.weight, *layer_norm}
    assert len(blocks) == len(objective.blocks())
    assert objective.encoder.positions.weight in {*lowest}


def test_a_softmax_without_bias_is_one_with_zeros() -> None:
    torch.manual_seed(0)
    found = []
    for bias in (None, torch.zeros(7)):
        vectors, table = torch.arange(20.0).view(5, 4).requires_grad_(), torch.arange(28.0).view(7, 4) / 30
        table = table.requires_grad_()
        loss = softmax_loss(vectors, table, bias, torch.tensor([0, 6, 3, 3, 1]))
        found.append([loss, *torch.autograd.grad(loss, [vectors, table])])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("kind", ["gpt2", "sink"])
@torch.no_grad()
def test_kernels_give_what_the_blocks_give(kind: str, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (
        attention,
        gelu,
        layer_norm,
    ):  # their eager twins, the definition: kernels are held to them elsewhere
        monkeypatch.setattr(module, "triton_usable", lambda x: False)
    system = small(**KINDS[kind], width=64, head_dim=32)
    encoder = build_objective(system, tokenizer).encoder
    ids = torch.randint(encoder.vocab_size, (2, 9))
    rows = replace(rows_of(ids), lengths=torch.tensor([9, 6]))
    plain = encoder(rows, all_layers=True)
    vectors, added = encoder.embed(rows), int(system.sink)
    if encoder.sink is not None:
        vectors = torch.cat([encoder.sink.expand(2, 1, -1), vectors], 1)
    top, layers = encoder._run_fused(vectors, rows, added, all_layers=True)
    for one, other in ((plain.top, top[:, added:]), (plain.layers[1], layers[1][:, added:])):
        torch.testing.assert_close(one[0], other[0], atol=2e-6, rtol=0)
        torch.testing.assert_close(one[1, :6], other[1, :6], atol=2e-6, rtol=0)


@pytest.mark.parametrize(("kind", "fused"), [("gpt2", False), ("gpt1", True)])
def test_sharded_blocks_do_not_lend_their_norms(
    kind: str, fused: bool, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((attention, "triton_usable"), (gelu, "triton_usable"), (layer_norm, "triton_usable")):
        monkeypatch.setattr(module, name, lambda x: False)
    encoder = build_objective(small(**KINDS[kind], width=64, head_dim=32, activation="gelu"), tokenizer).encoder
    called: list[bool] = []
    plain = encoder._run_fused
    monkeypatch.setattr(encoder, "_run_fused", lambda *given: called.append(True) or plain(*given))
    monkeypatch.setattr(gpt, "use_kernels", lambda x: True)
    monkeypatch.setattr(gpt, "triton_usable", lambda x: True)
    monkeypatch.setattr(gpt, "is_sharded", lambda weight: True)
    encoder(rows_of(torch.randint(encoder.vocab_size, (2, 9))))
    assert called == [True] * fused
    assert encoder.accepts_packed == fused


def test_text_keeps_its_whitespace_and_line_breaks(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "layers": 1,
        "width": 32,
        "head_dim": 16,
        "max_positions": 64,
        "sequence_length": 32,
        "threads": 1,
    }
    model = keel.pretrain("gpt", TEXTS, out=tmp_path / "m", steps=120, batch=8, lr=1e-2, vocabulary=300, **settings)
    assert model.card.recipe["text"]["sentences"] == "none"
    assert str(keel.perplexity(model, Corpus.of(TEXTS))) == str(keel.perplexity(model, TEXTS))
    assert str(keel.perplexity(model, Corpus.of(TEXTS, sentences="split"))) != str(keel.perplexity(model, TEXTS))
    again = keel.Model.load(tmp_path / "m")
    written = keel.generate("The judge sees", model=again, temperature=0, tokens=15)
    assert ".\nThe " in written
    assert " is glad." in written
    found = keel.perplexity(again, TEXTS)
    assert found.values["next per token"].value < 2
    assert found.count == found.tokens + len(TEXTS)
    assert found.bytes == sum(len(text) for text in TEXTS)
    assert str(found).endswith("each from all before it or at least 16 (windows of 32, stride 16)")
    assert "stride 4)" in str(keel.evaluate(again, TEXTS, stride=4))
    with pytest.raises(UsageError, match="between 1 and the 32"):
        keel.perplexity(again, TEXTS, stride=33)
    with pytest.raises(UsageError, match="stride must be between 1 and the 32 tokens of the context, not 0"):
        keel.perplexity(again, TEXTS, stride=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": 30}, "not a multiple"),
        ({"sequence_length": 2000}, "sequence_length"),
        ({"dropout": 1.0}, "dropout"),
        ({"layers": 0}, "1"),
        ({"max_positions": 0}, "max_positions must be 1 or more"),
    ],
)
def test_settings_that_make_no_network_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Gpt(**settings)


@pytest.mark.data
def test_a_published_network_gives_its_stored_activations() -> None:
    """minGPT's nano network that sorts three digits, with what it computed at the start of its own run."""
    folder = Path(os.environ.get("KEEL_DATA", "../shared/data")) / "weights/gpt_nano_sort"
    weights, stored = (
        json.loads((folder / f"gpt-nano-sort-{name}.json").read_text()) for name in ("model", "t0-partials")
    )
    config = weights.pop("config")
    system = Gpt(
        layers=3, width=48, head_dim=16, max_positions=config["block_size"], sequence_length=config["block_size"]
    )
    encoder = GptEncoder(system, config["vocab_size"]).eval()
    theirs = {name: read_tensor(item) for name, item in weights.items()}
    ours = {name: GPT2.theirs(f"encoder.{name}")[0] for name in encoder.state_dict()}
    # minGPT has plain linear layers: nothing is transposed.
    encoder.load_state_dict({name: theirs[source] for name, source in ours.items()})
    partials = {name: read_tensor(item) for name, item in stored.items() if isinstance(item, dict) and "data" in item}
    looks: list[Tensor] = []
    rows = rows_of(partials["idx"].long())
    with torch.no_grad():
        output = encoder(rows, all_layers=True, record=lambda *item: looks.append(item[2]))
    found = {
        "x": output.layers[0],
        "attSm": looks[0],
        "block0": output.layers[1],
        "block1": output.layers[2],
        "ln_f": output.top,
        "lm_head": output.top @ theirs["lm_head.weight"].T,
    }
    for name, value in found.items():
        torch.testing.assert_close(value, partials[name], atol=1e-5, rtol=0, msg=lambda text, name=name: name + text)


def read_tensor(item: dict[str, Any]) -> Tensor:
    return torch.frombuffer(bytearray(b64decode(item["data"])), dtype=torch.float32).view(item["shape"])
