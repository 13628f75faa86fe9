"""The verbs that write text as commands."""

import json
import sys
from argparse import Namespace
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

from keel import language
from keel.cli.answer import Answer
from keel.cli.console import Console
from keel.cli.flags import Flags
from keel.cli.loading import device_flags, load
from keel.errors import Interrupted, UsageError
from keel.tasks.rewrite import Beams
from keel.text.files import open_text


def generate_flags(flags: Flags) -> None:
    flags.add_argument("text", nargs="?", default="", metavar="PROMPT", help="what to go on from; nothing, or -")
    flags.add_argument("--model", metavar="FOLDER", help="the folder of a language model")
    flags.add_argument("--tokens", type=int, default=50, metavar="N", help="words or pieces to write [50]")
    flags.add_argument(
        "--temperature", type=float, default=1.0, metavar="X", help="below 1 prefers the likely; 0 the likeliest [1]"
    )
    flags.add_argument("--top-k", type=int, default=0, metavar="N", help="draw from the N likeliest; 0: from all [0]")
    flags.add_argument(
        "--top-p", type=float, default=1.0, metavar="X", help="of these, from as few as hold this share [1]"
    )
    flags.add_argument("--seed", type=int, default=0, metavar="N", help="the same seed gives the same text [0]")
    device_flags(flags)


def generate(options: Namespace) -> Answer:
    prompt = sys.stdin.read().strip() if options.text == "-" else options.text
    parts: list[str] = []

    def show(text: str) -> None:
        if not parts and not options.json:
            sys.stdout.write(prompt)
        parts.append(text if parts or prompt else text.lstrip())
        if not options.json:
            sys.stdout.write(parts[-1])
            sys.stdout.flush()

    with Console(quiet=options.quiet) as console:
        try:
            language.generate(
                prompt,
                model=load(options, console),
                tokens=options.tokens,
                temperature=options.temperature,
                top_k=options.top_k,
                top_p=options.top_p,
                seed=options.seed,
                on_text=show,
                on_event=console,
            )
        except KeyboardInterrupt:
            if not parts:
                raise
            sys.stdout.write(json.dumps(_written(prompt, parts), ensure_ascii=False) if options.json else "")
            sys.stdout.write("\n")
            raise Interrupted(f"stopped after {len(parts)} of {options.tokens} tokens") from None
    return Answer(lines=[""], data=_written(prompt, parts))


def _written(prompt: str, parts: list[str]) -> dict[str, str]:
    return {"prompt": prompt, "text": "".join(parts)}


def translate_flags(flags: Flags) -> None:
    flags.add_argument("text", metavar="TEXT|FILE|-", help="a text; or a file or stdin, whose lines are texts")
    flags.add_argument("--model", metavar="FOLDER", help="the folder of a model that learned to rewrite")
    flags.section("search", Beams())
    device_flags(flags)


def translate(options: Namespace) -> Answer:
    """A line for each text as soon as it is there; several best ones are numbered by their scores."""
    done = 0
    with Console(quiet=options.quiet) as console:
        model = load(options, console)
        texts, chunk = _sources(options, console)
        waiting: deque[str] = deque()  # what is being written

        def heard() -> Iterator[str]:
            for text in texts:
                waiting.append(text)
                yield text

        written = language.translations(heard(), model=model, chunk=chunk, on_event=console, **options.settings)
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
