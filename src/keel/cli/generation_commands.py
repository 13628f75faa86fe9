"""Commands of text generation: generate, translate, ask and summarize."""

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from itertools import tee
from typing import Any

from keel.api import prompting, text_generation, translation
from keel.api.trace_files import trace_writer
from keel.cli.command import (
    Answer,
    argument,
    arguments_of,
    command,
    device_flags,
    encoding_flag,
    lines_of,
    load,
    model_flag,
    prompt_of,
    section,
)
from keel.data.predictions import GeneratedText, SpanAnswer
from keel.errors import Interrupted, KeelError, UsageError
from keel.events import Event, note, pluralize
from keel.explain.word_alignment import Alignment
from keel.generation.beam_search import BeamSearch, SearchInterrupted
from keel.generation.sampling import Sampling
from keel.generation.strategy import decoding_strategy
from keel.localization import translated
from keel.model import Model
from keel.report.console import Console
from keel.report.html_page import picture_file
from keel.tasks.answer import SpanAnswering

DECODING = ("temperature", "top_k", "top_p", "repetition_penalty", "seed", "beams", "best", "length_penalty")
SHOWN_ANSWERS = 3
"""Spans that are printed."""
CAUSAL_LM = model_flag("A causal language model; default: the bundled one for the language of the text.")


class _Stream:
    """A generated text, printed as it comes if `shown`; a message in between gets a line of its own."""

    def __init__(self, console: Console, *, prompt: str | None = None, shown: bool = False):
        self.console, self.shown = console, shown
        self.prompt = prompt or ""
        self.continues = prompt is not None
        """Whether the text continues a prompt of the user, with which it is printed."""
        self.parts: list[str] = []
        self.open = False

    def add(self, text: str) -> None:
        if not self.parts and self.shown:
            sys.stdout.write(self.prompt)
        self.parts.append(text if self.parts or self.prompt else text.lstrip())
        if self.shown:
            self.open = True
            sys.stdout.write(self.parts[-1])
            sys.stdout.flush()

    def end_line(self) -> None:
        if self.open:
            _print("")
            self.open = False

    def on_event(self, event: Event) -> None:
        self.end_line()
        if event["event"] == "prompt":
            self.prompt = event["text"]
        self.console(event)

    @property
    def text(self) -> str:
        text = "".join(self.parts)
        return text if self.continues else text.strip()

    @contextmanager
    def interruptible(self, as_json: bool, message: str) -> Iterator[None]:
        """On an interruption print the text so far; `message` may have a place for the {count} of its tokens."""
        try:
            yield
        except KeyboardInterrupt:
            if not self.parts:
                raise
            if as_json:
                _print(json.dumps({"prompt": self.prompt, "text": self.text}, ensure_ascii=False))
            elif not self.shown:
                _print(self.prompt + self.text if self.continues else self.text)
            raise Interrupted(message.format(count=len(self.parts))) from None
        finally:
            self.end_line()


def _print(*lines: str) -> None:
    """Write lines to stdout at once."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def _token_progress(options: Namespace, verb: Callable[..., Any]) -> str:
    most = options.settings.get("tokens", signature(verb).parameters["tokens"].default)
    return f"stopped after {{count}} of {most} tokens"


@command(
    "use",
    "PROMPT|FILE|- [--model FOLDER]",
    argument("text", "PROMPT|FILE|-", "The prompt; or a file or stdin that contains it.", nargs="?", default=""),
    encoding_flag,
    CAUSAL_LM,
    arguments_of(text_generation.generate, stop="TEXT", trace="DIR|FILE"),
    section("sampling", Sampling()),
    section("search", BeamSearch(), defaults=False),
    device_flags,
)
def generate(options: Namespace, console: Console) -> Answer:
    """Continue a prompt with a language model."""
    settings = dict(options.settings)
    strategy = decoding_strategy(**{name: settings.pop(name) for name in DECODING if name in settings})
    searched = isinstance(strategy, BeamSearch)
    trace = settings.pop("trace", None)
    prompt = prompt_of(options, console)
    if prompt != options.text:  # a file ends with a line break
        prompt = prompt.strip()
    stream = _Stream(console, prompt=prompt, shown=not options.json and not (searched and strategy.best > 1))
    message = "stopped before the search had ended; this is its best text so far"
    if not searched:
        message = _token_progress(options, text_generation.generate)
    with stream.interruptible(options.json, message):
        (found,) = text_generation.continuations(
            [prompt],
            model=load(options, console, prompt),
            strategy=strategy,
            on_text=lambda _, text: stream.add(text),
            on_trace=trace_writer(trace, stream.on_event),
            on_event=stream.on_event,
            **settings,
        )
        if reason := text_generation.empty_reason(found[0], strategy):
            note(stream.on_event, reason)
    best = {"best": [text_generation.answer_data(each) for each in found]} if searched else {}
    lines = [] if stream.shown else [f"{each.score or 0:8.3f}  {prompt}{each.text}" for each in found]
    return Answer(lines=lines, data={"prompt": prompt, "text": stream.text, **best})


@command(
    "use",
    "PASSAGE|FILE QUESTION [--model FOLDER]",
    argument("text", "PASSAGE|FILE|-", "The passage to read.", nargs="?", default=""),
    argument("question", "QUESTION", "A question about it.", nargs="?", default=""),
    model_flag(
        "A model fine-tuned for --task answer, or a causal language model; default: the bundled one for the language "
        "of the text."
    ),
    arguments_of(prompting.ask),
    encoding_flag,
    device_flags,
)
def ask(options: Namespace, console: Console) -> Answer:
    """Answer a question about a text: by a span of it (--task answer), or with a language model, zero-shot."""
    text = prompt_of(options, console)
    model = load(options, console, text)
    if not isinstance(model.task, SpanAnswering):
        return _prompted(options, console, prompting.ask, text, options.question, model=model)
    found = prompting.ask(text, options.question, model=model, on_event=console, **options.settings)
    assert isinstance(found, SpanAnswer)
    best = [each for each in found.alternatives if each.text][:SHOWN_ANSWERS]
    positions = translated(f"(characters {each.start} to {each.end})" for each in best)
    lines = [f"{each.probability:.3f}  {each.text}  {position}" for each, position in zip(best, positions, strict=True)]
    (no_answer,) = translated(["no answer; the best spans are"])
    nothing = [f"{found.probability:.3f}  {no_answer}"] if not found.text else []
    data = {**found.to_dict(), "null_odds": found.null_odds, "best": [each.to_dict() for each in found.alternatives]}
    return Answer(lines=nothing + lines, data=data)


@command(
    "use",
    "TEXT|FILE [--model FOLDER]",
    argument("text", "TEXT|FILE|-", "The text to summarize.", nargs="?", default=""),
    CAUSAL_LM,
    arguments_of(prompting.summarize),
    encoding_flag,
    device_flags,
)
def summarize(options: Namespace, console: Console) -> Answer:
    """Summarize a text with a language model, zero-shot."""
    return _prompted(options, console, prompting.summarize, prompt_of(options, console))


def _prompted(
    options: Namespace, console: Console, verb: Callable[..., Any], *texts: str, model: Model | None = None
) -> Answer:
    """Run a prompting verb: the prompt goes to stderr; what it generated before an interruption is printed."""
    stream = _Stream(console)
    with stream.interruptible(options.json, _token_progress(options, verb)):
        model = model or load(options, console, texts[0])
        found = verb(*texts, model=model, on_text=stream.add, on_event=stream.on_event, **options.settings)
    return Answer(lines=[found.text], data={"prompt": found.prompt, "text": found.text})


@command(
    "use",
    "TEXT|FILE|- --model FOLDER",
    argument("text", "TEXT|FILE|-", "A text; or a file or stdin with a text per line."),
    encoding_flag,
    model_flag("The folder of a seq2seq model."),
    section("search", BeamSearch()),
    argument(
        "--alignment", "FILE", "Draw the cross-attention between source and target words: .svg, .pdf, .png or .html."
    ),
    arguments_of(translation.translate, trace="DIR|FILE", by_pattern="FILE.tsv"),
    device_flags,
)
def translate(options: Namespace, console: Console) -> Answer:
    """Translate each line with a seq2seq model."""
    settings = dict(options.settings)
    by_pattern, trace = settings.pop("by_pattern", None), settings.pop("trace", None)
    if not options.text.strip():
        raise UsageError("there is nothing to translate: give a text, a file or -")
    if by_pattern and options.alignment:
        raise UsageError("--alignment cannot be combined with --by-pattern: leave it out")
    picture = options.alignment and picture_file(options.alignment)
    model = load(options, console, kind="seq2seq model")
    texts, waiting = tee(lines_of(options, console))
    translated = translation.translations(
        texts,
        settings,
        model=model,
        by_pattern=by_pattern,
        batch_size=int(options.text == "-" and sys.stdin.isatty()),  # interactive: one at a time
        trace=trace,
        on_event=console,
    )
    done, gaps = 0, 0
    alignments: list[Alignment] = []
    try:
        for found, text in zip(translated, waiting, strict=False):
            _print(*_translation_lines(text, found, options.json))
            done += 1
            if picture and text.strip():
                alignments.append(translation.aligned(text, str(found[0]), model=model))
    except KeyboardInterrupt as stopped:
        rest = stopped.found if isinstance(stopped, SearchInterrupted) else []
        last = max((number for number, found in enumerate(rest) if found), default=-1)
        for found, text in zip(rest[: last + 1], waiting, strict=False):
            if found:
                _print(*_translation_lines(text, found, options.json))
                done += 1
            elif not options.json:  # keeps the output aligned with the input, line by line
                _print("")
                gaps += 1
        empty = f"; {pluralize(gaps, 'line')} of unfinished texts left empty" if gaps else ""
        raise Interrupted(f"stopped after {done} texts, which are printed{empty}") from None
    if not done:
        if options.text != "-":
            raise KeelError(f"{options.text} is empty: there is nothing to translate")
        note(console, "stdin was empty: there was nothing to translate")
    if alignments:
        note(console, f"alignment: {translation.write_alignment(picture, alignments)}")
    return Answer()


def _translation_lines(text: str, found: list[GeneratedText], as_json: bool) -> list[str]:
    if as_json:
        best = [each.to_dict() for each in found]
        return [json.dumps({"text": text, **best[0], **({"best": best} if best[1:] else {})}, ensure_ascii=False)]
    return [str(each) if len(found) == 1 else f"{each.score:8.3f}  {each}" for each in found]
