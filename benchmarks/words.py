"""Raw text to a vocabulary and ids of words: Keel against gensim, interleaved, each measurement a process of its own.

    python benchmarks/words.py corpus.txt [--rounds 3] [--threads 2]

The text is cut once, by Keel's rules, into words with a space between them and one sentence a line; both read that
file, so both count the same words. Keel reads it, counts, splits sentences, encodes, writes ids and checksums. gensim
counts (`build_vocab` over its LineSentence); it keeps no ids, but looks words up again in every epoch, which is
measured alone: one pass over the lines with a dictionary, as its trainer does it.
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
from typing import Any

from keel.data import tokenizer_rules
from keel.data.corpus import Corpus
from keel.data.sentence_splitting import split_sentences
from keel.data.token_store import Tokens
from keel.data.tokenizer import Tokenizer

LEAST = 5


def keel(path: Path, threads: int) -> dict[str, float]:
    """Vocabulary and tokens from the file."""
    corpus = Corpus(path)
    start = time.perf_counter()
    tokenizer = Tokenizer.train(corpus, kind="words", size=1_000_000, min_count=LEAST, accents=True)
    counted = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        tokens = Tokens.build(corpus, tokenizer, folder, workers=threads)
        done = time.perf_counter()
        return {"count": counted - start, "encode": done - counted, "words": len(tokenizer) - 5, "ids": len(tokens)}


def gensim(path: Path, threads: int) -> dict[str, float]:
    """Vocabulary by gensim, then one epoch's worth of looking words up."""
    from gensim.models.word2vec import LineSentence, Word2Vec

    start = time.perf_counter()
    model = Word2Vec(vector_size=1, min_count=LEAST, workers=threads)
    model.build_vocab(LineSentence(str(path)))
    counted = time.perf_counter()
    known: Any = model.wv.key_to_index
    ids = 0
    for sentence in LineSentence(str(path)):
        ids += len([known[word] for word in sentence if word in known])
    return {"count": counted - start, "encode": time.perf_counter() - counted, "words": len(known), "ids": ids}


def measure(arguments: argparse.Namespace) -> None:
    found = {"keel": keel, "gensim": gensim}[arguments.only](arguments.corpus, arguments.threads)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(each.ru_utime + each.ru_stime for each in used)
    print(json.dumps(found | {"cpu": cpu, "memory": max(each.ru_maxrss for each in used) / 1024}))


def copy_words(source: Path, target: Path) -> None:
    """Write every sentence as a line of words, in lower case."""
    inner = tokenizer_rules.make("words", Tokenizer.from_words(["a"])._inner.model, lowercase=True, accents=True)
    with open(target, "w", encoding="utf-8") as file:
        for block in Corpus(source).blocks():
            for sentence in split_sentences(block.text):
                words = inner.pre_tokenizer.pre_tokenize_str(inner.normalizer.normalize_str(sentence))
                file.write(" ".join(word for word, _ in words) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=["keel", "gensim"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        measure(arguments)
        return
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "words.txt"
        copy_words(arguments.corpus, text)
        size = text.stat().st_size / 1e6

        def run(only: str) -> dict[str, float]:
            flags = [str(text), "--threads", str(arguments.threads), "--only", only]
            done = subprocess.run([sys.executable, __file__, *flags], capture_output=True, text=True, check=True)
            return json.loads(done.stdout)

        run("keel")  # compiles, where that was not done before
        rounds = []
        for _ in range(arguments.rounds):
            rounds.append((run("keel"), run("gensim")))
            for name, found in zip(("Keel", "gensim"), rounds[-1], strict=True):
                print(
                    f"{name:7} count {found['count']:.2f} s, encode {found['encode']:.2f} s, "
                    f"CPU {found['cpu']:.2f} s, {found['memory']:.0f} MB, {found['words']:,} words kept"
                )
    for what, of in (
        ("wall", lambda found: found["count"] + found["encode"]),
        ("count", lambda found: found["count"]),
        ("CPU", lambda found: found["cpu"]),
    ):
        ratio = statistics.median(of(theirs) / of(ours) for ours, theirs in rounds)
        print(f"{size:.0f} MB, {arguments.threads} threads, gensim / Keel, {what}: {ratio:.2f}")


if __name__ == "__main__":
    main()
