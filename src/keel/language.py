"""What models that write do, as verbs: perplexity, generate and translate."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from keel.decode.sample import sample
from keel.decode.writer import Writer
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore, note
from keel.explain.perplexity import Perplexity
from keel.explain.perplexity import perplexity as perplexity_of
from keel.model import Model
from keel.run import Text, corpus_of, route
from keel.tasks.examples import Examples
from keel.tasks.predictions import Rewritten
from keel.tasks.rewrite import Rewrite
from keel.words import loaded


def perplexity(model: Model | str | Path, source: Any, *, on_event: OnEvent = ignore, **settings: Any) -> Perplexity:
    """How well a language model foretells a text: by token, by word and by byte, whatever its pieces are.

    `source` is a file or what may stand for one; `settings` are single fields of `Text`. Sentences are told apart as in
    the text that the model learned from.
    """
    known = loaded(model, on_event)
    learned = known.card.recipe.get("text", {})
    (text,) = route(settings, Text(sentences=learned.get("sentences", "split")))
    return perplexity_of(known, corpus_of(source, text, on_event), on_event=on_event)


def generate(
    prompt: str = "",
    *,
    model: Model | str | Path,
    tokens: int = 50,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    on_text: Callable[[str], object] = str,
    on_event: OnEvent = ignore,
) -> str:
    """Text of so many tokens that goes on from a prompt; `on_text` hears each part of it as it is drawn.

    A `temperature` below 1 prefers what is likely, and 0 always takes the likeliest; `top_k` and `top_p` leave out what
    is not. The same seed gives the same text.
    """
    known = loaded(model, on_event)
    writer, tokenizer = known.objective and known.objective.eval(), known.tokenizer
    if not isinstance(writer, Writer):
        what = f"{known.system.name} does not write text"
        raise KeelError(f"{what}: take a language model, such as ngram, nnlm, rnn or ulmfit")
    read = tokenizer.encode(prompt).ids
    unknown = read.count(tokenizer.unknown_id) if tokenizer.has("unk") else 0
    if read and unknown == len(read):
        raise KeelError(f"the model knows no word of {prompt!r:.80}: begin with others")
    if unknown:
        note(on_event, f"{unknown} of {len(read)} words of the prompt are unknown to the model")
    special = set(tokenizer.special_ids)
    before, written, said = tokenizer.decode(read), [], ""
    drawn = sample(
        writer, [read], tokens=tokens, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed,
        banned=special - {writer.closing},
    )  # fmt: skip
    for (number,) in drawn:
        written += [number] if number not in special else []
        text = tokenizer.decode([*read, *written])[len(before) :]
        if not text.endswith("\ufffd"):  # a character whose bytes are not all there yet
            on_text(text[len(said) :])
            said = text
    return said


def translate(
    texts: str | Iterable[str], *, model: Model | str | Path, on_event: OnEvent = ignore, **settings: Any
) -> Any:
    """What a model that learned to rewrite makes of a text, or of many; with `best` above 1 its best texts for each,
    with their scores. `settings` are `beam`, `best` and `length_penalty`."""
    one = isinstance(texts, str)
    found = list(translations([texts] if one else texts, model=model, on_event=on_event, **settings))
    if all(len(each) == 1 for each in found):
        found = [str(each[0]) for each in found]
    return found[0] if one else found


def translations(
    texts: Iterable[str], *, model: Model | str | Path, chunk: int = 0, on_event: OnEvent = ignore, **settings: Any
) -> Iterator[list[Rewritten]]:
    """The best texts for each of many, in their order, `chunk` by chunk (0: as many as are written at once); what is
    blank stays so."""
    known = loaded(model, on_event)
    if not isinstance(known.task, Rewrite):
        remedy = "make one by keel finetune transformer SOURCES TARGETS --task rewrite"
        raise UsageError(f"{known.card.title or 'the model'} has not learned to rewrite texts: {remedy}")
    (search,) = route(settings, known.task.search)
    task, waiting = known.task.searching(search), iter(texts)
    size = chunk or task.texts_at_once
    while some := list(islice(waiting, size)):
        full = [task.example(text, number) for number, text in enumerate(some) if text.strip()]
        written = iter(task.predict(Examples(full, None, "the texts"), on_event=on_event).found if full else [])
        yield from (next(written) if text.strip() else [Rewritten("", 0.0, 0.0)] for text in some)
