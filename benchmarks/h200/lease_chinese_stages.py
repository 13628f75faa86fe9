"""The second queue of lease.py: BERT and ERNIE on Chinese text (ernie.py), then a model of eight languages
(multilingual.py); at full size, or tiny to try the queue on a CPU."""

from typing import Any

from ernie import ROWS
from lease_stages import ROOT, Command, Commands, Paths, Sizes, Stage, script

MINUTES = 10
"""Pre-training of the model of eight languages, unless its steps are given."""
SEEDS = 3
"""Seeds of its fine-tunings, at most."""
FULL = Sizes(steps={"masking": 1500, "masking-speed": 48, "multilingual": 0}, tuning_jobs=14)
TINY = Sizes(
    steps={"masking": 12, "masking-speed": 8, "multilingual": 12},
    tuning_seeds=2,
    tuning_jobs=2,
    tuning_epochs=0.5,
    tuning_examples=60,
    system=("--system.layers", "2", "--system.width", "64", "--batch", "8", "--threads", "1", "--device", "cpu"),
    device="cpu",
)
TINY_CHINESE = ("layers=2", "width=64", "batch=8", "threads=1", "device=cpu", "log_every=1", "checkpoint_every=2")


def chinese_text(paths: Paths, sizes: Sizes) -> list[Any]:
    """The text, and the settings of all rows."""
    folder = paths.inputs / "chinese-text"
    flags = ["--tokenizer", paths.tokenizer("chinese"), "--entities", folder / "names.txt"]
    settings = [f"steps={sizes.steps['masking']}", "checkpoint_minutes=2"]
    settings += TINY_CHINESE if sizes.device == "cpu" else ()
    return [*sorted(folder.glob("*.xz")), *flags, "--set", *settings]


def encode_chinese(paths: Paths, sizes: Sizes) -> list[Command]:
    return [script("h200/ernie.py", "tokens", *chinese_text(paths, sizes))]


def pretrain_chinese(row: str) -> Commands:
    def commands(paths: Paths, sizes: Sizes) -> list[Command]:
        return [script("h200/ernie.py", "pretrain", paths.work / "models", row, *chinese_text(paths, sizes))]

    return commands


def tune_chinese(row: str) -> Commands:
    def commands(paths: Paths, sizes: Sizes) -> list[Command]:
        given = ["--tasks", f"{paths.tasks}/zh", "--seeds", *range(sizes.tuning_seeds), "--jobs", sizes.tuning_jobs]
        more = ["--epochs", sizes.tuning_epochs, "--examples", sizes.tuning_examples]
        return [script("h200/ernie.py", "tune", paths.work / "models", row, *given, *more)]

    return commands


def measure_chinese(paths: Paths, sizes: Sizes) -> list[Command]:
    steps = ["--steps", sizes.steps["masking-speed"]]
    return [script("h200/ernie.py", "speed", paths.work / "models", *chinese_text(paths, sizes), *steps)]


def report_chinese(paths: Paths, sizes: Sizes) -> list[Command]:
    return [script("h200/ernie.py", "report", paths.work / "models")]


def pretrain_multilingual(paths: Paths, sizes: Sizes) -> list[Command]:
    files = [path for group in ("languages-text", "chinese-text") for path in (paths.inputs / group).glob("*.xz")]
    texts = [f"{path.name[:2]}:{path}" for path in sorted(files, key=lambda path: path.name)]
    steps = sizes.steps["multilingual"]
    recipe = ["--recipe", ROOT / "recipes" / "h200" / "multilingual-12x384.toml"]
    settings = ["--text.tokenizer", paths.tokenizer("multilingual"), "--train.checkpoint_minutes", 2, *sizes.system]
    settings += [] if steps else ["--minutes", MINUTES]
    given = [*recipe, "--steps", steps, "--settings", *settings]
    return [script("h200/encoder.py", "pretrain", paths.model("multilingual"), *texts, *given)]


def tune_multilingual(paths: Paths, sizes: Sizes) -> list[Command]:
    seeds = ["--seeds", *range(min(SEEDS, sizes.tuning_seeds))]
    given = ["--tasks", paths.tasks, "--jobs", sizes.tuning_jobs, "--examples", sizes.tuning_examples]
    return [script("h200/multilingual.py", "tune", paths.model("multilingual"), *given, *seeds)]


def retrieve_multilingual(paths: Paths, sizes: Sizes) -> list[Command]:
    files = sorted((paths.inputs / "tasks" / "tatoeba").glob("*.xz"))
    given = ["--sample", sizes.tuning_examples or 1000]
    return [script("h200/multilingual.py", "retrieve", paths.model("multilingual"), *files, *given)]


def report_multilingual(paths: Paths, sizes: Sizes) -> list[Command]:
    return [script("h200/multilingual.py", "report", paths.model("multilingual"))]


def chinese_row(row: str) -> tuple[Stage, Stage]:
    """The pre-training of a row of the comparison, and its fine-tunings, beside the pre-training of the next row."""
    name = f"masking-{row}"
    first = row == next(iter(ROWS))  # its tokens are encoded in seconds
    before = () if first else ("masking-tokens",)
    return (
        Stage(name, pretrain_chinese(row), ("chinese-text",), after=before, folders=(name,)),
        Stage(
            f"{name}-tuned", tune_chinese(row), ("chinese-tasks",), after=(name,), share=0.3,
            results=(f"models/{name}.jsonl",),
        ),
    )  # fmt: skip


ROW_STAGES = tuple(stage for row in ROWS for stage in chinese_row(row))
STAGES = (
    Stage("masking-tokens", encode_chinese, ("chinese-text",), share=0.0),
    *ROW_STAGES,
    Stage(
        "masking-speed", measure_chinese, ("chinese-text",), after=("masking-tokens",), share=1.3,
        results=("models/masking.speed.jsonl",),
    ),
    Stage("masking-report", report_chinese, after=("masking-speed", *(stage.name for stage in ROW_STAGES)), share=0.0),
    Stage(
        "multilingual", pretrain_multilingual, ("chinese-text", "languages-text"), folders=("multilingual",),
    ),
    Stage(
        "multilingual-tuned", tune_multilingual, ("languages-tasks",), after=("multilingual",), share=0.3,
        results=("models/multilingual.tune.jsonl",),
    ),
    Stage(
        "multilingual-retrieval", retrieve_multilingual, ("languages-tasks",), after=("multilingual",), share=0.1,
        results=("models/multilingual.retrieval.jsonl", "models/multilingual.*.svg"),
    ),
    Stage(
        "multilingual-report", report_multilingual, after=("multilingual-tuned", "multilingual-retrieval"), share=0.0,
    ),
)  # fmt: skip
"""In order of priority. The speeds are measured with nothing beside them."""
