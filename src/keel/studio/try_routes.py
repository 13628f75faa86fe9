"""Requests of the page Try: every verb on a text."""

from typing import Any

from fastapi import APIRouter

from keel.api.inference import fill, next_sentence
from keel.api.prompting import ask
from keel.api.text_generation import answer_data, continuations
from keel.api.translation import aligned, translate
from keel.data.examples import Examples
from keel.data.label_kinds import MultiLabel, SingleLabel
from keel.data.predictions import SpanAnswer
from keel.errors import UsageError
from keel.events import OnEvent
from keel.generation.strategy import decoding_strategy
from keel.studio.requests import (
    AskRequest,
    CurrentWorkspace,
    GenerateRequest,
    TextRequest,
    TopRequest,
    TranslateRequest,
    with_notes,
)

router = APIRouter()


@router.post("/fill")
def fill_masks(given: TopRequest, workspace: CurrentWorkspace) -> dict[str, Any]:
    """The most probable words for each mask."""
    found = fill(given.text, model=workspace.model(given.model), top=given.top)
    return {"text": given.text, "masks": [[each._asdict() for each in candidates] for candidates in found]}


@router.post("/generate")
def generate(given: GenerateRequest, workspace: CurrentWorkspace) -> dict[str, Any]:
    """A continuation, with the tree of candidates."""
    model = workspace.model(given.model)
    search = {"beams": given.beams, "best": given.best} if given.beams else {}
    sampling = {"temperature": given.temperature, "top_k": given.top_k, "top_p": given.top_p, "seed": given.seed}
    strategy = decoding_strategy(**(search or sampling))

    def run(on_event: OnEvent) -> dict[str, Any]:
        traces: list[dict[str, Any]] = []
        (found,) = continuations(
            [given.text], model=model, strategy=strategy, tokens=given.tokens, on_trace=traces.append, on_event=on_event
        )
        return {"text": found[0].text, "best": [answer_data(each) for each in found], "trace": traces[0]}

    return with_notes(run)


@router.post("/ask")
def answer_question(given: AskRequest, workspace: CurrentWorkspace) -> dict[str, Any]:
    """The answer to a question: a span of the passage, or generated text."""
    model = workspace.model(given.model)

    def run(on_event: OnEvent) -> dict[str, Any]:
        found = ask(given.passage, given.question, model=model, on_event=on_event)
        if not isinstance(found, SpanAnswer):
            return found.to_dict()
        best = [each.to_dict() for each in found.alternatives]
        return {**found.to_dict(), "null_odds": found.null_odds, "best": best}

    return with_notes(run)


@router.post("/predict")
def predict(given: TextRequest, workspace: CurrentWorkspace) -> dict[str, Any]:
    """The prediction of a fine-tuned model: a label, tags, or a number; and the probabilities of all labels."""
    task = workspace.model(given.model).task
    if task is None:
        raise UsageError(f"{given.model} has no task: choose a fine-tuned model")
    if not given.text.strip():
        raise UsageError("the text is empty: give a text")
    if task.pair and not given.second.strip():
        raise UsageError("the second text is empty: this model predicts pairs, so give both texts")
    example = task.make_example((given.text, given.second) if task.pair else given.text, 0)

    def run(on_event: OnEvent) -> dict[str, Any]:
        found = task.predict(Examples.of([example], None, "the text"), on_event=on_event)
        shares = found.estimates[0].tolist() if isinstance(found.labels.kind, SingleLabel | MultiLabel) else []
        probabilities = dict(zip(found.labels.names, shares, strict=bool(shares)))
        return {"task": task.name, "prediction": found.to_dicts()[0], "probabilities": probabilities}

    return with_notes(run)


@router.post("/translate")
def translate_text(given: TranslateRequest, workspace: CurrentWorkspace) -> dict[str, Any]:
    """A translation, the next best ones, and its alignment to the source."""
    model = workspace.model(given.model)

    def run(on_event: OnEvent) -> dict[str, Any]:
        found = translate(given.text, model=model, beams=given.beams, best=given.beams, on_event=on_event)
        links = aligned(given.text, found.text, model=model).to_dict() if found.text else None
        return {
            **found.to_dict(),
            "best": [each.to_dict() for each in (found, *found.alternatives)],
            "alignment": links,
        }

    return with_notes(run)


@router.post("/next_sentence")
def follows(given: TextRequest, workspace: CurrentWorkspace) -> dict[str, Any]:
    """The probability that the second text follows the first."""
    return {"is_next": next_sentence(given.text, given.second, model=workspace.model(given.model))}
