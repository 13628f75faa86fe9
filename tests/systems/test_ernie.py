"""Masking by units: whole or not at all, at the configured masking rate, in stages or mixed, the same on any device."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForPreTraining

import keel
from keel.data.documents import Documents
from keel.data.mlm_sampling import SampledSpans, sample_masked_units
from keel.data.token_batch import TokenBatch
from keel.data.token_store import Tokens
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.systems.bert import Bert, BertBatch
from keel.systems.ernie import SPARE_SLOTS, Ernie, ErniePretraining
from keel.training.counter_rng import CounterRng
from keel.training.plan import Plan, Train

PAD, CLS, SEP, MASK = 0, 1, 2, 3
SPECIAL_IDS = cast(Tokenizer, SimpleNamespace(pad_id=PAD, cls_id=CLS, sep_id=SEP, mask_id=MASK))
TINY: dict[str, Any] = {"layers": 1, "width": 32, "head_dim": 16, "max_positions": 128, "sequence_length": 128}
LEVEL: dict[str, dict[str, Any]] = {
    "basic": {"phrase_share": 0.0, "entity_share": 0.0},
    "word": {"phrase_share": 0.0, "entity_share": 0.0, "whole_word_masking": True},
    "phrase": {"phrase_share": 1.0, "entity_share": 0.0},
    "entity": {"phrase_share": 0.0, "entity_share": 1.0},
}
BITS = {"word": 0, "phrase": 1, "entity": 2}


@pytest.fixture(scope="module")
def data() -> Documents:
    """60 documents; token n has id 10 + n. Words are of 1 or 2 tokens, phrases of 1 or 2 words, entities of 1 or 2
    phrases."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(5, 60, (60, 8))
    ids = np.arange(10, 10 + sizes.sum())
    starts = np.ones(len(ids), bool)
    codes = np.zeros(len(ids), np.uint8)
    for bit in range(3):
        positions = np.flatnonzero(starts)
        kept = np.cumsum(rng.integers(1, 3, len(positions)))
        starts = np.zeros_like(starts)
        starts[positions[np.append(0, kept[kept < len(positions)])]] = True
        codes |= starts.astype(np.uint8) << bit
    tokens = SimpleNamespace(
        ids=ids.astype(np.uint16),
        starts=np.append(0, sizes.cumsum()),
        documents=np.arange(0, 481, 8),
        word_starts=None,
        units=codes,
    )
    return Documents.of(cast(Tokens, tokens))


def make_objective(data: Documents, **fields: Any) -> ErniePretraining:
    system = Ernie(**(TINY | fields))
    with torch.device("meta"):
        encoder = system.build_encoder(vocab_size=len(data.ids) + 10)
    objective = system.build_objective(encoder, SPECIAL_IDS)
    assert type(objective) is ErniePretraining
    return objective


def make_batch(data: Documents, examples: int, phase: int = 0, **fields: Any) -> BertBatch:
    rng = CounterRng(seed=1, step=3, first_example=3 * examples, phase=phase)
    return make_objective(data, **fields).batch(data, rng, range(examples))


def masked(batch: BertBatch) -> Tensor:
    """[batch, length] whether each token is masked."""
    empty = torch.zeros(batch.inputs.ids.shape, dtype=torch.bool)
    return empty.scatter(1, batch.masked_positions, batch.weights > 0)


def original(batch: BertBatch) -> Tensor:
    """The ids before masking."""
    return batch.inputs.ids.scatter(1, batch.masked_positions, batch.targets)


def continues(data: Documents, batch: BertBatch, bit: int) -> Tensor:
    """[batch, length - 1] whether a token is in the unit of the token before it."""
    ids = original(batch)
    assert data.units is not None
    starts = (data.units[(ids - 10).clamp(min=0)] >> bit) & 1 == 1
    same_text = (ids[:, 1:] == ids[:, :-1] + 1) & (ids[:, :-1] >= 10)
    if batch.inputs.segments is not None:
        same_text &= batch.inputs.segments[:, 1:] == batch.inputs.segments[:, :-1]
    return same_text & ~starts[:, 1:]


@pytest.mark.parametrize("pair_objective", ["none", "nsp", "sop"])
@pytest.mark.parametrize("level", BITS)
def test_units_are_masked_whole_or_not_at_all(data: Documents, level: str, pair_objective: str) -> None:
    batch = make_batch(data, 600, pair_objective=pair_objective, **LEVEL[level])
    joined, hidden = continues(data, batch, BITS[level]), masked(batch)
    assert joined.sum() > 10_000
    assert torch.equal(hidden[:, 1:][joined], hidden[:, :-1][joined])


def test_basic_masking_divides_units(data: Documents) -> None:
    batch = make_batch(data, 600, **LEVEL["basic"])
    joined, hidden = continues(data, batch, BITS["word"]), masked(batch)
    assert (hidden[:, 1:][joined] != hidden[:, :-1][joined]).float().mean() > 0.2


@pytest.mark.parametrize("mask_rate", [0.15, 0.3])
@pytest.mark.parametrize("level", [*LEVEL, "mixed"])
def test_the_rate_is_the_configured_one_at_each_level(data: Documents, level: str, mask_rate: float) -> None:
    fields = LEVEL.get(level, {"masking": "mixed"})
    batch = make_batch(data, 3000, pair_objective="none", mask_rate=mask_rate, **fields)
    share = float(batch.weights.sum() / (batch.inputs.lengths - 2).sum())
    assert share == pytest.approx(mask_rate, rel=0.02)
    assert (batch.weights.sum(1) > 0).all()


def test_long_units_are_masked_about_as_often_as_short_ones(data: Documents) -> None:
    batch = make_batch(data, 4000, pair_objective="none", **LEVEL["entity"])
    joined, hidden = continues(data, batch, BITS["entity"]), masked(batch)
    unit = torch.cat([torch.zeros(len(joined), 1), (~joined).float().cumsum(1)], 1).long()
    size = torch.zeros_like(unit).scatter_add(1, unit, torch.ones_like(unit)).gather(1, unit)
    inside = original(batch) >= 10
    shares = [float(hidden[inside & (size == length)].float().mean()) for length in (1, 2, 4, 8)]
    assert shares == pytest.approx([0.15] * 4, rel=0.15)
    assert shares[0] > shares[3], "what is left to mask has more often room for a short unit"


def test_each_token_of_a_unit_is_replaced_independently(data: Documents) -> None:
    batch = make_batch(data, 3000, **LEVEL["phrase"])
    hidden, ids = masked(batch), original(batch)
    shown = batch.inputs.ids
    total = int(hidden.sum())
    for share, kind in ((0.8, shown == MASK), (0.1, shown == ids), (0.1, (shown != MASK) & (shown != ids))):
        assert int((kind & hidden).sum()) / total == pytest.approx(share, abs=0.01)
    joined = continues(data, batch, BITS["phrase"]) & hidden[:, 1:]
    kept = shown == ids
    both = (kept[:, 1:] & kept[:, :-1] & joined).sum() / joined.sum()
    assert float(both) == pytest.approx(0.01, abs=0.005), "the product of both shares"


def slow_positions(
    rng: CounterRng, spans: SampledSpans, starts: Tensor, mask_rate: float, slots: int
) -> list[set[int]]:
    """The masked positions of each sequence, unit by unit."""
    examples = torch.arange(len(starts))
    starts = spans.starts_with_bounds(starts)
    keys = (rng.random_bits("mask", examples, starts.shape[1]) >> 12).gather(1, starts.long().cumsum(1) - 1)
    found = []
    for row, length in enumerate(spans.lengths.tolist()):
        first = int(spans.first_length[row])
        text = [place for place in range(1, length - 1) if place != first + 1]
        units: list[list[int]] = []
        for place in text:
            if starts[row, place]:
                units.append([])
            units[-1].append(place)
        wanted = min(max(1, int(len(text) * mask_rate + 0.5)), slots)
        chosen: list[int] = []
        for unit in sorted(units, key=lambda unit: int(keys[row, unit[0]])):
            left = wanted - len(chosen)
            if len(unit) > left:
                sampled = int(rng.randint("part", examples[row : row + 1], len(unit)))
                if not chosen:
                    chosen = unit[:slots]
                elif sampled < left and len(chosen) + len(unit) <= slots:
                    chosen += unit
                break
            chosen += unit
            if len(chosen) == wanted:
                break
        found.append({*chosen})
    return found


@pytest.mark.parametrize("longest", [1, 4, 30])
def test_sampling_equals_a_slow_search(longest: int) -> None:
    generator = torch.Generator().manual_seed(longest)
    first, second = (torch.randint(1, 30, (400,), generator=generator) for _ in range(2))
    spans = SampledSpans(first=first, first_length=first, second=second, second_length=second)
    starts = torch.randint(0, longest, (400, 64), generator=generator) == 0
    rng = CounterRng(seed=5, step=2, first_example=0)
    slots = 12
    positions, weights = sample_masked_units(
        rng, torch.arange(400), spans, spans.starts_with_bounds(starts), mask_rate=150_000, slots=slots
    )
    found = [{*row[used > 0].tolist()} for row, used in zip(positions, weights, strict=True)]
    assert found == slow_positions(rng, spans, starts, 0.15, slots)
    assert positions.shape == (400, slots)


def test_examples_do_not_depend_on_others_and_a_compiled_sampler_gives_the_same(data: Documents) -> None:
    objective = make_objective(data, masking="mixed")
    rng = CounterRng(seed=4, step=7, first_example=7 * 32)
    whole = objective.batch(data, rng, range(32))
    for part in (range(5), range(5, 32)):
        batch = objective.batch(data, rng, part)
        pairs = zip(batch.tensors(), whole.slice_examples(part).tensors(), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)

    def make(numbers: Tensor) -> list[Tensor]:
        step_rng = CounterRng(seed=4, step=numbers[0], first_example=numbers[1], batch_size=numbers[2])
        return objective.batch(data, step_rng, range(32)).tensors()

    # As on a GPU: in one graph, with the step as a tensor.
    compiled = torch.compile(make, dynamic=False, fullgraph=True, backend="eager")(torch.tensor([7, 7 * 32, 32]))
    assert all(torch.equal(one, other) for one, other in zip(compiled, whole.tensors(), strict=True))


def test_stages_follow_each_other_and_longer_sequences_are_in_the_last_one(data: Documents) -> None:
    objective = make_objective(data, final_sequence_length=126, sequence_length=32, final_share=0.2)
    assert [(phase.level, phase.length) for phase in objective.system.phase_plan] == [
        (0, 32),
        (1, 32),
        (2, 32),
        (2, 126),
    ]
    segments = Plan(30, Train(steps=30, batch=8), objective.phases()).segments
    assert [(each.begin, each.batch_size) for each in segments] == [(0, 8), (10, 8), (20, 8), (24, 2)]
    for number, (bit, length) in enumerate([(None, 32), (1, 32), (2, 32), (2, 126)]):
        batch = objective.batch(data, CounterRng(seed=1, step=9, first_example=0, phase=number), range(300))
        assert batch.inputs.ids.shape == (300, length)
        divided = [
            bool((masked(batch)[:, 1:] != masked(batch)[:, :-1])[continues(data, batch, each)].any()) for each in (1, 2)
        ]
        assert divided == {None: [True, True], 1: [False, True], 2: [False, False]}[bit]


def test_a_later_stage_reads_the_text_in_another_order(data: Documents) -> None:
    first, second = (make_batch(data, 50, phase=number, pair_objective="none") for number in (0, 1))
    assert original(first)[:, 1].tolist() != original(second)[:, 1].tolist()


def test_mixed_levels_have_their_shares(data: Documents) -> None:
    objective = make_objective(data, masking="mixed", phrase_share=0.5, entity_share=0.2)
    assert len(objective.phases()) == 1
    rng = CounterRng(seed=1, step=0, first_example=0)
    counts = torch.bincount(objective.sample_levels(rng, torch.arange(20_000)), minlength=3) / 20_000
    assert counts.tolist() == pytest.approx([0.3, 0.5, 0.2], abs=0.015)


@pytest.mark.parametrize(("phrase", "entity", "levels"), [(0.0, 0.0, [0]), (0.0, 1.0, [2]), (0.5, 0.5, [1, 2])])
def test_levels_without_a_share_have_no_stage(phrase: float, entity: float, levels: list[int]) -> None:
    plan = Ernie(phrase_share=phrase, entity_share=entity).phase_plan
    assert [phase.level for phase in plan] == levels
    assert sum(phase.share for phase in plan) == pytest.approx(1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"phrase_share": 0.7, "entity_share": 0.4}, "phrase_share 0.7 and entity_share 0.4 exceed 1 together"),
        ({"entity_share": -0.1}, "entity_share must be 0 or more"),
        ({"masking": "random"}, "masking must be"),
        ({"variant": "roberta"}, "variant must be one of 'bert', not 'roberta'"),
        ({"mask_span": 10}, "mask_span 10 does not go with ernie, .*: leave it out"),
    ],
)
def test_shares_without_sense_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Ernie(**fields)


def test_tokens_without_units_are_refused(data: Documents) -> None:
    plain = Documents(ids=data.ids, starts=data.starts, spans=data.spans, ends=data.ends, size=data.size)
    with pytest.raises(KeelError, match="without masking units"):
        make_batch(plain, 4)


@pytest.mark.parametrize("level", LEVEL)
def test_the_masking_rate_changes_over_the_run_at_each_level(data: Documents, level: str) -> None:
    fields = {"pair_objective": "none", "mask_rate": 0.4, "final_mask_rate": 0.2, **LEVEL[level]}
    objective = make_objective(data, **fields)
    assert objective.follows_progress
    for step, share in ((0, 0.4), (50, 0.3), (99, 0.202)):
        batch = objective.batch(data, CounterRng(seed=1, step=step, first_example=0, steps=100), range(2000))
        assert float(batch.weights.sum() / (batch.inputs.lengths - 2).sum()) == pytest.approx(share, rel=0.02)


def test_it_is_a_bert_but_for_its_masking() -> None:
    ernie, bert = Ernie.sized("mini"), Bert.sized("mini")
    with torch.device("meta"):
        one, other = (
            system.build_objective(system.build_encoder(1000), SPECIAL_IDS).state_dict() for system in (ernie, bert)
        )
    assert {name: value.shape for name, value in one.items()} == {name: value.shape for name, value in other.items()}
    assert ernie.prediction_slots(128) == bert.prediction_slots(128) + SPARE_SLOTS
    assert ernie.pretraining_defaults == bert.pretraining_defaults


@pytest.mark.parametrize("pair_objective", ["nsp", "none"])
def test_a_folder_is_a_bert_for_transformers_and_ernie_for_keel(
    english_corpus: Path, tmp_path: Path, pair_objective: Any
) -> None:
    settings: dict[str, Any] = {"layers": 1, "width": 32, "head_dim": 16, "max_positions": 32, "sequence_length": 24}
    pretrained = keel.pretrain(
        keel.Ernie(**settings, masking="mixed", pair_objective=pair_objective),
        english_corpus,
        out=tmp_path / "m",
        train=keel.Train(steps=4, batch=4, device="cpu"),
        vocabulary=200,
    )
    ours = keel.Model.load(tmp_path / "m", device="cpu")
    assert ours.system == pretrained.system
    assert isinstance(ours.objective, ErniePretraining)
    kind = AutoModelForPreTraining if pair_objective == "nsp" else AutoModelForMaskedLM
    theirs = kind.from_pretrained(tmp_path / "m").eval()
    assert type(theirs).__name__ == ("BertForPreTraining" if pair_objective == "nsp" else "BertForMaskedLM")
    ids = torch.tensor([[ours.tokenizer.cls_id, 20, 30, 40, ours.tokenizer.sep_id]])
    with torch.inference_mode():
        output = theirs(ids)
        logits = output.prediction_logits if pair_objective == "nsp" else output.logits
        inputs = TokenBatch(ids=ids, lengths=torch.tensor([5]))
        assert torch.allclose(ours.objective.masked_logits(inputs, torch.arange(5)[None]), logits, atol=1e-5)
    assert AutoModel.from_pretrained(tmp_path / "m").config.model_type == "bert"
