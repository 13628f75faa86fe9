import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertForPreTraining

from keel.data.documents import Documents
from keel.data.token_batch import TokenBatch
from keel.data.token_store import Tokens
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.systems.bert import Bert, BertBatch, BertPretraining, initialize
from keel.training.counter_rng import CounterRng
from keel.training.parameter_groups import layer_groups

PAD, CLS, SEP, MASK = 0, 1, 2, 3
SPECIAL_IDS = cast(Tokenizer, SimpleNamespace(pad_id=PAD, cls_id=CLS, sep_id=SEP, mask_id=MASK))
TINY: dict[str, Any] = {"layers": 2, "width": 32, "head_dim": 16, "max_positions": 64, "sequence_length": 64}


def make_documents(
    sentences: list[list[int]], *, starts_word: np.ndarray | None = None, dtype: Any = np.uint32
) -> Documents:
    """Documents with sentences of these lengths; token n has id 10 + n, so that an id tells its place."""
    lengths = [length for document in sentences for length in document]
    tokens = SimpleNamespace(
        ids=np.arange(10, 10 + sum(lengths)).astype(dtype),
        starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        documents=np.concatenate([[0], np.cumsum([len(document) for document in sentences])]).astype(np.int64),
        units=None,
        word_starts=None if starts_word is None else np.packbits(starts_word, bitorder="little"),
    )
    return Documents.of(cast(Tokens, tokens))


def random_documents(count: int, seed: int = 0, **options: Any) -> Documents:
    """Documents of 1 to 12 sentences of 2 to 30 tokens."""
    rng = np.random.default_rng(seed)
    return make_documents([rng.integers(2, 31, rng.integers(1, 13)).tolist() for _ in range(count)], **options)


def make_objective(data: Documents, **fields: Any) -> BertPretraining:
    torch.manual_seed(0)
    system = Bert(**(TINY | fields))
    return system.build_objective(system.build_encoder(vocab_size=len(data.ids) + 10), SPECIAL_IDS)


def batch_of(data: Documents, rows: range = range(256), step: int = 0, **fields: Any) -> BertBatch:
    return make_objective(data, **fields).batch(
        data, CounterRng(seed=1, step=step, first_example=step * len(rows)), rows
    )


def unmask(batch: BertBatch) -> Tensor:
    """The ids before masking."""
    return batch.inputs.ids.scatter(1, batch.masked_positions, batch.targets)


def halves(batch: BertBatch) -> list[tuple[list[int], list[int]]]:
    """The ids of A and B in each sequence before masking; checks special tokens and segments."""
    found = []
    assert batch.inputs.segments is not None
    for ids, length, segments in zip(
        unmask(batch).tolist(), batch.inputs.lengths.tolist(), batch.inputs.segments.tolist(), strict=True
    ):
        middle = ids.index(SEP)
        a, b = ids[1:middle], ids[middle + 1 : length - 1]
        assert [ids[0], ids[middle], ids[length - 1]] == [CLS, SEP, SEP]
        assert min(a + b) >= 10, "no special token inside a text"
        assert set(ids[length:]) <= {PAD}
        assert segments == [0] * (len(a) + 2) + [1] * (len(b) + 1) + [0] * (len(ids) - length)
        found.append((a, b))
    return found


def document_of(data: Documents, token: int) -> int:
    return int(torch.searchsorted(data.starts[data.spans[:, 1]], token - 10, right=True))


def within(count: float, of: float, share: float) -> bool:
    """Whether a count of Bernoulli trials lies within five deviations of what is expected."""
    return abs(count - of * share) <= 5 * math.sqrt(of * share * (1 - share)) + 1


@pytest.mark.parametrize(
    ("size", "parameters"),
    [
        ("tiny", 4_385_920),
        ("mini", 11_170_560),
        ("small", 28_763_648),
        ("medium", 41_373_184),
        ("base", 109_482_240),
        ("large", 335_141_888),
    ],
)
def test_sizes_are_those_of_google(size: str, parameters: int) -> None:
    with torch.device("meta"):
        encoder = Bert.sized(size).build_encoder(30_522)
    assert sum(parameter.numel() for parameter in encoder.parameters()) == parameters


def test_size_with_a_field_changed() -> None:
    assert Bert.sized("mini", sequence_length=64) == Bert(layers=4, width=256, sequence_length=64)
    assert (Bert().heads, Bert().mlp_size, Bert.sized("large").heads) == (12, 3072, 16)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"width": 100}, "width=100 is not a multiple of"),
        ({"sequence_length": 600}, "sequence_length 600 exceeds the 512 position embeddings"),
        ({"sequence_length": 4}, "sequence_length must be 8 or more"),
        ({"mask_rate": 0.0}, "mask_rate must be above 0"),
        ({"mask_rate": 15.0}, "mask_rate must be above 0 and below 1, not 15.0"),
        ({"final_mask_rate": 1.0}, "final_mask_rate must be 0 or more and below 1"),
        ({"mask_span": 0}, "mask_span must be 1 or more and 50 or less, not 0"),
        ({"segment_types": 0}, "segment_types must be 1 or more, not 0"),
    ],
)
def test_shapes_without_sense_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Bert(**fields)


def test_weights_start_as_in_the_paper() -> None:
    torch.manual_seed(0)
    system = Bert(layers=2, width=256)
    objective = system.build_objective(system.build_encoder(2000), SPECIAL_IDS)
    for name, value in objective.state_dict().items():
        if name.endswith("norm.weight"):
            assert (value == 1).all(), name
        elif value.ndim == 1:
            assert (value == 0).all(), name
        else:
            assert value.abs().max() <= 0.04, name
            assert abs(float(value.mean())) < 5 * 0.02 / value.numel() ** 0.5, name
            # Normal of deviation 0.02, cut off at two deviations.
            assert float(value.std()) == pytest.approx(0.0176, rel=0.01 + 4 / value.numel() ** 0.5), name


def test_initialize_leaves_other_modules_alone() -> None:
    norm = torch.nn.LayerNorm(4)
    initialize(norm)
    assert (norm.weight == 1).all()


def test_build_inputs_adds_special_tokens() -> None:
    alone = Bert().build_inputs(SPECIAL_IDS, [10, 11])
    assert (alone.ids, alone.segments) == ([CLS, 10, 11, SEP], [0, 0, 0, 0])
    pair = Bert().build_inputs(SPECIAL_IDS, [10, 11], [12])
    assert (pair.ids, pair.segments) == ([CLS, 10, 11, SEP, 12, SEP], [0, 0, 0, 0, 1, 1])
    assert pair.ids[pair.first_start] == 10
    assert Bert(segment_types=1).build_inputs(SPECIAL_IDS, [10], [12]).segments == [0] * 5


@pytest.mark.parametrize("pair_objective", ["nsp", "none"])
def test_masking_is_15_percent_and_80_10_10(pair_objective: str) -> None:
    data = random_documents(300)
    batch = batch_of(data, range(3000), pair_objective=pair_objective)
    used = batch.weights > 0
    text = batch.inputs.lengths - (2 if pair_objective == "none" else 3)
    assert torch.equal(
        used.sum(1), (text * 0.15 + 0.5).long().clamp(1, Bert(**TINY).prediction_slots(Bert(**TINY).sequence_length))
    )
    assert float(used.sum() / text.sum()) == pytest.approx(0.15, abs=0.004)
    shown = batch.inputs.ids.gather(1, batch.masked_positions)[used]
    hidden = batch.targets[used]
    total = int(used.sum())
    assert within(int((shown == MASK).sum()), total, 0.8)
    assert within(int((shown == hidden).sum()), total, 0.1)
    assert within(int(((shown != MASK) & (shown != hidden)).sum()), total, 0.1)
    noise = shown[(shown != MASK) & (shown != hidden)]
    tenths = torch.bincount(noise * 10 // (len(data.ids) + 10), minlength=10)
    assert all(within(int(count), len(noise), 0.1) for count in tenths)


def test_masked_positions_are_uniform_distinct_and_never_special_tokens() -> None:
    batch = batch_of(make_documents([[61 * 3]] * 300), range(4000), pair_objective="none", sequence_length=62)
    assert (batch.inputs.lengths == 62).all()
    used = batch.weights > 0
    counts = torch.bincount(batch.masked_positions[used], minlength=62)
    assert counts[0] == counts[61] == 0
    assert all(within(int(count), 4000, 9 / 60) for count in counts[1:61])
    assert all(len(set(row)) == len(row) for row in batch.masked_positions.tolist())
    assert torch.equal(batch.targets, unmask(batch).gather(1, batch.masked_positions))
    together = ((batch.masked_positions == 5) & used).any(1) & ((batch.masked_positions == 6) & used).any(1)
    assert within(int(together.sum()), 4000, 9 / 60 * 8 / 59)


@pytest.mark.parametrize(("first", "last"), [(0.4, 0.15), (0.1, 0.3)])
@pytest.mark.parametrize("mask_span", [1, 10])
def test_the_masking_rate_changes_linearly_over_the_run(first: float, last: float, mask_span: int) -> None:
    data = random_documents(100)
    objective = make_objective(data, mask_rate=first, final_mask_rate=last, mask_span=mask_span)
    for step in (0, 250, 500, 999):
        rng = CounterRng(seed=1, step=step, first_example=0, steps=1000)
        batch = objective.batch(data, rng, range(300))
        expected, text = first + (last - first) * step / 1000, batch.inputs.lengths - 3
        assert objective.mask_rate_at(rng) == pytest.approx(1e6 * expected, abs=1)
        assert (batch.weights.sum(1) - text * expected).abs()[text * expected > 0.5].max() < 0.501, "rounded"
        assert float(batch.weights.sum() / text.sum()) == pytest.approx(expected, abs=0.01)
        assert batch.weights.shape == (300, round(max(first, last) * 64 + 0.5)), (
            "the shape is that of the larger masking rate"
        )
        spare = batch.weights == 0
        assert torch.equal(batch.inputs.ids.gather(1, batch.masked_positions)[spare], batch.targets[spare])
    held_out = objective.batch(data, CounterRng(seed=0, step=0, first_example=0), range(300))
    assert float(held_out.weights.sum() / (held_out.inputs.lengths - 3).sum()) == pytest.approx(last, abs=0.01)
    assert objective.follows_progress
    assert not make_objective(data).follows_progress


def test_unchosen_tokens_are_left_as_they_are() -> None:
    data = random_documents(50)
    batch = batch_of(data)
    spare = batch.weights == 0
    assert torch.equal(batch.inputs.ids.gather(1, batch.masked_positions)[spare], batch.targets[spare])
    for a, b in halves(batch):
        for text in (a, b):
            assert text == list(range(text[0], text[0] + len(text))), "a text is one stretch of the corpus"


def test_loss_has_no_weight_off_the_masked_positions() -> None:
    data = random_documents(50)
    objective = make_objective(data).eval()
    batch = objective.batch(data, CounterRng(seed=1, step=0, first_example=0), range(16))
    spare = batch.weights == 0
    assert spare.any()
    changed = BertBatch(
        inputs=batch.inputs,
        masked_positions=batch.masked_positions,
        targets=torch.where(spare, 77, batch.targets),
        weights=batch.weights,
        not_next=batch.not_next,
    )
    moved = BertBatch(
        inputs=batch.inputs,
        masked_positions=torch.where(spare, 9, batch.masked_positions),
        targets=batch.targets,
        weights=batch.weights,
        not_next=batch.not_next,
    )
    found = []
    for one in (batch, changed, moved):
        objective.zero_grad()
        losses, _ = objective(one)
        losses["mlm"].backward()
        gradient = objective.transform.weight.grad
        assert gradient is not None
        found.append((float(losses["mlm"].detach()), gradient.clone()))
    for loss, gradient in found[1:]:
        assert loss == pytest.approx(found[0][0], rel=1e-6)
        torch.testing.assert_close(gradient, found[0][1])


def test_gradient_of_spare_slots_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    data = random_documents(50)
    objective = make_objective(data).eval()
    batch = objective.batch(data, CounterRng(seed=1, step=0, first_example=0), range(16))
    scores: list[Tensor] = []

    def keep(top: Tensor, slots: Tensor) -> Tensor:
        scores.append(BertPretraining.predict_masked(objective, top, slots))
        scores[0].retain_grad()
        return scores[0]

    monkeypatch.setattr(objective, "predict_masked", keep)
    losses, _ = objective(batch)
    sum(losses.values(), start=torch.zeros(())).backward()
    gradient = scores[0].grad
    assert gradient is not None
    assert (gradient[batch.weights == 0] == 0).all()
    assert (gradient[batch.weights > 0].abs().sum(-1) > 0).all()


def test_counts_are_what_the_losses_sum_over() -> None:
    data = random_documents(50)
    objective = make_objective(data)
    batch = objective.batch(data, CounterRng(seed=1, step=0, first_example=0), range(16))
    counts = objective.counts(batch)
    assert counts["mlm"] == (batch.weights > 0).sum()
    assert counts["nsp"] == 16
    assert counts["tokens"] == (batch.inputs.ids != PAD).sum()
    with torch.no_grad():
        untrained, _ = objective.eval()(batch)
    assert float(untrained["mlm"] / counts["mlm"]) == pytest.approx(math.log(objective.vocab_size), rel=0.02)
    assert float(untrained["nsp"] / counts["nsp"]) == pytest.approx(math.log(2), rel=0.05)


def test_losses_are_summed_in_full_precision_under_bf16() -> None:
    data = random_documents(50)
    objective = make_objective(data).eval()
    batch = objective.batch(data, CounterRng(seed=1, step=0, first_example=0), range(64))
    with torch.autocast("cpu", torch.bfloat16):
        losses, _ = objective(batch)
    assert {loss.dtype for loss in losses.values()} == {torch.float32}
    assert float(losses["mlm"].detach()) != float(losses["mlm"].detach().bfloat16()), "rounded to bf16 on the way"


def test_half_of_the_pairs_follow_and_half_are_from_another_document() -> None:
    data = random_documents(100)
    batch = batch_of(data, range(2000))
    assert batch.not_next is not None
    assert within(int(batch.not_next.sum()), 2000, 0.5)
    starts = set((data.starts + 10).tolist())
    for (a, b), unrelated in zip(halves(batch), batch.not_next.tolist(), strict=True):
        assert document_of(data, a[0]) == document_of(data, a[-1])
        assert document_of(data, b[0]) == document_of(data, b[-1])
        if unrelated:
            assert document_of(data, a[0]) != document_of(data, b[0])
        else:
            assert a[-1] + 1 == b[0]
            cut_inside = b[0] not in starts
            # Only a stretch of a single sentence is cut elsewhere than between sentences.
            assert not cut_inside or not starts & set(range(a[0] + 1, b[-1] + 1))


def test_sentence_order_swaps_half_of_the_pairs_and_segments_none() -> None:
    data = random_documents(100)
    batch, plain = (batch_of(data, range(200), pair_objective=objective) for objective in ("sop", "segments"))
    assert batch.not_next is not None
    assert plain.not_next is None
    assert within(int(batch.not_next.sum()), 200, 0.5)
    for (a, b), (first, second), swapped in zip(halves(batch), halves(plain), batch.not_next.tolist(), strict=True):
        assert first + second == list(range(first[0], second[-1] + 1)), "one contiguous span of a document"
        assert (a, b) == ((second, first) if swapped else (first, second))
    assert make_objective(data, pair_objective="sop")(batch)[0].keys() == {"mlm", "sop"}
    objective = make_objective(data, pair_objective="segments")
    assert objective(plain)[0].keys() == objective.counts(plain).keys() - {"tokens"} == {"mlm"}
    assert not objective.next.weight.requires_grad


def test_false_half_may_be_any_other_document() -> None:
    data = random_documents(20)
    batch = batch_of(data, range(4000))
    assert batch.not_next is not None
    pairs_seen = {
        (document_of(data, a[0]), document_of(data, b[0]))
        for (a, b), unrelated in zip(halves(batch), batch.not_next.tolist(), strict=True)
        if unrelated
    }
    assert len(pairs_seen) > 0.8 * 20 * 19


def words_of(lengths: np.ndarray) -> np.ndarray:
    """A bit for each token: whether it starts a word, words having these lengths."""
    bits = np.zeros(lengths.sum(), dtype=bool)
    bits[np.concatenate([[0], lengths.cumsum()[:-1]])] = True
    return bits


@pytest.mark.parametrize("pair_objective", ["nsp", "none"])
@pytest.mark.parametrize("mask_span", [1, 10])
def test_whole_words_are_hidden_whole_or_not_at_all(pair_objective: str, mask_span: int) -> None:
    plain = random_documents(100)
    lengths = np.random.default_rng(3).integers(1, 5, len(plain.ids))
    bits = words_of(lengths)[: len(plain.ids)]
    data = random_documents(100, starts_word=bits)
    fields = {"pair_objective": pair_objective, "whole_word_masking": True, "mask_span": mask_span}
    batch = batch_of(data, range(1500), **fields)
    ids, length = unmask(batch), Bert(**TINY).sequence_length
    hidden = torch.zeros(len(ids), length, dtype=torch.bool).scatter(1, batch.masked_positions, batch.weights > 0)
    # A subword follows its neighbour's fate where both are of one word in one text.
    place = (ids - 10).clamp(min=0)
    joined = (ids[:, 1:] == ids[:, :-1] + 1) & (ids[:, :-1] >= 10) & ~torch.from_numpy(bits)[place[:, 1:]]
    if pair_objective == "nsp":  # a word may be cut by the bound between A and B alone
        assert batch.inputs.segments is not None
        joined &= batch.inputs.segments[:, 1:] == batch.inputs.segments[:, :-1]
    assert joined.sum() > 1000
    assert torch.equal(hidden[:, 1:][joined], hidden[:, :-1][joined])
    assert 0.12 < float(hidden.sum() / batch.inputs.lengths.sum()) <= 0.15
    assert (batch.weights.sum(1) > 0).all()


def test_a_lone_word_longer_than_all_slots_is_hidden_in_part() -> None:
    bits = np.zeros(200, dtype=bool)
    bits[::100] = True
    data = make_documents([[100], [100]], starts_word=bits)
    batch = batch_of(data, range(8), pair_objective="none", whole_word_masking=True)
    assert torch.equal(
        batch.weights.sum(1), torch.full((8,), float(Bert(**TINY).prediction_slots(Bert(**TINY).sequence_length)))
    )


def coverage(data: Documents, objective: BertPretraining, epochs: int) -> float:
    """The share of tokens that some row of these epochs shows."""
    rows = objective.epoch_size(data)
    seen = torch.zeros(len(data.ids) + 10, dtype=torch.bool)
    for epoch in range(epochs):
        batch = objective.batch(data, CounterRng(seed=1, step=epoch, first_example=epoch * rows), range(rows))
        seen[unmask(batch)] = True
    return float(seen[10:].float().mean())


CORPORA = {
    "mixed": [np.random.default_rng(n).integers(2, 31, n % 13 + 1).tolist() for n in range(120)],
    "short": [[3, 2]] * 50,
    "one sentence each": [[40], [7], [200], [2]],
    "one long sentence": [[10_000], [5]],
    "long sentences": [[100, 3, 70, 61, 2, 90]] * 10,
}


@pytest.mark.parametrize("corpus", CORPORA)
def test_an_epoch_shows_every_token(corpus: str) -> None:
    data = make_documents(CORPORA[corpus])
    assert coverage(data, make_objective(data, pair_objective="none"), epochs=1) == 1.0


@pytest.mark.parametrize("corpus", CORPORA)
def test_a_few_epochs_of_pairs_show_every_token(corpus: str) -> None:
    data = make_documents(CORPORA[corpus])
    objective = make_objective(data)
    assert coverage(data, objective, epochs=1) > 0.7
    assert coverage(data, objective, epochs=16) > 0.999


@pytest.mark.parametrize(
    "fields",
    [
        {"pair_objective": "nsp"},
        {"pair_objective": "none"},
        {"mask_span": 10, "mask_rate": 0.4, "final_mask_rate": 0.15},
    ],
    ids=str,
)
def test_rows_do_not_depend_on_the_rows_around_them(fields: dict[str, Any]) -> None:
    data = random_documents(60)
    objective = make_objective(data, **fields)
    rng = CounterRng(seed=4, step=7, first_example=7 * 32, steps=10)
    whole = objective.batch(data, rng, range(32))
    for part in (range(5), range(5, 32), range(31, 32)):
        found = objective.batch(data, rng, part)
        rows = slice(part.start, part.stop)
        assert torch.equal(found.inputs.ids, whole.inputs.ids[rows])
        assert torch.equal(found.inputs.lengths, whole.inputs.lengths[rows])
        assert torch.equal(found.masked_positions, whole.masked_positions[rows])
        assert torch.equal(found.targets, whole.targets[rows])
        assert torch.equal(found.weights, whole.weights[rows])
    other = objective.batch(data, CounterRng(seed=5, step=7, first_example=7 * 32), range(32))
    assert not torch.equal(other.inputs.ids, whole.inputs.ids)


def test_large_vocabularies_keep_their_ids() -> None:
    data = make_documents([[40, 40]] * 2000, dtype=np.uint32)
    assert len(data.ids) > 2**16
    ids = unmask(batch_of(data, range(500)))
    assert ids.max() > 2**16


def test_one_document_has_no_false_half() -> None:
    data = make_documents([[9, 8, 7]])
    with pytest.raises(
        KeelError, match="at least two documents: put a blank line between documents, or choose another"
    ):
        batch_of(data)
    batch = batch_of(data, range(4), pair_objective="none")
    assert batch.not_next is None
    assert batch.inputs.segments is None
    assert (batch.inputs.lengths == 26).all()
    losses, _ = make_objective(data, pair_objective="none")(batch)
    assert losses.keys() == {"mlm"}


def test_words_are_the_head_of_the_language_model_and_positions_its_input() -> None:
    objective = make_objective(random_documents(3))
    head, *_, lowest = layer_groups(objective)
    assert {objective.encoder.words.weight, objective.bias} <= {*head}
    assert objective.encoder.positions is not None
    assert objective.encoder.positions.weight in {*lowest}
    assert len(layer_groups(objective)) == 2 + len(objective.blocks())


def test_without_pairs_nothing_idle_is_trained() -> None:
    data = make_documents([[9, 8, 7]])
    objective = make_objective(data, pair_objective="none")
    losses, _ = objective(objective.batch(data, CounterRng(seed=0, step=0, first_example=0), range(4)))
    losses["mlm"].backward()
    assert all((value.grad is not None) == value.requires_grad for value in objective.parameters())


@pytest.fixture(scope="module")
def twins() -> tuple[BertPretraining, BertForPreTraining]:
    """Our network and transformers' with the same weights."""
    system = Bert(layers=3, width=48, head_dim=12, max_positions=40, sequence_length=40)
    torch.manual_seed(0)
    ours = system.build_objective(system.build_encoder(200), SPECIAL_IDS).eval()
    with torch.no_grad():
        for value in ours.parameters():
            value.add_(torch.randn_like(value) * 0.1)
    config = BertConfig(
        vocab_size=200,
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=192,
        max_position_embeddings=40,
    )
    theirs = BertForPreTraining(config).eval()
    theirs.set_attn_implementation("eager")  # the only one that gives its attention away
    theirs.load_state_dict(their_weights(ours), strict=False)
    return ours, theirs


NAMES = {
    "encoder.words": "bert.embeddings.word_embeddings",
    "encoder.positions": "bert.embeddings.position_embeddings",
    "encoder.segments": "bert.embeddings.token_type_embeddings",
    "encoder.norm": "bert.embeddings.LayerNorm",
    "encoder.pooler": "bert.pooler.dense",
    "transform": "cls.predictions.transform.dense",
    "norm": "cls.predictions.transform.LayerNorm",
    "next": "cls.seq_relationship",
}
BLOCK = {
    "attention.out": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "expand": "intermediate.dense",
    "contract": "output.dense",
    "output_norm": "output.LayerNorm",
}


def their_weights(ours: BertPretraining, gradients: bool = False) -> dict[str, Tensor]:
    """Our weights, or their gradients, under transformers' names."""
    found: dict[str, Tensor] = {}
    for name, parameter in ours.named_parameters():
        value = parameter.grad if gradients else parameter.detach()
        assert value is not None, name
        module, _, kind = name.rpartition(".")
        if name == "bias":
            found["cls.predictions.bias"] = found["cls.predictions.decoder.bias"] = value
        elif module in NAMES:
            found[f"{NAMES[module]}.{kind}"] = value
        else:
            number, _, part = module.removeprefix("encoder.stack.").partition(".")
            layer = f"bert.encoder.layer.{number}"
            if part == "attention.qkv":
                for their, third in zip(("query", "key", "value"), value.chunk(3), strict=True):
                    found[f"{layer}.attention.self.{their}.{kind}"] = third
            else:
                found[f"{layer}.{BLOCK[part]}.{kind}"] = value
    found["cls.predictions.decoder.weight"] = found["bert.embeddings.word_embeddings.weight"]
    return found


def twin_batch() -> tuple[BertBatch, dict[str, Tensor]]:
    """A padded batch for us, and the same for transformers."""
    generator = torch.Generator().manual_seed(5)
    lengths = torch.tensor([40, 23, 9, 31])
    place = torch.arange(40)
    inside = place < lengths[:, None]
    ids = torch.randint(4, 200, (4, 40), generator=generator) * inside
    segments = ((place > 5) & inside).long()
    slots = torch.stack([torch.randperm(int(length), generator=generator)[:6] for length in lengths])
    targets = torch.randint(4, 200, (4, 6), generator=generator)
    weights = torch.tensor([[1.0] * 6, [1.0] * 3 + [0.0] * 3, [1.0] + [0.0] * 5, [1.0] * 4 + [0.0] * 2])
    unrelated = torch.tensor([0, 1, 1, 0])
    batch = BertBatch(
        inputs=TokenBatch(ids=ids, lengths=lengths, segments=segments),
        masked_positions=slots,
        targets=targets,
        weights=weights,
        not_next=unrelated,
    )
    labels = torch.full((4, 40), -100).scatter(1, slots, torch.where(weights > 0, targets, -100))
    theirs = {"input_ids": ids, "attention_mask": inside.long(), "token_type_ids": segments}
    return batch, {**theirs, "labels": labels, "next_sentence_label": unrelated}


def test_logits_losses_and_gradients_equal_transformers(twins: tuple[BertPretraining, BertForPreTraining]) -> None:
    ours, theirs = twins
    batch, inputs = twin_batch()
    expected = cast(Any, theirs(**inputs))
    output = ours.encoder(batch.inputs)
    every = torch.arange(40).expand(4, 40)
    inside = inputs["attention_mask"] == 1
    words = ours.predict_masked(output.top, every)
    torch.testing.assert_close(words[inside], expected.prediction_logits[inside], rtol=1e-5, atol=1e-5)
    related = ours.predict_next(ours.encoder.pool(output, batch.inputs))
    torch.testing.assert_close(related, expected.seq_relationship_logits, rtol=1e-5, atol=1e-5)

    losses, _ = ours(batch)
    loss = losses["mlm"] / batch.weights.sum() + losses["nsp"] / 4
    torch.testing.assert_close(loss, expected.loss, rtol=1e-5, atol=1e-5)
    ours.zero_grad()
    theirs.zero_grad()
    loss.backward()
    expected.loss.backward()
    gradients = their_weights(ours, gradients=True)
    compared = 0
    for name, parameter in theirs.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(
            gradients[name], parameter.grad, rtol=1e-5, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
        )
        compared += 1
    assert compared == 5 + 3 * 16 + 2 + 5 + 2
    ours.zero_grad()


def test_hidden_states_and_attention_equal_transformers(twins: tuple[BertPretraining, BertForPreTraining]) -> None:
    ours, theirs = twins
    batch, inputs = twin_batch()
    recorded: dict[tuple[str, int], Tensor] = {}

    def record(name: str, layer: int, value: Tensor) -> None:
        recorded[name, layer] = value

    with torch.no_grad():
        output = ours.encoder(batch.inputs, all_layers=True, record=record)
        expected = cast(Any, theirs(**inputs, output_attentions=True, output_hidden_states=True))
        unrecorded = ours.encoder(batch.inputs)
    inside = inputs["attention_mask"] == 1
    assert len(output.layers) == len(expected.hidden_states) == 4
    for layer, hidden in zip(output.layers, expected.hidden_states, strict=True):
        torch.testing.assert_close(layer[inside], hidden[inside], rtol=1e-5, atol=1e-5)
    assert list(recorded) == [("attention", 0), ("attention", 1), ("attention", 2)]
    for found, attention in zip(recorded.values(), expected.attentions, strict=True):
        torch.testing.assert_close(found, attention, rtol=1e-5, atol=1e-5)
    assert torch.equal(unrecorded.top, output.top)
    assert unrecorded.layers == []


def test_padding_changes_nothing(twins: tuple[BertPretraining, BertForPreTraining]) -> None:
    ours, _ = twins
    sequences = [[1, 20, 30, 2], [1, *range(40, 70), 2], [1, 5, 2]]
    with torch.no_grad():
        rows = TokenBatch.pad(sequences)
        together = ours.encoder(rows)
        padding = torch.arange(rows.ids.shape[1]) >= rows.lengths[:, None]
        noisy = ours.encoder(replace(rows, ids=rows.ids.masked_fill(padding, 99)))
        for row, sequence in enumerate(sequences):
            alone = ours.encoder(TokenBatch.pad([sequence]))
            length = len(sequence)
            torch.testing.assert_close(together.top[row, :length], alone.top[0], rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(noisy.top[row, :length], alone.top[0], rtol=1e-5, atol=1e-5)
        segments = [[0] * len(sequence) for sequence in sequences]
        output = ours.encoder(TokenBatch.pad(sequences, segments))
        torch.testing.assert_close(output.top[1], together.top[1])


def test_dropout_acts_in_training_alone() -> None:
    torch.manual_seed(0)
    encoder = Bert(**TINY).build_encoder(50)
    rows = TokenBatch.pad([[1, 5, 6, 2]])
    with torch.no_grad():
        assert not torch.equal(encoder(rows).top, encoder(rows).top)
        encoder.eval()
        assert torch.equal(encoder(rows).top, encoder(rows).top)


def test_the_last_steps_read_longer_rows() -> None:
    documents = random_documents(100)
    objective = make_objective(documents, max_positions=128, final_sequence_length=96, final_share=0.25)
    system = objective.system
    short, long = objective.phases()
    assert (short.share, long.share) == (0.75, 0.25)
    assert long.batch_share == system.sequence_length / 96
    for phase, length in enumerate((system.sequence_length, 96)):
        batch = objective.batch(documents, CounterRng(seed=0, step=0, first_example=0, phase=phase), range(8))
        assert batch.inputs.ids.shape == (8, length)
        assert batch.masked_positions.shape == (8, system.prediction_slots(length))
        losses, _ = objective(batch)
        assert all(value.isfinite() for value in losses.values())
    assert system.max_length == 96
    assert replace(system, final_sequence_length=0).continued_from(system).max_length == 96


@pytest.mark.parametrize(
    "fields", [{"final_sequence_length": 8}, {"final_sequence_length": 4096}, {"final_share": 0.0}]
)
def test_phases_without_sense_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"final_|exceeds the 64 position embeddings"):
        Bert(**{**TINY, **fields})


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"mask_span": 10, "whole_word_masking": True, "final_mask_rate": 0.4},
        {"mask_rate": 0.4, "final_mask_rate": 0.1},
    ],
    ids=str,
)
def test_a_step_as_a_tensor_draws_the_same(fields: dict[str, Any]) -> None:
    """On a GPU the number of the step is a tensor, so that one compiled function serves all steps."""
    bits = words_of(np.random.default_rng(3).integers(1, 4, 20_000))
    documents = random_documents(100, starts_word=bits)
    objective = make_objective(documents, **fields)

    def make(numbers: Tensor) -> list[Tensor]:
        rng = CounterRng(seed=3, step=numbers[0], first_example=numbers[1], steps=numbers[2])
        return objective.batch(documents, rng, range(8)).tensors()

    compiled = torch.compile(make, dynamic=False, fullgraph=True, backend="eager")
    for step, first in ((0, 0), (7, 56), (123_456, 987_648)):
        rng = CounterRng(seed=3, step=step, first_example=first, steps=200_000)
        one = objective.batch(documents, rng, range(8)).tensors()
        for two in (make, compiled):
            assert all(map(torch.equal, one, two(torch.tensor([step, first, 200_000]))))


def test_the_way_of_the_kernels_gives_the_same_losses_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the blocks, the embeddings and the head are cut otherwise; here by the kernels' twins, in fp32."""
    data = random_documents(40)
    objective = make_objective(data, dropout=0.0, attention_dropout=0.0, whole_word_masking=False)
    batch = objective.batch(data, CounterRng(seed=1, step=0, first_example=0), range(8))

    def outcome() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        objective.zero_grad()
        losses, _ = objective(batch)
        sum(losses.values(), start=torch.zeros(())).backward()
        return losses, {name: value.grad for name, value in objective.named_parameters() if value.grad is not None}

    losses, gradients = outcome()
    for kernel in ("attention", "gelu", "layer_norm", "cross_entropy"):
        monkeypatch.setattr(f"keel.kernels.{kernel}.triton_usable", lambda x: False)
    monkeypatch.setattr("keel.systems.bert.use_kernels", lambda x: True)
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda device: torch.float32)
    fused_losses, fused_gradients = outcome()
    assert fused_gradients.keys() == gradients.keys()
    for name, value in losses.items():
        torch.testing.assert_close(fused_losses[name], value, rtol=1e-5, atol=1e-5)
    for name, value in gradients.items():
        torch.testing.assert_close(fused_gradients[name], value, rtol=1e-4, atol=1e-5, msg=name)
