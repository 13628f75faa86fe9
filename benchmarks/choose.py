"""Multiple choice: models, or systems from labels alone, on published sets, several seeds each.

Fixed epochs, the last one counts, no setting is chosen on what is scored. Of SWAG's part, which has no splits, a fifth
is held out (seed 0); CODAH is its published fold 0, RACE is RACE-middle.

    python benchmarks/choose.py MODEL [MODEL ...] --sets race swag csqa mutual codah --seeds 3 --epochs 3
    python benchmarks/choose.py gpt bert --sets swag --seeds 1 --limit 200 --shape layers=1 width=64 head_dim=32
"""

import argparse
import json
import os
import time
from pathlib import Path
from statistics import mean
from typing import Any

import keel
from keel.data.example_splits import split_validation
from keel.data.examples import Examples
from keel.systems import SYSTEMS
from keel.tasks.choose import MultipleChoice

SETS = {
    "race": ("race/RACE-middle.tar.xz/train", "race/RACE-middle.tar.xz/test"),
    "swag": ("swag_slice/all.jsonl.xz", ""),
    "csqa": ("csqa/train.jsonl.xz", "csqa/dev.jsonl.xz"),
    "mutual": ("mutual/train.jsonl.xz", "mutual/dev.jsonl.xz"),
    "codah": ("codah/cv_split/fold_0/train.tsv.xz", "codah/cv_split/fold_0/test.tsv"),
}


def read(name: str, data: Path, limit: int) -> tuple[Examples, Examples]:
    """What to learn from and what to score on."""
    train, test = SETS[name]
    learned = MultipleChoice.read_examples(data / train)
    if test:
        tested = MultipleChoice.read_examples(data / test)
    else:
        learned, tested = split_validation(learned, 0.2, 0)
    return (learned[:limit], tested[:limit]) if limit else (learned, tested)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="folders, or names of systems that learn from the labels alone")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("KEEL_DATA", "../shared/data")) / "tasks")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.0, help="0: the system's own")
    parser.add_argument(
        "--lm-loss",
        type=float,
        default=-1.0,
        help="auxiliary LM loss of causal language models; below 0: the system's own",
    )
    parser.add_argument("--shape", nargs="*", default=[], help="fields of new systems, as layers=2")
    parser.add_argument("--limit", type=int, default=0, help="examples of each file; 0: all")
    parser.add_argument("--out", default="choose.json")
    options = parser.parse_args()
    shape: dict[str, Any] = {name: int(value) for name, value in (each.split("=") for each in options.shape)}
    rows: list[dict[str, Any]] = []
    for name in options.sets:
        learned, tested = read(name, options.data, options.limit)
        guess = mean(1 / len(choices) for choices in tested.choices)
        print(f"{name}: {len(learned):,} to learn from, {len(tested):,} to score on, a guess is right in {guess:.1%}")
        rows.append({"set": name, "model": "a guess", "values": [guess]})
        for model in options.models:
            settings: dict[str, Any] = {"epochs": options.epochs, "batch": options.batch, "log_every": 1000}
            settings |= {"lr": options.lr} if options.lr else {}
            settings |= shape if model in SYSTEMS else {}
            settings |= {"lm_loss": options.lm_loss} if options.lm_loss >= 0 else {}
            values, began = [], time.monotonic()
            for seed in range(options.seeds):
                tuned = keel.finetune(model, learned, task="choose", dev=tested, seed=seed, **settings)
                values.append(tuned.card.scores["dev"]["values"]["accuracy"]["value"])
            seconds = (time.monotonic() - began) / options.seeds
            rows.append({"set": name, "model": model, "values": values, "seconds": seconds, "settings": settings})
            print(f"  {model}: {', '.join(f'{value:.3f}' for value in values)} ({seconds:.0f} s a seed)", flush=True)
    Path(options.out).write_text(json.dumps(rows, indent=1))
    models = ["a guess", *options.models]
    print("\n| accuracy, mean (least to most) of seeds | " + " | ".join(options.sets) + " |")
    print("|---" * (len(options.sets) + 1) + "|")
    for model in models:
        cells = []
        for name in options.sets:
            (values,) = (row["values"] for row in rows if (row["set"], row["model"]) == (name, model))
            spread = f" ({100 * min(values):.1f} to {100 * max(values):.1f})" if len(values) > 1 else ""
            cells.append(f"{100 * mean(values):.1f}{spread}")
        print(f"| {model} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
