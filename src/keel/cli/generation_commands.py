"""The verbs that write text as commands."""

import json
import sys
from argparse import Namespace
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from keel.api import text_generation, translation
from keel.cli.command_output import Answer
from keel.cli.console import Console
from keel.cli.flags import Flags
from keel.cli.model_arguments import device_flags, encoding_flag, lines_of, load
from keel.data.predictions import GeneratedText
from keel.errors import Interrupted, KeelError, UsageError
from keel.events import Event, note
from keel.explain.word_alignment import Alignment
from keel.generation.beam_search import BeamSearch, SearchInterrupted
from keel.generation.strategy import decoding_strategy
from keel.report.heatmap import picture_file, write_alignment


def drawing_flags(flags: Flags) -> None:
    """How each next word is drawn."""
    flags.add_argument(
        "--temperature", type=float, default=1.0, metavar="X", help="below 1 prefers the likely; 0 the likeliest [1]"
    )
    flags.add_argument("--top-k", type=int, default=0, metavar="N", help="draw from the N likeliest; 0: from all [0]")
    flags.add_argument(
        "--top-p", type=float, default=1.0, metavar="X", help="of these, from as few as hold this share [1]"
    )
    what = "above 1, what came before is less likely to come again [1]"
    flags.add_argument("--repetition-penalty", type=float, default=1.0, metavar="X", help=what)
    flags.add_argument("--seed", type=int, default=0, metavar="N", help="the same seed gives the same text [0]")


def search_flags(flags: Flags, usual: str = "; nothing is drawn then") -> None:
    """How the best texts are searched for."""
    flags.add_argument("--beam", type=int, metavar="N", help=f"search for the best text, N open at each step{usual}")
    flags.add_argument("--best", type=int, metavar="N", help="texts to give, of those that were found [1]")
    flags.add_argument("--length-penalty", type=float, metavar="X", help="above 0 favours long texts; 0: none [0.6]")


def trace_flag(flags: Flags) -> None:
    what = "also write how each word was chosen: a folder, or an .html or .json file"
    flags.add_argument("--trace", metavar="DIR|FILE", help=what)


def generate_flags(flags: Flags) -> None:
    flags.add_argument("text", nargs="?", default="", metavar="PROMPT|FILE|-", help="what to go on from [nothing]")
    encoding_flag(flags)
    flags.add_argument("--model", metavar="FOLDER", help="the folder of a language model")
    flags.add_argument("--tokens", type=int, default=50, metavar="N", help="words or pieces to write [50]")
    drawing_flags(flags)
    search_flags(flags)
    what = "end the text before this string; may be given several times"
    flags.add_argument("--stop", action="append", default=[], metavar="TEXT", help=what)
    trace_flag(flags)
    device_flags(flags)


def generate(options: Namespace) -> Answer:
    how = decoding_strategy(
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        repetition_penalty=options.repetition_penalty,
        seed=options.seed,
        beams=options.beam,
        best=options.best,
        length_penalty=options.length_penalty,
    )
    streams = not options.json and (options.best or 1) == 1
    parts: list[str] = []
    open_line = False

    def show(row: int, text: str) -> None:
        nonlocal open_line
        open_line = streams
        if not parts and streams:
            sys.stdout.write(prompt)
        parts.append(text if parts or prompt else text.lstrip())
        if streams:
            sys.stdout.write(parts[-1])
            sys.stdout.flush()

    def end_line() -> None:
        nonlocal open_line
        if open_line:
            sys.stdout.write("\n")
            sys.stdout.flush()
            open_line = False

    def hear(event: Event) -> None:
        end_line()  # a message has a line of its own
        console(event)

    with Console(quiet=options.quiet) as console:
        prompt = "\n".join(lines_of(options, console))
        if prompt != options.text:  # a file's, whose last line has an end
            prompt = prompt.strip()
        try:
            (found,) = text_generation.continuations(
                [prompt],
                model=load(options, console),
                how=how,
                tokens=options.tokens,
                stop=options.stop,
                trace=options.trace,
                on_text=show,
                on_event=hear,
            )
        except KeyboardInterrupt:
            if not parts:
                raise
            end_line()
            written = {"prompt": prompt, "text": "".join(parts)}
            if not streams:
                shown = json.dumps(written, ensure_ascii=False) if options.json else prompt + written["text"]
                sys.stdout.write(f"{shown}\n")
                sys.stdout.flush()
            if isinstance(how, BeamSearch):
                raise Interrupted("stopped before the search had ended; this is its best text so far") from None
            raise Interrupted(f"stopped after {len(parts)} of {options.tokens} tokens") from None
        except Exception:
            end_line()
            raise
        if why := text_generation.silence(found[0], how):
            note(hear, why)
    end_line()
    data: dict[str, Any] = {"prompt": prompt, "text": "".join(parts)}
    if isinstance(how, BeamSearch):
        data |= {"best": [asdict(each) for each in found]}
    lines = [] if streams else [f"{each.score or 0:8.3f}  {prompt}{each.text}" for each in found]
    return Answer(lines=lines, data=data)


def translate_flags(flags: Flags) -> None:
    flags.add_argument("text", metavar="TEXT|FILE|-", help="a text; or a file or stdin, whose lines are texts")
    encoding_flag(flags)
    flags.add_argument("--model", metavar="FOLDER", help="the folder of a model that learned to rewrite")
    search_flags(flags, " [5]")
    flags.add_argument("--alignment", metavar="FILE", help="draw where each word was looked for: .html, .svg")
    trace_flag(flags)
    what = 'pairs of texts, a tab between: a language model then goes on from "english = french" lines'
    flags.add_argument("--by-pattern", metavar="FILE.tsv", help=what)
    flags.add_argument("--tokens", type=int, metavar="N", help="by pattern: to write at most [50]")
    flags.add_argument("--cut", action="store_true", help="by pattern: leave out the first of too many pairs")
    flags.set_defaults(cut=None)  # what was not given is the model's own
    device_flags(flags)


SETTINGS = ("best", "length_penalty", "tokens", "cut")


def translate(options: Namespace) -> Answer:
    """A line for each text as soon as it is there; several best ones are numbered by their scores."""
    if not options.text.strip():
        raise UsageError("there is nothing to translate: give a text, a file or -")
    if options.by_pattern and options.alignment:
        raise UsageError("--alignment does not go with --by-pattern: leave it out")
    given = {"beams": options.beam, **{name: getattr(options, name) for name in SETTINGS}}
    done = 0
    picture = options.alignment and picture_file(options.alignment)
    looks: list[Alignment] = []
    with Console(quiet=options.quiet) as console:
        model = load(options, console)
        texts = lines_of(options, console)
        waiting: deque[str] = deque()  # what is being written

        def heard() -> Iterator[str]:
            for text in texts:
                waiting.append(text)
                yield text

        written = translation.translations(
            heard(),
            model=model,
            by_pattern=options.by_pattern,
            at_once=int(options.text == "-" and sys.stdin.isatty()),  # whoever types waits for each
            trace=options.trace,
            on_event=console,
            **{name: value for name, value in given.items() if value is not None},
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
            for found in written:
                text = waiting.popleft()
                show(text, found)
                if picture and text.strip():
                    looks.append(translation.aligned(text, str(found[0]), model=model))
        except KeyboardInterrupt as stopped:
            rest = stopped.found if isinstance(stopped, SearchInterrupted) else []
            last = max((number for number, found in enumerate(rest) if found), default=-1)
            gaps = 0
            for found in rest[: last + 1]:
                text = waiting.popleft()
                if found:
                    show(text, found)
                elif not options.json:  # so that the lines after it stand where their sources do
                    sys.stdout.write("\n")
                    gaps += 1
            sys.stdout.flush()
            empty = f"; {gaps} lines are empty, as their texts were not finished" if gaps else ""
            raise Interrupted(f"stopped after {done} texts, which are printed{empty}") from None
        if not done:
            if options.text != "-":
                raise KeelError(f"{options.text} is empty: there is nothing to translate")
            note(console, "stdin was empty: there was nothing to translate")
        if looks:
            note(console, f"the picture: {write_alignment(picture, looks)}")
    return Answer(lines=[])
