"""Inference: predictions for examples, masked tokens filled in, embeddings of texts."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from keel.api.finetuning import Source
from keel.api.model_loading import load_model
from keel.api.settings import route_settings
from keel.data.examples import Columns
from keel.data.label_kinds import TextTarget
from keel.errors import UsageError
from keel.events import OnEvent, ignore
from keel.model import Candidate, Model, Pool
from keel.systems.capabilities import LanguageModelSystem
from keel.tasks import Task

SEARCHING = {"beams": "beam", "best": "best", "length_penalty": "length-penalty"}
"""Settings of a search, and their flags."""


def predict(
    model: Model | str | Path, data: Source, *, on_event: OnEvent = ignore, **settings: Any
) -> Iterator[dict[str, Any]]:
    """One record for each text of a source: where it stands, the text and what the model says of it."""
    known = load_model(model, on_event)
    _refuse_others(known, settings)
    task, columns = _asked(known, settings)
    examples = task.read_examples(data, columns, on_event)
    found = task.predict(examples, on_event=on_event).to_dicts()
    for example, record in zip(examples, found, strict=True):
        second = {} if example.second is None else {"second": example.second}
        # What is known beforehand stands beside what is said, so that others' scorers can count.
        gold = {"gold": list(example.names)} if example.words and example.label else {}
        yield {"where": example.location, "text": example.text, **second, **record, **gold}


def fill(text: str, *, model: Model | str | Path, top: int = 5, on_event: OnEvent = ignore) -> list[list[Candidate]]:
    """The likeliest words for every [MASK] (or ___) of a text."""
    return load_model(model, on_event).fill(text, top=top)


def embed(
    texts: str | Sequence[str],
    *,
    model: Model | str | Path,
    layer: int = -1,
    pool: Pool = "mean",
    on_event: OnEvent = ignore,
) -> Any:
    """Vectors of texts: one for each, or with pool="none" one for each piece in its context."""
    return load_model(model, on_event).encode(texts, layer=layer, pool=pool, on_event=on_event)


def _asked(model: Model, settings: dict[str, Any]) -> tuple[Task, Columns]:
    """The model's task, with the way to answer that the settings ask for, and where data keeps what."""
    if model.task is None:
        raise UsageError(f"{model.card.title or 'the model'} knows no task yet: fine-tune it first (keel finetune)")
    columns, search = route_settings(settings, Columns(), model.task.decoding)
    return model.task.with_decoding(search), columns


def _refuse_others(model: Model, settings: dict[str, Any], by: str = "") -> None:
    """Refuse the settings of a search where nothing is searched for, and a stride where no text is foretold."""
    searches = model.task is not None and isinstance(model.task.labels.kind, TextTarget)
    foretells = model.task is None and isinstance(model.system, LanguageModelSystem) and not by
    is_what = f"is a model of {model.system.name}"
    if model.task is not None:
        is_what = f"has learned to {model.task.name}"
    elif isinstance(model.system, LanguageModelSystem):
        is_what = f"is a language model{f', scored by {by}' if by else ''}"
    for name, flag in SEARCHING.items():
        if name in settings and not searches:
            raise UsageError(f"--{flag} is for models that rewrite; {model.card.title or 'this one'} {is_what}")
    if "stride" in settings and not foretells:
        what = "--stride is for language models and the perplexity of a text"
        raise UsageError(f"{what}; {model.card.title or 'this one'} {is_what}")
