"""The verbs that write text as commands."""

import json
import sys
from argparse import Namespace
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from keel import language, rewriting
from keel.cli.answer import Answer
from keel.cli.console import Console
from keel.cli.flags import Flags
from keel.cli.loading import device_flags, load
from keel.decode.beam import Search
from keel.decode.sample import Sampling
from keel.errors import Interrupted, UsageError
from keel.text.files import open_text


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


def drawing(options: Namespace) -> Sampling:
    return Sampling(
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        repetition_penalty=options.repetition_penalty,
        seed=options.seed,
    )


def search_flags(flags: Flags, beams: int | None = None) -> None:
    """How the best texts are searched for; without any number of beams there is no search unless one is given."""
    shown = f" [{beams}]" if beams else "; nothing is drawn then"
    flags.add_argument(
        "--beam", type=int, default=beams, metavar="N", help=f"search for the best text, N open at each step{shown}"
    )
    flags.add_argument("--best", type=int, default=1, metavar="N", help="texts to give, of those that were found [1]")
    flags.add_argument(
        "--length-penalty", type=float, default=0.6, metavar="X", help="above 0 favours long texts; 0: none [0.6]"
    )


def search(options: Namespace) -> Search:
    return Search(beams=options.beam, best=options.best, length_penalty=options.length_penalty)


def trace_flag(flags: Flags) -> None:
    what = "also write how each word was chosen: a folder, or an .html or .json file"
    flags.add_argument("--trace", metavar="DIR|FILE", help=what)


def generate_flags(flags: Flags) -> None:
    flags.add_argument("text", nargs="?", default="", metavar="PROMPT", help="what to go on from; nothing, or -")
    flags.add_argument("--model", metavar="FOLDER", help="the folder of a language model")
    flags.add_argument("--tokens", type=int, default=50, metavar="N", help="words or pieces to write [50]")
    drawing_flags(flags)
    search_flags(flags)
    what = "end the text before this string; may be given several times"
    flags.add_argument("--stop", action="append", default=[], metavar="TEXT", help=what)
    trace_flag(flags)
    device_flags(flags)


def generate(options: Namespace) -> Answer:
    prompt = sys.stdin.read().strip() if options.text == "-" else options.text
    how = drawing(options) if options.beam is None else search(options)
    if isinstance(how, Search) and drawing(options) != Sampling(seed=options.seed):
        raise UsageError("a beam search draws nothing: leave out --beam, or temperature, top-k, top-p and penalty")
    if isinstance(how, Sampling) and options.best != 1:
        raise UsageError("--best gives the best texts of a search: say --beam N too")
    streams = not options.json and options.best == 1
    parts: list[str] = []

    def show(row: int, text: str) -> None:
        if not parts and streams:
            sys.stdout.write(prompt)
        parts.append(text if parts or prompt else text.lstrip())
        if streams:
            sys.stdout.write(parts[-1])
            sys.stdout.flush()

    with Console(quiet=options.quiet) as console:
        try:
            (found,) = language.continuations(
                [prompt],
                model=load(options, console),
                how=how,
                tokens=options.tokens,
                stop=options.stop,
                trace=options.trace,
                on_text=show,
                on_event=console,
            )
        except KeyboardInterrupt:
            if not parts:
                raise
            written = {"prompt": prompt, "text": "".join(parts)}
            sys.stdout.write((json.dumps(written, ensure_ascii=False) if options.json else "") + "\n")
            raise Interrupted(f"stopped after {len(parts)} of {options.tokens} tokens") from None
    data: dict[str, Any] = {"prompt": prompt, "text": "".join(parts)}
    if isinstance(how, Search):
        data |= {"best": [asdict(each) for each in found]}
    lines = [""] if streams else [f"{each.score or 0:8.3f}  {prompt}{each.text}" for each in found]
    return Answer(lines=lines, data=data)


def translate_flags(flags: Flags) -> None:
    flags.add_argument("text", metavar="TEXT|FILE|-", help="a text; or a file or stdin, whose lines are texts")
    flags.add_argument("--model", metavar="FOLDER", help="the folder of a model that learned to rewrite")
    search_flags(flags, beams=5)
    trace_flag(flags)
    device_flags(flags)


def translate(options: Namespace) -> Answer:
    """A line for each text as soon as it is there; several best ones are numbered by their scores."""
    done = 0
    with Console(quiet=options.quiet) as console:
        model = load(options, console)
        texts, at_once = _sources(options, console)
        waiting: deque[str] = deque()  # what is being written

        def heard() -> Iterator[str]:
            for text in texts:
                waiting.append(text)
                yield text

        how = asdict(search(options))
        written = rewriting.translations(
            heard(), model=model, at_once=at_once, trace=options.trace, on_event=console, **how
        )
        try:
            for found in written:
                text = waiting.popleft()
                if options.json:
                    best = [each.to_dict() for each in found]
                    lines = [
                        json.dumps(
                            {"text": text, **best[0], **({"best": best} if best[1:] else {})}, ensure_ascii=False
                        )
                    ]
                else:
                    lines = [str(each) if len(found) == 1 else f"{each.score:8.3f}  {each}" for each in found]
                sys.stdout.write("".join(f"{line}\n" for line in lines))
                sys.stdout.flush()
                done += 1
        except KeyboardInterrupt:
            raise Interrupted(f"stopped after {done} texts, which are printed") from None
    return Answer(lines=[])


def _sources(options: Namespace, console: Console) -> tuple[Iterable[str], int]:
    """The texts, and how many are to be written at once (0: the usual number): whoever types waits for each."""
    if options.text == "-":
        return (line.rstrip("\n") for line in sys.stdin), 1 if sys.stdin.isatty() else 0
    path = Path(options.text)
    try:
        there = path.is_file()
    except OSError:  # too long for a path
        there = False
    if there:
        return (line for _, line in open_text(path, "auto", console)), 0
    if path.suffix in (".txt", ".gz", ".xz", ".zst") and " " not in options.text:
        raise UsageError(f"there is no file {options.text}: name one that exists, or give a text")
    return [options.text], 0
