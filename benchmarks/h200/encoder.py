"""An encoder from raw text to its scores, unattended, in two stages; a rerun resumes.

    python benchmarks/h200/encoder.py pretrain run/electra text/*.txt.xz --recipe recipes/h200/electra-12x384.toml
    python benchmarks/h200/encoder.py tune run/electra --tasks tasks/ --names SST-2 CoLA --seeds 0 1 2 3 4

pretrain trains by a recipe and writes the model folder and, beside it, its weights in half precision as a tar file in
parts of 15 MB (run/electra.00, .01, ...; packing.py). tune fine-tunes side by side on those of TASKS below, from a
folder with their files, and appends a line for each to run/electra.jsonl; start nvidia-cuda-mps-control -d before, so
that the processes share the GPU. lease.py runs all of it as a queue.
"""

import argparse
import json
import multiprocessing
import subprocess
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packing import pack

FORMS = ("orders", "crf")
"""Settings that say what is learned, not how."""
COMMON: dict[str, Any] = {"batch": 32, "epochs": 10, "layer_decay": 0.9, "warmup": 0.1}


@dataclass(frozen=True)
class Tuning:
    """A data set, and the settings that were chosen for it on a tenth of its training set (docs/log.md)."""

    folder: str
    task: str
    train: str = "train"
    test: str = "dev"
    settings: dict[str, Any] = field(default_factory=dict)


TASKS = {
    "SQuAD": Tuning("squad", "answer", settings={"optimizer": "muon", "lr": 3e-4, "epochs": 3}),
    "CoNLL-2003": Tuning("conll2003", "tag", "eng.train", "eng.testb", {"optimizer": "muon", "lr": 3e-4, "batch": 16}),
    "CoNLL-2003, CRF": Tuning(
        "conll2003", "tag", "eng.train", "eng.testb", {"optimizer": "muon", "lr": 3e-4, "batch": 16, "crf": True}
    ),
    "SST-2": Tuning("glue/SST-2", "classify", settings={"optimizer": "muon", "lr": 3e-4, "epochs": 3}),
    "STS-B": Tuning("glue/STS-B", "pair", settings={"optimizer": "muon", "lr": 3e-4, "orders": "both"}),
    "CoLA": Tuning("glue/CoLA", "classify", settings={"optimizer": "muon", "lr": 1e-4}),
    "MRPC": Tuning("glue/MRPC", "pair", settings={"lr": 5e-5, "orders": "both"}),
    "RTE": Tuning("glue/RTE", "pair", settings={"optimizer": "muon", "lr": 3e-4}),
    "MSRA": Tuning("zh/msra_ner_split", "tag", settings={"optimizer": "muon", "lr": 3e-4, "epochs": 3}),
    "MSRA, CRF": Tuning(
        "zh/msra_ner_split", "tag", settings={"optimizer": "muon", "lr": 3e-4, "epochs": 5, "crf": True}
    ),
    "ChnSentiCorp": Tuning(
        "zh/chnsenticorp", "classify", test="test", settings={"optimizer": "muon", "lr": 3e-4, "epochs": 5}
    ),
    "CMRC2018": Tuning("zh/cmrc2018", "answer", settings={"optimizer": "muon", "lr": 3e-4, "epochs": 3}),
}


def pretrain(options: argparse.Namespace) -> None:
    command = [sys.executable, "-m", "keel", "pretrain", *options.texts, "--recipe", options.recipe]
    if options.steps:
        command += ["--steps", str(options.steps)]
    if not (options.model / "config.json").exists():
        subprocess.run([*command, "--out", str(options.model), *options.settings], check=True)
    pack(options.model, options.model)


def tune(model: str, tasks: str, common: dict[str, Any] | None, name: str, seed: int) -> dict[str, Any]:
    """A line of results; `common` settings take precedence over those of the data set, None: no settings at all."""
    import torch

    import keel

    torch.set_num_threads(1)
    tuning, start = TASKS[name], time.monotonic()
    settings = {} if common is None else {**COMMON, **tuning.settings, **common}
    settings |= {"seed": seed} | {name: value for name, value in tuning.settings.items() if name in FORMS}
    result: dict[str, Any] = {"name": name, **settings}
    try:
        train, test = (
            next(path for path in sorted((Path(tasks) / tuning.folder).iterdir()) if path.name.startswith(part))
            for part in (tuning.train, tuning.test)
        )
        held_out: dict[str, Any] = {} if common is None else {"dev": None}
        tuned = keel.finetune(model, train, task=tuning.task, test=test, progress=False, **held_out, **settings)
        scores = tuned.card.scores["test"]
        result |= {"main": scores["main"], "values": {key: value["value"] for key, value in scores["values"].items()}}
    except Exception:
        result["error"] = traceback.format_exc()[-2000:]
    return {**result, "seconds": time.monotonic() - start}


def tune_all(options: argparse.Namespace) -> None:
    """Fine-tune side by side; a rerun leaves out what has its line, and tries again what failed."""
    suffix = f".{options.label}.jsonl" if options.label else ".jsonl"
    results = options.model.with_name(f"{options.model.name}{suffix}")
    done = {(line["name"], line["seed"]) for line in finished_lines(results) if "error" not in line}
    given: dict[str, Any] | None = dict(map(setting, options.set))
    if options.epochs:
        given["epochs"] = options.epochs
    if options.defaults:
        given = None
    pairs = [(name, seed) for seed in options.seeds for name in options.names if (name, seed) not in done]
    failed = 0
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        todo = [pool.submit(tune, str(options.model), options.tasks, given, *pair) for pair in pairs]
        for job in as_completed(todo):
            result = job.result()
            failed += "error" in result
            with results.open("a") as file:
                file.write(json.dumps(result) + "\n")
            print(json.dumps(result), flush=True)
    if failed:
        raise SystemExit(f"{failed} of {len(pairs)} fine-tunings failed: the lines of {results} say why")


def setting(text: str) -> tuple[str, Any]:
    """name=value of --set."""
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        return name, value


def finished_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of results; one that was cut off by a kill is dropped from the file."""
    if not path.exists():
        return []
    whole = path.read_text()
    complete = whole[: whole.rfind("\n") + 1]
    if complete != whole:
        path.write_text(complete)
    return [json.loads(line) for line in complete.splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = parser.add_subparsers(required=True)
    stage = stages.add_parser("pretrain")
    stage.set_defaults(run=pretrain)
    stage.add_argument("model", type=Path)
    stage.add_argument("texts", nargs="+")
    stage.add_argument("--recipe", required=True)
    stage.add_argument("--steps", type=int, default=0)
    stage.add_argument("--settings", nargs=argparse.REMAINDER, default=[], help="further flags of keel pretrain")
    stage = stages.add_parser("tune")
    stage.set_defaults(run=tune_all)
    stage.add_argument("model", type=Path)
    stage.add_argument("--tasks", required=True)
    stage.add_argument("--names", nargs="+", choices=TASKS, default=list(TASKS))
    stage.add_argument("--seeds", nargs="+", type=int, default=[0])
    stage.add_argument("--jobs", type=int, default=8)
    stage.add_argument("--epochs", type=float, default=0, help="instead of those of each data set")
    stage.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings instead of those below")
    stage.add_argument("--defaults", action="store_true", help="no settings: the defaults of keel finetune")
    stage.add_argument("--label", default="", help="part of the name of the results, for other settings")
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
