"""word2vec against gensim: the same words, settings and epochs, interleaved; speed, memory, and what the vectors know.

    python benchmarks/word2vec.py en_wikipedia.txt.xz --bytes 100000000 --judge WS-353.txt questions-words.txt
    python benchmarks/word2vec.py zh_wikipedia.txt.xz --chinese --judge wordsim-297.txt CA8/*
    python benchmarks/word2vec.py en_wikipedia.txt.xz --whole --epochs 1

Both get the first bytes of the text in lower case, cut into words once by this script: the characters a to z, or what
jieba finds. A line is a sentence for both; words that occur fewer than five times are left out by both. The time is
that of training alone, with vocabulary and ids ready (gensim's iterable interface, sentences in memory; Keel's own
loop, its kernels compiled before); with --whole, all from the file of words to the vectors. Seconds are wall and CPU.
Every run is a process of its own with a seed of its own. Intervals are 95%, by Student's t over the runs.
"""

import argparse
import json
import math
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

SPECIALS = 5
"""Ids before the first word, as in a vocabulary of Keel's."""
STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}


def _cut_chinese() -> Callable[[str], str]:
    """Put spaces between words."""
    import jieba

    jieba.setLogLevel(60)
    return lambda text: " ".join(jieba.lcut(text))


def prepare(corpus: Path, size: int, chinese: bool, folder: Path) -> None:
    """Cut the text into words and number them, once for both."""
    from keel.data.text_files import open_text

    cut, word = (str, re.compile("[a-z]+")) if not chinese else (_cut_chinese(), re.compile(r"\w*[一-鿿]\w*"))
    read, sentences = 0, []
    for _, line in open_text(corpus):
        read += len(line.encode()) + 1
        if read > size:
            break
        if words := word.findall(cut(line.lower())):
            sentences.append(words)
    (folder / "words.txt").write_text("\n".join(map(" ".join, sentences)) + "\n")
    counts = Counter(word for words in sentences for word in words)
    vocabulary = [word for word, count in counts.most_common() if count >= 5]
    (folder / "vocabulary.txt").write_text("\n".join(vocabulary))
    number = {word: place + SPECIALS for place, word in enumerate(vocabulary)}
    known = [[number[word] for word in words if word in number] for words in sentences]
    np.save(folder / "ids.npy", np.array([word for words in known for word in words], np.uint32))
    np.save(folder / "starts.npy", np.cumsum([0, *map(len, known)]))


class Lines:
    """The sentences of a file, read again each time."""

    def __init__(self, path: Path):
        self.path = path

    def __iter__(self) -> Iterator[list[str]]:
        with open(self.path) as lines:
            for line in lines:
                yield line.split()


def clocks() -> np.ndarray:
    return np.array([time.perf_counter(), time.process_time()])


def train_keel(options: argparse.Namespace, folder: Path) -> tuple[np.ndarray, list[str], np.ndarray]:
    import torch

    from keel.config import replace
    from keel.data.documents import Documents
    from keel.data.token_store import Tokens
    from keel.data.tokenizer import Tokenizer
    from keel.systems.word2vec import Word2vec
    from keel.training.loop import fit

    ids, starts = np.load(folder / "ids.npy"), np.load(folder / "starts.npy")
    tokens = SimpleNamespace(
        ids=ids, starts=starts, documents=np.array([0, len(starts) - 1]), word_starts=None, units=None
    )
    documents = Documents.of(cast(Tokens, tokens))
    words = (folder / "vocabulary.txt").read_text().split("\n")
    system = Word2vec(architecture=options.architecture, width=options.width, loss=options.loss)
    torch.manual_seed(options.seed)
    specials = cast(Tokenizer, SimpleNamespace(special_ids=list(range(SPECIALS)), unknown_id=0))
    objective = system.build_objective(system.build_encoder(len(words) + SPECIALS), specials)
    train = replace(system.pretraining_defaults, epochs=options.epochs, threads=options.threads, seed=options.seed)
    warm = system.build_objective(system.build_encoder(len(words) + SPECIALS), specials)
    fit(warm, documents, replace(train, epochs=0.0, steps=1))
    del warm
    start = clocks()
    fit(objective, documents, train)
    took = clocks() - start
    return took, words, objective.encoder.words.weight.detach().numpy()[SPECIALS:]


def whole_keel(options: argparse.Namespace, folder: Path) -> tuple[np.ndarray, list[str], np.ndarray]:
    import keel

    words = (folder / "vocabulary.txt").read_text().split("\n")
    start = clocks()
    settings: dict[str, Any] = {"architecture": options.architecture, "width": options.width, "loss": options.loss}
    settings |= {"epochs": options.epochs, "threads": options.threads, "seed": options.seed, "held_out": 0.0}
    out = folder / "model"
    model = keel.pretrain(
        "word2vec", folder / "words.txt", out=out, overwrite=True, vocabulary=len(words) + SPECIALS, **settings
    )
    space = model.vector_space()
    return clocks() - start, space.words, space.matrix


def train_gensim(options: argparse.Namespace, folder: Path) -> tuple[np.ndarray, list[str], np.ndarray]:
    from gensim.models import Word2Vec

    sentences = Lines(folder / "words.txt") if options.whole else list(Lines(folder / "words.txt"))
    start = clocks()
    model = Word2Vec(
        vector_size=options.width,
        sg=int(options.architecture == "skipgram"),
        hs=int(options.loss == "hierarchical"),
        negative=5 if options.loss == "negative" else 0,
        workers=options.threads,
        seed=options.seed,
    )  # window 5, sample 1e-3, alpha 0.025, min_count 5 are its defaults and ours
    model.build_vocab(sentences)
    if not options.whole:
        start = clocks()
    model.train(sentences, total_examples=model.corpus_count, epochs=options.epochs)
    return clocks() - start, [str(word) for word in model.wv.index_to_key], model.wv.vectors


def one_run(options: argparse.Namespace, folder: Path) -> None:
    """One side's run, in this process."""
    keels = whole_keel if options.whole else train_keel
    took, words, vectors = (keels if options.only == "keel" else train_gensim)(options, folder)
    found: dict[str, Any] = {"wall": took[0], "cpu": took[1]}
    # The peak that getrusage knows is at least that of the process which started this one, text and all.
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    found["memory"] = int(peak.split()[1]) / 1024
    if options.judge:
        from keel.explain.nearest_neighbors import VectorSpace
        from keel.explain.vector_benchmarks import evaluate_vectors

        space = VectorSpace(words, np.ascontiguousarray(vectors))
        found["scores"] = {
            path.name: (scored := evaluate_vectors(space, path)).values[scored.main].value for path in options.judge
        }
    print(json.dumps(found))


def spread(values: list[float]) -> str:
    """Mean and interval."""
    if len(values) < 2:
        return f"{values[0]:.3f}"
    half = STUDENT.get(len(values), 2.0) * statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.mean(values):.3f} ± {half:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--bytes", type=int, default=100_000_000)
    parser.add_argument("--chinese", action="store_true", help="cut words by jieba")
    parser.add_argument("--whole", action="store_true", help="time all from the file of words to the vectors")
    parser.add_argument("--architecture", choices=["skipgram", "cbow"], default="skipgram")
    parser.add_argument("--loss", choices=["negative", "hierarchical"], default="negative")
    parser.add_argument("--width", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--judge", type=Path, nargs="*", default=[], help="files of word pairs or analogies")
    parser.add_argument("--seed", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--only", choices=["keel", "gensim"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        one_run(options, options.folder)
        return
    with tempfile.TemporaryDirectory() as folder:
        prepare(options.corpus, options.bytes, options.chinese, Path(folder))
        runs: dict[str, list[dict[str, Any]]] = {"keel": [], "gensim": []}
        for seed in range(1, options.runs + 1):
            for side, found in runs.items():
                order = [sys.executable, *sys.argv, "--only", side, "--folder", folder, "--seed", str(seed)]
                done = subprocess.run(order, capture_output=True, text=True, check=False)
                if done.returncode:
                    sys.exit(done.stderr)
                found.append(json.loads(done.stdout))
                shown = {name: value for name, value in found[-1].items() if name != "scores"}
                print(f"run {seed} {side}: " + ", ".join(f"{name} {value:.2f}" for name, value in shown.items()))
    for what in ("wall", "cpu"):
        ratios = [theirs[what] / ours[what] for ours, theirs in zip(runs["keel"], runs["gensim"], strict=True)]
        between = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"gensim / Keel, {what} seconds: median {statistics.median(ratios):.2f} of {between}")
    for name in runs["keel"][0].get("scores", {}):
        ours, theirs = ([run["scores"][name] for run in runs[side]] for side in ("keel", "gensim"))
        differences = [a - b for a, b in zip(ours, theirs, strict=True)]
        print(f"{name}: Keel {spread(ours)}, gensim {spread(theirs)}, difference {spread(differences)}")


if __name__ == "__main__":
    main()
