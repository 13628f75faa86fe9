"""GloVe against Stanford's C code: the same words, settings and number of iterations, interleaved, stage by stage.

    git clone https://github.com/stanfordnlp/GloVe && make -C GloVe          # the peer
    python benchmarks/glove.py corpus.txt.xz --peer GloVe/build --megabytes 100 --judge WS-353.txt questions-words.txt

Both get the first megabytes of the text in lower case, split into words of a to z by this script, a document
a line for the peer and a paragraph for Keel. "counts" is all that comes before training: the vocabulary, for Keel the
encoding of the text, the counting, for the peer the shuffling. Seconds are wall / CPU; every stage of the peer is a
process of its own, and so is each of Keel's runs, whose kernels were compiled before.
"""

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from keel.api.evaluation import evaluate
from keel.data.corpus import Corpus
from keel.data.documents import Documents
from keel.data.text_files import open_text
from keel.data.token_store import Tokens
from keel.data.tokenizer import Tokenizer
from keel.formats.vector_files import write_vectors
from keel.model import Model
from keel.systems.glove import Glove
from keel.training.loop import fit

Seconds = tuple[float, float]


def prepare(corpus: Path, megabytes: int, folder: Path) -> None:
    """Cut the text into words, once for both."""
    documents: list[list[str]] = [[]]
    size = 0
    for _, line in open_text(corpus):
        size += len(line.encode()) + 1
        if size > megabytes * 1_000_000:
            break
        if line.strip():
            documents[-1] += re.findall("[a-z]+", line.lower())
        elif documents[-1]:
            documents.append([])
    lines = [" ".join(words) for words in documents if words]
    (folder / "lines.txt").write_text("\n".join(lines) + "\n")
    (folder / "documents.txt").write_text("\n\n".join(lines) + "\n")


def timed(work: Callable[[], Any], who: int) -> Seconds:
    def used() -> Seconds:
        usage = resource.getrusage(who)
        return time.perf_counter(), usage.ru_utime + usage.ru_stime

    before = used()
    work()
    after = used()
    return after[0] - before[0], after[1] - before[1]


def peer(arguments: argparse.Namespace, folder: Path, seed: int) -> dict[str, Seconds]:
    def call(program: str, source: str, target: str, **options: Any) -> Seconds:
        flags = [text for name, value in options.items() for text in (f"-{name.replace('_', '-')}", str(value))]
        with open(folder / source, "rb") as text, open(folder / target, "wb") as out:
            command = [str(arguments.peer.resolve() / program), "-verbose", "0", *flags]
            quiet: dict[str, Any] = {"stdin": text, "stdout": out, "stderr": subprocess.DEVNULL, "cwd": folder}
            return timed(lambda: subprocess.run(command, check=True, **quiet), resource.RUSAGE_CHILDREN)

    words = arguments.vocabulary - 5  # Keel's special tokens are five
    stages = [
        call("vocab_count", "lines.txt", "vocab.txt", max_vocab=words),
        call("cooccur", "lines.txt", "cells.bin", vocab_file="vocab.txt", window_size=10, memory=4.0),
        call("shuffle", "cells.bin", "shuffled.bin", memory=4.0, seed=seed),
    ]
    options = {"threads": arguments.threads, "iter": arguments.epochs, "vector_size": arguments.width, "x_max": 100}
    files = {"input_file": "shuffled.bin", "vocab_file": "vocab.txt", "save_file": "peer"}
    train = call("glove", "vocab.txt", "out", **options, **files, seed=seed)
    return {"counts": (sum(stage[0] for stage in stages), sum(stage[1] for stage in stages)), "train": train}


def keel(arguments: argparse.Namespace, folder: Path, seed: int) -> dict[str, Seconds]:
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(seed)
    system = Glove(width=arguments.width)
    made: dict[str, Any] = {}

    def count() -> None:
        corpus = Corpus(folder / "documents.txt")
        made["tokenizer"] = tokenizer = Tokenizer.train(corpus, kind="words", size=arguments.vocabulary)
        made["data"] = data = Documents.of(Tokens.build(corpus, tokenizer, workers=arguments.threads))
        made["encoder"] = encoder = system.build_encoder(len(tokenizer))
        made["objective"] = objective = system.build_objective(encoder, tokenizer)
        objective.epoch_size(data)

    def learn() -> None:
        settings = {"epochs": arguments.epochs, "threads": arguments.threads, "seed": seed}
        fit(
            made["objective"],
            made["data"],
            type(system.pretraining_defaults)(**{**vars(system.pretraining_defaults), **settings}),
        )

    def all_used(work: Callable[[], None]) -> Seconds:
        children, own = (0.0, 0.0), (0.0, 0.0)

        def inner() -> None:
            nonlocal own
            own = timed(work, resource.RUSAGE_SELF)

        children = timed(inner, resource.RUSAGE_CHILDREN)
        return own[0], own[1] + children[1]

    found = {"counts": all_used(count), "train": all_used(learn)}
    model = Model(system=system, encoder=made["encoder"], tokenizer=made["tokenizer"])
    write_vectors(folder / "keel.txt", model.vector_space(), layout="text")
    return found


def measure(arguments: argparse.Namespace, folder: Path, seed: int) -> dict[str, dict[str, Seconds]]:
    """One round: the peer, then Keel in a process with an empty cache."""
    with tempfile.TemporaryDirectory(dir=folder) as cache:
        command = [sys.executable, __file__, *sys.argv[1:], "--only", str(folder), "--seed", str(seed)]
        found = {"peer": peer(arguments, folder, seed)}
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, env={**os.environ, "KEEL_CACHE": cache})
        return found | {"keel": json.loads(answer.stdout)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--peer", type=Path, required=True)
    parser.add_argument("--megabytes", type=int, default=20)
    parser.add_argument("--vocabulary", type=int, default=30_000)
    parser.add_argument("--width", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--judge", type=Path, nargs="*", default=[])
    parser.add_argument("--only", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(keel(arguments, arguments.only, arguments.seed)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(arguments.corpus, 1, folder)  # what is compiled once is not timed
        measure(arguments, folder, 1)
        prepare(arguments.corpus, arguments.megabytes, folder)
        rounds = []
        for number in range(arguments.rounds):
            rounds.append(measure(arguments, folder, number + 1))
            for who in ("peer", "keel"):
                summary = ", ".join(
                    f"{stage} {wall:.2f} / {cpu:.2f} s" for stage, (wall, cpu) in rounds[-1][who].items()
                )
                scores = "; ".join(f"{path.stem}: {evaluate(folder / f'{who}.txt', path)}" for path in arguments.judge)
                print(f"round {number + 1} {who}: {summary}  {scores}", flush=True)
        for stages in (["counts"], ["train"], ["counts", "train"]):
            for place, kind in enumerate(("wall", "CPU")):
                ratios = [
                    sum(each["peer"][stage][place] for stage in stages)
                    / sum(each["keel"][stage][place] for stage in stages)
                    for each in rounds
                ]
                print(f"{' + '.join(stages)}, {kind}: {statistics.median(ratios):.1f} times as fast (median)")


if __name__ == "__main__":
    main()
