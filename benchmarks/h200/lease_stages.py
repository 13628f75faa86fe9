"""The stages of lease.py: what each runs, needs, and leaves; at full size, or tiny to try the queue on a CPU."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packing import pack, write

ROOT = Path(__file__).parents[2]
GLUE = ("SST-2", "CoLA", "MRPC", "RTE", "STS-B")
Command = list[str]
STEPS_PER_RMS = 10
"""Precision of bundled weights: `english`, 38M weights with its generator, must not exceed 28 MB."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much each stage does."""

    steps: dict[str, int]
    questions: int = 1_000_000
    question_epochs: float = 2
    seeds: int = 3
    tuning_names: tuple[str, ...] = GLUE
    tuning_seeds: int = 5
    tuning_jobs: int = 12
    tuning_epochs: float = 0
    segmented_lines: int = 0
    real: str = "en_wikinews.txt.xz"
    system: tuple[str, ...] = ()
    """Further flags of every pre-training."""
    device: str = "cuda"
    tuning_examples: int = 0
    """Examples to read of each file of labelled data; 0: all."""


FULL = Sizes(steps={"english": 5000, "english-gpt": 2400})
TINY = Sizes(
    steps={"english": 12, "english-gpt": 12},
    questions=24,
    question_epochs=1,
    seeds=2,
    tuning_names=("RTE", "MRPC"),
    tuning_seeds=1,
    tuning_jobs=1,
    tuning_epochs=0.02,
    segmented_lines=20,
    system=("--system.layers", "2", "--system.width", "192", "--batch", "8", "--threads", "1", "--device", "cpu"),
    device="cpu",
)


@dataclass(frozen=True)
class Paths:
    work: Path

    def bundled(self, name: str) -> Path:
        """A quantised folder, ready to be bundled."""
        return self.work / "bundled" / name

    @property
    def inputs(self) -> Path:
        return self.work / "inputs"

    @property
    def tasks(self) -> str:
        return str(self.inputs / "tasks")

    @property
    def texts(self) -> list[str]:
        return sorted(str(path) for path in (self.inputs / "text").glob("*.xz"))

    def model(self, name: str) -> Path:
        return self.work / "models" / name

    def tokenizer(self, name: str) -> str:
        return str(self.inputs / "tokenizers" / name)


Commands = Callable[[Paths, Sizes], list[Command]]


@dataclass(frozen=True)
class Stage:
    """A list of commands, each of which continues or skips what an earlier attempt has done."""

    name: str
    commands: Commands
    inputs: tuple[str, ...] = ()
    """Groups of input files."""
    after: tuple[str, ...] = ()
    """Stages that must be done."""
    share: float = 1.0
    """Share of the GPU: stages run side by side up to a sum of 1.3."""
    folders: tuple[str, ...] = ()
    """Model folders to deliver."""
    bundled: tuple[str, ...] = ()
    """Model folders to deliver quantised for bundling; before the others."""
    results: tuple[str, ...] = field(default=())
    """Small files of results below the folder of work."""


def python(*arguments: Any) -> Command:
    return [sys.executable, *map(str, arguments)]


def script(name: str, *arguments: Any) -> Command:
    return python(ROOT / "benchmarks" / name, *arguments)


def answers(paths: Paths, sizes: Sizes) -> list[Command]:
    flags = {
        "data": paths.tasks, "device": sizes.device, "train": sizes.questions, "test": sizes.questions, "lr": 1e-4,
        "epochs": sizes.question_epochs, "batch": 16, "warmup": 0.1, "eval-batch": 64, "threads": 2, "layer-decay": 1,
        "repeats": sizes.seeds, "parallel": 2 * sizes.seeds if sizes.device == "cuda" else 1,
        "results": paths.work / "answers",
    }  # fmt: skip
    given = [f"--{name}={value}" for name, value in flags.items()]
    return [script("question_answering.py", "f1", paths.inputs / "reader", *given)]


def pretrain(name: str, recipe: str, tokenizer: str) -> Commands:
    def commands(paths: Paths, sizes: Sizes) -> list[Command]:
        given = [
            "--settings",
            "--text.tokenizer",
            paths.tokenizer(tokenizer),
            "--train.checkpoint_minutes",
            "2",
            *sizes.system,
        ]
        fixed = ["--recipe", ROOT / "recipes" / "h200" / recipe, "--steps", sizes.steps[name]]
        return [script("h200/encoder.py", "pretrain", paths.model(name), *paths.texts, *fixed, *given)]

    return commands


def score(name: str) -> Commands:
    def commands(paths: Paths, sizes: Sizes) -> list[Command]:
        out = paths.work / f"{name}.scores.jsonl"
        given = ["--tasks", paths.tasks, "--out", out]
        return [script("h200/model_scores.py", "encoder", paths.bundled(name), *given)]

    return commands


def fine_tune(paths: Paths, sizes: Sizes, name: str, flags: Command) -> list[Command]:
    """Fine-tune a model of this queue, quantised, or the one in the package."""
    trained = paths.bundled(name)
    folder = trained if (trained / "config.json").exists() else paths.model(name)
    convert = [] if (folder / "config.json").exists() else [python("-m", "keel", "convert", name, folder)]
    given = ["--tasks", paths.tasks, "--jobs", str(sizes.tuning_jobs), *flags]
    return [*convert, script("h200/encoder.py", "tune", folder, *given)]


def tune(name: str, *data_sets: str, seeds: int) -> Commands:
    """Fine-tune with the settings that encoder.py has for each data set."""

    def commands(paths: Paths, sizes: Sizes) -> list[Command]:
        chosen = data_sets or sizes.tuning_names
        count = [*map(str, range(min(seeds, sizes.tuning_seeds)))]
        flags = ["--names", *chosen, "--epochs", str(sizes.tuning_epochs), "--seeds", *count]
        return fine_tune(paths, sizes, name, flags)

    return commands


SWEEP = {
    f"{optimizer}-{lr}-{epochs}": [f"optimizer={optimizer}", f"lr={lr}", f"epochs={epochs}", "layer_decay=0.9"]
    for optimizer, lrs in (("adamw", ("5e-5", "1.5e-4")), ("muon", ("1e-4", "3e-4")))
    for lr in lrs
    for epochs in (3, 10)
}
"""Settings that the defaults of keel finetune are compared with."""


def sweep(name: str) -> Commands:
    """The defaults with three seeds, and each of the settings with one."""

    def commands(paths: Paths, sizes: Sizes) -> list[Command]:
        names = [*sizes.tuning_names, *(["CoNLL-2003"] if sizes.tuning_names == GLUE else [])]
        flags = ["--names", *names, "--defaults", "--label", "defaults", "--seeds", "0", "1", "2"]
        tuned = fine_tune(paths, sizes, name, flags)
        for label, settings in SWEEP.items():
            tuned += [fine_tune(paths, sizes, name, ["--names", *names, "--label", label, "--set", *settings])[-1]]
        return tuned

    return commands


def score_gpt(paths: Paths, sizes: Sizes) -> list[Command]:
    real = paths.inputs / "text" / sizes.real
    given = ["--tasks", paths.tasks, "--real", real, "--out", paths.work / "english-gpt.scores.jsonl"]
    return [script("h200/model_scores.py", "gpt", paths.bundled("english-gpt"), *given)]


def segment(paths: Paths, sizes: Sizes) -> list[Command]:
    """The bundled Chinese encoder on PKU's words."""
    given = ["--data", f"{paths.tasks}/zh", "--device", sizes.device, "--seeds", *range(sizes.seeds)]
    settings = ["--optimizer", "muon", "--lr", "3e-4", "--epochs", "3", "--batch", "32", "--warmup", "0.1", "--crf"]
    lines = ["--lines", sizes.segmented_lines]
    return [script("segmentation.py", "chinese", *given, *lines, *settings)]


def tuned(name: str) -> tuple[str, ...]:
    """The results of `fine_tune`."""
    return f"bundled/{name}*.jsonl", f"models/{name}*.jsonl"


STAGES = (
    Stage("english", pretrain("english", "english.toml", "english"), ("tasks", "text"), bundled=("english",)),
    Stage("english-scores", score("english"), after=("english",), share=0.1, results=("english.scores.jsonl",)),
    Stage("english-tuned", tune("english", seeds=5), after=("english",), share=0.3, results=tuned("english")),
    Stage(
        "english-gpt", pretrain("english-gpt", "english-gpt.toml", "english-gpt"), ("tasks", "text"),
        bundled=("english-gpt",),
    ),
    Stage("gpt-scores", score_gpt, after=("english-gpt",), share=0.3, results=("english-gpt.scores.jsonl",)),
    Stage("entities", tune("english", "CoNLL-2003", "CoNLL-2003, CRF", seeds=3), ("tasks",), share=0.4,
          results=tuned("english")),
    Stage("chinese-entities", tune("chinese", "MSRA, CRF", seeds=3), ("tasks", "chinese"), share=0.4,
          results=tuned("chinese")),
    Stage("segmentation", segment, ("tasks", "chinese"), share=0.4),
    Stage("sweep", sweep("english"), ("tasks",), share=0.5, results=tuned("english")),
    Stage("sweep-gpt", sweep("english-gpt"), ("tasks",), share=0.5, results=tuned("english-gpt")),
    Stage("answers", answers, ("tasks", "answers"), share=0.4, results=("answers/*.json",)),
    Stage("weights", lambda paths, sizes: [], after=("english", "english-gpt"), share=0.0,
          folders=("english", "english-gpt")),
)  # fmt: skip
"""In order of priority."""


def deliver(paths: Paths, stage: Stage) -> None:
    """Pack the models of a finished stage below `results`, in parts; the name of a part begins with its priority."""
    from packing import part_path

    results = paths.work / "results"
    results.mkdir(parents=True, exist_ok=True)
    for name in stage.bundled:
        quantise(paths.model(name), paths.bundled(name))
        pack(paths.bundled(name), results / f"1-{name}-bundled", half=False)
    for name in stage.folders:
        target = results / f"2-{name}"
        if not part_path(target, "packed").exists():
            pack(paths.model(name), target)


def quantise(source: Path, out: Path) -> None:
    """Write the folder that can be bundled; its card still has to be written by hand."""
    sys.path.append(str(ROOT / "benchmarks"))
    from bundled_models import make

    make(source, out, steps_per_rms=STEPS_PER_RMS)


def finish_stage(work: Path, name: str) -> None:
    (work / "done").mkdir(parents=True, exist_ok=True)
    write(work / "done" / name, b"")
