"""The verbs that write text as commands."""

import json
import sys
from argparse import Namespace

from keel import language
from keel.cli.answer import Answer
from keel.cli.console import Console
from keel.cli.flags import Flags
from keel.cli.loading import device_flags, load
from keel.errors import Interrupted


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
