"""What language models do, as verbs: perplexity and generate."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from keel.decode.sample import sample
from keel.decode.writer import Writer
from keel.errors import KeelError
from keel.events import OnEvent, ignore, note
from keel.explain.perplexity import Perplexity
from keel.explain.perplexity import perplexity as perplexity_of
from keel.model import Model
from keel.run import Text, corpus_of, route
from keel.words import loaded


def perplexity(model: Model | str | Path, source: Any, *, on_event: OnEvent = ignore, **settings: Any) -> Perplexity:
    """How well a language model foretells a text: by token, by word and by byte, whatever its pieces are.

    `source` is a file or what may stand for one; `settings` are single fields of `Text`. Sentences are told apart as in
    the text that the model learned from.
    """
    known = loaded(model, on_event)
    learned = known.card.recipe.get("text", {})
    (text,) = route(settings, Text(sentences=learned.get("sentences", "auto")))
    return perplexity_of(known, corpus_of(source, text.settled(known.system), on_event), on_event=on_event)


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
