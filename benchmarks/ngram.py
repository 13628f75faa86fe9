"""5-grams by Kneser and Ney: Keel against KenLM's lmplz, interleaved, each measurement a process of its own.

    python benchmarks/ngram.py train.txt test.txt --kenlm kenlm/build/bin [--order 5] [--rounds 3] [--megabytes 0]

Text is split at whitespace, as in WikiText, and into sentences by Keel; both are trained and evaluated on the
same sentences, every word of train known. Keel's time is that of all of `pretrain`, from tokens that are ready to the
folder, and of `perplexity`; lmplz's that of writing its ARPA file, and `query`'s of reading that and the test.
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
from pathlib import Path

from keel.data.corpus import Corpus
from keel.data.sentence_splitting import split_sentences
from keel.data.text_files import open_text
from keel.data.tokenizer import Tokenizer


def copy_words(source: Path, target: Path, most: int) -> set[str]:
    """Write one sentence a line, a blank line between documents; <unk> is a word like others, which lmplz forbids."""
    words: set[str] = set()
    with open(target, "w", encoding="utf-8") as file:
        for block in Corpus(source).blocks():
            for sentence in split_sentences(block.text):
                line = sentence.replace("<unk>", "UNK")
                words.update(line.split())
                file.write(line + "\n")
            file.write("\n")
            if most and file.tell() > most:
                break
    return words


def keel(folder: Path, order: int, threads: int) -> dict[str, float]:
    import torch

    from keel.api import pretraining, text_generation
    from keel.data.token_store import Tokens

    torch.set_num_threads(threads)
    tokenizer = Tokenizer.load(folder / "words")
    for name in ("train", "test"):
        Tokens.build(Corpus(folder / f"{name}.txt"), tokenizer)
    start = time.perf_counter()
    model = pretraining.pretrain(
        "ngram", folder / "train.txt", out=folder / "keel", tokenizer=str(folder / "words"), order=order,
        held_out=0.0, threads=threads, overwrite=True,
    )  # fmt: skip
    learned = time.perf_counter()
    found = text_generation.perplexity(model, folder / "test.txt")
    started = time.perf_counter()
    size = (folder / "keel" / "model.safetensors").stat().st_size
    value = found.values["ngram per token"].value
    return {"perplexity": value, "learn": learned - start, "ask": started - learned, "size": size / 1e6}


def kenlm(folder: Path, order: int, threads: int, programs: Path) -> dict[str, float]:
    # An empty line would be an empty sentence.
    texts = {
        name: "\n".join(line for _, line in open_text(folder / f"{name}.txt") if line.strip()) + "\n"
        for name in ("train", "test")
    }
    start = time.perf_counter()
    arpa = subprocess.run(
        [programs / "lmplz", "-o", str(order), "-S", "1G", "-T", folder, "--discount_fallback"],
        input=texts["train"].encode(), capture_output=True, check=True,
    ).stdout  # fmt: skip
    (folder / "model.arpa").write_bytes(arpa)
    learned = time.perf_counter()
    output = subprocess.run(
        [programs / "query", "-v", "summary", folder / "model.arpa"],
        input=texts["test"].encode(), capture_output=True, check=True,
    ).stdout.decode()  # fmt: skip
    found = re.search(r"Perplexity including OOVs:\s+([\d.]+)", output)
    assert found, output
    started = time.perf_counter() - learned
    return {"perplexity": float(found[1]), "learn": learned - start, "ask": started, "size": len(arpa) / 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("train", type=Path)
    parser.add_argument("test", type=Path)
    parser.add_argument("--kenlm", type=Path, required=True, help="the folder of lmplz and query")
    parser.add_argument("--order", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="Keel's; lmplz has a thread for each stage of its work")
    parser.add_argument("--megabytes", type=float, default=0, help="size of the training text, at most; 0: all of it")
    parser.add_argument("--only", choices=["keel", "kenlm"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        settings = (arguments.train, arguments.order, arguments.threads)
        found = keel(*settings) if arguments.only == "keel" else kenlm(*settings, arguments.kenlm)
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        cpu = sum(each.ru_utime + each.ru_stime for each in used)
        print(json.dumps(found | {"cpu": cpu, "memory": max(each.ru_maxrss for each in used) / 1024}))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = copy_words(arguments.train, folder / "train.txt", int(arguments.megabytes * 1e6))
        copy_words(arguments.test, folder / "test.txt", 0)
        Tokenizer.from_whitespace_words(sorted(words)).save(folder / "words")
        os.environ["KEEL_CACHE"] = str(folder / "cache")

        def run(only: str) -> dict[str, float]:
            flags = [folder, folder, "--only", only, "--kenlm", arguments.kenlm]
            flags += ["--order", arguments.order, "--threads", arguments.threads]
            done = subprocess.run([sys.executable, __file__, *map(str, flags)], capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(done.stderr)
            return json.loads(done.stdout)

        run("keel")  # compiles, where that was not done before
        rounds = []
        for _ in range(arguments.rounds):
            rounds.append((run("keel"), run("kenlm")))
            for who, found in zip(("Keel", "KenLM"), rounds[-1], strict=True):
                print(
                    f"{who:6} perplexity {found['perplexity']:.4f}, learn {found['learn']:.2f} s, "
                    f"ask {found['ask']:.2f} s, {found['size']:.0f} MB, {found['memory']:.0f} MB of memory"
                )
    ours, theirs = rounds[-1]
    print(f"order {arguments.order}, perplexity, Keel / KenLM: {ours['perplexity'] / theirs['perplexity']:.6f}")
    for what in ("learn", "ask"):
        ratio = statistics.median(theirs[what] / ours[what] for ours, theirs in rounds)
        print(f"{what}, wall, KenLM / Keel, {arguments.threads} threads: {ratio:.2f}")


if __name__ == "__main__":
    main()
