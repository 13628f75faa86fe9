"""A beam search finds what it should: all of it if it is wide enough, and in a batch what it finds alone."""

import itertools
from dataclasses import dataclass
from threading import Event
from typing import Any

import pytest
import torch
from torch import Tensor

from keel.errors import UsageError
from keel.generation.beam_search import BeamSearch, Hypothesis, Stopped, beam_search
from keel.generation.decoding_trace import Trace
from keel.generation.sampling import Sampling, sample
from keel.nn.encoder import DecodingState
from keel.training.objective import Tensors

CLOSING = 1


@dataclass(frozen=True, kw_only=True)
class Read(Tensors):
    ids: Tensor  # [rows, time]


@dataclass(frozen=True, kw_only=True)
class Texts(Tensors):
    numbers: Tensor  # [texts]


class Tables:
    """What comes next hangs on the last two ids; written from texts, on the text too."""

    bos_id, max_context = 0, None

    def __init__(
        self, vocabulary: int = 6, texts: int = 0, seed: int = 0, closing: int | None = CLOSING, sharp: float = 1.0
    ) -> None:
        self.eos_id = closing
        self.texts = texts
        self.asked: list[int] = []
        random = torch.Generator().manual_seed(seed)
        self.scores = torch.randn(max(texts, 1), vocabulary, vocabulary, vocabulary, generator=random) * sharp

    def new_state(self, batch_size: int) -> Any:
        own = Read(ids=torch.zeros(batch_size, 1, dtype=torch.int64))
        return DecodingState(source=Texts(numbers=torch.arange(self.texts)), own=own) if self.texts else own

    def step(self, ids: Tensor, state: Any, record: Any = None) -> tuple[Tensor, Any]:
        self.asked.append(len(ids))
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


def every(writer: Tables, prompt: list[int], tokens: int, alpha: float, text: int = 0) -> list[tuple[float, list[int]]]:
    """All texts there are with their scores, the best first: those that close, and those that are cut off."""
    vocabulary = writer.scores.shape[-1]
    found: list[tuple[float, list[int]]] = []
    for size in range(1, tokens + 1):
        for ids in itertools.product(range(vocabulary), repeat=size):
            if CLOSING in ids[:-1] or (ids[-1] != CLOSING and size < tokens):
                continue
            read, total = [0, 0, *prompt], 0.0
            for number in ids:
                total += float(writer.scores[text, read[-2], read[-1]].log_softmax(0)[number])
                read.append(number)
            found.append((total / ((5 + size) / 6) ** alpha, [number for number in ids if number != CLOSING]))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("alpha", [-1.0, 0.0, 0.6, 2.0])
@pytest.mark.parametrize("texts", [0, 1])
def test_a_beam_as_wide_as_everything_finds_the_best_there_is(alpha: float, texts: int) -> None:
    for seed in range(3):
        writer = Tables(vocabulary=4, texts=texts, seed=seed)
        expected = every(writer, [2], 4, alpha)[:5]
        (found,) = beam_search(writer, [[2]], BeamSearch(beams=256, length_penalty=alpha, best=5), tokens=4)
        assert [each.ids for each in found] == [ids for _, ids in expected]
        assert [each.score for each in found] == pytest.approx([score for score, _ in expected], abs=1e-5)
        for each in found:
            size = len(each.ids) + each.ended
            assert each.score == pytest.approx(each.log_probability / ((5 + size) / 6) ** alpha, abs=1e-5)


@pytest.mark.parametrize("alpha", [0.0, 1.5])
@pytest.mark.parametrize("texts", [0, 5])
def test_a_beam_of_one_is_greedy(texts: int, alpha: float) -> None:
    prompts = [[2], [3], [4], [5], [0]]
    writer = Tables(texts=texts, seed=4)
    found = beam_search(writer, prompts, BeamSearch(beams=1, length_penalty=alpha), tokens=12)
    steps = list(sample(writer, prompts, Sampling(temperature=0), tokens=12, stop={CLOSING}))
    for row, (best,) in enumerate(found):
        ids = [step[row] for step in steps]
        assert best.ids == (ids[: ids.index(CLOSING)] if CLOSING in ids else ids)
        assert best.ended == (CLOSING in ids)
    assert len({best.ended for (best,) in found}) == 2 or all(best.ended for (best,) in found)


@pytest.mark.parametrize("texts", [0, 6])
def test_in_a_batch_each_text_gets_what_it_gets_alone(texts: int) -> None:
    prompts = [[2], [3, 4], [], [5], [4, 4], [2, 2]]
    search, tokens = BeamSearch(beams=3, best=3), [15, 2, 15, 1, 4, 15]
    writer = Tables(texts=texts, seed=7)
    together = beam_search(writer, prompts, search, tokens=tokens, banned=[3])
    for number, prompt in enumerate(prompts):
        alone = Tables(seed=7)
        alone.scores = writer.scores[number : number + 1] if texts else writer.scores
        assert same(beam_search(alone, [prompt], search, tokens=tokens[number], banned=[3])[0], together[number])
        assert all(len(each.closed) <= tokens[number] for each in together[number])
        assert all(3 not in each.ids for each in together[number])
        scores = [each.score for each in together[number]]
        assert scores == sorted(scores, reverse=True)
        assert len({tuple(each.ids) for each in together[number]}) == 3, "no text is given twice"


def same(one: list[Hypothesis], other: list[Hypothesis]) -> bool:
    assert [each.score for each in one] == pytest.approx([each.score for each in other], abs=1e-5)
    return [(each.ids, each.ended) for each in one] == [(each.ids, each.ended) for each in other]


def reference(
    writer: Tables, prompt: list[int], beams: int, tokens: int, alpha: float, best: int
) -> list[tuple[list[int], float]]:
    """The same search, one hypothesis after the other, to the last token."""
    rows: list[tuple[float, list[int]]] = [(0.0, [])]
    ended: list[tuple[float, list[int]]] = []
    for size in range(1, tokens + 1):
        candidates: list[tuple[float, list[int]]] = []
        for total, ids in rows:
            read = [0, 0, *prompt, *ids]
            chances = writer.scores[0, read[-2], read[-1]].log_softmax(0).tolist()
            candidates += [(total + chance, [*ids, number]) for number, chance in enumerate(chances)]
        candidates.sort(key=lambda each: -each[0])
        divisor = ((5 + size) / 6) ** alpha
        ended += [(total / divisor, ids[:-1]) for total, ids in candidates[:beams] if ids[-1] == CLOSING]
        rows = [(total, ids) for total, ids in candidates if ids[-1] != CLOSING][:beams]
        if size == tokens:
            ended += [(total / divisor, ids) for total, ids in rows]
    return [(ids, score) for score, ids in sorted(ended, key=lambda each: -each[0])[:best]]


@pytest.mark.parametrize("alpha", [-0.5, 0.0, 0.6, 1.0, 2.0])
def test_stopping_early_changes_nothing(alpha: float) -> None:
    saved = 0
    for seed in range(12):
        writer = Tables(vocabulary=7, seed=seed, sharp=2.0)
        (found,) = beam_search(writer, [[2]], BeamSearch(beams=3, length_penalty=alpha, best=2), tokens=20)
        expected = reference(writer, [2], 3, 20, alpha, 2)
        assert [each.ids for each in found] == [ids for ids, _ in expected]
        assert [each.score for each in found] == pytest.approx([score for _, score in expected], abs=1e-4)
        saved += 20 - len(writer.asked)
    assert saved > 20 or alpha == 2, "and it does stop early"


def test_texts_that_are_done_leave_the_batch() -> None:
    writer = Tables(vocabulary=7, texts=8, seed=3, sharp=3.0)
    found = beam_search(writer, [[]] * 8, BeamSearch(beams=4), tokens=30)
    assert writer.asked[:2] == [8, 32], "hypotheses of a text begin as one row"
    assert writer.asked == [8, *sorted(writer.asked[1:], reverse=True)]
    assert writer.asked[-1] < 32
    assert all(count % 4 == 0 for count in writer.asked[1:])
    assert len({len(best.ids) for (best,) in found}) > 1


def test_without_a_closing_mark_texts_are_cut_off() -> None:
    found = beam_search(Tables(closing=None), [[2], [3]], BeamSearch(beams=3, best=3), tokens=5)
    assert all(len(each.ids) == 5 and not each.ended for text in found for each in text)
    (few,) = beam_search(Tables(vocabulary=2), [[]], BeamSearch(beams=6, best=6), tokens=1)
    assert len(few) == 2, "there are no more"


def test_it_finds_what_transformers_finds() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=23, n_positions=40, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=CLOSING,
        initializer_range=0.6,
    )  # fmt: skip
    network: Any = GPT2LMHeadModel(config).eval()

    class Gpt(Tables):
        def step(self, ids: Tensor, state: Any, record: Any = None) -> tuple[Tensor, Any]:
            read = torch.cat([state.ids, ids], 1)
            return network(read[:, 1:]).logits[:, -1], Read(ids=read)

    prompts = [[5, 6], [7, 8], [9, 2], [3, 4]]
    found = beam_search(Gpt(), prompts, BeamSearch(beams=4, length_penalty=0.0, best=4), tokens=12)
    ids = torch.tensor([[0, *prompt] for prompt in prompts])
    theirs = network.generate(
        ids, attention_mask=torch.ones_like(ids), num_beams=4, max_new_tokens=12, num_return_sequences=4,
        length_penalty=0.0, early_stopping="never", do_sample=False, pad_token_id=22, return_dict_in_generate=True,
        output_scores=True,
    )  # fmt: skip
    sequences, scores = theirs.sequences[:, 3:].tolist(), theirs.sequences_scores.tolist()
    for number, best in enumerate(found):
        for place, each in enumerate(best):
            expected = sequences[4 * number + place]
            expected = expected[: expected.index(CLOSING)] if CLOSING in expected else expected
            assert each.ids == expected[: len(each.ids)]
            assert each.score == pytest.approx(scores[4 * number + place], abs=1e-4)
    assert any(each.ended for best in found for each in best)


def test_a_trace_is_the_tree_of_the_search() -> None:
    writer, trace = Tables(texts=3, seed=5), Trace()
    prompts = [[2], [3], [4]]
    found = beam_search(writer, prompts, BeamSearch(beams=3), tokens=8, trace=trace)
    for number, (best,) in enumerate(found):
        nodes = trace.nodes[number]
        steps = {node.step for node in nodes}
        assert steps == set(range(1, max(steps) + 1))
        for step in steps:
            at = [node for node in nodes if node.step == step]
            assert sum(node.fate == "kept" for node in at) == 3
            assert all(
                nodes[node.parent].fate == "kept" and nodes[node.parent].step == step - 1 for node in at if step > 1
            )
            likeliest = sorted((node for node in at if node.id != CLOSING), key=lambda node: -node.sum)
            assert [node.fate for node in likeliest] == ["kept"] * 3 + ["dropped"] * (len(likeliest) - 3)
            assert all(bool(node.looked) == (node.fate != "dropped") for node in at)
        ids: list[int] = []
        node = next(
            node for node in nodes if node.sum == pytest.approx(best.log_probability) and node.fate != "dropped"
        )
        while True:
            ids.insert(0, node.id)
            if node.parent < 0:
                break
            node = nodes[node.parent]
        assert ids == best.closed
    first, second, *_ = trace.uses
    assert (first.rows, first.computed, first.remembered) == (3, 6, 0)
    assert (second.rows, second.computed, second.remembered) == (9, 9, 18)
    assert first.source_bytes == 24
    assert first.bytes == 3 * 3 * 8
    plain = beam_search(Tables(texts=3, seed=5), prompts, BeamSearch(beams=3), tokens=8)
    assert [same(one, other) for one, other in zip(plain, found, strict=True)] == [True] * 3, "looking changes nothing"


def test_a_trace_of_drawing_has_what_was_drawn_and_what_was_not() -> None:
    trace = Trace(shown=3)
    steps = list(sample(Tables(), [[2], [3, 4]], Sampling(seed=2), tokens=6, stop={CLOSING}, trace=trace))
    for row in (0, 1):
        taken = [node for node in trace.nodes[row] if node.fate != "dropped"]
        assert [node.id for node in taken] == [step[row] for step in steps[: len(taken)]]
        assert (taken[-1].fate == "ended") == (taken[-1].id == CLOSING)
        numbers = [-1, *(trace.nodes[row].index(node) for node in taken)]
        assert all(node.parent == numbers[node.step - 1] for node in trace.nodes[row])
        assert all(node.sum < 0 for node in taken)
        assert len(trace.nodes[row]) >= 3 * len(taken)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"beams": 0}, r"--beam must be 1 \(greedy\) or more, not 0"),
        ({"beams": 2, "best": 3}, "--best must lie between 1 and --beam 2, not at 3"),
        ({"best": 0}, "--best"),
        ({"length_penalty": float("nan")}, "--length-penalty"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        BeamSearch(**settings)


@pytest.mark.parametrize("tokens", [0, [3, 0]])
def test_nothing_cannot_be_written(tokens: Any) -> None:
    with pytest.raises(UsageError, match="--tokens must be 1 or more, not 0"):
        beam_search(Tables(), [[], []], tokens=tokens)


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_a_hypothesis_ends_where_it_is_told(alpha: float) -> None:
    """As if these ids were closing marks too: none goes on after one."""
    last, asked = {3, 4}, []

    def ended(text: int, ids: list[int]) -> bool:
        asked.append(text)
        return ids[-1] in last

    for seed in range(4):
        writer = Tables(vocabulary=6, seed=seed)
        trace = Trace()
        (found,) = beam_search(
            writer, [[2]], BeamSearch(beams=300, best=8, length_penalty=alpha), tokens=4, ended=ended, trace=trace
        )
        stops = {CLOSING, *last}
        wanted: list[tuple[float, list[int]]] = []
        for size in range(1, 5):
            for ids in itertools.product(range(6), repeat=size):
                if stops & {*ids[:-1]} or (ids[-1] not in stops and size < 4):
                    continue
                read, total = [0, 0, 2], 0.0
                for number in ids:
                    total += float(writer.scores[0, read[-2], read[-1]].log_softmax(0)[number])
                    read.append(number)
                wanted.append((total / ((5 + size) / 6) ** alpha, [*ids]))
        wanted = sorted(wanted, reverse=True)[:8]
        assert [each.closed for each in found] == [ids for _, ids in wanted]
        assert [each.score for each in found] == pytest.approx([score for score, _ in wanted], abs=1e-5)
        assert [each.ended for each in found] == [ids[-1] in stops for _, ids in wanted]
        assert all(node.fate != "kept" for node in trace.nodes[0] if node.id in stops)
    assert {*asked} == {0}


def test_a_search_that_is_halted_has_what_was_done() -> None:
    class Halting(Tables):
        def step(self, ids: Tensor, state: Any, record: Any = None) -> tuple[Tensor, Any]:
            if len(self.asked) == 5:
                halted.set()
            return super().step(ids, state, record)

    halted = Event()
    tokens = [2, 100, 3, 100]
    writer = Halting(texts=4, closing=None)
    with pytest.raises(Stopped) as stopped:
        beam_search(writer, [[]] * 4, tokens=tokens, halted=halted)
    assert len(writer.asked) == 6, "at once"
    assert [len(best[0].ids) if best else None for best in stopped.value.found] == [2, None, 3, None]
    assert {text: len(best[0].ids) for text, best in stopped.value.best.items()} == {1: 6, 3: 6}
