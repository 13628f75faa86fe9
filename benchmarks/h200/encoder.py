"""An encoder from raw text to its scores, unattended: pre-train by a recipe, pack the weights, fine-tune side by side.

    python benchmarks/h200/encoder.py text/*.txt.xz --recipe recipes/h200/electra-12x384.toml --steps 8800 \
        --tasks tasks/ --out run/

`--tasks` is a folder with those of `TASKS` below. run/model is the model, run/weights.00, .01, ... its folder as a tar
file with half-precision weights, in parts of 15 MB; run/results.jsonl gets a line for each fine-tuning. A rerun
resumes. Start nvidia-cuda-mps-control -d before, so that the processes share the GPU.
"""

import argparse
import io
import json
import multiprocessing
import shutil
import subprocess
import sys
import tarfile
import time
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PART = 15_000_000
COMMON: dict[str, Any] = {"batch": 32, "epochs": 10, "layer_decay": 0.9, "warmup": 0.1}


@dataclass(frozen=True)
class Tuning:
    """A data set, and the settings that were chosen for it on a tenth of its training set (docs/log.md)."""

    folder: str
    task: str
    train: str = "train"
    test: str = "dev"
    seeds: int = 5
    settings: dict[str, Any] = field(default_factory=dict)


TASKS = {
    "SQuAD": Tuning("squad", "answer", seeds=1, settings={"optimizer": "muon", "lr": 3e-4, "epochs": 3}),
    "CoNLL-2003": Tuning(
        "conll2003", "tag", "eng.train", "eng.testb", 2, {"optimizer": "muon", "lr": 3e-4, "batch": 16}
    ),
    "SST-2": Tuning("glue/SST-2", "classify", settings={"optimizer": "muon", "lr": 3e-4, "epochs": 3}),
    "STS-B": Tuning("glue/STS-B", "pair", settings={"optimizer": "muon", "lr": 3e-4, "orders": "both"}),
    "CoLA": Tuning("glue/CoLA", "classify", settings={"optimizer": "muon", "lr": 1e-4}),
    "MRPC": Tuning("glue/MRPC", "pair", settings={"lr": 5e-5, "orders": "both"}),
    "RTE": Tuning("glue/RTE", "pair", settings={"optimizer": "muon", "lr": 3e-4}),
}


def pretrain(texts: list[str], recipe: str, steps: int, out: Path) -> None:
    command = [sys.executable, "-m", "keel", "pretrain", *texts, "--recipe", recipe, "--out", str(out)]
    if steps:
        command += ["--steps", str(steps)]
    command += ["--train.evaluate_every", "3000", "--train.log_every", "100"]
    with open(out.parent / "pretrain.log", "a") as log:
        subprocess.run(command, stdout=log, stderr=log, check=True)


def pack(model: Path, out: Path) -> None:
    """The folder as a tar file in parts; weights in half precision."""
    import torch
    from safetensors.torch import load_file, save

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path in sorted(path for path in model.iterdir() if path.is_file()):
            content = path.read_bytes()
            if path.suffix == ".safetensors":
                tensors = load_file(path)
                content = save({name: tensor.to(torch.float16) for name, tensor in tensors.items()})
            entry = tarfile.TarInfo(path.name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    whole = packed.getvalue()
    for number, start in enumerate(range(0, len(whole), PART)):
        (out / f"weights.{number:02}").write_bytes(whole[start : start + PART])


def tune(model: str, tasks: str, name: str, seed: int) -> dict[str, Any]:
    import torch

    import keel

    torch.set_num_threads(1)
    tuning, start = TASKS[name], time.monotonic()
    train, test = (
        next(path for path in sorted((Path(tasks) / tuning.folder).iterdir()) if path.name.startswith(part))
        for part in (tuning.train, tuning.test)
    )
    settings = {**COMMON, **tuning.settings, "seed": seed}
    result: dict[str, Any] = {"name": name, **settings}
    try:
        tuned = keel.finetune(model, train, task=tuning.task, dev=None, test=test, progress=False, **settings)
        scores = tuned.card.scores["test"]
        result |= {"main": scores["main"], "values": {key: value["value"] for key, value in scores["values"].items()}}
    except Exception:
        result["error"] = traceback.format_exc()[-2000:]
    return {**result, "seconds": time.monotonic() - start}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*")
    parser.add_argument("--recipe", default="recipes/h200/electra-12x384.toml")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--tasks", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=14)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    model = options.out / "model"
    if not (model / "config.json").exists():
        pretrain(options.texts, options.recipe, options.steps, model)
    shutil.rmtree(model / "run", ignore_errors=True)
    pack(model, options.out)
    (options.out / "packed").touch()
    results = options.out / "results.jsonl"
    done = {(line["name"], line["seed"]) for line in map(json.loads, results.open())} if results.exists() else set()
    pairs = [(name, seed) for seed in range(5) for name in TASKS if seed < TASKS[name].seeds]
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        todo = [pool.submit(tune, str(model), options.tasks, *pair) for pair in pairs if pair not in done]
        for job in as_completed(todo):
            with results.open("a") as file:
                file.write(json.dumps(job.result()) + "\n")
            print(json.dumps(job.result()), flush=True)


if __name__ == "__main__":
    main()
