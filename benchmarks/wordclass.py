"""Word classes: seconds by words and classes, and against Liang's wcluster on the same words if it is given.

    python benchmarks/wordclass.py corpus.txt --megabytes 20 --shapes 10000x200 20000x500 [--peer path/to/wcluster]

The peer (github.com/percyliang/brown-cluster, built by its Makefile) reads our words, one sentence a line, and has one
thread as we have. CPU seconds count; the peer's have its reading and writing among them, ours have not. The mutual
information of the classes that each side finds is computed by one function, from the files that both write.
"""

import argparse
import resource
import subprocess
import tempfile
import time
from collections import Counter
from itertools import pairwise
from math import log
from pathlib import Path

from keel.data.corpus import Corpus
from keel.data.documents import Documents
from keel.data.text_files import open_text
from keel.data.token_store import Tokens
from keel.data.tokenizer import Tokenizer
from keel.systems.wordclass import Wordclass
from keel.training.loop import fit


def information(text: Path, classes: dict[str, str]) -> float:
    """Average mutual information of neighbouring classes, in nats."""
    pairs: Counter[tuple[str, str]] = Counter()
    for line in text.read_text(encoding="utf-8").splitlines():
        pairs.update(pairwise(classes[word] for word in line.split(" ") if word in classes))
    left: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for (a, b), count in pairs.items():
        left[a] += count
        right[b] += count
    total = pairs.total()
    return sum(n / total * log(n * total / (left[a] * right[b])) for (a, b), n in pairs.items())


def read_paths(text: str) -> dict[str, str]:
    """bits, word and count in a line."""
    return {line.split("\t")[1]: line.split("\t")[0] for line in text.splitlines()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--shapes", nargs="+", default=["10000x200", "20000x500"], metavar="WORDSxCLASSES")
    parser.add_argument("--peer", type=Path, help="wcluster")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        raw, text = Path(folder) / "raw.txt", Path(folder) / "words.txt"
        size = 0
        with open(raw, "w", encoding="utf-8") as file:
            for _, line in open_text(arguments.corpus):
                file.write(line + "\n")
                size += len(line.encode()) + 1
                if size > arguments.megabytes * 1e6:
                    break
        for shape in arguments.shapes:
            words, classes = map(int, shape.split("x"))
            tokenizer = Tokenizer.train(Corpus(raw), kind="words", size=words + 5)
            tokens = Tokens.build(Corpus(raw), tokenizer, Path(folder) / f"tokens-{shape}")
            names, special_ids = [tokenizer.token_of(n) for n in range(len(tokenizer))], set(tokenizer.special_ids)
            with open(text, "w", encoding="utf-8") as file:
                for begin, stop in pairwise(tokens.starts.tolist()):
                    line = [names[number] for number in tokens.ids[begin:stop].tolist() if number not in special_ids]
                    file.write(" ".join(line) + "\n" if line else "")
            system = Wordclass(classes=classes)
            encoder = system.build_encoder(len(tokenizer))
            objective = system.build_objective(encoder, tokenizer)
            documents = Documents.of(tokens)
            begun, wall = time.process_time(), time.perf_counter()
            fit(objective, documents, system.pretraining_defaults)
            ours, wall = time.process_time() - begun, time.perf_counter() - wall
            found = information(text, read_paths(encoder.extra_files(tokenizer)["classes.tsv"]))
            print(f"{shape}, {len(tokens):,} tokens: {ours:.1f} CPU s ({wall:.1f} s wall), information {found:.4f}")
            if arguments.peer:
                out = Path(folder) / f"peer-{shape}"
                command = [arguments.peer, "--text", text, "--c", str(classes), "--threads", "1", "--output_dir", out]
                before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
                subprocess.run(command, check=True, capture_output=True)
                theirs = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
                found = information(text, read_paths((out / "paths").read_text(encoding="utf-8")))
                print(f"  wcluster: {theirs:.1f} CPU s, information {found:.4f}; ratio {theirs / ours:.1f}", flush=True)


if __name__ == "__main__":
    main()
