"""Requests about the contents of the folders: models, runs, comparisons and data files."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fastapi import APIRouter
from starlette.responses import FileResponse

from keel.api.evaluation import evaluate
from keel.api.training_runs import runs
from keel.checks import check
from keel.errors import UsageError
from keel.events import OnEvent
from keel.metrics.label_errors import supports_label_errors
from keel.metrics.scores import score_name
from keel.studio.listings import Entry, NotFound
from keel.studio.requests import CheckRequest, CurrentWorkspace, ErrorsRequest, IdRequest, RunsRequest, with_notes
from keel.studio.workspace import renamed

router = APIRouter()
pages = APIRouter()

MAX_ERRORS = 100
"""Errors and suspicious labels of a model that are listed."""
REPORT_POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'"
)
"""A report is a page of its own, with its own policy; in a sandbox it cannot send requests to this server."""


@router.get("/models")
def list_models(workspace: CurrentWorkspace) -> dict[str, Any]:
    """All models with what they can do."""
    return {"models": workspace.models()}


@router.get("/runs")
def list_runs(workspace: CurrentWorkspace) -> dict[str, Any]:
    """All training runs."""
    return workspace.without_paths({"runs": [_run_facts(entry) for entry in workspace.entries("run")]})


@router.post("/runs")
def compare_runs(given: RunsRequest, workspace: CurrentWorkspace) -> dict[str, Any]:
    """Curves, settings that differ and scores of some runs."""
    found = runs([workspace.find("run", id).path for id in given.ids])
    tables = {"results": found.result_table(), "settings": found.settings_table()}
    return workspace.without_paths({**found.to_dict(), **tables})


@router.get("/reports")
def list_reports(workspace: CurrentWorkspace) -> dict[str, Any]:
    """All comparisons of systems."""
    return {"reports": [_report_facts(entry) for entry in workspace.entries("comparison")]}


@router.post("/report")
def report_results(given: IdRequest, workspace: CurrentWorkspace) -> dict[str, Any]:
    """The cells and tests of a comparison."""
    folder = workspace.find("comparison", given.id).path
    rows = _json_lines(folder / "results.jsonl")
    kinds = {"cells": "cell", "tests": "test"}
    found = {name: [row for row in rows if row.get("kind") == kind] for name, kind in kinds.items()}
    metrics = {str(cell["metric"]) for cell in found["cells"] if cell.get("metric")}
    return {**found, "names": {metric: score_name(metric) for metric in sorted(metrics)}}


@pages.get("/reports/{id:path}")
def report_page(id: str, workspace: CurrentWorkspace) -> FileResponse:
    """The page of a comparison."""
    page = workspace.find("comparison", id).path / "report.html"
    if not page.is_file():
        raise NotFound(f"the comparison {id!r:.100} has no report yet: rerun its command to finish it")
    return FileResponse(page, headers={"Content-Security-Policy": REPORT_POLICY})


@router.get("/files")
def list_files(workspace: CurrentWorkspace) -> dict[str, Any]:
    """All data files."""
    entries = workspace.entries("file")
    return {"files": [{"id": each.id, "name": each.path.name, "bytes": each.path.stat().st_size} for each in entries]}


@router.post("/check")
def check_file(given: CheckRequest, workspace: CurrentWorkspace) -> dict[str, Any]:
    """The problems of a data file, and its facts."""
    if not given.file and not given.content.strip():
        raise UsageError("there is nothing to check: choose a file, or paste its contents")

    def run(on_event: OnEvent) -> dict[str, Any]:
        if given.file:
            entry = workspace.find("file", given.file)
            return _with_fact_list(check(entry.path, task=given.task, on_event=on_event).to_dict())
        with TemporaryDirectory() as folder:
            path = Path(folder) / (given.name or "pasted.tsv")
            path.write_text(given.content, encoding="utf-8")
            found = _with_fact_list(check(path, task=given.task, on_event=on_event).to_dict())
            return renamed(found, str(path), path.name)

    return workspace.without_paths(with_notes(run))


@router.post("/errors")
def list_errors(given: ErrorsRequest, workspace: CurrentWorkspace) -> dict[str, Any]:
    """The scores of a model on a labelled file, its errors by confidence, and labels that may be wrong."""
    model = workspace.model(given.model)
    if model.task is None:
        raise UsageError(f"{given.model} has no task: choose a fine-tuned model")
    entry = workspace.find("file", given.file)
    suspects = MAX_ERRORS if supports_label_errors(model.task.labels.kind) else 0

    def run(on_event: OnEvent) -> dict[str, Any]:
        found = evaluate(model, entry.path, suspects=suspects, on_event=on_event).to_dict()
        return {**found, "names": {metric: score_name(metric) for metric in found["values"]}}

    return workspace.without_paths(with_notes(run))


def _with_fact_list(found: dict[str, Any]) -> dict[str, Any]:
    """A report with its facts as lists of names and values; labels, which are a user's words, are not among them."""

    def fact_list(facts: dict[str, Any]) -> list[dict[str, Any]]:
        return [
            {"name": name, "parts": fact_list(value)} if isinstance(value, dict) else {"name": name, "value": value}
            for name, value in facts.items()
            if name != "labels"
        ]

    return {**found, "facts": {file: fact_list(facts) for file, facts in found["files"].items()}}


def _run_facts(entry: Entry) -> dict[str, Any]:
    """A line of the list of runs; a log that cannot be read has the reason as its "error"."""
    facts: dict[str, Any] = {"id": entry.id, "name": entry.path.name, "updated": 0.0, "error": ""}
    try:
        facts["updated"] = (entry.path / "run" / "log.jsonl").stat().st_mtime
        found = runs(entry.path).runs
    except (ValueError, OSError) as error:
        return {**facts, "error": str(error), "verb": "", "steps": 0, "seconds": 0.0, "complete": False}
    return {
        **facts,
        "verb": found[0].verb if found else "",
        "steps": sum(each.steps for each in found),
        "seconds": sum(each.seconds for each in found),
        "complete": all(each.complete for each in found),
    }


def _report_facts(entry: Entry) -> dict[str, Any]:
    cells = [row for row in _json_lines(entry.path / "results.jsonl") if row.get("kind") == "cell"]
    names = list(dict.fromkeys(str(cell.get("row", "")) for cell in cells))
    complete = (entry.path / "report.html").is_file()
    return {"id": entry.id, "name": entry.path.name, "systems": names, "complete": complete}


def _json_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a file; those of a damaged or missing one are left out."""
    if not path.is_file():
        return []
    found: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        found += [record] if isinstance(record, dict) else []
    return found
