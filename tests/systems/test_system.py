from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

import keel
from keel.data.documents import Documents
from keel.data.token_batch import TokenBatch
from keel.data.token_store import Tokens
from keel.errors import KeelError, UsageError
from keel.systems import SYSTEMS
from keel.systems.bert import Bert
from keel.systems.cnn import Cnn
from keel.systems.fasttext import FastText
from keel.systems.ngram import Ngram
from keel.systems.system import System, supports
from keel.systems.transformer import Transformer
from keel.systems.wordclass import Wordclass


def make_documents(
    sentences: list[list[int]], *, dtype: Any = np.uint16, starts_word: list[bool] | None = None, first: int = 10
) -> Documents:
    """Documents with sentences of these lengths; ids count up from `first`, so that every token has its own."""
    lengths = [length for document in sentences for length in document]
    tokens = SimpleNamespace(
        ids=np.arange(first, first + sum(lengths)).astype(dtype),
        starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        documents=np.concatenate([[0], np.cumsum([len(document) for document in sentences])]).astype(np.int64),
        units=None,
        word_starts=None if starts_word is None else np.packbits(np.array(starts_word), bitorder="little"),
    )
    return Documents.of(cast(Tokens, tokens))


def tokens_of(documents: Documents) -> list[list[int]]:
    """The ids of each document."""
    return [
        documents.read(torch.arange(int(documents.starts[first]), int(documents.starts[last]))).tolist()
        for first, last in documents.spans.tolist()
    ]


def test_rows_are_padded_to_the_longest() -> None:
    rows = TokenBatch.pad([[5, 6, 7], [8], []], [[0, 0, 1], [1], []])
    assert rows.ids.tolist() == [[5, 6, 7], [8, 0, 0], [0, 0, 0]]
    assert rows.lengths.tolist() == [3, 1, 0]
    assert rows.segments is not None
    assert rows.segments.tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 0]]
    assert rows.ids.dtype == rows.segments.dtype == torch.int64


def test_no_rows_and_no_segments() -> None:
    assert TokenBatch.pad([]).ids.shape == (0, 0)
    assert TokenBatch.pad([[1, 2]]).segments is None


def test_rows_move_between_devices_as_one() -> None:
    moved = TokenBatch.pad([[1, 2]], [[0, 1]]).to("meta")
    assert moved.segments is not None
    assert {moved.ids.device.type, moved.lengths.device.type, moved.segments.device.type} == {"meta"}


@pytest.mark.parametrize(("dtype", "first"), [(np.uint16, 32_760), (np.uint16, 65_520), (np.uint32, 2**31 - 5)])
def test_ids_are_read_as_the_unsigned_numbers_they_are(dtype: Any, first: int) -> None:
    documents = make_documents([[3, 4], [5]], dtype=dtype, first=first)
    assert tokens_of(documents) == [list(range(first, first + 7)), list(range(first + 7, first + 12))]
    assert documents.read(torch.tensor([[0], [11]])).dtype == torch.int64


def test_documents_of_one_token_are_no_context() -> None:
    documents = make_documents([[1], [3, 1], [1], [2]])
    assert [len(ids) for ids in tokens_of(documents)] == [4, 2]
    assert documents.size == 6
    assert documents.ends.tolist() == [4, 6]
    with pytest.raises(KeelError, match="no document of two tokens or more: give it more text"):
        make_documents([[1], [1]])


def test_word_starts_are_bits() -> None:
    bits = [True, False, True, True, False, False, False, False, False, True, False]
    documents = make_documents([[6, 5]], starts_word=bits)
    assert documents.starts_word(torch.arange(11)).tolist() == bits
    assert documents.starts_word(torch.tensor([[9, 8]])).tolist() == [[True, False]]
    with pytest.raises(KeelError, match="built without word boundaries"):
        make_documents([[6, 5]]).starts_word(torch.arange(3))


@pytest.mark.parametrize("share", [0.01, 0.1, 0.3])
def test_many_documents_are_held_out_whole(share: float) -> None:
    documents = make_documents([[2, 3]] * 150)
    learned, held = documents.split_held_out(share, seed=1)
    assert held is not None
    assert len(held.spans) == max(2, round(share * 150))
    assert sorted(tokens_of(learned) + tokens_of(held)) == tokens_of(documents)
    again = documents.split_held_out(share, seed=1)[1]
    assert again is not None
    assert torch.equal(again.spans, held.spans)
    other = documents.split_held_out(share, seed=2)[1]
    assert other is not None
    assert not torch.equal(other.spans, held.spans)


def test_few_documents_give_the_ends_of_the_long_ones() -> None:
    documents = make_documents([[2] * 30, [2] * 5, [2] * 100])
    learned, held = documents.split_held_out(0.1, seed=0)
    assert held is not None
    whole = tokens_of(documents)
    assert tokens_of(held) == [whole[0][54:], whole[2][180:]]
    assert tokens_of(learned) == [whole[0][:54], whole[1], whole[2][:180]]


def test_one_document_gives_its_end() -> None:
    learned, held = make_documents([[2] * 50]).split_held_out(0.02, seed=0)
    assert held is not None
    assert (learned.size, held.size) == (98, 2)


@pytest.mark.parametrize(
    ("sentences", "share"),
    [
        ([[2] * 5, [2] * 5], 0.1),  # too short
        ([[2] * 30, [2] * 5], 0.1),  # one long one: its end alone would leave pairs nothing to sample
        ([[2] * 49 + [1]], 0.01),  # the end is a single token
        ([[2] * 50] * 150, 0.0),
    ],
)
def test_nothing_is_held_out_where_nothing_can_be(sentences: list[list[int]], share: float) -> None:
    documents = make_documents(sentences)
    assert documents.split_held_out(share, seed=0) == (documents, None)


def test_unknown_size_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        UsageError, match="bert has no size 'huge': choose one of tiny, mini, small, medium, base, large"
    ):
        Bert.sized("huge")


@pytest.mark.parametrize("kind", SYSTEMS.values())
def test_a_setting_is_held_to_its_annotation_when_a_system_is_made(kind: type[System]) -> None:
    for field in fields(kind):
        with pytest.raises(UsageError, match=f"^{kind.__name__}: {field.name} must be .*, not <"):
            kind(**{field.name: object()})
        if isinstance(field.default, str):
            with pytest.raises(UsageError, match=f"^{kind.__name__}: {field.name} must be one of '.*, not 'foo'$"):
                kind(**{field.name: "foo"})
        assert kind(**{field.name: field.default}) == kind()


@pytest.mark.parametrize(
    ("system", "task", "trained", "supported"),
    [
        (Ngram(), "classify", False, False),
        (Ngram(), "tag", True, False),
        (Ngram(), "pretrain", True, False),
        (Wordclass(), "classify", False, False),
        (Wordclass(), "classify", True, True),
        (Wordclass(), "seq2seq", True, False),
        (FastText(supervised=True), "pretrain", False, False),
        (FastText(supervised=True), "classify", False, True),
        (Cnn(), "pretrain", False, False),
        (Bert(), "seq2seq", False, False),
        (Transformer(), "seq2seq", False, True),
    ],
)
def test_what_a_system_does_not_support_has_a_reason(system: System, task: str, trained: bool, supported: bool) -> None:
    assert supports(system, task, trained=trained) is supported
    assert bool(system.unsupported_reason(task, trained=trained)) is not supported


def test_unsupported_tasks_are_refused_before_anything_is_built(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="trained on labels"):
        keel.pretrain("fasttext", ["a text"], out=tmp_path / "m", supervised=True)
    with pytest.raises(UsageError, match="clustered from text"):
        keel.finetune(Wordclass(), [("a", "x"), ("b", "y")], out=tmp_path / "m")
    assert not (tmp_path / "m").exists()
