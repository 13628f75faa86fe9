"""What language models do, as verbs: perplexity and generate."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, overload

from keel.api.model_loading import load_model
from keel.api.settings import TextSettings, corpus_of, route_settings
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore, note
from keel.explain.decoding_steps import decoding_data
from keel.explain.perplexity import Perplexity
from keel.explain.perplexity import perplexity as perplexity_of
from keel.explain.zero_shot import next_token_model
from keel.generation.beam_search import BeamSearch, Hypothesis, SearchInterrupted
from keel.generation.beam_search import beam_search as beam_search
from keel.generation.decoding_trace import DecodingTrace
from keel.generation.next_token import new_token_budget
from keel.generation.sampling import Sampling, sample
from keel.generation.strategy import decoding_strategy
from keel.model import Model
from keel.report import decoding_page


def perplexity(
    model: Model | str | Path, source: Any, *, stride: int | None = None, on_event: OnEvent = ignore, **settings: Any
) -> Perplexity:
    """How well a language model foretells a text: by token, by word (of Chinese, by character) and by byte.

    `source` is a file or what may stand for one; `settings` are single fields of `Text`. Sentences are told apart as in
    the text that the model learned from. A model with a window moves it on by `stride` tokens, unless told
    by half of it.
    """
    known = load_model(model, on_event)
    learned = known.card.recipe.get("text", {})
    (text,) = route_settings(settings, TextSettings(sentences=learned.get("sentences", "auto")))
    return perplexity_of(
        known, corpus_of(source, text.resolve(known.system), on_event), stride=stride, on_event=on_event
    )


@overload  # a str is one prompt, though also many strs
def generate(  # pyright: ignore[reportOverlappingOverload]
    prompt: str = "", *, model: Model | str | Path,
    tokens: int = 50, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, repetition_penalty: float = 1.0,
    seed: int = 0, beams: int | None = None, best: None = None, length_penalty: float | None = None,
    stop: str | Sequence[str] = (), trace: str | Path | None = None, on_text: Callable[[str], object] = str,
    on_event: OnEvent = ignore,
) -> str: ...  # fmt: skip
@overload
def generate(  # pyright: ignore[reportOverlappingOverload]
    prompt: str = "", *, model: Model | str | Path,
    tokens: int = 50, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, repetition_penalty: float = 1.0,
    seed: int = 0, beams: int | None = None, best: int, length_penalty: float | None = None,
    stop: str | Sequence[str] = (), trace: str | Path | None = None, on_text: Callable[[str], object] = str,
    on_event: OnEvent = ignore,
) -> list[str]: ...  # fmt: skip
@overload
def generate(
    prompt: Iterable[str], *, model: Model | str | Path,
    tokens: int = 50, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, repetition_penalty: float = 1.0,
    seed: int = 0, beams: int | None = None, best: None = None, length_penalty: float | None = None,
    stop: str | Sequence[str] = (), trace: str | Path | None = None, on_text: Callable[[str], object] = str,
    on_event: OnEvent = ignore,
) -> list[str]: ...  # fmt: skip
@overload
def generate(
    prompt: Iterable[str], *, model: Model | str | Path,
    tokens: int = 50, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, repetition_penalty: float = 1.0,
    seed: int = 0, beams: int | None = None, best: int, length_penalty: float | None = None,
    stop: str | Sequence[str] = (), trace: str | Path | None = None, on_text: Callable[[str], object] = str,
    on_event: OnEvent = ignore,
) -> list[list[str]]: ...  # fmt: skip
def generate(
    prompt: str | Iterable[str] = "",
    *,
    model: Model | str | Path,
    tokens: int = 50,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    repetition_penalty: float = 1.0,
    seed: int = 0,
    beams: int | None = None,
    best: int | None = None,
    length_penalty: float | None = None,
    stop: str | Sequence[str] = (),
    trace: str | Path | None = None,
    on_text: Callable[[str], object] = str,
    on_event: OnEvent = ignore,
) -> str | list[str] | list[list[str]]:
    """Text of at most so many tokens that goes on from a prompt; of several prompts, a text for each, written in one
    batch. `on_text` hears each part of the first text as it is drawn.

    A `temperature` below 1 prefers what is likely, and 0 always takes the likeliest; `top_k` and `top_p` leave out what
    is not; a `repetition_penalty` above 1 makes what came before less likely. The same seed gives the same text. With
    `beams` nothing is drawn: the likeliest text is searched for, so many open at each step, up to the end of a
    sentence, longer ones preferred by a `length_penalty` (0.6) above 0; with `best` a list of so many is given in the
    place of each text. A text ends before any of the strings `stop`. `trace` is where to write how each word was
    chosen: a folder, an .html or a .json file.
    """
    how = decoding_strategy(
        temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=repetition_penalty, seed=seed,
        beams=beams, best=best, length_penalty=length_penalty,
    )  # fmt: skip
    prompts: list[Any] = [*prompt] if isinstance(prompt, Iterable) and not isinstance(prompt, str) else [prompt]
    for each in prompts:
        if not isinstance(each, str):
            raise UsageError(f"the prompt is {each!r:.60}: give a text, or a list of them")
    found = continuations(
        prompts, model=model, how=how, tokens=tokens, stop=stop, trace=trace,
        on_text=lambda row, text: on_text(text) if row == 0 else None, on_event=on_event,
    )  # fmt: skip
    for first, *_ in found:
        if why := silence(first, how):
            note(on_event, why)
    texts: list[Any] = [[each.text for each in listed] if best else listed[0].text for listed in found]
    return texts[0] if isinstance(prompt, str) else texts


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """A text that goes on from a prompt."""

    text: str
    score: float | None = None
    """What a beam search compared it by."""
    log_probability: float | None = None
    stopped: bool = False
    """Whether one of the strings came that end a text."""


def silence(found: Continuation, how: Sampling | BeamSearch) -> str:
    """Why nothing was written, and what may help, in a sentence; nothing where there is a text."""
    if found.stopped and not found.text.strip():
        return "the first thing it wrote was the stop string"
    if found.text:
        return ""
    drawn = "another --seed, a higher --temperature, or a longer prompt may help"
    searched = "a longer prompt, a higher --length-penalty, or drawing without --beam may help"
    return f"the model ended at once: {searched if isinstance(how, BeamSearch) else drawn}"


def continuations(
    prompts: Sequence[str],
    *,
    model: Model | str | Path,
    how: Sampling | BeamSearch,
    tokens: int = 50,
    stop: str | Sequence[str] = (),
    closes: bool | None = None,
    trace: str | Path | None = None,
    on_text: Callable[[int, str], object] = lambda row, text: None,
    on_event: OnEvent = ignore,
) -> list[list[Continuation]]:
    """For each prompt what a language model goes on with: one text that is drawn, or the best that a search finds.

    `on_text` hears a prompt's number and each further part of its text. What is drawn ends, if it `closes`, with the
    first end of a sentence or document, whichever the model foretells; unless told, with a document's.
    """
    if trace is not None:
        trace_files(trace)
    known, stop = load_model(model, on_event), [stop] if isinstance(stop, str) else [*stop]
    writer, tokenizer = next_token_model(known), known.tokenizer
    closes = known.system.default_sentences == "none" if closes is None else closes
    if "" in stop:
        raise UsageError("--stop is empty, and every text would end before it starts: give it some letters")
    read = [_read(prompt, tokenizer, on_event) for prompt in prompts]
    fits = new_token_budget(writer, read, tokens) if tokens > 0 else tokens
    if fits < tokens:
        note(on_event, f"after this prompt the model has room for {fits:,} of {tokens:,} tokens, and stops there")
    seen, paths = None if trace is None else DecodingTrace(), None
    written = [Unfolding(tokenizer, ids, stop) for ids in read]
    banned = set(tokenizer.special_ids) - {writer.eos_id}
    if isinstance(how, BeamSearch):
        reach = 4 * max(map(len, stop), default=0)  # a character may be of four bytes, each an id

        def ends(row: int, ids: list[int]) -> bool:
            return Unfolding(tokenizer, [*read[row], *ids[:-reach]], stop).add(*ids[-reach:])

        def told(answers: list[list[Hypothesis]]) -> list[list[Continuation]]:
            found = [
                [
                    Continuation(
                        text=(text := Unfolding(tokenizer, ids, stop)).whole(each.ids),
                        score=each.score,
                        log_probability=each.log_prob,
                        stopped=text.ended,
                    )
                    for each in best
                ]
                for ids, best in zip(read, answers, strict=True)
            ]
            if stop:
                found = [_distinct(best)[: how.best] for best in found]
            for row, best in enumerate(found):
                if best:
                    on_text(row, best[0].text)
            return found

        try:
            answers = beam_search(
                writer, read, replace(how, best=how.beams) if stop else how, max_new_tokens=fits, banned=banned,
                is_finished=ends if stop else None, trace=seen,
            )  # fmt: skip
        except SearchInterrupted as stopped:
            told([best or stopped.best.get(row, []) for row, best in enumerate(stopped.found)])
            raise KeyboardInterrupt from None
        found, paths = told(answers), [best.ids_with_eos for best, *_ in answers]
    else:
        steps = sample(
            writer, read, how, max_new_tokens=fits, banned=banned, trace=seen,
            stop_ids=[writer.eos_id] if closes and writer.eos_id is not None else [],
            is_finished=lambda row, number: written[row].add(number),
        )  # fmt: skip
        for _ in steps:
            for row, text in enumerate(written):
                on_text(row, text.new())
        for row, text in enumerate(written):
            if rest := text.new(last=True):
                on_text(row, rest)
        found = [[Continuation(text=text.said, stopped=text.ended)] for text in written]
    if trace is not None and seen is not None:
        answers = [[asdict(each) for each in best] for best in found]
        write_trace(trace, decoding_data(seen, tokenizer, how, prompts=read, answers=answers, written=paths), on_event)
    return found


def _distinct(found: list[Continuation]) -> list[Continuation]:
    """Without those whose text another has that is better: a stop string may be the end of many."""
    firsts: dict[str, Continuation] = {}
    for each in found:
        firsts.setdefault(each.text, each)
    return [*firsts.values()]


def _read(prompt: str, tokenizer: Tokenizer, on_event: OnEvent) -> list[int]:
    ids = tokenizer.encode(prompt).ids
    unknown = ids.count(tokenizer.unknown_id) if tokenizer.has_special_token("unk") else 0
    if ids and unknown == len(ids):
        raise KeelError(f"the model knows no word of {prompt!r:.80}: begin with others")
    if unknown:
        note(on_event, f"{unknown} of {len(ids)} words of the prompt are unknown to the model")
    return ids


BROKEN = "\ufffd"
"""Stands for a character whose bytes are not all there yet."""
CONTEXT = 16
"""Ids before another on which it may hang how that is written."""


class Unfolding:
    """The text of ids that come one by one after others, up to the first of some strings."""

    def __init__(self, tokenizer: Tokenizer, read: list[int], stop: Sequence[str] = ()):
        self.tokenizer, self.stop = tokenizer, stop
        self.said = ""
        """What was given."""
        self.ended = False
        """Whether one of the strings has come."""
        self._special = set(tokenizer.special_ids)
        self._text = ""
        self._settle(read)

    def add(self, *numbers: int) -> bool:
        """Take further ids; whether one of the strings has come, so that nothing more is asked for."""
        if shown := [number for number in numbers if number not in self._special]:
            self._ids += shown
            self._text = self._settled + self.tokenizer.decode(self._ids)[self._before :]
            places = [self._text.find(stop, max(0, len(self.said) - len(stop))) for stop in self.stop]
            places = [place for place in places if place >= 0]
            if places:
                self._text, self.ended = self._text[: min(places)], True
            elif len(self._ids) > 8 * CONTEXT and not self._text.endswith(BROKEN):
                self._settle(self._ids)
        return self.ended

    def _settle(self, ids: list[int]) -> None:
        """Go on from the text so far: how an id is written hangs on a few before it, not on all."""
        self._settled, self._ids = self._text, ids[-CONTEXT:]
        self._before = len(self.tokenizer.decode(self._ids))

    def new(self, *, last: bool = False) -> str:
        """What has come and was not given yet, without what might be the start of one of the strings, or of a character
        whose bytes are not all there; the last time all of it."""
        text = self._text
        if not last and not self.ended:
            if text.endswith(BROKEN):
                return ""
            starts = (size for stop in self.stop for size in range(1, len(stop)) if text.endswith(stop[:size]))
            text = text[: len(text) - max(starts, default=0)]
        fresh = text[len(self.said) :] if text.startswith(self.said) else ""
        self.said += fresh
        return fresh

    def whole(self, ids: Sequence[int]) -> str:
        """The text of all these ids."""
        any(self.add(number) for number in ids)
        return self.new(last=True)


def trace_files(path: str | Path) -> list[Path]:
    """What a trace is written into: an .html or a .json file of a folder that is there, or both in a folder."""
    path = Path(path)
    if path.is_dir() or not path.suffix:
        return [path / "trace.json", path / "trace.html"]
    if path.suffix.lower() not in (".html", ".json"):
        raise UsageError(f"{path} is neither .html nor .json: name the trace so that its form is known, or a folder")
    if not path.parent.is_dir():
        raise UsageError(f"{path} cannot be written: there is no folder {path.parent}")
    return [path]


def write_trace(path: str | Path, found: dict[str, Any], on_event: OnEvent = ignore) -> None:
    """Write how texts were found into an .html or a .json file, or both into a folder."""
    path, names = Path(path), trace_files(path)
    try:
        if path not in names:
            path.mkdir(parents=True, exist_ok=True)
        for name in names:
            if name.suffix.lower() == ".html":
                decoding_page(found).write(name)
            else:
                name.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise KeelError(f"{path} cannot be written: {error.strerror}") from None
    note(on_event, f"the trace: {', '.join(map(str, names))}")
