"""Beam search: exhaustive for a wide beam, greedy for one beam, independent of the batch."""

import itertools
from dataclasses import dataclass
from threading import Event
from typing import Any

import pytest
import torch
from torch import Tensor

from keel.errors import UsageError
from keel.generation.beam_search import BeamSearch, Hypothesis, SearchInterrupted, beam_search
from keel.generation.decoding_trace import DecodingTrace
from keel.generation.sampling import Sampling, sample
from keel.nn.encoder import DecodingState
from keel.training.objective import Tensors

EOS = 1


@dataclass(frozen=True, kw_only=True)
class Read(Tensors):
    ids: Tensor  # [rows, time]


@dataclass(frozen=True, kw_only=True)
class Texts(Tensors):
    numbers: Tensor  # [texts]


class Tables:
    """A model whose logits depend on the last two ids and on the source text, if any."""

    bos_id, max_context = 0, None

    def __init__(
        self, vocabulary: int = 6, texts: int = 0, seed: int = 0, eos_id: int | None = EOS, sharp: float = 1.0
    ) -> None:
        self.eos_id = eos_id
        self.texts = texts
        self.batch_sizes: list[int] = []
        random = torch.Generator().manual_seed(seed)
        self.scores = torch.randn(max(texts, 1), vocabulary, vocabulary, vocabulary, generator=random) * sharp

    def new_state(self, batch_size: int) -> Any:
        own = Read(ids=torch.zeros(batch_size, 1, dtype=torch.int64))
        return DecodingState(source=Texts(numbers=torch.arange(self.texts)), own=own) if self.texts else own

    def step(self, ids: Tensor, state: Any, record: Any = None) -> tuple[Tensor, Any]:
        self.batch_sizes.append(len(ids))
        own, numbers = state, torch.zeros(len(ids), dtype=torch.int64)
        if isinstance(state, DecodingState):
            own, source = state.own, state.source
            assert isinstance(source, Texts)
            numbers = source.numbers.repeat_interleave(len(ids) // len(source.numbers))
        assert isinstance(own, Read)
        read = torch.cat([own.ids, ids], 1)
        if record is not None:
            record("attention", 0, torch.ones(len(ids), 2, ids.shape[1], read.shape[1]) / read.shape[1])
        after = Read(ids=read)
        scores = self.scores[numbers, read[:, -2], read[:, -1]]
        return scores, DecodingState(source=state.source, own=after) if isinstance(state, DecodingState) else after


def every(model: Tables, prompt: list[int], tokens: int, alpha: float, text: int = 0) -> list[tuple[float, list[int]]]:
    """All possible texts with their scores, best first."""
    vocabulary = model.scores.shape[-1]
    found: list[tuple[float, list[int]]] = []
    for size in range(1, tokens + 1):
        for ids in itertools.product(range(vocabulary), repeat=size):
            if EOS in ids[:-1] or (ids[-1] != EOS and size < tokens):
                continue
            read, total = [0, 0, *prompt], 0.0
            for number in ids:
                total += float(model.scores[text, read[-2], read[-1]].log_softmax(0)[number])
                read.append(number)
            found.append((total / ((5 + size) / 6) ** alpha, [number for number in ids if number != EOS]))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("alpha", [-1.0, 0.0, 0.6, 2.0])
@pytest.mark.parametrize("texts", [0, 1])
def test_wide_beam_is_exhaustive(alpha: float, texts: int) -> None:
    for seed in range(3):
        model = Tables(vocabulary=4, texts=texts, seed=seed)
        expected = every(model, [2], 4, alpha)[:5]
        (found,) = beam_search(model, [[2]], BeamSearch(beams=256, length_penalty=alpha, best=5), max_new_tokens=4)
        assert [each.ids for each in found] == [ids for _, ids in expected]
        assert [each.score for each in found] == pytest.approx([score for score, _ in expected], abs=1e-5)
        for each in found:
            size = len(each.ids) + each.finished
            assert each.score == pytest.approx(each.log_prob / ((5 + size) / 6) ** alpha, abs=1e-5)


@pytest.mark.parametrize("alpha", [0.0, 1.5])
@pytest.mark.parametrize("texts", [0, 5])
def test_one_beam_is_greedy(texts: int, alpha: float) -> None:
    prompts = [[2], [3], [4], [5], [0]]
    model = Tables(texts=texts, seed=4)
    found = beam_search(model, prompts, BeamSearch(beams=1, length_penalty=alpha), max_new_tokens=12)
    steps = list(sample(model, prompts, Sampling(temperature=0), max_new_tokens=12, stop_ids={EOS}))
    for row, (best,) in enumerate(found):
        ids = [step[row] for step in steps]
        assert best.ids == (ids[: ids.index(EOS)] if EOS in ids else ids)
        assert best.finished == (EOS in ids)
    assert len({best.finished for (best,) in found}) == 2 or all(best.finished for (best,) in found)


@pytest.mark.parametrize("texts", [0, 6])
def test_result_is_independent_of_the_batch(texts: int) -> None:
    prompts = [[2], [3, 4], [], [5], [4, 4], [2, 2]]
    search, tokens = BeamSearch(beams=3, best=3), [15, 2, 15, 1, 4, 15]
    model = Tables(texts=texts, seed=7)
    together = beam_search(model, prompts, search, max_new_tokens=tokens, banned=[3])
    for number, prompt in enumerate(prompts):
        alone = Tables(seed=7)
        alone.scores = model.scores[number : number + 1] if texts else model.scores
        assert same(
            beam_search(alone, [prompt], search, max_new_tokens=tokens[number], banned=[3])[0], together[number]
        )
        assert all(len(each.ids_with_eos) <= tokens[number] for each in together[number])
        assert all(3 not in each.ids for each in together[number])
        scores = [each.score for each in together[number]]
        assert scores == sorted(scores, reverse=True)
        assert len({tuple(each.ids) for each in together[number]}) == 3, "no text is given twice"


def same(one: list[Hypothesis], other: list[Hypothesis]) -> bool:
    assert [each.score for each in one] == pytest.approx([each.score for each in other], abs=1e-5)
    return [(each.ids, each.finished) for each in one] == [(each.ids, each.finished) for each in other]


def reference(
    model: Tables, prompt: list[int], beams: int, tokens: int, alpha: float, best: int
) -> list[tuple[list[int], float]]:
    """Reference beam search without early stopping."""
    rows: list[tuple[float, list[int]]] = [(0.0, [])]
    ended: list[tuple[float, list[int]]] = []
    for size in range(1, tokens + 1):
        candidates: list[tuple[float, list[int]]] = []
        for total, ids in rows:
            read = [0, 0, *prompt, *ids]
            probabilities = model.scores[0, read[-2], read[-1]].log_softmax(0).tolist()
            candidates += [(total + chance, [*ids, number]) for number, chance in enumerate(probabilities)]
        candidates.sort(key=lambda each: -each[0])
        divisor = ((5 + size) / 6) ** alpha
        ended += [(total / divisor, ids[:-1]) for total, ids in candidates[:beams] if ids[-1] == EOS]
        rows = [(total, ids) for total, ids in candidates if ids[-1] != EOS][:beams]
        if size == tokens:
            ended += [(total / divisor, ids) for total, ids in rows]
    return [(ids, score) for score, ids in sorted(ended, key=lambda each: -each[0])[:best]]


@pytest.mark.parametrize("alpha", [-0.5, 0.0, 0.6, 1.0, 2.0])
def test_early_stopping_is_exact(alpha: float) -> None:
    saved = 0
    for seed in range(12):
        model = Tables(vocabulary=7, seed=seed, sharp=2.0)
        (found,) = beam_search(model, [[2]], BeamSearch(beams=3, length_penalty=alpha, best=2), max_new_tokens=20)
        expected = reference(model, [2], 3, 20, alpha, 2)
        assert [each.ids for each in found] == [ids for ids, _ in expected]
        assert [each.score for each in found] == pytest.approx([score for _, score in expected], abs=1e-4)
        saved += 20 - len(model.batch_sizes)
    assert saved > 20 or alpha == 2, "and it does stop early"


def test_finished_texts_leave_the_batch() -> None:
    model = Tables(vocabulary=7, texts=8, seed=3, sharp=3.0)
    found = beam_search(model, [[]] * 8, BeamSearch(beams=4), max_new_tokens=30)
    assert model.batch_sizes[:2] == [8, 32], "the hypotheses of a text start as one sequence"
    assert model.batch_sizes == [8, *sorted(model.batch_sizes[1:], reverse=True)]
    assert model.batch_sizes[-1] < 32
    assert all(count % 4 == 0 for count in model.batch_sizes[1:])
    assert len({len(best.ids) for (best,) in found}) > 1


def test_without_end_token_texts_are_cut_off() -> None:
    found = beam_search(Tables(eos_id=None), [[2], [3]], BeamSearch(beams=3, best=3), max_new_tokens=5)
    assert all(len(each.ids) == 5 and not each.finished for text in found for each in text)
    (few,) = beam_search(Tables(vocabulary=2), [[]], BeamSearch(beams=6, best=6), max_new_tokens=1)
    assert len(few) == 2, "there are no more"


def test_equals_transformers() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=23, n_positions=40, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=EOS,
        initializer_range=0.6,
    )  # fmt: skip
    network: Any = GPT2LMHeadModel(config).eval()

    class Gpt(Tables):
        def step(self, ids: Tensor, state: Any, record: Any = None) -> tuple[Tensor, Any]:
            read = torch.cat([state.ids, ids], 1)
            return network(read[:, 1:]).logits[:, -1], Read(ids=read)

    prompts = [[5, 6], [7, 8], [9, 2], [3, 4]]
    found = beam_search(Gpt(), prompts, BeamSearch(beams=4, length_penalty=0.0, best=4), max_new_tokens=12)
    ids = torch.tensor([[0, *prompt] for prompt in prompts])
    theirs = network.generate(
        ids, attention_mask=torch.ones_like(ids), num_beams=4, max_new_tokens=12, num_return_sequences=4,
        length_penalty=0.0, early_stopping="never", do_sample=False, pad_token_id=22, return_dict_in_generate=True,
        output_scores=True,
    )  # fmt: skip
    sequences, scores = theirs.sequences[:, 3:].tolist(), theirs.sequences_scores.tolist()
    for number, best in enumerate(found):
        for position, each in enumerate(best):
            expected = sequences[4 * number + position]
            expected = expected[: expected.index(EOS)] if EOS in expected else expected
            assert each.ids == expected[: len(each.ids)]
            assert each.score == pytest.approx(scores[4 * number + position], abs=1e-4)
    assert any(each.finished for best in found for each in best)


def test_trace_holds_the_search_tree() -> None:
    model, trace = Tables(texts=3, seed=5), DecodingTrace()
    prompts = [[2], [3], [4]]
    found = beam_search(model, prompts, BeamSearch(beams=3), max_new_tokens=8, trace=trace)
    for number, (best,) in enumerate(found):
        nodes = trace.nodes[number]
        steps = {node.step for node in nodes}
        assert steps == set(range(1, max(steps) + 1))
        for step in steps:
            at = [node for node in nodes if node.step == step]
            assert sum(node.outcome == "kept" for node in at) == 3
            assert all(
                nodes[node.parent].outcome == "kept" and nodes[node.parent].step == step - 1 for node in at if step > 1
            )
            most_probable = sorted((node for node in at if node.id != EOS), key=lambda node: -node.log_probability)
            assert [node.outcome for node in most_probable] == ["kept"] * 3 + ["dropped"] * (len(most_probable) - 3)
            assert all(bool(node.attention) == (node.outcome != "dropped") for node in at)
        ids: list[int] = []
        node = next(
            node for node in nodes if node.log_probability == pytest.approx(best.log_prob) and node.outcome != "dropped"
        )
        while True:
            ids.insert(0, node.id)
            if node.parent < 0:
                break
            node = nodes[node.parent]
        assert ids == best.ids_with_eos
    first, second, *_ = trace.costs
    assert (first.sequences, first.computed, first.cached) == (3, 6, 0)
    assert (second.sequences, second.computed, second.cached) == (9, 9, 18)
    assert first.source_bytes == 24
    assert first.state_bytes == 3 * 3 * 8
    plain = beam_search(Tables(texts=3, seed=5), prompts, BeamSearch(beams=3), max_new_tokens=8)
    assert [same(one, other) for one, other in zip(plain, found, strict=True)] == [True] * 3, "tracing changes nothing"


def test_trace_of_sampling_holds_all_candidates() -> None:
    trace = DecodingTrace(top_k=3)
    steps = list(sample(Tables(), [[2], [3, 4]], Sampling(seed=2), max_new_tokens=6, stop_ids={EOS}, trace=trace))
    for row in (0, 1):
        taken = [node for node in trace.nodes[row] if node.outcome != "dropped"]
        assert [node.id for node in taken] == [step[row] for step in steps[: len(taken)]]
        assert (taken[-1].outcome == "ended") == (taken[-1].id == EOS)
        numbers = [-1, *(trace.nodes[row].index(node) for node in taken)]
        assert all(node.parent == numbers[node.step - 1] for node in trace.nodes[row])
        assert all(node.log_probability < 0 for node in taken)
        assert len(trace.nodes[row]) >= 3 * len(taken)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"beams": 0}, "beams must be 1 or more and 1,000 or less, not 0"),
        ({"beams": 2, "best": 3}, "^best must be between 1 and beams=2, not 3"),
        ({"best": 0}, "best must be 1 or more, not 0"),
        ({"length_penalty": float("nan")}, "length_penalty must be a number, not nan"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        BeamSearch(**settings)


@pytest.mark.parametrize("tokens", [0, [3, 0]])
def test_zero_tokens_are_refused(tokens: Any) -> None:
    with pytest.raises(UsageError, match="tokens must be 1 or more, not 0"):
        beam_search(Tables(), [[], []], max_new_tokens=tokens)


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_custom_stopping_criterion(alpha: float) -> None:
    """Ids that act like the end token."""
    last, batch_sizes = {3, 4}, []

    def ended(text: int, ids: list[int]) -> bool:
        batch_sizes.append(text)
        return ids[-1] in last

    for seed in range(4):
        model = Tables(vocabulary=6, seed=seed)
        trace = DecodingTrace()
        (found,) = beam_search(
            model,
            [[2]],
            BeamSearch(beams=300, best=8, length_penalty=alpha),
            max_new_tokens=4,
            is_finished=ended,
            trace=trace,
        )
        stops = {EOS, *last}
        wanted: list[tuple[float, list[int]]] = []
        for size in range(1, 5):
            for ids in itertools.product(range(6), repeat=size):
                if stops & {*ids[:-1]} or (ids[-1] not in stops and size < 4):
                    continue
                read, total = [0, 0, 2], 0.0
                for number in ids:
                    total += float(model.scores[0, read[-2], read[-1]].log_softmax(0)[number])
                    read.append(number)
                wanted.append((total / ((5 + size) / 6) ** alpha, [*ids]))
        wanted = sorted(wanted, reverse=True)[:8]
        assert [each.ids_with_eos for each in found] == [ids for _, ids in wanted]
        assert [each.score for each in found] == pytest.approx([score for score, _ in wanted], abs=1e-5)
        assert [each.finished for each in found] == [ids[-1] in stops for _, ids in wanted]
        assert all(node.outcome != "kept" for node in trace.nodes[0] if node.id in stops)
    assert {*batch_sizes} == {0}


def test_cancelled_search_returns_finished_texts() -> None:
    class Halting(Tables):
        def step(self, ids: Tensor, state: Any, record: Any = None) -> tuple[Tensor, Any]:
            if len(self.batch_sizes) == 5:
                cancelled.set()
            return super().step(ids, state, record)

    cancelled = Event()
    tokens = [2, 100, 3, 100]
    model = Halting(texts=4, eos_id=None)
    with pytest.raises(SearchInterrupted) as stopped:
        beam_search(model, [[]] * 4, max_new_tokens=tokens, cancelled=cancelled)
    assert len(model.batch_sizes) == 6, "at once"
    assert [len(best[0].ids) if best else None for best in stopped.value.found] == [2, None, 3, None]
    assert {text: len(best[0].ids) for text, best in stopped.value.best.items()} == {1: 6, 3: 6}
