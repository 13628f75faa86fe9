"""Damaged files of every kind: each reader reads them or refuses them with one sentence, never with a traceback."""

import bz2
import gzip
import json
import lzma
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from keel.cli.flags import Recipe
from keel.data.corpus import Corpus
from keel.data.word_benchmarks import published_form
from keel.errors import KeelError
from keel.explain.nearest_neighbors import VectorSpace
from keel.explain.vector_benchmarks import evaluate_vectors
from keel.formats.vector_files import read_vectors
from keel.tasks import TASKS

ROUNDS = 12
"""Damaged versions of each file that each of its readers gets."""
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}
DEEP = 100_000
"""Levels of nesting that no parser follows."""


def parquet(tmp_path: Path) -> bytes:
    table = pyarrow.table({"text": ["one boat", "好的"] * 20, "label": ["a", "b"] * 20})
    pyarrow.parquet.write_table(table, tmp_path / "whole.parquet")
    return (tmp_path / "whole.parquet").read_bytes()


def contents(tmp_path: Path) -> dict[str, bytes]:
    """A sound file of each kind, by suffix."""
    rows = [("a quiet boat", "good"), ("some, cold wind", "bad"), ("很好的", "good")] * 5
    choice = {"context": "a boat", "choices": ["sails", "eats"], "label": 1}
    words = "".join(f"{word} {n / 7} {n} 0.5\n" for n, word in enumerate(("the", "boat", "wind", "好")))
    texts = {
        ".txt": "\n\n".join(text for text, _ in rows),
        ".tsv": "text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows),
        ".csv": "text,label\n" + "".join(f'"{text}",{label}\n' for text, label in rows),
        ".jsonl": "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows),
        ".ndjson": (json.dumps(choice) + "\n") * 4,
        ".json": json.dumps([choice] * 3, indent=1),
        ".conll": "a DT\nboat NN\n\nwind NN\nis VB\n" * 4,
        ".conllu": "1\ta\t_\tDET\t_\t_\t0\t_\t_\t_\n\n" * 4,
        ".toml": '[system]\nname = "bert"\nlayers = 2\n\n[train]\nsteps = 3\nlr = 1e-3\n',
        ".vec": "4 3\n" + words,
        ".glove": words,
        ".pairs": "boat\twind\t3.5\nthe\tboat\t1.0\n",
        ".questions": ": sea\nthe boat wind 好\n",
    }
    binary = b"4 3\n" + b"".join(word + b" " + struct.pack("<3f", 1, 2, 3) for word in (b"the", b"boat", b"sea", b"a"))
    return {name: text.encode() for name, text in texts.items()} | {".bin": binary, ".parquet": parquet(tmp_path)}


def damage(content: bytes, rng: random.Random) -> bytes:
    """The content with one to three faults."""
    found = bytearray(content)
    for _ in range(rng.randint(1, 3)):
        start = rng.randrange(len(found) + 1)
        end = start + rng.randint(1, 12)
        match rng.randrange(7):
            case 0:
                del found[start:]
            case 1:
                found[start:end] = rng.randbytes(end - start)
            case 2:
                found[start:end] = bytes(end - start)
            case 3:
                found[start:start] = rng.choice(
                    [b'"', b"\n", b"\t", b"{", b"[" * 2000, b"\xff\xfe", b"\xef\xbb\xbf", b"\r"]
                )
            case 4:
                del found[start:end]
            case 5:
                found[start:start] = found[:end]
            case _:
                found[start:end] = "é–".encode(rng.choice(["cp1252", "utf-16", "gb18030"]))
    return bytes(found)


def read_corpus(path: Path) -> None:
    list(Corpus(path).documents())


def read_benchmark(path: Path) -> None:
    published_form(path)
    vectors = np.array([[1, 0], [0, 1], [1, 1], [1, 2]], np.float32)
    evaluate_vectors(VectorSpace(["the", "boat", "wind", "好"], vectors), path)


READERS: dict[str, Callable[[Path], Any]] = {
    **{name: task.read_examples for name, task in TASKS.items()},
    "corpus": read_corpus,
    "recipe": lambda path: Recipe.read(str(path)),
    "vectors": read_vectors,
    "benchmark": read_benchmark,
}


@pytest.mark.parametrize("reader", READERS)
def test_damaged_files_are_read_or_refused(tmp_path: Path, reader: str) -> None:
    rng = random.Random(reader)
    for suffix, content in contents(tmp_path).items():
        for number in range(ROUNDS):
            packer = rng.choice([*PACKERS] if number % 2 else [""])
            found = PACKERS[packer](content if number % 3 else damage(content, rng))
            found = damage(found, rng) if packer or number % 3 else found
            wrong = rng.choice([".csv", ".parquet", ".jsonl", ".txt", ".json"])  # of every fourth file
            path = tmp_path / f"damaged{wrong if number % 4 == 3 else suffix}{packer}"
            path.write_bytes(found)
            sentence = path.name
            try:
                READERS[reader](path)
            except KeelError as error:
                sentence = str(error)
            except Exception as error:
                pytest.fail(f"{type(error).__name__}: {error} ({path.name}, {found[:300]!r})")
            assert path.name in sentence
            assert "\n" not in sentence


@pytest.mark.parametrize(("suffix", "content"), [
    (".jsonl", '{"text": ' + "[" * DEEP + "\n"),
    (".jsonl", '{"text": ' * DEEP + "\n"),
    (".json", '["a", ' + "[" * DEEP),
    (".toml", "a = " + "[" * DEEP),
    (".toml", "a." * DEEP + "b = 1"),
])  # fmt: skip
def test_deep_nesting_is_refused(tmp_path: Path, suffix: str, content: str) -> None:
    path = tmp_path / f"deep{suffix}"
    path.write_text(content)
    for reader in ["recipe"] if suffix == ".toml" else ["classify", "choose", "tag", "corpus"]:
        with pytest.raises(KeelError, match=rf"deep\{suffix}"):
            READERS[reader](path)
