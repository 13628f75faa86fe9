"""Encoding a corpus: Tokens.build against the bare `tokenizers` library on the same text, all cores, interleaved.

    python benchmarks/encode.py corpus.txt.xz --vocabulary vocab.txt
    python benchmarks/encode.py corpus.txt.xz --vocabulary encoder.json --merges vocab.bpe

Keel reads and decompresses the file, splits sentences, encodes, writes and checksums. The library only encodes lines
that already lie in memory, and drops the result. Every measurement is a process of its own.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from keel.data.corpus import Corpus
from keel.data.sentence_splitting import split_sentences
from keel.data.text_files import open_text
from keel.data.token_store import Tokens
from keel.data.tokenizer import Tokenizer


def bare(tokenizer: Tokenizer, corpus: Path) -> dict[str, float]:
    """Encode lines by the library alone."""
    lines = [line for _, line in open_text(corpus) if line]
    start = time.perf_counter()
    for first in range(0, len(lines), 10_000):
        tokenizer._inner.encode_batch_fast(lines[first : first + 10_000], add_special_tokens=False)
    return {"seconds": time.perf_counter() - start, "bytes": sum(len(line.encode()) + 1 for line in lines)}


def keel(tokenizer: Tokenizer, corpus: Path) -> dict[str, float]:
    """Build tokens from the file."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        tokens = Tokens.build(Corpus(corpus), tokenizer, folder)
        seconds = time.perf_counter() - start
        disk = sum(path.stat().st_size for path in Path(folder).iterdir())
        return {"seconds": seconds, "ids": len(tokens), "sentences": len(tokens.starts) - 1, "disk": disk}


def sentences(tokenizer: Tokenizer, corpus: Path) -> dict[str, float]:
    """Only split sentences, on one core."""
    blocks = [block.text for block in Corpus(corpus).blocks()]
    start = time.process_time()
    for text in blocks:
        split_sentences(text)
    return {"seconds": time.process_time() - start}


def measure(arguments: argparse.Namespace) -> None:
    vocabulary = arguments.vocabulary
    merges = arguments.merges
    tokenizer = Tokenizer.from_merges(vocabulary, merges) if merges else Tokenizer.from_vocabulary(vocabulary)
    found = {"bare": bare, "keel": keel, "sentences": sentences}[arguments.only](tokenizer, arguments.corpus)
    own, workers = (
        resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    print(json.dumps(found | {"memory": own, "worker_memory": workers}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--vocabulary", type=Path, required=True)
    parser.add_argument("--merges", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["bare", "keel", "sentences"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        measure(arguments)
        return

    def run(only: str) -> dict[str, float]:
        done = subprocess.run([sys.executable, *sys.argv, "--only", only], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    rounds = []
    for number in range(arguments.rounds):
        ours, theirs = run("keel"), run("bare")
        rounds.append((ours, theirs))
        size = theirs["bytes"] / 1e6
        print(
            f"round {number + 1}: Keel {size / ours['seconds']:.1f} MB/s, "
            f"bare tokenizers {size / theirs['seconds']:.1f} MB/s, ratio {theirs['seconds'] / ours['seconds']:.2f}"
        )
    ours, theirs = rounds[-1]
    print(f"ratio, median: {statistics.median(theirs['seconds'] / ours['seconds'] for ours, theirs in rounds):.2f}")
    print(f"sentence splitting: {theirs['bytes'] / 1e6 / run('sentences')['seconds']:.0f} MB per CPU second")
    print(f"peak memory: {ours['memory']:.0f} MB, and {ours['worker_memory']:.0f} MB in the largest worker")
    print(
        f"on disk: {ours['disk'] / ours['ids']:.2f} bytes per id "
        f"({ours['ids']:,} ids, {ours['sentences']:,} sentences), {ours['disk'] / theirs['bytes']:.2f} of the text"
    )


if __name__ == "__main__":
    main()
