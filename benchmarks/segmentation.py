"""Chinese word segmentation on the PKU test set of the second SIGHAN bakeoff: P, R and F1 of words, OOV recall.

Training text: People's Daily, January 1998 (the corpus that PKU's training set was taken from), without its lines that
also stand in the test set. A word of the test set is correct where both its ends are; it is out of vocabulary (OOV)
if it is not in the official list of training words. The training text has full-width digits, the test set half of them
half-width; tokenizers of Chinese text treat them alike.

`--held-out 1000` scores on lines of the training text that were not trained on, to choose settings. A model that was
trained before (`--out`) is scored alone.

    python benchmarks/segmentation.py --data ../shared/data/tasks/zh jieba
    python benchmarks/segmentation.py --data ../shared/data/tasks/zh word2vec --network lstm --crf --held-out 1000
    python benchmarks/segmentation.py --data ../shared/data/tasks/zh word2vec --network lstm --crf --out models/pku
    python benchmarks/segmentation.py --data ../shared/data/tasks/zh models/pku
"""

import argparse
import random
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import keel
from keel.data.text_files import open_text

WIDTH = str.maketrans({code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)})
"""Full-width forms of ASCII, which do not distinguish a line of the training text from one of the test set."""


@dataclass(frozen=True)
class Words:
    """Words of the test set: all, and those that are out of vocabulary."""

    gold: int
    predicted: int
    correct: int
    oov: int
    oov_correct: int

    def __str__(self) -> str:
        recall, precision = self.correct / self.gold, self.correct / self.predicted
        f1 = 2 * precision * recall / (precision + recall)
        known = (self.correct - self.oov_correct) / (self.gold - self.oov)
        parts = (
            f"F1 {f1:.4f}, precision {precision:.4f}, recall {recall:.4f}, OOV recall {self.oov_correct / self.oov:.4f}"
        )
        return f"{parts}, recall of known words {known:.4f} (OOV {self.oov / self.gold:.2%} of {self.gold:,} words)"


def spans(words: Sequence[str]) -> list[tuple[int, int]]:
    return list(pairwise(accumulate(map(len, words), initial=0)))


def count(gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]], known: frozenset[str]) -> Words:
    totals = [0] * 5
    for one, two in zip(gold, predicted, strict=True):
        assert "".join(one) == "".join(two), f"other characters: {''.join(one)} and {''.join(two)}"
        found = {*spans(two)}
        right = [span in found for span in spans(one)]
        unknown = [word not in known for word in one]
        both = sum(a and b for a, b in zip(right, unknown, strict=True))
        totals = [a + b for a, b in zip(totals, (len(one), len(two), sum(right), sum(unknown), both), strict=True)]
    return Words(*totals)


def lines(folder: Path, name: str) -> Iterator[str]:
    (path,) = folder.glob(f"{name}*")
    return (line for _, line in open_text(path) if line.strip())


def fold(text: str) -> str:
    return text.translate(WIDTH)


def training_lines(data: Path, tested: Iterable[str]) -> list[str]:
    """Lines of the training text, words separated by spaces, in a fixed random order."""
    tested = {fold(text) for text in tested}
    found: list[str] = []
    for line in lines(data / "peopledaily199801", "199801"):
        words = [word.rsplit("/", 1)[0] for word in line.split()]
        if fold("".join(words)) not in tested:
            found.append(" ".join(words))
    random.Random(0).shuffle(found)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a model or a system; jieba: its dictionary")
    parser.add_argument("--data", type=Path, required=True, help="with icwb2/ and peopledaily199801/")
    parser.add_argument("--lines", type=int, default=0, help="training lines; default: all")
    parser.add_argument(
        "--held-out", type=int, default=0, help="lines of the training text to score on instead of the test set"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, help="folder for the model of the last seed")
    parser.add_argument("--device", default="cpu")
    options, rest = parser.parse_known_args()
    gold = [line.split() for line in lines(options.data / "icwb2/gold", "pku_test_gold")]
    known = frozenset(line.strip() for line in lines(options.data / "icwb2/gold", "pku_training_words"))
    texts = ["".join(words) for words in gold]
    train = training_lines(options.data, texts)
    if options.held_out:
        held_out, train = train[: options.held_out], train[options.held_out :]
        gold = [line.split() for line in held_out]
        known = frozenset(word for line in train for word in line.split())
        texts = ["".join(words) for words in gold]
    if options.model == "jieba":
        began = time.process_time()
        predicted = keel.segment(texts)
        print(f"jieba: {count(gold, predicted, known)}; {time.process_time() - began:.1f} s", flush=True)
        return
    if Path(options.model).is_dir() and (model := keel.Model.load(options.model)).task:
        report(options.model, model, gold, known)
        return
    train = train[: options.lines or len(train)]
    print(f"{len(train):,} lines, {sum(len(line.split()) for line in train):,} words", flush=True)
    settings = {flag.removeprefix("--").replace("-", "_"): parse(value) for flag, value in in_pairs(rest)}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "train.txt")
        file.write_text("\n".join(train) + "\n", encoding="utf-8")
        for seed in options.seeds:
            began = time.process_time()
            model = keel.finetune(
                options.model,
                file,
                task="tag",
                format="segmented",
                dev=None,
                seed=seed,
                device=options.device,
                **settings,
            )
            print(f"{time.process_time() - began:.0f} s of training", flush=True)
            report(f"{options.model}, seed {seed}", model, gold, known)
            if options.out:
                model.save(options.out, overwrite=True)


def report(name: str, model: keel.Model, gold: Sequence[Sequence[str]], known: frozenset[str]) -> None:
    began = time.process_time()
    predicted = [found.segmented_words for found in model.predict(["".join(words) for words in gold])]
    print(f"{name}: {count(gold, predicted, known)}; {time.process_time() - began:.0f} s", flush=True)


def in_pairs(flags: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Flags and their values; a flag without a value is true."""
    for flag, value in pairwise([*flags, "--"]):
        if flag.startswith("--"):
            yield flag, "true" if value.startswith("--") else value


def parse(value: str) -> Any:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(value, value)


if __name__ == "__main__":
    main()
