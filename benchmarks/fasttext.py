"""fastText's word vectors: Keel against Facebook's own program, the same words and settings, one thread each.

One text for both: a corpus in lower case, its words cut once, a sentence a line. An epoch of theirs is the difference
between runs of two epochs and of one, so that counting words and saving take no part; runs alternate. With
--judge both learn five epochs (as many runs as asked for) and are compared on published sets, unseen words included.

    git clone https://github.com/facebookresearch/fastText && make -C fastText
    python benchmarks/fasttext.py --theirs fastText/fasttext --text en_wikipedia.txt.xz --megabytes 20 --rounds 3
    python benchmarks/fasttext.py ... --judge 3 --sets wordsim/EN-*.txt google_analogies/questions-words.txt.xz
"""

import argparse
import re
import resource
import subprocess
import time
from pathlib import Path
from statistics import mean, median

import numpy as np
import torch

from keel.config import replace
from keel.data.corpus import Corpus
from keel.data.documents import Documents
from keel.data.sentence_splitting import split_sentences
from keel.data.text_files import open_text
from keel.data.token_store import Tokens
from keel.data.tokenizer import Tokenizer
from keel.explain.nearest_neighbors import VectorSpace
from keel.explain.vector_benchmarks import evaluate_vectors, published_form
from keel.formats.vector_files import read_vectors
from keel.model import Model
from keel.systems.fasttext import FastText
from keel.training.loop import fit

WORD = re.compile(r"[^\W\d_]+")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--theirs", required=True, help="their program")
    parser.add_argument("--text", required=True)
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--architecture", choices=["skipgram", "cbow"], default="skipgram")
    parser.add_argument("--width", type=int, default=100)
    parser.add_argument("--buckets", type=int, default=2_000_000)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/keel-fasttext"))
    parser.add_argument("--judge", type=int, default=0, help="runs of five epochs to compare")
    parser.add_argument("--sets", nargs="*", default=[])
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    words = write_words(options)
    print(f"{words / 1e6:.2f}M words")
    ours, documents, tokenizer = read_ours(options)
    if options.rounds:
        race(options, ours, documents, tokenizer)
    if options.judge:
        compare(options, ours, documents, tokenizer)


def write_words(options: argparse.Namespace) -> int:
    """The text that both read: words in lower case, a sentence a line."""
    path = options.folder / "words.txt"
    left, count = options.megabytes * 1e6, 0
    with open(path, "w", encoding="utf-8") as file:
        for _, line in open_text(options.text):
            for sentence in split_sentences(line.lower()):
                found = WORD.findall(sentence)
                count += len(found)
                if found:
                    file.write(" ".join(found) + "\n")
            left -= len(line.encode()) + 1
            if left <= 0:
                return count
    return count


def read_ours(options: argparse.Namespace) -> tuple[FastText, Documents, Tokenizer]:
    path = options.folder / "words.txt"
    counts: dict[str, int] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        for word in line.split():
            counts[word] = counts.get(word, 0) + 1
    known = sorted((word for word, count in counts.items() if count >= 5), key=lambda word: -counts[word])
    tokenizer = Tokenizer.from_words(known)
    tokens = Tokens.build(Corpus(str(path)), tokenizer)
    system = FastText(architecture=options.architecture, width=options.width, buckets=options.buckets)
    return system, Documents.of(tokens), tokenizer


def learn_ours(system: FastText, documents: Documents, tokenizer: Tokenizer, epochs: float, seed: int) -> Model:
    torch.manual_seed(seed)
    encoder = system.build_encoder(len(tokenizer))
    objective = system.build_objective(encoder, tokenizer)
    train = replace(system.pretraining_defaults, epochs=epochs, batch=16, lr=0.05, device="cpu", threads=1, seed=seed)
    fit(objective, documents, train)
    return Model(system=system, encoder=encoder, tokenizer=tokenizer)


def learn_theirs(options: argparse.Namespace, epochs: int, out: str, seed: int = 0) -> None:
    command = [
        *(
            options.theirs,
            options.architecture,
            "-input",
            options.folder / "words.txt",
            "-output",
            options.folder / out,
        ),
        *("-epoch", epochs, "-dim", options.width, "-bucket", options.buckets, "-thread", 1, "-seed", seed),
        *("-minCount", 5, "-verbose", 0),
    ]
    subprocess.run(list(map(str, command)), check=True)


def race(options: argparse.Namespace, ours: FastText, documents: Documents, tokenizer: Tokenizer) -> None:
    """Seconds of an epoch, by the clock and of the processor."""
    learn_ours(ours, documents, tokenizer, 0.01, 0)  # compiled
    times: list[tuple[float, float, float, float]] = []
    for number in range(options.rounds):
        keel = [clocked(learn_ours, ours, documents, tokenizer, epochs, number) for epochs in (1, 2)]
        theirs = [clocked(learn_theirs, options, epochs, "timed") for epochs in (1, 2)]
        each = [two - one for side in (keel, theirs) for one, two in zip(*side, strict=True)]
        times.append((each[0], each[1], each[2], each[3]))
        wall, cpu = each[2] / each[0], each[3] / each[1]
        print(f"round {number}: keel {each[0]:.2f} s (CPU {each[1]:.2f}), fastText {each[2]:.2f} s ({each[3]:.2f}), "
              f"ratio {wall:.2f} ({cpu:.2f})", flush=True)  # fmt: skip
    print(f"median ratio: {median(t[2] / t[0] for t in times):.2f} by the clock, "
          f"{median(t[3] / t[1] for t in times):.2f} of the processor")  # fmt: skip


def clocked(work, *arguments) -> tuple[float, float]:
    def cpu() -> float:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(each.ru_utime + each.ru_stime for each in used)

    start, before = time.monotonic(), cpu()
    work(*arguments)
    return time.monotonic() - start, cpu() - before


def compare(options: argparse.Namespace, ours: FastText, documents: Documents, tokenizer: Tokenizer) -> None:
    found: dict[str, dict[str, list[float]]] = {}
    for seed in range(options.judge):
        model = learn_ours(ours, documents, tokenizer, 5, seed)
        learn_theirs(options, 5, "judged", seed + 1)  # their generator takes 0 for 1
        theirs = read_vectors(options.folder / "judged.vec")
        for path in options.sets:
            query_words = sorted({word for _, line in open_text(path) for word in WORD.findall(line.lower())})
            vectors = model.vector_space()
            for side, space in (
                ("keel", VectorSpace(vectors.words, vectors.matrix)),
                ("theirs", VectorSpace(theirs.words, theirs.matrix)),
                ("keel, unseen too", with_unseen(vectors.words, vectors.matrix, query_words, model)),
                ("theirs, unseen too", with_unseen_theirs(options, theirs.words, theirs.matrix, query_words)),
            ):
                if "unseen" in side and published_form(path) == "questions":
                    continue  # answers are sought among the words of the text
                score = evaluate_vectors(space, path).main_value
                found.setdefault(Path(path).name, {}).setdefault(side, []).append(100 * score)
    for name, sides in found.items():
        summary = ", ".join(f"{side} {mean(values):.1f} ± {np.std(values):.1f}" for side, values in sides.items())
        print(f"{name}: {summary}", flush=True)


def with_unseen(words: list[str], matrix: np.ndarray, query_words: list[str], model: Model) -> VectorSpace:
    new = sorted(set(query_words) - set(words))
    return (
        VectorSpace([*words, *new], np.concatenate([matrix, model.encode(new)])) if new else VectorSpace(words, matrix)
    )


def with_unseen_theirs(
    options: argparse.Namespace, words: list[str], matrix: np.ndarray, query_words: list[str]
) -> VectorSpace:
    new = sorted(set(query_words) - set(words))
    output = subprocess.run(
        [options.theirs, "print-word-vectors", options.folder / "judged.bin"],
        input="\n".join(new), capture_output=True, text=True, check=True,
    )  # fmt: skip
    rows = [line.split() for line in output.stdout.splitlines()]
    vectors = {row[0]: np.array(row[1:], np.float32) for row in rows}
    return VectorSpace([*words, *vectors], np.concatenate([matrix, np.stack(list(vectors.values()))]))


if __name__ == "__main__":
    main()
