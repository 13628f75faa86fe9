"""What a language model is asked in plain text, as commands: the prompt goes to stderr, what it writes to stdout."""

import json
import sys
from argparse import Namespace
from collections.abc import Callable
from functools import partial

from keel.api import prompting
from keel.api.prompting import Prompted
from keel.cli.command_output import Answer
from keel.cli.console import Console
from keel.cli.flags import Flags
from keel.cli.model_arguments import device_flags, encoding_flag, lines_of, load
from keel.errors import Interrupted
from keel.events import Event


def ask_flags(flags: Flags) -> None:
    flags.add_argument(
        "text", nargs="?", default="", metavar="PASSAGE|FILE|-", help="what the answer is to be read off"
    )
    flags.add_argument("question", nargs="?", default="", metavar="QUESTION", help="about the passage")
    _prompt_flags(flags, tokens=30)


def ask(options: Namespace) -> Answer:
    return _answer(options, partial(prompting.ask, question=options.question, tokens=options.tokens))


def summarize_flags(flags: Flags) -> None:
    flags.add_argument("text", nargs="?", default="", metavar="TEXT|FILE|-", help="what to sum up")
    flags.add_argument("--sentences", type=int, default=3, metavar="N", help="of what is written, the first N [3]")
    flags.add_argument("--top-k", type=int, default=2, metavar="N", help="draw from the N likeliest; 0: from all [2]")
    flags.add_argument("--cue", default="TL;DR:", metavar="TEXT", help="what stands after the text [TL;DR:]")
    flags.add_argument("--seed", type=int, default=0, metavar="N", help="the same seed gives the same text [0]")
    _prompt_flags(flags, tokens=100)


def summarize(options: Namespace) -> Answer:
    chosen = {name: getattr(options, name) for name in ("tokens", "sentences", "top_k", "cue", "seed")}
    return _answer(options, partial(prompting.summarize, **chosen))


def _prompt_flags(flags: Flags, tokens: int) -> None:
    flags.add_argument("--model", metavar="FOLDER", help="the folder of a language model")
    flags.add_argument("--tokens", type=int, default=tokens, metavar="N", help=f"to write at most [{tokens}]")
    flags.add_argument(
        "--cut", action="store_true", help="leave out the beginning of what is too long for the model, and say so"
    )
    encoding_flag(flags)
    device_flags(flags)


def _answer(options: Namespace, write: Callable[..., Prompted]) -> Answer:
    """What is written about the text that a command was given."""
    parts: list[str] = []
    prompts: list[str] = []

    def hear(event: Event) -> None:
        prompts.extend([event["text"]] if event["event"] == "prompt" else [])
        console(event)

    with Console(quiet=options.quiet) as console:
        try:
            text = "\n".join(lines_of(options, console))
            found = write(text, model=load(options, console), cut=options.cut, on_text=parts.append, on_event=hear)
        except KeyboardInterrupt:
            if not parts:
                raise
            said = {"prompt": prompts[-1], "text": "".join(parts).strip()}
            sys.stdout.write((json.dumps(said, ensure_ascii=False) if options.json else said["text"]) + "\n")
            sys.stdout.flush()
            raise Interrupted(f"stopped after {len(parts)} of {options.tokens} tokens") from None
    return Answer(lines=[found.text], data={"prompt": found.prompt, "text": found.text})
