"""Bundled word vectors: cut a trained model to its most frequent words, train gensim on the same text, and score all.

    keel pretrain text/*.txt --recipe recipes/english-words.toml --out run/words
    python benchmarks/bundled_words.py make run/words run/cut --words 45000
    python benchmarks/bundled_models.py make run/cut src/keel/assets/models/english-words --steps-per-rms 4
    python benchmarks/bundled_words.py gensim run/words run/gensim.bin --text text/*.txt
    python benchmarks/bundled_words.py compare run/words run/cut english-words run/gensim.bin --judge WS-353.txt ...

gensim gets the known words of each sentence, as the first model was trained on them, and its settings. The files of
compare hold word similarities (Spearman's correlation) or analogies (accuracy).
"""

import argparse
import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path

import tokenizers

import keel
from keel.api.model_loading import load_vectors
from keel.data.tokenizer import Tokenizer
from keel.explain.nearest_neighbors import VectorSpace
from keel.explain.vector_benchmarks import evaluate_vectors
from keel.formats.huggingface import save
from keel.systems.word2vec import Word2vec


def make(source: Path, out: Path, words: int) -> None:
    """Write the vectors of the most frequent words, and nothing else of the model, as a folder."""
    model = keel.Model.load(source)
    size = words + len(model.tokenizer.special_ids)  # these come first, then the words by their frequency
    form = json.loads(model.tokenizer.to_json())
    form["model"]["vocab"] = dict(islice(form["model"]["vocab"].items(), size))
    inner = tokenizers.Tokenizer.from_str(json.dumps(form))
    weight = model.tensors()["encoder.words.weight"][:size].contiguous()
    stored = replace(
        model.to_stored(),
        tokenizer=Tokenizer(inner, **model.tokenizer.extra_rules),
        vocab_size=len(weight),
        tensors={"encoder.words.weight": weight},
    )
    save(out, stored, overwrite=True)


class Sentences:
    """The known words of each sentence of a text, read again in every epoch."""

    def __init__(self, model: keel.Model, texts: list[Path]):
        self.tokens = keel.Tokens.build(keel.Corpus(texts), model.tokenizer)
        self.words = [model.tokenizer.token_of(number) for number in range(len(model.tokenizer))]
        self.special = {*model.tokenizer.special_ids}

    def __iter__(self) -> Iterator[list[str]]:
        starts = self.tokens.starts
        for first in range(0, len(starts) - 1, 10_000):
            bounds = starts[first : first + 10_001].tolist()
            ids = self.tokens.ids[bounds[0] : bounds[-1]].tolist()
            for start, end in pairwise(bounds):
                sentence = ids[start - bounds[0] : end - bounds[0]]
                yield [self.words[number] for number in sentence if number not in self.special]


def train_gensim(source: Path, out: Path, texts: list[Path], epochs: int, threads: int) -> None:
    from gensim.models import Word2Vec

    model = keel.Model.load(source)
    ours = model.system
    assert isinstance(ours, Word2vec)
    assert ours.loss == "negative"
    start, before = time.perf_counter(), os.times()
    peer = Word2Vec(
        Sentences(model, texts),
        vector_size=ours.width,
        sg=int(ours.architecture == "skipgram"),
        window=ours.window,
        negative=ours.negatives,
        ns_exponent=ours.sampling_power,
        sample=ours.subsample,
        alpha=ours.pretraining_defaults.lr,
        min_count=1,
        epochs=epochs,
        workers=threads,
        seed=1,
    )
    peer.wv.save_word2vec_format(str(out), binary=True)
    after = os.times()
    cpu = after.user + after.system - before.user - before.system
    print(f"gensim: {(time.perf_counter() - start) / 60:.1f} minutes, {cpu / 60:.1f} of CPU time")


def compare(models: list[str], files: list[Path], words: int) -> None:
    """Print the main score of each model on each file, in points, and how many items were scored."""
    spaces = {name: load_vectors(name) for name in models}
    if words:
        spaces = {name: VectorSpace(each.words[:words], each.matrix[:words]) for name, each in spaces.items()}
    print("| file |", " | ".join(Path(name).name for name in models), "| items |")
    print("|---" * (len(models) + 2) + "|")
    for path in files:
        found = [evaluate_vectors(space, path) for space in spaces.values()]
        scores = " | ".join(f"{100 * each.main_value:.1f}" for each in found)
        counts = ", ".join(map(str, dict.fromkeys(each.count for each in found)))
        print(f"| {path.name.partition('.')[0]} ({found[0].main}) | {scores} | {counts} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("make")
    command.add_argument("source", type=Path)
    command.add_argument("out", type=Path)
    command.add_argument("--words", type=int, default=45_000)
    command.set_defaults(run=lambda options: make(options.source, options.out, options.words))
    command = commands.add_parser("gensim")
    command.add_argument("source", type=Path)
    command.add_argument("out", type=Path)
    command.add_argument("--text", type=Path, nargs="+", required=True)
    command.add_argument("--epochs", type=int, default=5)
    command.add_argument("--threads", type=int, default=1)
    command.set_defaults(
        run=lambda given: train_gensim(given.source, given.out, given.text, given.epochs, given.threads)
    )
    command = commands.add_parser("compare")
    command.add_argument("models", nargs="+")
    command.add_argument("--judge", type=Path, nargs="+", required=True)
    command.add_argument("--words", type=int, default=0, help="only the most frequent words of each, such as 45000")
    command.set_defaults(run=lambda options: compare(options.models, options.judge, options.words))
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
