"""Comparison of trainings: curves, settings that differ and final scores, from the run folders."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from keel.api.finetuning_runs import run_folder_name
from keel.config import Doc
from keel.data.folder_json import read_json
from keel.data.notebook_html import html_table
from keel.errors import UsageError
from keel.formats.huggingface import CONFIG
from keel.metrics.scores import format_main_score, score_name
from keel.report.console import clock
from keel.report.event_files import Scalar, write_event_file
from keel.report.run_page import write_run_page
from keel.training.run_log import CurvePoint, LoggedFit, RunLog, latest_state

__all__ = ["RunComparison", "TrainingRun", "runs"]

IDENTITIES = ("labels", "examples", "parent", "tokenizer", "target", "corpus", "units", "tokens", "processes", "data")
"""Hashes and lists in the state of a run, which say nothing to a reader."""
CURVES = ("training loss", "validation loss", "learning rate")
"""Curves that the page shows; parts of a loss are in the event files too."""


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """One training of a run folder."""

    name: str
    folder: Path
    verb: str
    settings: dict[str, Any]
    curves: dict[str, list[CurvePoint]] = field(repr=False)
    """By name: "training loss", "validation loss", "learning rate", and the parts of a loss."""
    scores: dict[str, dict[str, Any]]
    """Scores on dev, test and so on, as in the model card."""
    steps: int
    seconds: float
    complete: bool

    def last(self, curve: str) -> float | None:
        """The last value of a curve."""
        points = self.curves.get(curve)
        return points[-1].value if points else None


@dataclass(frozen=True)
class RunComparison:
    """Trainings side by side."""

    runs: list[TrainingRun]

    @property
    def differing_settings(self) -> dict[str, list[Any]]:
        """The settings that are not equal in all runs, with the value of each run (None where it has no such one).

        A setting of a system or of text that some runs do not have counts only if the others disagree.
        """
        names = dict.fromkeys(name for run in self.runs for name in run.settings)
        values = {name: [run.settings.get(name) for run in self.runs] for name in names}

        def differ(name: str, found: list[Any]) -> bool:
            partial = name.startswith(("system.", "text."))
            present = [each for each in found if each is not None or not partial]
            return any(each != present[0] for each in present)

        return {name: found for name, found in values.items() if differ(name, found)}

    def result_table(self) -> tuple[list[str], list[list[str]]]:
        """Column names, and steps, time, last losses and main scores of each run as text."""
        sets = list(dict.fromkeys(name for run in self.runs for name in run.scores))
        losses = [name for name in CURVES[:2] if any(name in run.curves for run in self.runs)]
        metrics = {name: {run.scores[name]["main"] for run in self.runs if name in run.scores} for name in sets}
        shared = {name: f" {score_name(min(found))}" for name, found in metrics.items() if len(found) == 1}
        rows: list[list[str]] = []
        for run in self.runs:
            last = [run.last(name) for name in losses]
            done = f"{run.steps:,}" if run.complete else f"{run.steps:,} (incomplete)"
            found = [_main_score(run.scores[name], name in shared) if name in run.scores else "" for name in sets]
            shown = ["" if value is None else f"{value:.4g}" for value in last]
            rows.append([run.name, done, clock(run.seconds), *shown, *found])
        return [
            "run",
            "steps",
            "time",
            *losses,
            *(name.replace("_", " ") + shared.get(name, "") for name in sets),
        ], rows

    def settings_table(self) -> tuple[list[str], list[list[str]]]:
        """Column names, and the value of each run as text for each setting that differs."""
        rows = [[name, *map(_shown, values)] for name, values in self.differing_settings.items()]
        return ["setting", *(run.name for run in self.runs)], rows

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; a point of a curve is [step, seconds, value, time]."""
        runs = [asdict(run) | {"folder": str(run.folder), "curves": run.curves} for run in self.runs]
        return {"runs": runs, "differing_settings": self.differing_settings}

    def __repr__(self) -> str:
        return f"RunComparison({', '.join(run.name for run in self.runs)})"

    def _repr_html_(self) -> str:
        """Results and settings in a notebook."""
        return html_table("Runs", *self.result_table()) + html_table("Settings that differ", *self.settings_table())


def runs(
    folders: str | Path | Sequence[str | Path],
    *,
    out: Annotated[str | Path | None, Doc("Write curves, settings and scores as a page, .html.")] = None,
    tensorboard: Annotated[
        str | Path | None, Doc("Write the curves as TensorBoard event files into this folder, one folder per run.")
    ] = None,
) -> RunComparison:
    """Compare trainings by the log in their model folders: curves of losses and learning rate, the settings that
    differ, final scores. A folder without a run stands for all runs inside it; a run may be unfinished."""
    given = [folders] if isinstance(folders, str | Path) else list(folders)
    if out is not None and Path(out).suffix.lower() != ".html":
        raise UsageError(f"--out {out} must end in .html")
    found = list(dict.fromkeys(path for folder in given for path in _run_folders(Path(folder))))
    if not found:
        raise UsageError("give one or more model folders with a run: keel runs models/a models/b")
    compared = RunComparison([run for path in found for run in _read_runs(path, _short_name(path, found))])
    if tensorboard is not None:
        _write_event_files(Path(tensorboard), compared.runs)
    if out is not None:
        _write_page(Path(out), compared)
    return compared


def _run_folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}: give the --out of a training")
    if (folder / "run" / "log.jsonl").is_file():
        return [folder]
    inside = sorted(path.parent.parent for path in folder.glob("**/run/log.jsonl"))
    if not inside:
        raise UsageError(f"{folder} has no run/log.jsonl, and no folder in it has: give the --out of a training")
    return inside


def _short_name(path: Path, among: Sequence[Path]) -> str:
    """The folder's name; if two have the same, its path below the folder that all share."""
    if len({each.resolve().name for each in among}) == len(among):
        return path.resolve().name
    common = os.path.commonpath([each.resolve() for each in among])
    return path.resolve().relative_to(common).as_posix()


def _read_runs(folder: Path, name: str) -> Iterator[TrainingRun]:
    log = RunLog.read(folder / "run" / "log.jsonl")
    card = _card(folder)
    several = len(log.fits) > 1
    for fit in log.fits:
        state = latest_state(folder / "run" / fit.name)
        own = [each for each in log.scores if run_folder_name(each.get("run", "")) == fit.name]
        scores = {each["on"]: _brief(each) for each in own}
        if not several:
            scores |= {key: value for key, value in card.get("scores", {}).items() if _is_scores(value)}
        yield TrainingRun(
            name=f"{name}, {(own[0].get('run') if own else '') or fit.name}" if several else name,
            folder=folder,
            verb=log.verb,
            settings=_settings(state, card, fit),
            curves=fit.curves,
            scores=scores,
            steps=fit.step,
            seconds=float(state.get("seconds", fit.seconds)),
            complete=fit.complete,
        )


def _named_settings(folder: str) -> dict[str, float]:
    """The settings in the name of a run's folder, such as "seed-0,lr-0.0001"."""
    pairs = (
        part.partition("-") for part in folder.split(",") if part.startswith(("seed-", "lr-", "epochs-", "batch-"))
    )
    return {name: float(value) for name, _, value in pairs}


def _card(folder: Path) -> dict[str, Any]:
    """The model card of a finished run; empty before."""
    path = folder / "config.json"
    return read_json(path, CONFIG).get("keel", {}).get("card", {}) if path.is_file() else {}


def _settings(state: Mapping[str, Any], card: Mapping[str, Any], fit: LoggedFit) -> dict[str, Any]:
    """What the run was given, by flat names; the length in steps is that of the plan."""
    recipe = card.get("recipe", {})
    stored = state.get("settings")
    if not stored:  # the checkpoints were removed: those of the model, and what the name of the run says
        stored = {name: value for name, value in recipe.items() if not isinstance(value, Mapping)}
        stored |= recipe.get("train", {}) | _named_settings(fit.name)
    given = {name: value for name, value in stored.items() if name not in IDENTITIES}
    text = {f"text.{name}": value for name, value in recipe.get("text", {}).items()}
    origin = {name: card[key] for name, key in {"parent": "parent", "data": "text"}.items() if card.get(key)}
    sources = state.get("sources", {})
    origin |= {name: sources[name] for name in ("parent",) if name in sources and name not in origin}
    return {**origin, **given, **text, "hardware": card.get("hardware", "")} | {"steps of the plan": fit.steps}


def _is_scores(value: Any) -> bool:
    return isinstance(value, Mapping) and "main" in value


def _brief(event: Mapping[str, Any]) -> dict[str, Any]:
    return {name: event[name] for name in ("main", "values", "count")}


def _main_score(scores: Mapping[str, Any], value_alone: bool) -> str:
    name = score_name(scores["main"])
    if "mean" in scores:
        text = format_main_score(scores).partition(" (")[0]
    else:
        text = f"{name} {scores['values'][scores['main']]['value']:.3f}"
    return text.removeprefix(f"{name} ") if value_alone else text


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.12g}" if isinstance(value, float) else str(value)  # 5e-5 * 6 is 0.00030000000000000003


def _write_event_files(folder: Path, compared: Sequence[TrainingRun]) -> None:
    for run in compared:
        curves = {name: [Scalar(each.step, each.value, each.time) for each in run.curves[name]] for name in run.curves}
        for on, scores in run.scores.items():
            last = max((curve[-1].time for curve in run.curves.values() if curve), default=0.0)
            figures = scores["values"].items() if isinstance(scores["values"], Mapping) else ()
            curves |= {f"{on}/{score_name(name)}": [Scalar(run.steps, each["value"], last)] for name, each in figures}
        write_event_file(folder / run_folder_name(run.name.replace(", ", "/", 1)), curves)


def _write_page(out: Path, compared: RunComparison) -> None:
    charts: dict[str, dict[str, dict[str, list[tuple[float, float]]]]] = {}
    for across in ("step", "minutes"):
        by_name = {
            name: {
                run.name: [(each.step if across == "step" else each.seconds / 60, each.value) for each in points]
                for run in compared.runs
                if (points := run.curves.get(name))
            }
            for name in CURVES
        }
        charts[across] = {name: curves for name, curves in by_name.items() if curves}
    title = f"{len(compared.runs)} runs" if len(compared.runs) > 1 else compared.runs[0].name
    write_run_page(out, title, compared.result_table(), compared.settings_table(), charts)
