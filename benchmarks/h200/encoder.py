"""An encoder from raw text to its scores, unattended, in three stages; a rerun resumes.

    python benchmarks/h200/encoder.py pretrain run/electra text/*.txt.xz --recipe recipes/h200/electra-12x384.toml
    python benchmarks/h200/encoder.py mlm run/bert text/*.txt.xz --parent run/electra --steps 1000
    python benchmarks/h200/encoder.py tune run/bert --tasks tasks/ --names SST-2 CoLA --seeds 0 1 2 3 4

pretrain trains by a recipe. mlm continues ELECTRA with its encoder as its own generator and writes that encoder with
its head as BERT, so that one encoder fills masks and is fine-tuned. Both write the model folder and, beside it, its
weights in half precision as a tar file in parts of 15 MB (run/bert.00, .01, ...; packing.py). tune fine-tunes side by
side on those of TASKS below, from a folder with their files, and appends a line for each to run/bert.jsonl; start
nvidia-cuda-mps-control -d before, so that the processes share the GPU. lease.py runs all of it as a queue.
"""

import argparse
import dataclasses
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


def add_mlm(options: argparse.Namespace) -> None:
    """Continue ELECTRA with its encoder as its own generator, and write that encoder with its head as BERT."""
    import keel
    from keel.systems.electra import ElectraPretraining

    joint = options.model.with_name(f"{options.model.name}-joint")
    if not (joint / "config.json").exists():
        parent = keel.Model.load(options.parent)
        assert isinstance(parent.objective, ElectraPretraining)
        length = parent.system.max_length
        lengths = {"sequence_length": length, "final_sequence_length": 0}
        system = dataclasses.replace(parent.objective.system, generator_ratio=0.0, **lengths)
        objective = system.build_objective(parent.objective.encoder, parent.tokenizer)
        assert isinstance(objective, ElectraPretraining)
        objective.transform.load_state_dict(parent.objective.transform.state_dict())
        objective.detector.load_state_dict(parent.objective.detector.state_dict())
        start = dataclasses.replace(parent, system=system, objective=objective)
        plan = keel.Train(
            steps=options.steps,
            batch=options.tokens // length,
            accumulate=options.accumulate,
            optimizer="muon",
            lr=1e-3,
            schedule="trapezoid",
            warmup=0.05,
            cooldown=0.7,
            average=0.05,
            weight_decay=0.05,
            evaluate_every=500,
            log_every=100,
        )
        keel.pretrain(start, [Path(name) for name in options.texts], out=joint, train=plan)
    write_as_bert(joint, options.model)
    pack(options.model, options.model)


def write_as_bert(source: Path, out: Path) -> None:
    """Write an ELECTRA that is its own generator as the masked language model that it contains."""
    import keel
    from keel.systems.bert import Bert
    from keel.systems.electra import ElectraPretraining

    model = keel.Model.load(source, device="cpu")
    assert isinstance(model.objective, ElectraPretraining)
    system = Bert(**{each.name: getattr(model.system, each.name) for each in dataclasses.fields(Bert)})
    encoder = system.build_encoder(model.encoder.vocab_size)
    encoder.load_state_dict(model.encoder.state_dict())
    objective = system.build_objective(encoder, model.tokenizer)
    objective.load_state_dict(model.objective.generator.state_dict(), strict=False)
    dataclasses.replace(model, system=system, encoder=encoder, objective=objective).save(out, overwrite=True)


def tune(model: str, tasks: str, given: dict[str, Any], name: str, seed: int) -> dict[str, Any]:
    import torch

    import keel

    torch.set_num_threads(1)
    tuning, start = TASKS[name], time.monotonic()
    settings = {**COMMON, **tuning.settings, **given, "seed": seed}
    result: dict[str, Any] = {"name": name, **settings}
    try:
        train, test = (
            next(path for path in sorted((Path(tasks) / tuning.folder).iterdir()) if path.name.startswith(part))
            for part in (tuning.train, tuning.test)
        )
        tuned = keel.finetune(model, train, task=tuning.task, dev=None, test=test, progress=False, **settings)
        scores = tuned.card.scores["test"]
        result |= {"main": scores["main"], "values": {key: value["value"] for key, value in scores["values"].items()}}
    except Exception:
        result["error"] = traceback.format_exc()[-2000:]
    return {**result, "seconds": time.monotonic() - start}


def tune_all(options: argparse.Namespace) -> None:
    """Fine-tune side by side; a rerun leaves out what has its line, and tries again what failed."""
    results = options.model.with_name(f"{options.model.name}.jsonl")
    done = {(line["name"], line["seed"]) for line in finished_lines(results) if "error" not in line}
    given = {"epochs": options.epochs} if options.epochs else {}
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
    stage = stages.add_parser("mlm")
    stage.set_defaults(run=add_mlm)
    stage.add_argument("model", type=Path)
    stage.add_argument("texts", nargs="+")
    stage.add_argument("--parent", required=True)
    stage.add_argument("--steps", type=int, default=1000)
    stage.add_argument("--tokens", type=int, default=2**18, help="tokens per step")
    stage.add_argument("--accumulate", type=int, default=2)
    stage = stages.add_parser("tune")
    stage.set_defaults(run=tune_all)
    stage.add_argument("model", type=Path)
    stage.add_argument("--tasks", required=True)
    stage.add_argument("--names", nargs="+", choices=TASKS, default=list(TASKS))
    stage.add_argument("--seeds", nargs="+", type=int, default=[0])
    stage.add_argument("--jobs", type=int, default=8)
    stage.add_argument("--epochs", type=float, default=0, help="instead of those of each data set")
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
