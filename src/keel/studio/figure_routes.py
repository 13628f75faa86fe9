"""Requests of the page Figures: diagrams of networks, tasks and inputs."""

from copy import copy
from dataclasses import replace
from typing import Any
from xml.etree.ElementTree import Element

from fastapi import APIRouter

from keel.api.figures import FIGURES, figure
from keel.events import OnEvent
from keel.model import Model
from keel.studio.requests import CurrentWorkspace, FigureRequest, with_notes
from keel.studio.workspace import NotFound
from keel.systems import SYSTEMS

router = APIRouter()

OPTIONS = ("model", "text", "second")
"""Options of figures that the page has; the others name files."""


@router.get("/figures")
def list_figures() -> dict[str, Any]:
    """All figures, with the options that they depend on and the systems whose models they show."""
    return {
        "figures": [
            {
                "name": name,
                "summary": kind.summary,
                "options": [option for option in kind.options if option in OPTIONS],
                "systems": [system for system, type in SYSTEMS.items() if issubclass(type, kind.systems)],
            }
            for name, kind in FIGURES.items()
        ]
    }


@router.post("/figure")
def draw_figure(given: FigureRequest, workspace: CurrentWorkspace) -> dict[str, Any]:
    """A figure as a tree of shapes, with its caption and the numbers in it."""
    if given.name not in FIGURES:
        raise NotFound(f"there is no figure {given.name!r:.100}: choose one of the list")
    settings: dict[str, Any] = {name: value for name, value in given.model_dump().items() if value}
    if given.model:
        settings["model"] = _without_sources(workspace.model(given.model))

    def run(on_event: OnEvent) -> dict[str, Any]:
        found = figure(**settings, on_event=on_event)
        return {**found.to_dict(), "picture": shape(found.picture)}

    return with_notes(run)


def shape(element: Element) -> dict[str, Any]:
    """An element of a picture as plain data, without its style: the policy of the pages forbids attributes of style."""
    parts: list[dict[str, Any] | str] = [element.text] if element.text else []
    for child in element:
        parts.append(shape(child))
        parts += [child.tail] if child.tail else []
    attributes = {name: value for name, value in element.attrib.items() if name != "style"}
    return {"tag": element.tag, "attributes": attributes, "children": parts}


def _without_sources(model: Model) -> Model:
    """The model without the recipe of its pre-training, whose files may lie outside the folders of the studio."""
    found = copy(model)
    found.card = replace(model.card, recipe={})
    return found
