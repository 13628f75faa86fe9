"""Rows, windows, the order of an epoch and what a frozen encoder keeps."""

import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from keel.data.collation import TILE, TaskBatch
from keel.data.examples import Columns, Example, Examples, read_examples
from keel.data.input_windows import text_windows
from keel.data.token_batch import TokenBatch
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError
from keel.nn.encoder import Encoder, EncoderOutput
from keel.systems.bert import BertEncoder
from keel.tasks.classify import TextClassification
from keel.tasks.pair import PairClassification
from keel.training.counter_rng import CounterRng
from keel.training.loop import fit
from keel.training.plan import Train

MakeTask = Callable[..., TextClassification]


def long_and_short(count: int = 40) -> Examples:
    draw = random.Random(1)
    texts = [" ".join(draw.choices(["film", "story", "scene"], k=draw.randint(1, 200))) for _ in range(count)]
    return read_examples([(text, "ab"[number % 2]) for number, text in enumerate(texts)], pair=False)


def test_rows_hold_what_the_system_frames(make_task: MakeTask, tokenizer: Tokenizer) -> None:
    examples = read_examples([(("film", "very old house"), "a"), (("a story", ""), "b")], pair=True)
    data = make_task(examples, "pair").encode_examples(examples)
    rows = data.padded_batch(np.array([1, 0]))
    (film, very, old, house, a, story), cls, sep = (
        tokenizer.encode_many(["film very old house a story"])[0],
        tokenizer.cls_id,
        tokenizer.sep_id,
    )
    assert rows.lengths.tolist() == [5, 7]
    assert rows.ids.tolist() == [[cls, a, story, sep, sep, 0, 0], [cls, film, sep, very, old, house, sep]]
    assert rows.segments is not None
    assert rows.segments.tolist() == [[0, 0, 0, 0, 1, 0, 0], [0, 0, 0, 1, 1, 1, 1]]


@pytest.mark.parametrize(("length", "room"), [(5, 10), (10, 10), (11, 10), (17, 10), (18, 10), (100, 10), (1000, 62)])
def test_windows_cover_a_text_and_overlap(length: int, room: int) -> None:
    text = list(range(length))
    parts = [first for first, _ in text_windows(text, None, room)]
    assert {number for part in parts for number in part} == set(text)
    assert all(part == list(range(part[0], part[-1] + 1)) for part in parts)
    assert all(len(part) == min(room, length) for part in parts)
    assert all(later[0] <= former[-1] - room // 4 + 1 for former, later in pairwise(parts))
    assert len(parts) <= 1 + max(0, length - room) / (room - room // 4) + 1


@pytest.mark.parametrize(("first", "second"), [(3, 4), (3, 50), (50, 3), (30, 70), (8, 8), (0, 30), (30, 0)])
def test_windows_of_a_pair_cover_both_and_fit(first: int, second: int) -> None:
    one, two = list(range(first)), list(range(100, 100 + second))
    parts = text_windows(one, two, 12)
    assert {number for part, _ in parts for number in part} == set(one)
    assert {number for _, part in parts for number in part or []} == set(two)
    assert all(len(part) + len(other or []) <= 12 for part, other in parts)
    if first <= 6:
        assert all(part == one for part, _ in parts)


def test_long_texts_are_windowed_and_it_is_said(make_task: MakeTask) -> None:
    examples = long_and_short()
    said: list[str] = []
    data = make_task(examples).encode_examples(examples, on_event=lambda event: said.append(event["text"]))
    lengths = np.array([len(example.text.split()) for example in examples])
    long = int((lengths > 62).sum())
    assert 0 < long < len(examples)
    assert said == [
        f"the list: {long} of 40 examples are longer than 62 tokens: split into "
        f"{np.isin(data.example_indices, np.flatnonzero(lengths > 62)).sum()} windows, whose logits are averaged"
    ]
    assert np.bincount(data.example_indices, data.weights) == pytest.approx(np.ones(40))
    assert data.lengths.max() <= 64


def test_short_texts_are_not_worth_a_note(make_task: MakeTask, reviews: Examples) -> None:
    make_task(reviews).encode_examples(reviews, on_event=lambda event: pytest.fail(event["text"]))


def test_an_epoch_reads_every_row_once_in_an_order_of_its_own(make_task: MakeTask) -> None:
    examples = long_and_short()
    task = make_task(examples)
    data = task.encode_examples(examples, batch_size=8)
    count = task.epoch_size(data)
    drawn = np.concatenate(
        [data.step_indices(CounterRng(seed=1, step=n, first_example=8 * n), range(8)) for n in range(3 * count // 8)]
    )
    for epoch in range(2):
        assert sorted(drawn[epoch * count : (epoch + 1) * count]) == list(range(count))
    assert drawn[:count].tolist() != drawn[count : 2 * count].tolist()
    assert data.epoch_order(1, 0).tolist() != data.epoch_order(2, 0).tolist()


def rows_of(batch: TaskBatch) -> TokenBatch:
    assert batch.inputs is not None
    return batch.inputs


def test_a_batch_is_a_pure_function_of_seed_step_and_rows(make_task: MakeTask) -> None:
    examples = long_and_short()
    task = make_task(examples)
    data = task.encode_examples(examples, batch_size=8)
    whole = task.batch(data, CounterRng(seed=3, step=7, first_example=56), range(8))
    again = task.encode_examples(examples, batch_size=8)
    parts = [task.batch(again, CounterRng(seed=3, step=7, first_example=56), range(a, a + 4)) for a in (4, 0)]
    assert torch.equal(whole.targets, torch.cat([parts[1].targets, parts[0].targets]))
    lengths = [rows_of(batch).lengths for batch in (whole, parts[1], parts[0])]
    assert torch.equal(lengths[0], torch.cat(lengths[1:]))
    other = task.batch(data, CounterRng(seed=4, step=7, first_example=56), range(8))
    assert rows_of(whole).ids.tolist() != rows_of(other).ids.tolist()


def test_batches_hold_next_to_no_padding(make_task: MakeTask) -> None:
    draw = random.Random(0)
    texts = [" ".join(["film"] * max(1, int(draw.expovariate(1 / 15)))) for _ in range(2000)]
    examples = read_examples([(text, "ab"[number % 2]) for number, text in enumerate(texts)], pair=False)
    task = make_task(examples)
    data = task.encode_examples(examples, batch_size=32)
    for epoch in range(2):  # 2,000 is no multiple of 32, so batches of the second epoch begin elsewhere
        steps = range(epoch * 2000 // 32 + 1, (epoch + 1) * 2000 // 32)
        rows = [rows_of(task.batch(data, CounterRng(seed=0, step=n, first_example=32 * n), range(32))) for n in steps]
        assert sum(int(r.lengths.sum()) for r in rows) > 0.9 * sum(r.ids.numel() for r in rows)
        assert np.corrcoef(range(len(rows)), [r.ids.shape[1] for r in rows])[0, 1] < 0.5  # long and short batches mixed


def test_losses_are_sums_over_examples(make_task: MakeTask) -> None:
    examples = long_and_short()
    task = make_task(examples)
    data = task.encode_examples(examples, batch_size=8)
    sums, counts = 0.0, 0.0
    for start in range(0, len(data), 8):
        batch = task.batch(data, CounterRng(seed=0, step=0, first_example=0), range(start, min(start + 8, len(data))))
        losses, _ = task(batch)
        sums += losses["loss"].item()
        counts += task.counts(batch)["loss"].item()
    assert counts == pytest.approx(40)
    whole = task.batch(data, CounterRng(seed=0, step=0, first_example=0), range(len(data)))
    assert task(whole)[0]["loss"].item() == pytest.approx(sums, rel=1e-5)


def test_a_frozen_encoder_runs_once_and_gives_the_same(make_task: MakeTask, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = long_and_short()
    plain, frozen = make_task(examples), make_task(examples, frozen=True)
    learning = {name for name, parameter in frozen.named_parameters() if parameter.requires_grad}
    assert learning == {"encoder.pooler.weight", "encoder.pooler.bias", "classifier.weight", "classifier.bias"}
    data = frozen.encode_examples(examples, batch_size=8)
    monkeypatch.setattr(frozen.encoder, "forward", lambda *_, **__: pytest.fail("the encoder ran again"))
    draw = CounterRng(seed=0, step=0, first_example=0)
    (found, _), (expected, _) = (
        frozen(frozen.batch(data, draw, range(8))),
        plain(plain.batch(plain.encode_examples(examples, batch_size=8), draw, range(8))),
    )
    assert found["loss"].item() == pytest.approx(expected["loss"].item(), rel=1e-5)
    found["loss"].backward()
    assert frozen.get_parameter("encoder.pooler.weight").grad is not None
    assert frozen.predict(data).estimates == pytest.approx(plain.predict(examples).estimates, abs=1e-6)


def test_the_shortest_rows_there_can_be_hold_windows(make_task: MakeTask) -> None:
    examples = read_examples([(("film story scene", "a very old house"), "a"), (("film " * 9, ""), "b")], pair=True)
    data = make_task(examples, "pair", positions=8).encode_examples(examples)
    assert data.lengths.max() == 8
    assert np.bincount(data.example_indices).min() > 1


def test_a_frozen_encoder_caches_what_the_system_picks(make_task: MakeTask, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that sums up by the mean of its vectors, with no weights of its own, learns by the head alone."""
    examples = long_and_short()

    def mean(encoder: BertEncoder, output: EncoderOutput, rows: TokenBatch) -> torch.Tensor:
        real = torch.arange(rows.ids.shape[1]) < rows.lengths[:, None]
        return (output.top * real[..., None]).sum(1) / rows.lengths[:, None]

    monkeypatch.setattr(BertEncoder, "pool_features", mean)
    monkeypatch.setattr(BertEncoder, "pool_projection", Encoder.pool_projection)
    monkeypatch.setattr(BertEncoder, "pooler_parameters", Encoder.pooler_parameters)
    plain, frozen = make_task(examples), make_task(examples, frozen=True)
    learning = {name for name, parameter in frozen.named_parameters() if parameter.requires_grad}
    assert learning == {"classifier.weight", "classifier.bias"}
    data = frozen.encode_examples(examples, batch_size=8)
    assert frozen.predict(data).estimates == pytest.approx(plain.predict(examples).estimates, abs=1e-6)


def test_a_task_reads_its_own_files(tmp_path: Path) -> None:
    path = tmp_path / "rte.tsv"
    path.write_text("sentence1\tsentence2\tlabel\tother\na\tb\tx\tz\n")
    assert PairClassification.read_examples(path)[0] == Example("a", "b", "x", f"{path}:2")
    events: list[dict[str, str]] = []
    assert TextClassification.read_examples(path, Columns(label_column="other"), events.append)[0] == Example(
        "a", None, "z", f"{path}:2"
    )
    assert "label in 'other'" in events[0]["text"]


def test_labels_unknown_to_the_task_are_refused(make_task: MakeTask, reviews: Examples) -> None:
    with pytest.raises(KeelError, match="'fine' did not occur in training"):
        make_task(reviews).encode_examples(read_examples([("film", "fine"), ("film", "good")], pair=False))


def test_learning_with_the_words_of_the_examples_alone_is_learning_with_all(make_task: MakeTask) -> None:
    """Words that no example holds keep their vectors; the others learn what they would have learned anyway."""
    examples = read_examples([("film story", "a"), ("old house", "b")] * 8, pair=False)
    settings = Train(steps=6, batch=4, lr=1e-2, weight_decay=0.0, device="cpu")
    whole, narrow = make_task(examples), make_task(examples)
    before = narrow.encoder.state_dict()["words.weight"].clone()
    data = narrow.encode_examples(examples, batch_size=4)
    fit(whole, data, settings)
    with narrow.restrict_embeddings(data) as learned_from:
        assert len(narrow.encoder.state_dict()["words.weight"]) == len(np.unique(data.ids)) < len(before)
        fit(narrow, learned_from, settings)
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(narrow.state_dict()[name], value, rtol=1e-5, atol=1e-6)
    after = narrow.encoder.state_dict()["words.weight"]
    moved = (after != before).any(1)
    assert set(moved.nonzero()[:, 0].tolist()) == set(np.unique(data.ids).tolist())


def test_packed_rows_are_the_padded_ones_without_padding(make_task: MakeTask, monkeypatch: pytest.MonkeyPatch) -> None:
    for kernel in ("attention", "gelu", "layer_norm"):  # their twins: the kernels have tests of their own
        monkeypatch.setattr(f"keel.kernels.{kernel}.triton_usable", lambda x: False)
    examples = read_examples([("film", "a"), ("a very old house and a garden", "b"), ("story of it", "a")], pair=False)
    task = make_task(examples).eval()
    data = task.encode_examples(examples)
    index = np.array([2, 0, 1])
    padded, packed = data.padded_batch(index), data.packed_batch(index)
    assert packed.sequence_starts is not None
    assert packed.max_seqlen >= int(packed.lengths.max())
    assert packed.ids.shape[1] == -(-int(packed.lengths.sum()) // TILE) * TILE
    torch.testing.assert_close(task.select_features(packed), task.select_features(padded), rtol=1e-4, atol=1e-5)
    top = task.encoder(packed).top
    for row, (start, length) in enumerate(zip(packed.sequence_starts.tolist(), packed.lengths.tolist(), strict=True)):
        expected = task.encoder(padded).top[row, :length]
        torch.testing.assert_close(top[0, start : start + length], expected, rtol=1e-4, atol=1e-5)
