"""Requests of the pages Attention, Trace, Explain and Bias."""

import base64
from typing import Any

import numpy as np
from fastapi import APIRouter

from keel.api.bias import bias
from keel.api.inspection import explain_prediction
from keel.data.sentence_splitting import vocabulary_language
from keel.errors import UsageError
from keel.events import OnEvent
from keel.explain.attention_weights import Attention, attention_weights
from keel.explain.trace.model_tracing import trace_tensors
from keel.report.attention_charts import intensity, pooled_matrix
from keel.studio.requests import (
    AttentionRequest,
    BiasRequest,
    CurrentWorkspace,
    ExplainRequest,
    HeadRequest,
    TraceRequest,
    with_notes,
)

router = APIRouter()

THUMBNAIL = 24
"""Side of the small picture of a head, in pixels."""


@router.post("/attention")
def attention(given: AttentionRequest, workspace: CurrentWorkspace) -> dict[str, Any]:
    """All heads of a text: their shares of special tokens, and a small picture of each."""
    model = workspace.model(given.model)

    def run(on_event: OnEvent) -> dict[str, Any]:
        found = attention_weights(model, on_event=on_event, **_settings(given))
        small = pooled_matrix(found.weights, THUMBNAIL)  # [layers, heads, rows, columns]
        pictures = {"thumbnails": _bytes(intensity(small)), "rows": small.shape[2], "columns": small.shape[3]}
        return {**found.to_dict(weights=False), **pictures}

    return with_notes(run)


@router.post("/attention/head")
def attention_head(given: HeadRequest, workspace: CurrentWorkspace) -> dict[str, Any]:
    """The weights of one head with 8 bits, as shares of the largest."""
    model = workspace.model(given.model)
    found = attention_weights(model, layers=[given.layer], heads=[given.head], **_settings(given))
    return _head_data(found)


@router.post("/trace")
def trace(given: TraceRequest, workspace: CurrentWorkspace) -> dict[str, Any]:
    """Every tensor of a text: shapes, statistics and small pictures, below four million characters."""
    model = workspace.model(given.model)
    settings = given.model_dump(exclude={"model", "text"})

    def run(on_event: OnEvent) -> dict[str, Any]:
        found = trace_tensors(model, given.text, on_event=on_event, **settings).to_dict()
        axes = dict.fromkeys(axis for kind in found["kinds"] for axis in kind["axes"])
        return {**found, "axis_names": {axis: axis for axis in axes}}

    return with_notes(run)


@router.post("/explain")
def explain(given: ExplainRequest, workspace: CurrentWorkspace) -> dict[str, Any]:
    """The words that made a prediction."""
    model = workspace.model(given.model)
    if model.task is None:
        raise UsageError(f"{given.model} has no task, so no prediction to explain: choose a fine-tuned model")
    second = given.second if model.task.pair else None
    settings = {"by": given.by, "label": given.label, "word": given.word, "curves": given.curves}
    return with_notes(
        lambda on_event: explain_prediction(given.text, second, model=model, on_event=on_event, **settings).to_dict()
    )


@router.post("/bias")
def pronouns_and_occupations(given: BiasRequest, workspace: CurrentWorkspace) -> dict[str, Any]:
    """Which of two pronouns a model connects with each occupation, by all methods that it supports."""
    model = workspace.model(given.model)
    settings = given.model_dump(exclude={"model"})
    if given.language == "auto":
        settings["language"] = vocabulary_language(model.tokenizer.vocabulary())
    return with_notes(lambda on_event: bias(model, on_event=on_event, **settings).to_dict())


def _settings(given: AttentionRequest) -> dict[str, Any]:
    return given.model_dump(exclude={"model", "layer", "head"})


def _head_data(found: Attention) -> dict[str, Any]:
    weights = found.weights[0, 0]
    largest = float(weights.max()) or 1.0
    return {
        "rows": len(found.queries),
        "columns": len(found.keys),
        "largest": largest,
        "weights": _bytes(weights / largest),
    }


def _bytes(shares: np.ndarray) -> str:
    """Numbers from 0 to 1 as bytes, in base64."""
    return base64.b64encode(np.round(255 * shares).astype(np.uint8).tobytes()).decode()
