"""What the softmax over all words costs, and what takes its place: Bengio's network by vocabulary and loss.

    python benchmarks/nnlm.py corpus.txt --megabytes 5 --vocabularies 1000 10000 50000

Every run reads the same words in the same order with the same batches; only the loss differs. Speed is the median over
reports of a run (words per second, sampling, gradient and optimizer included), loss after loss. Perplexity is
exact for every loss: by the whole distribution, on the same held-out documents. Between vocabularies it cannot be
compared: what a small one does not know counts as one word.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from keel.data.text_files import open_text

LOSSES = ("softmax", "hierarchical", "nce", "negative")


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    """One run in a process of its own."""
    import keel

    speeds: list[float] = []

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "step":
            speeds.append(event["words_per_second"])

    with tempfile.TemporaryDirectory() as folder:
        model = keel.pretrain(
            "nnlm",
            arguments.corpus,
            out=Path(folder) / "m",
            loss=arguments.only,
            vocabulary=arguments.vocabularies[0],
            negatives=arguments.negatives,
            batch=arguments.batch,
            steps=arguments.steps,
            lr=arguments.lr,
            threads=1,
            device="cpu",
            evaluate_every=0,
            log_every=max(1, arguments.steps // 20),
            on_event=listen,
        )
    return {"speed": statistics.median(speeds[1:] or speeds), "perplexity": math.exp(model.card.scores["softmax"])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--megabytes", type=float, default=5)
    parser.add_argument("--vocabularies", type=int, nargs="+", default=[1_000, 10_000, 50_000])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=64, help="sequences of 32 words in a step [64]")
    parser.add_argument("--negatives", type=int, default=25)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--only", choices=LOSSES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(measure(arguments)))
        return
    with tempfile.TemporaryDirectory() as folder:
        text, size = Path(folder) / "text.txt", 0
        with open(text, "w", encoding="utf-8") as file:
            for _, line in open_text(arguments.corpus):
                file.write(line + "\n")
                size += len(line.encode()) + 1
                if size > arguments.megabytes * 1e6:
                    break
        shared = ["--steps", arguments.steps, "--batch", arguments.batch, "--negatives", arguments.negatives]
        print("| vocabulary | loss | words/s | times softmax | held-out perplexity |\n|---|---|---|---|---|")
        for vocabulary in arguments.vocabularies:
            base = 0.0
            for loss in LOSSES:
                options = [*shared, "--lr", arguments.lr, "--vocabularies", vocabulary, "--only", loss]
                command = [sys.executable, __file__, str(text), *map(str, options)]
                found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
                base = base or found["speed"]
                row = (f"{vocabulary:,}", loss, f"{found['speed']:,.0f}", f"{found['speed'] / base:.1f}")
                print(f"| {' | '.join(row)} | {found['perplexity']:.1f} |", flush=True)


if __name__ == "__main__":
    main()
