"""Bundled word vectors: cut a trained model to its most frequent words, and compare it with gensim on the same text.

    keel pretrain word2vec text/*.txt --system.width 100 --epochs 5 --text.vocabulary 50000 --out run/words
    python benchmarks/bundled_words.py make run/words run/cut --words 40000
    python benchmarks/bundled_models.py make run/cut src/keel/assets/models/english-words --steps-per-rms 8
    python benchmarks/bundled_words.py compare run/words run/cut english-words --text text/*.txt \\
        --judge WS-353.txt questions-words.txt

compare trains gensim on the words of the first model's vocabulary in the same sentences, with the same settings, and
scores all on the same files: word similarities (Spearman's correlation) and analogies (accuracy).
"""

import argparse
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

import keel
from keel.explain.nearest_neighbors import VectorSpace
from keel.explain.vector_benchmarks import evaluate_vectors


def make(source: Path, out: Path, words: int) -> None:
    """Write the vectors of the most frequent words as a model folder."""
    space = keel.Model.load(source).vector_space()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{out.name}.vec"
        lines = (
            f"{word} {' '.join(f'{value:.7g}' for value in vector)}"
            for word, vector in zip(space.words[:words], space.matrix[:words].tolist(), strict=True)
        )
        rows = min(words, len(space.words))
        file.write_text(f"{rows} {space.matrix.shape[1]}\n" + "\n".join(lines) + "\n", encoding="utf-8")
        keel.convert(file, out, overwrite=True)


def write_words(model: keel.Model, texts: list[Path], path: Path) -> None:
    """Write the lines of texts as the known words of a model's vocabulary."""
    special = {*model.tokenizer.special_ids}
    tokens = [model.tokenizer.token_of(number) for number in range(len(model.tokenizer))]
    with open(path, "w", encoding="utf-8") as out:
        for text in texts:
            with open(text, encoding="utf-8") as file:
                for lines in iter(lambda: [*islice(file, 10_000)], []):
                    for ids in model.tokenizer.encode_many(lines):
                        out.write(" ".join(tokens[number] for number in ids if number not in special) + "\n")


class Lines:
    """The words of a file's lines, read again in every epoch."""

    def __init__(self, path: Path):
        self.path = path

    def __iter__(self) -> Iterator[list[str]]:
        with open(self.path, encoding="utf-8") as lines:
            for line in lines:
                yield line.split()


def train_gensim(model: keel.Model, texts: list[Path], epochs: int, threads: int) -> VectorSpace:
    from gensim.models import Word2Vec

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "words.txt"
        write_words(model, texts, path)
        width = model.vector_space().matrix.shape[1]
        # window 5, 5 negatives, sample 1e-3 and alpha 0.025 are its defaults and ours
        peer = Word2Vec(Lines(path), vector_size=width, sg=1, min_count=1, epochs=epochs, workers=threads)
    return VectorSpace([str(word) for word in peer.wv.index_to_key], np.ascontiguousarray(peer.wv.vectors))


def compare(options: argparse.Namespace) -> None:
    models = {name: keel.Model.load(name) for name in options.models}
    vectors = {name: model.vector_space() for name, model in models.items()}
    spaces = {name: VectorSpace(each.words, each.matrix) for name, each in vectors.items()}
    if options.text:
        spaces["gensim"] = train_gensim(models[options.models[0]], options.text, options.epochs, options.threads)
    for name, space in spaces.items():
        for path in options.judge:
            print(f"{name}, {path.name}:\n{evaluate_vectors(space, path)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("make")
    command.add_argument("source", type=Path)
    command.add_argument("out", type=Path)
    command.add_argument("--words", type=int, default=40_000)
    command.set_defaults(run=lambda options: make(options.source, options.out, options.words))
    command = commands.add_parser("compare")
    command.add_argument("models", nargs="+")
    command.add_argument("--text", type=Path, nargs="*", default=[])
    command.add_argument("--judge", type=Path, nargs="+", required=True)
    command.add_argument("--epochs", type=int, default=5)
    command.add_argument("--threads", type=int, default=2)
    command.set_defaults(run=compare)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
