"""GLUE-5 of a model and of its twin from scratch: SST-2 accuracy, CoLA Matthews, MRPC F1, RTE accuracy, STS-B Spearman.

Fixed epochs, the last one counts. The learning rate of each task is chosen on a tenth of its train file, then the whole
file is learned with every seed and scored once on dev.

    python benchmarks/glue.py MODEL --data ../shared/data/tasks/glue --seeds 3 --jobs 8 --out glue.json
"""

import argparse
import json
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

TASKS = {
    "SST-2": ("classify", "accuracy"),
    "CoLA": ("classify", "matthews"),
    "MRPC": ("pair", "binary_f1"),
    "RTE": ("pair", "accuracy"),
    "STS-B": ("pair", "spearman"),
}


@dataclass(frozen=True)
class Job:
    model: str
    data: str
    name: str
    scratch: bool
    lr: float
    seed: int
    epochs: float
    tenth: bool
    """Scored on a tenth of train that is held out, to choose; otherwise on dev, to report."""


def run(job: Job) -> tuple[Job, float, float]:
    import torch

    import keel

    torch.set_num_threads(1 if torch.cuda.is_available() else torch.get_num_threads())
    kind, metric = TASKS[job.name]
    folder = Path(job.data) / job.name
    files = {path.name.split(".")[0]: path for path in folder.iterdir()}
    start = time.monotonic()
    model = keel.finetune(
        job.model,
        files["train"],
        task=kind,
        dev="10%" if job.tenth else files["dev"],
        from_scratch=job.scratch,
        lr=job.lr,
        epochs=job.epochs,
        seed=job.seed,
        batch=32,
        log_every=1000,
    )
    return job, 100 * model.card.scores["dev"]["values"][metric]["value"], time.monotonic() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--data", default=os.environ.get("KEEL_DATA", "../shared/data") + "/tasks/glue")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--epochs", type=float, default=4)
    parser.add_argument("--rates", type=float, nargs="+", default=[5e-5, 1e-4, 3e-4])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--out", default="glue.json")
    options = parser.parse_args()

    def job(name: str, scratch: bool, lr: float, seed: int, tenth: bool) -> Job:
        return Job(options.model, options.data, name, scratch, lr, seed, options.epochs, tenth)

    # The longest first, so that no worker is left alone with it at the end.
    size = {
        name: sum(path.stat().st_size for path in (Path(options.data) / name).glob("train*")) for name in options.tasks
    }
    names = sorted(options.tasks, key=lambda name: -size[name])
    with ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn")) as pool:
        choices = [
            job(name, scratch, lr, 0, True) for name in names for scratch in (False, True) for lr in options.rates
        ]
        tried: list[tuple[Job, float, float]] = []
        for done in pool.map(run, choices):
            tried.append(done)
            print(
                f"choose {done[0].name} scratch={done[0].scratch} lr={done[0].lr:g}: {done[1]:.1f} ({done[2]:.0f} s)",
                flush=True,
            )
        best = {
            (name, scratch): max(
                (t for t in tried if (t[0].name, t[0].scratch) == (name, scratch)), key=lambda t: t[1]
            )[0].lr
            for name in names
            for scratch in (False, True)
        }
        finals = [
            job(name, scratch, best[name, scratch], seed, False)
            for name in names
            for scratch in (False, True)
            for seed in range(options.seeds)
        ]
        scores: list[tuple[Job, float, float]] = []
        for done in pool.map(run, finals):
            scores.append(done)
            print(
                f"final {done[0].name} scratch={done[0].scratch} seed={done[0].seed}: {done[1]:.1f} ({done[2]:.0f} s)",
                flush=True,
            )
    report(scores, best, options)


def report(
    scores: list[tuple[Job, float, float]], best: dict[tuple[str, bool], float], options: argparse.Namespace
) -> None:
    rows: dict[str, Any] = {}
    for scratch in (False, True):
        found = {
            name: [value for job, value, _ in scores if job.name == name and job.scratch == scratch]
            for name in options.tasks
        }
        rows["from scratch" if scratch else "pre-trained"] = {
            "lr": {name: best[name, scratch] for name in options.tasks},
            "values": found,
            "median": {name: median(values) for name, values in found.items()},
            "seconds": sum(seconds for job, _, seconds in scores if job.scratch == scratch),
        }
    Path(options.out).write_text(json.dumps(rows, indent=1))
    print("| | " + " | ".join(options.tasks) + " | GLUE-5 (mean of medians) |")
    print("|---" * (len(options.tasks) + 2) + "|")
    for name, row in rows.items():
        cells = [
            f"{row['median'][task]:.1f} ({min(v):.1f}-{max(v):.1f})"
            for task in options.tasks
            for v in [row["values"][task]]
        ]
        print(f"| {name} | " + " | ".join(cells) + f" | {mean(row['median'].values()):.1f} |")


if __name__ == "__main__":
    main()
