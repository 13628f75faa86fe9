"""Commands of text generation: generate and translate."""

import json
import sys
from argparse import Namespace
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from keel.api import text_generation, translation
from keel.cli.command_output import Answer, Command
from keel.cli.console import Console
from keel.cli.flags import Flags
from keel.cli.model_arguments import device_flags, encoding_flag, lines_of, load, model_flag
from keel.data.predictions import GeneratedText
from keel.errors import Interrupted, KeelError, UsageError
from keel.events import Event, counted, note
from keel.explain.word_alignment import Alignment
from keel.generation.beam_search import BeamSearch, SearchInterrupted
from keel.generation.sampling import Sampling
from keel.generation.strategy import decoding_strategy
from keel.report.heatmap import picture_file, write_alignment

DECODING = ("temperature", "top_k", "top_p", "repetition_penalty", "seed", "beams", "best", "length_penalty")
TOKENS = 50


def _generate_flags(flags: Flags) -> None:
    help = "The prompt; or a file or stdin that contains it."
    flags.add_argument("text", nargs="?", default="", metavar="PROMPT|FILE|-", help=help)
    encoding_flag(flags)
    model_flag(flags, "The folder of a causal language model.")
    flags.arguments(text_generation.generate, stop="TEXT", trace="DIR|FILE")
    flags.section("sampling", Sampling())
    flags.section("search", BeamSearch(), defaults=False)
    device_flags(flags)


class _Stream:
    """Prints a generated text as it comes; a message in between gets a line of its own."""

    def __init__(self, prompt: str, *, shown: bool, console: Console):
        self.prompt, self.shown, self.console = prompt, shown, console
        self.parts: list[str] = []
        self.open = False

    def add(self, index: int, text: str) -> None:
        if not self.parts and self.shown:
            sys.stdout.write(self.prompt)
        self.parts.append(text if self.parts or self.prompt else text.lstrip())
        if self.shown:
            self.open = True
            sys.stdout.write(self.parts[-1])
            sys.stdout.flush()

    def end_line(self) -> None:
        if self.open:
            sys.stdout.write("\n")
            sys.stdout.flush()
            self.open = False

    def on_event(self, event: Event) -> None:
        self.end_line()
        self.console(event)

    @property
    def data(self) -> dict[str, Any]:
        return {"prompt": self.prompt, "text": "".join(self.parts)}


def generate(options: Namespace) -> Answer:
    settings = dict(options.settings)
    strategy = decoding_strategy(**{name: settings.pop(name) for name in DECODING if name in settings})
    shown = not options.json and (not isinstance(strategy, BeamSearch) or strategy.best == 1)
    with Console(quiet=options.quiet) as console:
        prompt = "\n".join(lines_of(options, console))
        if prompt != options.text:  # a file ends with a line break
            prompt = prompt.strip()
        stream = _Stream(prompt, shown=shown, console=console)
        try:
            (found,) = text_generation.continuations(
                [prompt],
                model=load(options, console),
                strategy=strategy,
                on_text=stream.add,
                on_event=stream.on_event,
                **settings,
            )
        except KeyboardInterrupt:
            if not stream.parts:
                raise
            stream.end_line()
            if not shown:
                text = json.dumps(stream.data, ensure_ascii=False) if options.json else prompt + stream.data["text"]
                sys.stdout.write(f"{text}\n")
                sys.stdout.flush()
            if isinstance(strategy, BeamSearch):
                raise Interrupted("stopped before the search had ended; this is its best text so far") from None
            most = settings.get("tokens", TOKENS)
            raise Interrupted(f"stopped after {len(stream.parts)} of {most} tokens") from None
        except Exception:
            stream.end_line()
            raise
        if reason := text_generation.empty_reason(found[0], strategy):
            note(stream.on_event, reason)
    stream.end_line()
    best = {"best": [asdict(each) for each in found]} if isinstance(strategy, BeamSearch) else {}
    lines = [] if shown else [f"{each.score or 0:8.3f}  {prompt}{each.text}" for each in found]
    return Answer(lines=lines, data=stream.data | best)


def _translate_flags(flags: Flags) -> None:
    flags.add_argument("text", metavar="TEXT|FILE|-", help="A text; or a file or stdin with a text per line.")
    encoding_flag(flags)
    model_flag(flags, "The folder of a seq2seq model.")
    flags.section("search", BeamSearch())
    help = "Draw the cross-attention between source and target words: .html or .svg."
    flags.add_argument("--alignment", metavar="FILE", help=help)
    flags.arguments(translation.translate, trace="DIR|FILE", by_pattern="FILE.tsv")
    device_flags(flags)


def translate(options: Namespace) -> Answer:
    """Print a line per text as soon as it is translated; several best ones with their scores."""
    settings = dict(options.settings)
    by_pattern, trace = settings.pop("by_pattern", None), settings.pop("trace", None)
    if not options.text.strip():
        raise UsageError("there is nothing to translate: give a text, a file or -")
    if by_pattern and options.alignment:
        raise UsageError("--alignment cannot be combined with --by-pattern: leave it out")
    done = 0
    picture = options.alignment and picture_file(options.alignment)
    alignments: list[Alignment] = []
    with Console(quiet=options.quiet) as console:
        model = load(options, console)
        texts = lines_of(options, console)
        waiting: deque[str] = deque()

        def listed() -> Iterator[str]:
            for text in texts:
                waiting.append(text)
                yield text

        translated = translation.translations(
            listed(),
            settings,
            model=model,
            by_pattern=by_pattern,
            batch_size=int(options.text == "-" and sys.stdin.isatty()),  # interactive: one at a time
            trace=trace,
            on_event=console,
        )

        def show(text: str, found: list[GeneratedText]) -> None:
            nonlocal done
            if options.json:
                best = [each.to_dict() for each in found]
                record = {"text": text, **best[0], **({"best": best} if best[1:] else {})}
                lines = [json.dumps(record, ensure_ascii=False)]
            else:
                lines = [str(each) if len(found) == 1 else f"{each.score:8.3f}  {each}" for each in found]
            sys.stdout.write("".join(f"{line}\n" for line in lines))
            sys.stdout.flush()
            done += 1

        try:
            for found in translated:
                text = waiting.popleft()
                show(text, found)
                if picture and text.strip():
                    alignments.append(translation.aligned(text, str(found[0]), model=model))
        except KeyboardInterrupt as stopped:
            rest = stopped.found if isinstance(stopped, SearchInterrupted) else []
            last = max((number for number, found in enumerate(rest) if found), default=-1)
            gaps = 0
            for found in rest[: last + 1]:
                text = waiting.popleft()
                if found:
                    show(text, found)
                elif not options.json:  # keeps the output aligned with the input, line by line
                    sys.stdout.write("\n")
                    gaps += 1
            sys.stdout.flush()
            empty = f"; {counted(gaps, 'line')} of unfinished texts left empty" if gaps else ""
            raise Interrupted(f"stopped after {done} texts, which are printed{empty}") from None
        if not done:
            if options.text != "-":
                raise KeelError(f"{options.text} is empty: there is nothing to translate")
            note(console, "stdin was empty: there was nothing to translate")
        if alignments:
            note(console, f"alignment: {write_alignment(picture, alignments)}")
    return Answer(lines=[])


COMMANDS = {"generate": Command(_generate_flags, generate), "translate": Command(_translate_flags, translate)}
