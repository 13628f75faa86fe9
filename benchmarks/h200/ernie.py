"""ERNIE against BERT on Chinese: four maskings, one pre-training each, five seeds of fine-tuning, paired tests.

    python benchmarks/h200/ernie.py tokens text/*.txt.xz --tokenizer T --entities names.txt
    python benchmarks/h200/ernie.py pretrain run entities text/*.txt.xz --tokenizer T --entities names.txt
    python benchmarks/h200/ernie.py tune run entities --tasks tasks/zh --seeds 0 1 2 3 4
    python benchmarks/h200/ernie.py speed run text/*.txt.xz --tokenizer T --entities names.txt
    python benchmarks/h200/ernie.py report run

Every row masks what the row before it masks, and more: characters (bert), whole words (bert with whole-word masking, as
in BERT-wwm), phrases (ernie: a third of the steps words, two thirds phrases), entities (ernie: a third each words,
phrases, names). Steps, batches, seed and tokenizer are equal; all else is recipes/h200/ernie-12x384-chinese.toml. ERNIE
as published begins with single characters; here words, so that a row adds one thing to the row before it.

tokens encodes the text and finds its units beforehand, on CPU cores; pretrain would do the same. tune chooses the
learning rate of each model and data set on a tenth of the training examples, with the first seed, then fine-tunes on
all of them with each seed, side by side in processes (start nvidia-cuda-mps-control -d before, so that they share the
GPU); a line of run/masking-ROW.jsonl has the score of every test item. speed measures each pre-training alone. report
prints the tables. Everything continues after a kill; lease.py runs all of it as a queue.

Time on one H200, 19 to 23 of 25 minutes by estimate: four pre-trainings of 1,500 steps of 262,144 tokens (393M, 9
epochs) at 2.8M tokens/s are 4 x (142 s + 25 s to start). Words and units take 50 s of eight cores, phrases 80 s of one,
beside the first of them. The fine-tunings of a row are 43,000 steps (a seed: 894 x 2 on CMRC2018, 792 x 3 on MSRA,
312 x 4 on OCNLI, 321 x 3 on ChnSentiCorp; five seeds, and two learning rates on nine tenths), two to three minutes of
14 processes at 400 to 250 steps/s, beside the pre-training of the next row. The speeds take a minute.
"""

import argparse
import ast
import json
import multiprocessing
import os
import shutil
import threading
import time
import tomllib
import traceback
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from encoder import COMMON, Tuning, finished_lines

RECIPE = Path(__file__).parents[2] / "recipes" / "h200" / "ernie-12x384-chinese.toml"
RATES = (1e-4, 3e-4)
"""Learning rates to choose from."""
HELD_OUT = "10%"


@dataclass(frozen=True)
class Masking:
    """A row of the comparison."""

    title: str
    system: str
    settings: dict[str, Any] = field(default_factory=dict)
    """What differs from the recipe."""
    entities: bool = False
    """Whether the names of a file are masked as a whole."""


ROWS = {
    "characters": Masking("characters", "bert", {"whole_word_masking": False}),
    "words": Masking("whole words", "bert"),
    "phrases": Masking("+ phrases", "ernie"),
    "entities": Masking("+ entities", "ernie", entities=True),
}
SETTINGS = {**COMMON, "optimizer": "muon"}
TASKS = {
    "CMRC2018": Tuning("cmrc2018", "answer", settings={"epochs": 2}),
    "MSRA": Tuning("msra_ner_split", "tag", settings={"epochs": 3, "batch": 64}),
    "OCNLI": Tuning("ocnli", "pair", train="train.10k", settings={"epochs": 4}),
    "ChnSentiCorp": Tuning("chnsenticorp", "classify", test="test", settings={"epochs": 3}),
}
"""The longest first, so that the last processes end together. MSRA's published test set is the file dev."""
SCORES = {
    "OCNLI": "OCNLI dev, accuracy",
    "ChnSentiCorp": "ChnSentiCorp test, accuracy",
    "MSRA": "MSRA test, entity F1",
    "CMRC2018": "CMRC2018 dev, F1",
}
PUBLISHED = """\
| published, 12x768, dev/test | XNLI, accuracy | ChnSentiCorp, accuracy | MSRA, entity F1 | CMRC2018 dev, F1 |
|---|---|---|---|---|
| BERT | 78.1/77.2 | 94.6/94.3 | 94.0/92.6 | 85.9 |
| ERNIE | 79.9/78.4 | 95.2/95.4 | 95.0/93.8 | 85.1 |"""


def model_folder(run: Path, row: str) -> Path:
    return run / f"masking-{row}"


def results_file(run: Path, row: str) -> Path:
    return run / f"masking-{row}.jsonl"


def settings_of(row: str, options: argparse.Namespace) -> dict[str, Any]:
    """The settings of a row's pre-training, as `keel.pretrain` takes them."""
    recipe = tomllib.loads(RECIPE.read_text())
    masking = ROWS[row]
    del recipe["system"]["name"]
    if masking.system == "bert":
        del recipe["text"]["phrases"]
    entities = {"entities": str(options.entities)} if masking.entities else {}
    return {**recipe["system"], **recipe["train"], **recipe["text"], **masking.settings, **entities,
            "tokenizer": str(options.tokenizer), **dict(options.set)}  # fmt: skip


def build_tokens(options: argparse.Namespace) -> None:
    """The token store of every row in the cache, where its pre-training finds it."""
    from keel.api.settings import TextSettings, corpus_of, route_settings
    from keel.api.unit_finding import listed_units, with_phrases
    from keel.data.token_store import Tokens
    from keel.data.tokenizer import Tokenizer
    from keel.systems import SYSTEMS

    tokenizer = Tokenizer.load(options.tokenizer)
    for row, masking in ROWS.items():
        began = time.monotonic()
        start = SYSTEMS[masking.system]()
        settings = settings_of(row, options)
        system, _, text = route_settings(settings, start, start.pretraining_defaults, TextSettings())
        text = text.resolve(system)
        corpus = corpus_of(options.texts, text, show)
        units = (
            with_phrases(listed_units(text, "cpu", show), corpus, text.phrases, show) if system.needs_units else None
        )
        tokens = Tokens.build(corpus, tokenizer, words=system.needs_word_starts, units=units)
        lengths = [round(length, 3) for length in tokens.unit_lengths()] if units else []
        print(f"{row}: {len(tokens):,} tokens, units {lengths}, {time.monotonic() - began:.0f} s", flush=True)


def show(event: dict[str, Any]) -> None:
    if event["event"] == "note":
        print(event["text"], flush=True)


def pretrain(options: argparse.Namespace) -> None:
    import keel

    out = model_folder(options.run, options.row)
    if not (out / "config.json").exists():
        keel.pretrain(ROWS[options.row].system, options.texts, out=out, progress=False,
                      on_event=show, **settings_of(options.row, options))  # fmt: skip


def speed(options: argparse.Namespace) -> None:
    """Seconds per step of each row, alone on the machine: the rows in turn, forwards and backwards."""
    import keel

    results = options.run / "masking.speed.jsonl"
    done = {(line["row"], line["round"]) for line in finished_lines(results)}
    fixed: dict[str, Any] = {
        "steps": options.steps,
        "ramp": 0.0,
        "average": 0.0,
        "evaluate_every": 0,
        "final_sequence_length": 0,
        "log_every": max(1, options.steps // 8),
    }
    for number in range(options.rounds):
        for row in list(ROWS)[:: -1 if number % 2 else 1]:
            if (row, number) in done:
                continue
            out, events = options.run / "speed", list[dict[str, Any]]()
            shutil.rmtree(out, ignore_errors=True)
            settings = settings_of(row, options) | fixed
            keel.pretrain(ROWS[row].system, options.texts, out=out, on_event=events.append, **settings)
            seconds = [event["seconds_per_step"] for event in events if event["event"] == "step"]
            middle = median(seconds[len(seconds) // 2 :])
            tokens = settings["batch"] * settings["sequence_length"] / middle
            add_line(results, {"row": row, "round": number, "seconds": middle, "tokens_per_second": tokens})
            shutil.rmtree(out)


def add_line(path: Path, line: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    print(json.dumps({name: value for name, value in line.items() if name != "items"}), flush=True)


@dataclass(frozen=True)
class Job:
    """One fine-tuning: to choose a learning rate on held-out examples, or to be tested."""

    name: str
    lr: float
    seed: int
    held_out: bool

    @property
    def key(self) -> tuple[Any, ...]:
        return self.name, self.lr, self.seed, self.held_out


@cache
def read_examples(folder: Path, part: str, task: str, most: int) -> Any:
    """Labelled examples; those of OCNLI on whose label its annotators did not agree are left out."""
    from keel.tasks import TASKS as KEEL_TASKS

    path = next(path for path in sorted(folder.iterdir()) if path.name.startswith(part))
    examples = KEEL_TASKS[task].read_labelled(path)
    kept = [number for number, value in enumerate(examples.values) if value != "-"][: most or None]
    return examples.take(kept)


def tune(model: str, tasks: Path, job: Job, epochs: float, most: int) -> dict[str, Any]:
    import torch

    import keel
    from keel.metrics.item_scores import item_scores

    torch.set_num_threads(1)
    tuning, start = TASKS[job.name], time.monotonic()
    settings: dict[str, Any] = {**SETTINGS, **tuning.settings, "lr": job.lr, "seed": job.seed}
    settings |= {"epochs": epochs} if epochs else {}
    result: dict[str, Any] = {"name": job.name, "held_out": job.held_out, **settings}
    try:
        train = read_examples(tasks / tuning.folder, tuning.train, tuning.task, most)
        dev = HELD_OUT if job.held_out else None
        tuned = keel.finetune(model, train, task=tuning.task, dev=dev, progress=False, **settings)
        if job.held_out:
            scores = tuned.card.scores["dev"]
            result |= {"metric": scores["main"], "value": scores["values"][scores["main"]]["value"]}
        else:
            test = read_examples(tasks / tuning.folder, tuning.test, tuning.task, most)
            assert tuned.task is not None
            items = item_scores(test, tuned.task.eval().predict(test))
            counts = [[round(count, 6) for count in column] for column in items.to_dict()["counts"]]
            result |= {"metric": items.name, "value": items.value, "items": counts}
        result["steps"] = tuned.card.steps
    except Exception:
        result["error"] = traceback.format_exc()[-2000:]
    return {**result, "seconds": time.monotonic() - start}


def end_with_parent() -> None:
    """End this process when its parent is gone, also if the parent was killed."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def tune_all(options: argparse.Namespace) -> None:
    """Fine-tune side by side; a rerun leaves out what has its line, and tries again what failed."""
    results, model = results_file(options.run, options.row), model_folder(options.run, options.row)
    done: dict[tuple[Any, ...], float] = {}
    failed = 0
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context, initializer=end_with_parent) as pool:
        waiting: dict[Future[dict[str, Any]], Job] = {}
        started: set[Job] = set()

        def submit() -> None:
            for job in possible_jobs(options, done):
                if job.key not in done and job not in started:
                    started.add(job)
                    future = pool.submit(tune, str(model), options.tasks, job, options.epochs, options.examples)
                    waiting[future] = job

        done |= {(line["name"], line["lr"], line["seed"], line["held_out"]): line["value"]
                 for line in finished_lines(results) if "error" not in line}  # fmt: skip
        submit()
        while waiting:
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                job, line = waiting.pop(future), future.result()
                add_line(results, line)
                failed += "error" in line
                if "error" not in line:
                    done[job.key] = line["value"]
            submit()
    if failed:
        raise SystemExit(f"{failed} fine-tunings failed: the lines of {results} say why")


def possible_jobs(options: argparse.Namespace, done: dict[tuple[Any, ...], float]) -> Iterator[Job]:
    """What can run now: learning rates, and where all of them have their score, the seeds with the best one."""
    for name in options.names:
        tried = [Job(name, lr, options.seeds[0], held_out=True) for lr in options.rates]
        if len(tried) > 1:
            yield from tried
        if len(tried) == 1 or all(job.key in done for job in tried):
            best = max(tried, key=lambda job: done.get(job.key, 0.0))
            yield from (Job(name, best.lr, seed, held_out=False) for seed in options.seeds)


def report(options: argparse.Namespace) -> None:
    """Scores, paired tests, costs; as markdown."""
    lines = {row: [line for line in finished_lines(results_file(options.run, row)) if "error" not in line]
             for row in ROWS}  # fmt: skip
    print(*score_table(lines), "", PUBLISHED, "", *test_table(lines), "", *cost_table(options.run), sep="\n")


def tested(lines: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """The tested models of a data set, by seed."""
    return sorted((line for line in lines if line["name"] == name and "items" in line), key=lambda line: line["seed"])


def score_table(lines: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    yield f"| mean ± standard deviation (learning rate) | {' | '.join(SCORES.values())} |"
    yield "|---" * (len(SCORES) + 1) + "|"
    for row, masking in ROWS.items():
        cells = []
        for name in SCORES:
            found = tested(lines[row], name)
            values = [100 * line["value"] for line in found]
            spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
            cells.append(f"{fmean(values):.1f}{spread} ({found[0]['lr']:g})" if values else "-")
        yield f"| {masking.title} | {' | '.join(cells)} |"
    counts = {len(tested(each, name)) for each in lines.values() for name in SCORES}
    yield f"\n{' or '.join(map(str, sorted(counts)))} seeds of fine-tuning, one pre-training each."


def test_table(lines: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """All pairs of rows on each data set, as `keel compare` tests them."""
    from keel.metrics.item_scores import ItemScores
    from keel.metrics.significance import SystemResult, compare_pairs

    yield "| data set | pair | difference in points (95% interval) | p | p (Holm) | items better, worse | detectable |"
    yield "|---|---|---|---|---|---|---|"
    for name in SCORES:
        results = {}
        for row, masking in ROWS.items():
            if found := tested(lines[row], name):
                plain = [{"name": line["metric"], "counts": line["items"]} for line in found]
                results[masking.title] = SystemResult([ItemScores.from_dict(each) for each in plain])
        for test in compare_pairs(dict(reversed(results.items()))):
            points = f"{100 * test.difference:+.2f} ({100 * test.low:+.2f} to {100 * test.high:+.2f})"
            decided = "**" if test.decided else ""
            yield (
                f"| {name} | {test.first} against {test.second} | {points} | {test.p:.2g} "
                f"| {decided}{test.p_holm:.2g}{decided} | {test.wins}, {test.losses} | {100 * test.detectable:.1f} |"
            )
    yield "\nPaired over test items, unpaired over seeds of fine-tuning; Holm's correction within each data set."
    yield "Each row is one pre-training: differences between two pre-trainings with different seeds are not in p."


def cost_table(run: Path) -> Iterator[str]:
    """Steps and minutes of each pre-training as it ran, beside others, and its speed alone."""
    speeds = finished_lines(run / "masking.speed.jsonl")
    alone = {row: [line["seconds"] for line in speeds if line["row"] == row] for row in ROWS}
    yield "| | steps | minutes | alone: ms a step | tokens/s | time of characters |"
    yield "|---|---|---|---|---|---|"
    for row, masking in ROWS.items():
        cells = ["-"] * 5
        events = finished_lines(model_folder(run, row) / "run" / "log.jsonl")
        if steps := [event for event in events if event["event"] == "step"]:
            cells[0] = f"{max(event['step'] for event in steps):,}"
            cells[1] = f"{training_minutes(steps):.1f}"
        if alone[row]:
            seconds, tokens = median(alone[row]), [line["tokens_per_second"] for line in speeds if line["row"] == row]
            cells[2:4] = [f"{1000 * seconds:.1f}", f"{median(tokens) / 1e6:.2f}M"]
            if alone["characters"]:
                cells[4] = f"{seconds / median(alone['characters']):.3f}"
        yield f"| {masking.title} | {' | '.join(cells)} |"


def training_minutes(steps: list[dict[str, Any]]) -> float:
    """The time of all steps; those that a resumed run repeated count once."""
    last: dict[int, float] = {event["step"]: event["seconds_per_step"] for event in steps}
    numbers = sorted(last)
    return sum((step - before) * last[step] for before, step in zip([0, *numbers], numbers, strict=False)) / 60


def setting(text: str) -> tuple[str, Any]:
    """NAME=VALUE, a setting of keel.pretrain."""
    name, _, value = text.partition("=")
    try:
        return name, ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return name, value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    stages = parser.add_subparsers(required=True)
    stage = stages.add_parser("tokens")
    stage.set_defaults(run_stage=build_tokens)
    add_text(stage)
    stage = stages.add_parser("pretrain")
    stage.set_defaults(run_stage=pretrain)
    stage.add_argument("run", type=Path)
    stage.add_argument("row", choices=ROWS)
    add_text(stage)
    stage = stages.add_parser("speed")
    stage.set_defaults(run_stage=speed)
    stage.add_argument("run", type=Path)
    add_text(stage)
    stage.add_argument("--steps", type=int, default=48)
    stage.add_argument("--rounds", type=int, default=1)
    stage = stages.add_parser("tune")
    stage.set_defaults(run_stage=tune_all)
    stage.add_argument("run", type=Path)
    stage.add_argument("row", choices=ROWS)
    stage.add_argument("--tasks", type=Path, required=True, help="folder with ocnli/, chnsenticorp/, ...")
    stage.add_argument("--names", nargs="+", choices=TASKS, default=list(TASKS))
    stage.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    stage.add_argument("--rates", nargs="+", type=float, default=RATES, help="learning rates; one is not searched for")
    stage.add_argument("--jobs", type=int, default=14)
    stage.add_argument("--epochs", type=float, default=0, help="instead of those of each data set")
    stage.add_argument("--examples", type=int, default=0, help="examples to read of each file [all]")
    stage = stages.add_parser("report")
    stage.set_defaults(run_stage=report)
    stage.add_argument("run", type=Path)
    options = parser.parse_args()
    options.run_stage(options)


def add_text(stage: argparse.ArgumentParser) -> None:
    stage.add_argument("texts", nargs="+", type=Path)
    stage.add_argument("--tokenizer", type=Path, required=True)
    stage.add_argument("--entities", type=Path, required=True, help="file with a name per line")
    stage.add_argument("--set", nargs="*", type=setting, default=[], metavar="NAME=VALUE", help="settings of every row")


if __name__ == "__main__":
    main()
