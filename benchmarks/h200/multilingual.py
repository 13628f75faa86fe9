"""Zero-shot cross-lingual transfer of a multilingual BERT, unattended, in four stages; a rerun resumes.

    python benchmarks/h200/encoder.py pretrain run/multi --recipe recipes/h200/multilingual-12x384.toml \\
        en:text/en_*.txt.xz zh:text/zh_*.txt.xz de:text/multi_de.txt.xz ... --settings --minutes 30
    python benchmarks/h200/multilingual.py tune run/multi --tasks tasks/ --seeds 0 1 2
    python benchmarks/h200/multilingual.py retrieve run/multi tasks/tatoeba/*.txt.xz
    python benchmarks/h200/multilingual.py report run/multi

(quote the patterns: the shell does not expand what follows a language.) tune fine-tunes under four conditions and
scores each model on every language: zero-shot (English examples), in-language, all (the examples of all languages), and
scratch (English examples, random weights: the twin that was not pre-trained). The learning rate is chosen on a tenth of
the training examples, never on the languages of the test. WikiAnn is scored on its dev files, XNLI on its dev files
after training on the NLI slices, which are English alone. retrieve measures the retrieval of translations in every
layer. Lines go to run/multi.tune.jsonl and run/multi.retrieval.jsonl; report prints them as tables. Start
nvidia-cuda-mps-control -d before, so that the processes share the GPU.
"""

import argparse
import json
import multiprocessing
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from encoder import finished_lines

LANGUAGES = ("en", "de", "fr", "es", "ru", "zh", "ja", "ko")
SOURCE = "en"
COMMON: dict[str, Any] = {"batch": 32, "optimizer": "muon", "layer_decay": 0.9, "warmup": 0.1}
LEARNING_RATES = {"scratch": (3e-4, 1e-3)}
"""Learning rates to choose from; (1e-4, 3e-4) for a pre-trained model."""


@dataclass(frozen=True)
class Transfer:
    """A task with test files in several languages."""

    task: str
    train: str
    """Training file of a language, which {} stands for; a file without it is English."""
    test: str
    epochs: int
    settings: dict[str, Any] = field(default_factory=dict)

    def files(self, folder: Path, pattern: str) -> dict[str, Path]:
        """The file of each language that has one."""
        languages = LANGUAGES if "{}" in pattern else (SOURCE,)
        found = {language: folder / pattern.format(language) for language in languages}
        return {language: path for language, path in found.items() if path.exists()}


TASKS = {
    "WikiAnn": Transfer("tag", "wikiann_panx/train-{}.tsv.xz", "wikiann_panx/dev-{}.tsv.xz", 3),
    "XNLI": Transfer("pair", "mnli_slice/pairs.jsonl.xz", "xnli_dev/{}.jsonl.xz", 3),
}


@dataclass(frozen=True)
class Job:
    """One fine-tuning."""

    task: str
    condition: str
    languages: tuple[str, ...]
    seed: int

    @property
    def key(self) -> tuple[Any, ...]:
        return self.task, self.condition, self.languages, self.seed


def jobs_of(options: argparse.Namespace) -> Iterator[Job]:
    for seed in options.seeds:
        for name in options.names:
            trained = tuple(TASKS[name].files(options.tasks, TASKS[name].train))
            yield Job(name, "zero-shot", (SOURCE,), seed)
            yield Job(name, "scratch", (SOURCE,), seed)
            if len(trained) > 1:
                yield Job(name, "all", trained, seed)
                yield from (Job(name, "in-language", (language,), seed) for language in trained if language != SOURCE)


def tune(model: str, tasks: Path, job: Job, examples: int) -> dict[str, Any]:
    import torch

    import keel
    from keel.tasks import TASKS as KEEL_TASKS

    torch.set_num_threads(1)
    transfer, start = TASKS[job.task], time.monotonic()
    kind = KEEL_TASKS[transfer.task]

    def read(files: dict[str, Path]) -> dict[str, Any]:
        found = {language: kind.read_labelled(path) for language, path in files.items()}
        return {name: each.take(range(min(examples or len(each), len(each)))) for name, each in found.items()}

    train = read({name: path for name, path in transfer.files(tasks, transfer.train).items() if name in job.languages})
    test = read(transfer.files(tasks, transfer.test))
    settings = {**COMMON, "epochs": transfer.epochs, **transfer.settings, "seed": job.seed}
    settings["lr"] = LEARNING_RATES.get(job.condition, (1e-4, 3e-4))
    result = {"task": job.task, "condition": job.condition, "languages": job.languages, "seed": job.seed}
    try:
        tuned = keel.finetune(
            model, train, task=transfer.task, dev="10%", test=test, from_scratch=job.condition == "scratch",
            progress=False, **settings,
        )  # fmt: skip
        scores = tuned.card.scores["test"]
        found = {each["name"]: each["values"][scores["main"]] for each in scores["slices"]}
        result |= {"main": scores["main"], "scores": found, "lr": tuned.card.recipe["train"]["lr"]}
    except Exception:
        result["error"] = traceback.format_exc()[-2000:]
    return {**result, "seconds": time.monotonic() - start}


def tune_all(options: argparse.Namespace) -> None:
    results = options.model.with_suffix(".tune.jsonl")
    lines = [each for each in finished_lines(results) if "error" not in each]
    done = {(each["task"], each["condition"], tuple(each["languages"]), each["seed"]) for each in lines}
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = [
            pool.submit(tune, str(options.model), options.tasks, job, options.examples)
            for job in jobs_of(options)
            if job.key not in done
        ]
        failed = 0
        for future in as_completed(waiting):
            result = future.result()
            failed += "error" in result
            line = json.dumps(result)
            with results.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
            print(line, flush=True)
    if failed:
        raise SystemExit(f"{failed} of {len(waiting)} fine-tunings failed: the lines of {results} say why")


def retrieve(options: argparse.Namespace) -> None:
    import keel

    model = keel.Model.load(options.model)
    results = options.model.with_suffix(".retrieval.jsonl")
    done = {(each["file"], each["centered"]) for each in finished_lines(results)}
    for path in options.files:
        for center in (False, True):
            if (path.name, center) in done:
                continue
            figure = options.model.with_suffix(f".{path.name.partition('.')[0]}{'.centred' * center}.svg")
            found = keel.retrieval(model, path, center=center, sample=options.sample, out=figure)
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"file": path.name, **found.to_dict()}) + "\n")
            print(path.name, *found.lines(), sep="\n", flush=True)


def report(options: argparse.Namespace) -> None:
    results = [each for each in finished_lines(options.model.with_suffix(".tune.jsonl")) if "error" not in each]
    for task in dict.fromkeys(each["task"] for each in results):
        rows = [each for each in results if each["task"] == task]
        languages = [language for language in LANGUAGES if any(language in each["scores"] for each in rows)]
        print(f"| {task} ({rows[0]['main']}) | {' | '.join(languages)} | mean without {SOURCE} |")
        print("|---" * (len(languages) + 2) + "|")
        for condition in ("zero-shot", "in-language", "all", "scratch"):
            cells: dict[str, list[float]] = {}
            for each in rows:
                own = each["languages"] if condition == "in-language" else languages
                # A model of English alone is the in-language model of English.
                english = condition == "in-language" and each["condition"] == "zero-shot"
                if each["condition"] == condition or english:
                    for language in [SOURCE] if english else own:
                        cells.setdefault(language, []).append(100 * each["scores"][language]["value"])
            if len(cells) == len(languages):
                others = [fmean(cells[language]) for language in languages if language != SOURCE]
                shown = " | ".join(spread(cells[language]) for language in languages)
                print(f"| {condition} | {shown} | {fmean(others):.1f} |")
        print()
    for each in finished_lines(options.model.with_suffix(".retrieval.jsonl")):
        centered = ", mean-centred" if each["centered"] else ""
        print(f"| {each['file']}{centered} | {each['first']} → {each['second']} | {each['second']} → {each['first']} |")
        print("|---" * 3 + "|")
        for layer in each["layers"]:
            print(f"| {layer['layer']} | {layer['forward']['value']:.3f} | {layer['backward']['value']:.3f} |")
        print()


def spread(values: list[float]) -> str:
    return f"{fmean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = parser.add_subparsers(required=True)
    stage = stages.add_parser("tune")
    stage.set_defaults(run=tune_all)
    stage.add_argument("model", type=Path)
    stage.add_argument("--tasks", type=Path, required=True)
    stage.add_argument("--names", nargs="+", choices=TASKS, default=list(TASKS))
    stage.add_argument("--seeds", nargs="+", type=int, default=[0])
    stage.add_argument("--jobs", type=int, default=8)
    stage.add_argument("--examples", type=int, default=0, help="examples to read of each file; 0: all")
    stage = stages.add_parser("retrieve")
    stage.set_defaults(run=retrieve)
    stage.add_argument("model", type=Path)
    stage.add_argument("files", nargs="+", type=Path)
    stage.add_argument("--sample", type=int, default=1000)
    stage = stages.add_parser("report")
    stage.set_defaults(run=report)
    stage.add_argument("model", type=Path)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
