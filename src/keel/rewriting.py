"""What a model does that learned to rewrite texts, as a verb: translate."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from keel.decode.trace import Trace
from keel.errors import UsageError
from keel.events import OnEvent, ignore
from keel.explain.decoding import decoding, spelled
from keel.language import write_trace
from keel.model import Model
from keel.run import route
from keel.tasks.examples import Examples
from keel.tasks.predictions import Rewritten
from keel.tasks.rewrite import Rewrite
from keel.words import loaded


def translate(
    texts: str | Iterable[str],
    *,
    model: Model | str | Path,
    trace: str | Path | None = None,
    on_event: OnEvent = ignore,
    **settings: Any,
) -> Any:
    """What a model that learned to rewrite makes of a text, or of many; with `best` above 1 the best few for each, with
    their scores. `settings` are `beams`, `best` and `length_penalty`.

    `trace` is an .html or .json file, or a folder for both, that shows how each word was chosen.
    """
    one = isinstance(texts, str)
    many: Iterable[str] = [texts] if one else texts
    found: list[Any] = list(translations(many, model=model, trace=trace, on_event=on_event, **settings))
    if all(len(best) == 1 for best in found):
        found = [str(best[0]) for best in found]
    return found[0] if one else found


def translations(
    texts: Iterable[str],
    *,
    model: Model | str | Path,
    at_once: int = 0,
    trace: str | Path | None = None,
    on_event: OnEvent = ignore,
    **settings: Any,
) -> Iterator[list[Rewritten]]:
    """The best texts for each of many, in their order, so many written `at_once` (0: as many as is fast); what is blank
    stays so. Of a trace, all texts are one batch."""
    known = loaded(model, on_event)
    if not isinstance(known.task, Rewrite):
        remedy = "make one by keel finetune transformer SOURCES TARGETS --task rewrite"
        raise UsageError(f"{known.card.title or 'the model'} has not learned to rewrite texts: {remedy}")
    (search,) = route(settings, known.task.search)
    task = known.task.searching(search)
    if trace is None:
        return _written(task, iter(texts), at_once or task.texts_at_once, on_event)
    return _traced(task, list(texts), trace, on_event)


def _written(task: Rewrite, texts: Iterator[str], at_once: int, on_event: OnEvent) -> Iterator[list[Rewritten]]:
    while some := list(islice(texts, at_once)):
        found = iter(task.predict(_asked(task, some), on_event=on_event).found if any(map(str.strip, some)) else [])
        yield from (next(found) if text.strip() else [Rewritten("", 0.0, 0.0)] for text in some)


def _traced(task: Rewrite, texts: list[str], path: str | Path, on_event: OnEvent) -> Iterator[list[Rewritten]]:
    seen = Trace()
    data = task.prepare(_asked(task, texts), labelled=False, on_event=on_event)
    if len(data) < len(texts):
        raise UsageError("a trace shows how texts are written, and one of these is blank: leave it out")
    found, paths = task.traced(data, seen)
    pieces = [spelled(task.tokenizer, row) for row in data.id_lists()]
    answers = [[{**asdict(each)} for each in best] for best in found]
    prompts: list[list[int]] = [[] for _ in texts]
    told = decoding(seen, task.target, task.search, prompts=prompts, answers=answers, written=paths, sources=pieces)
    write_trace(path, told)
    yield from found


def _asked(task: Rewrite, texts: list[str]) -> Examples:
    items = [task.example(text, number) for number, text in enumerate(texts) if text.strip()]
    return Examples(items, None, "the texts")
