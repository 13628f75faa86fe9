"""Requests of the page Words: neighbours, analogies, similarity and senses."""

from typing import Any

import numpy as np
from fastapi import APIRouter

from keel.api.vectors import senses, similarity
from keel.explain.nearest_neighbors import Neighbor, VectorSpace
from keel.explain.projection import project
from keel.studio.requests import (
    AnalogyRequest,
    CurrentWorkspace,
    SensesRequest,
    TextRequest,
    TopRequest,
    with_notes,
)

router = APIRouter()


@router.post("/nearest")
def nearest(given: TopRequest, workspace: CurrentWorkspace) -> dict[str, Any]:
    """The nearest neighbours of a word."""
    return {"neighbors": _rows(workspace.vectors(given.model).nearest(given.text.strip(), top=given.top))}


@router.post("/analogy")
def analogy(given: AnalogyRequest, workspace: CurrentWorkspace) -> dict[str, Any]:
    """The words nearest to an expression, and the words of the expression with the first of them in a plane."""
    space = workspace.vectors(given.model)
    positive, negative = space.signed_words(given.text)
    found = space.analogy((positive, negative), top=given.top, by=given.by)
    plane = analogy_plane(space, positive, negative, found[0].word)
    return {"expression": given.text, "neighbors": _rows(found), "positive": positive, "negative": negative, **plane}


@router.post("/similarity")
def cosine(given: TextRequest, workspace: CurrentWorkspace) -> dict[str, Any]:
    """The cosine similarity of two texts."""
    return {"similarity": similarity(given.text, given.second, model=workspace.model(given.model))}


@router.post("/senses")
def word_senses(given: SensesRequest, workspace: CurrentWorkspace) -> dict[str, Any]:
    """The uses of a word in sentences, clustered by its contextual vectors."""
    model = workspace.model(given.model)
    return with_notes(
        lambda on_event: senses(
            given.text, given.sentences, model=model, layer=given.layer, groups=given.groups, on_event=on_event
        ).to_dict()
    )


def analogy_plane(space: VectorSpace, positive: list[str], negative: list[str], answer: str) -> dict[str, Any]:
    """Points of the words of an analogy and its answer by PCA, and of the exact sum of the vectors.

    PCA is linear: the words and the sum form a parallelogram, and the distance of the answer from the sum shows.
    """
    words = list(dict.fromkeys([*positive, *negative, answer]))
    target = space.directions(positive).sum(0) - space.directions(negative).sum(0)
    points, explained_variance = project(np.concatenate([space.directions(words), target[None]]))
    return {
        "words": [{"word": word, "point": point} for word, point in zip(words, points.tolist(), strict=False)],
        "target": points[-1].tolist(),
        "explained_variance": explained_variance,
    }


def _rows(found: list[Neighbor]) -> list[dict[str, Any]]:
    return [{"word": each.word, "similarity": each.score} for each in found]
