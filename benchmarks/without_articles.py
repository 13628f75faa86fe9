"""A corpus without the documents that a test set was made of: those that share any 13 words in a row with its files.

Words are runs of alphanumeric characters in lower case, so that tokenized text is found too; n-grams do not
span an <unk>. Documents of the corpus are parted by blank lines. Files may be .xz or plain, in and out.

    python benchmarks/without_articles.py en_wikipedia.txt.xz out.txt.xz --tests wikitext2/valid.txt.xz \\
        wikitext2/test.txt.xz lambada/lambada_test.jsonl.xz
"""

import argparse
import lzma
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from keel.data.text_files import open_text

WORD = re.compile(r"[^\W_]+")
ORDER = 13
AT_ONCE = 1 << 20
"""Characters of documents that are looked at together."""
FACTORS = np.random.default_rng(0).integers(1 << 62, size=ORDER, dtype=np.uint64) * np.uint64(2) + np.uint64(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tests", type=Path, nargs="+", required=True)
    options = parser.parse_args()
    numbers: dict[str, int] = {}
    grams = [ngrams([part], numbers)[0] for path in options.tests for part in parts_of(path)]
    known = np.unique(np.concatenate(grams))
    print(f"{len(known):,} different {ORDER}-grams in {len(options.tests)} files")
    kept = dropped = size = lost = 0
    with open_output(options.out) as out:
        for documents in chunks(options.corpus):
            found, owners = ngrams(documents, numbers)
            positions = np.minimum(np.searchsorted(known, found), len(known) - 1)
            shared = set(owners[known[positions] == found].tolist())
            for number, document in enumerate(documents):
                if number in shared:
                    dropped, lost = dropped + 1, lost + len(document)
                else:
                    out.write(document + "\n\n")
                    kept, size = kept + 1, size + len(document)
    print(f"{kept:,} documents kept ({size / 1e6:.1f}M characters), {dropped:,} left out ({lost / 1e6:.1f}M)")


def parts_of(path: Path) -> Iterator[str]:
    """The text of a test file between its unknown words; in jsonl a line break is written as a character after \\\\."""
    for _, line in open_text(path):
        plain = line.replace("\\n", " ").replace('\\"', " ") if ".jsonl" in path.name else line
        yield from plain.split("<unk>")


def chunks(path: Path) -> Iterator[list[str]]:
    """Documents in batches."""
    documents: list[str] = []
    lines: list[str] = []
    size = 0
    for _, line in open_text(path):
        if line.strip():
            lines.append(line.rstrip("\n"))
        elif lines:
            documents.append("\n".join(lines))
            lines = []
            size += len(documents[-1])
            if size > AT_ONCE:
                yield documents
                documents, size = [], 0
    if lines:
        documents.append("\n".join(lines))
    if documents:
        yield documents


def ngrams(documents: list[str], numbers: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """A 64-bit hash of every 13 words in a row of each document, and the document's number."""
    hashes, owners = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for number, document in enumerate(documents):
        words = [numbers.setdefault(word, len(numbers)) for word in WORD.findall(document.lower())]
        if len(words) < ORDER:
            continue
        ids = mix_bits(np.array(words, np.uint64))
        count = len(ids) - ORDER + 1
        total = np.zeros(count, np.uint64)
        for place, factor in enumerate(FACTORS):
            total += ids[place : place + count] * factor
        hashes.append(mix_bits(total))
        owners.append(np.full(count, number))
    return np.concatenate(hashes), np.concatenate(owners)


def mix_bits(x: np.ndarray) -> np.ndarray:
    """SplitMix64's finalizer."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def open_output(path: Path) -> IO[str]:
    if path.suffix == ".xz":
        return lzma.open(path, "wt", encoding="utf-8", preset=1)
    return open(path, "w", encoding="utf-8")


if __name__ == "__main__":
    main()
