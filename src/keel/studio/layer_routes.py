"""Requests of the page Layers: scalar mixes, probing curves, and retrieval of translations."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fastapi import APIRouter

from keel.api.inspection import retrieval
from keel.api.layers import probe_layers
from keel.errors import UsageError
from keel.events import OnEvent
from keel.explain.layers.layer_weights import layers_by_task
from keel.studio.requests import CurrentWorkspace, LayersRequest, ProbesRequest, RetrievalRequest, with_notes
from keel.studio.workspace import Workspace, renamed

router = APIRouter()

LAYER_DONE = re.compile(r": layer \d+ of \d+: ")
"""A note about the progress of probing, whose results the answer has."""


@router.post("/layers")
def layers(given: LayersRequest, workspace: CurrentWorkspace) -> dict[str, Any]:
    """The weights of layers in the scalar mixes of several models."""
    found = layers_by_task(map(workspace.model, given.models)).to_dict()["tasks"]
    return {"tasks": [{**each, "model": id} for id, each in zip(given.models, found, strict=True)]}


@router.post("/probes")
def probes(given: ProbesRequest, workspace: CurrentWorkspace) -> dict[str, Any]:
    """What a linear classifier reads from each layer of a frozen model, for labelled words or spans."""
    model = workspace.model(given.model)
    settings = given.model_dump(include={"control", "random", "examples"})

    with _training_data(given, workspace) as train:
        test = _file(workspace, given.test) if given.test else None

        def run(on_event: OnEvent) -> dict[str, Any]:
            found = probe_layers(model, train=train, test=test, probe=tuple(given.probe), on_event=on_event, **settings)
            return found.to_dict()

        found = with_notes(run)
    found["notes"] = [each for each in found["notes"] if not LAYER_DONE.search(each)]
    return renamed(workspace.without_paths(found), str(train), train.name)


@router.post("/retrieval")
def translations(given: RetrievalRequest, workspace: CurrentWorkspace) -> dict[str, Any]:
    """How often the nearest sentence of the other language is the translation, by the vectors of each layer."""
    model = workspace.model(given.model)
    pairs = _pairs(given, workspace)
    settings = given.model_dump(include={"center", "sample"})
    return workspace.without_paths(
        with_notes(lambda on_event: retrieval(model, pairs, on_event=on_event, **settings).to_dict())
    )


def _pairs(given: RetrievalRequest, workspace: Workspace) -> Path | tuple[Path, Path] | list[tuple[str, str]]:
    if given.file:
        first = _file(workspace, given.file)
        return (first, _file(workspace, given.second_file)) if given.second_file else first
    found: list[tuple[str, str]] = []
    for number, line in enumerate(given.content.splitlines(), 1):
        first, tab, second = line.partition("\t")
        if line.strip() and not (tab and first.strip() and second.strip()):
            raise UsageError(f"line {number} is no pair: write a sentence, a tab and its translation")
        found += [(first.strip(), second.strip())] if line.strip() else []
    if not found:
        raise UsageError(
            "there are no sentences: choose a file, or paste lines of a sentence, a tab and its translation"
        )
    return found


@contextmanager
def _training_data(given: ProbesRequest, workspace: Workspace) -> Iterator[Path]:
    """The file to train on, or one with the pasted contents: columns of words and tags, CoNLL-U or jsonl."""
    if given.train:
        yield _file(workspace, given.train)
        return
    if not given.content.strip():
        raise UsageError("there are no labelled words: choose a file, or paste words and tags")
    with TemporaryDirectory() as folder:
        path = Path(folder) / ("pasted.jsonl" if given.content.lstrip().startswith("{") else "pasted.txt")
        path.write_text(given.content, encoding="utf-8")
        yield path


def _file(workspace: Workspace, id: str) -> Path:
    return workspace.find("file", id).path
