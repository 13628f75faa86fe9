"""Evaluation: scores of a task, of word vectors or of a language model."""

import os
from pathlib import Path
from typing import Any, Literal

from keel.api.finetuning import Source
from keel.api.inference import _asked, _refuse_others
from keel.api.model_loading import load_model, load_vectors
from keel.api.prompting import choose, last_words
from keel.api.text_generation import perplexity
from keel.config import unknown_name
from keel.events import OnEvent, ignore, note
from keel.explain.vector_benchmarks import evaluate_vectors, published_form
from keel.metrics.scores import Scores
from keel.model import Model
from keel.systems.capabilities import LanguageModelSystem


def evaluate(
    model: Model | str | Path,
    data: Source,
    *,
    out: str | Path | None = None,
    by: Literal["", "last-word", "choices"] = "",
    on_event: OnEvent = ignore,
    **settings: Any,
) -> Scores:
    """Scores on labelled examples, with intervals; with `out` also scores.json, confusion.tsv and errors.tsv there.

    Vectors of words, which know no task, are scored on published files of similar words (WordSim-353, SimLex-999, MEN,
    wordsim-240) and of analogies (Google's, CA8): which it is, the file shows. A language model without a task gets the
    perplexity of a text or, where told so, is scored `by` the last word of each text or by which of some choices it
    finds likeliest.
    """
    known = load_model(model, on_event)
    published = known.task is None and isinstance(data, str | Path) and os.path.isfile(data) and published_form(data)
    _refuse_others(known, settings, by)
    if by:
        next_token_loss = {"last-word": last_words, "choices": choose}
        if by not in next_token_loss:
            raise unknown_name(by, next_token_loss, "--by")
        scores = next_token_loss[by](known, data, on_event=on_event, **settings)
    elif published and known.encoder.width:
        scores = evaluate_vectors(load_vectors(known), data, on_event=on_event)
    elif known.task is None and isinstance(known.system, LanguageModelSystem):
        scores = perplexity(known, data, on_event=on_event, **settings)
    else:
        task, columns = _asked(known, settings)
        examples = task.read_examples(data, columns, on_event)
        task.check_scorable(examples, task.labels)
        scores = task.score(examples, task.predict(examples, on_event=on_event))
        if scores.warning:
            note(on_event, scores.warning)
    if out is not None:
        scores.write(Path(out))
    return scores
