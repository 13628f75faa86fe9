"""Sentence splitting and encoding in worker processes.

A worker is a plain Python process that answers pickled messages on its standard streams: unlike
multiprocessing it never runs the caller's script again, needs no fork of a threaded process, and ends with its parent.
"""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from queue import SimpleQueue
from typing import IO, cast

import numpy as np

from keel.data.corpus import Block
from keel.data.masking_units import EncodedUnits, MaskingUnits
from keel.data.ordered_map import ordered_map
from keel.data.sentence_splitting import CHINESE, SPLITTERS, Sentences
from keel.data.token_offsets import TokenOffsets
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """A chunk as ids, with `position << 1 | begins a document` for each sentence."""

    ids: np.ndarray
    bounds: np.ndarray
    words: np.ndarray | None
    units: EncodedUnits | None
    open_document: bool
    """Whether a document has begun without a sentence so far."""


def encode_chunk(
    tokenizer: Tokenizer,
    chunk: list[Block],
    words: bool,
    sentences: Sentences = "split",
    units: MaskingUnits | None = None,
) -> Encoded:
    """Split the text of a chunk into sentences and encode them; what gives no ids is dropped."""
    found: list[str] = []
    begin_indices: set[int] = set()
    for begins, text, _ in chunk:
        if begins:
            begin_indices.add(len(found))
        found += SPLITTERS[sentences](text)
    ids, lengths = tokenizer.encode_flat(found)
    kept = np.flatnonzero(lengths)
    begins = np.zeros(len(found) + 1, np.int64)
    begins[list(begin_indices)] = 1
    begun = np.cumsum(begins)  # documents begun at each sentence, and at the end
    before = np.concatenate([[0], begun[kept]])
    return Encoded(
        ids=ids.astype(id_type(tokenizer)),
        bounds=(np.cumsum(lengths) - lengths)[kept] << 1 | (np.diff(before) > 0),
        words=word_starts(tokenizer, found, ids, lengths) if words else None,
        units=units.encode(tokenizer, found) if units else None,
        open_document=bool(begun[-1] > before[-1]),
    )


def word_starts(tokenizer: Tokenizer, texts: list[str], ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """[tokens] bool: whether each token begins a word; Chinese words by jieba, each character of Japanese."""
    starts = ~tokenizer.continues_word[ids]
    by_offset = [number for number, text in enumerate(texts) if tokenizer.kind != "wordpiece" or CHINESE.search(text)]
    if by_offset:
        chosen = [texts[number] for number in by_offset]
        whole = np.isin(np.repeat(np.arange(len(texts)), lengths), by_offset)
        starts[whole] = TokenOffsets(chosen, tokenizer.encode_with_offsets(chosen)).word_starts()
    return starts


def id_type(tokenizer: Tokenizer) -> type[np.uint16] | type[np.uint32]:
    """The smallest integer type for the ids."""
    return np.uint16 if len(tokenizer) <= 1 << 16 else np.uint32


def encode_chunks(
    tokenizer: Tokenizer,
    chunks: Iterable[list[Block]],
    *,
    words: bool,
    sentences: Sentences = "split",
    units: MaskingUnits | None = None,
    workers: int,
) -> Iterator[Encoded]:
    """Encode chunks in parallel processes (threads, for compiled code); yields them in order."""
    chunks = iter(chunks)
    first = list(islice(chunks, 2))
    chunks = chain(first, chunks)
    encode_here = partial(encode_chunk, tokenizer, words=words, sentences=sentences, units=units)
    if workers == 1 or len(first) < 2 or (units and units.tagger):  # a model takes all cores, or a GPU, itself
        yield from map(encode_here, chunks)
        return
    if tokenizer.compile():
        yield from ordered_map(encode_here, chunks, workers)
        return
    pool = [_Worker(tokenizer, words, sentences, units) for _ in range(workers)]
    idle: SimpleQueue[_Worker] = SimpleQueue()
    for worker in pool:
        idle.put(worker)

    def encode(chunk: list[Block]) -> Encoded:
        worker = idle.get()
        try:
            return worker.encode(chunk)
        finally:
            idle.put(worker)

    try:
        yield from ordered_map(encode, chunks, workers)
    finally:
        for worker in pool:
            worker.end()


class _Worker:
    """One process that encodes chunks."""

    def __init__(self, tokenizer: Tokenizer, words: bool, sentences: Sentences, units: MaskingUnits | None):
        path = os.pathsep.join(filter(None, sys.path))
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from keel.data.encoding_worker import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"},
            start_new_session=True,  # Ctrl-C is for the parent, which ends the workers itself
        )
        self.requests = cast(IO[bytes], self.process.stdin)
        self.answers = cast(IO[bytes], self.process.stdout)
        self._send((tokenizer.to_json(), tokenizer.extra_rules, words, sentences, units))

    def encode(self, chunk: list[Block]) -> Encoded:
        try:
            self._send(chunk)
            answer = pickle.load(self.answers)
        except (OSError, EOFError, pickle.UnpicklingError):
            raise KeelError("an encoding process was killed (out of memory?): rerun the command to resume") from None
        if isinstance(answer, str):
            raise KeelError(answer)
        return answer

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.answers.close()
        with suppress(OSError):  # unsent data
            self.requests.close()

    def _send(self, message: object) -> None:
        pickle.dump(message, self.requests, pickle.HIGHEST_PROTOCOL)
        self.requests.flush()


def serve() -> None:
    """Answer messages on the standard streams until the parent is gone."""
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    description, own, words, sentences, units = pickle.load(requests)
    tokenizer = None
    while True:
        try:
            chunk = pickle.load(requests)
        except EOFError:
            return
        try:
            tokenizer = tokenizer or Tokenizer.from_json(description, **own)
            answer = encode_chunk(tokenizer, chunk, words, sentences, units)
        except KeelError as error:
            answer = str(error)
        except Exception as error:
            what = f"{type(error).__name__}: {error}".removesuffix(": ")
            answer = f"an encoding process failed ({what}): rerun the command to resume, and report repeated failures"
        pickle.dump(answer, answers, pickle.HIGHEST_PROTOCOL)
        answers.flush()
