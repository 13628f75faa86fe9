"""Commands of zero-shot prompting: ask and summarize; the prompt goes to stderr, the generated text to stdout."""

import json
import sys
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from inspect import signature

from keel.api import prompting
from keel.api.prompting import Prompted
from keel.cli.command_output import Answer, Command
from keel.cli.console import Console
from keel.cli.flags import Flags
from keel.cli.model_arguments import device_flags, encoding_flag, lines_of, load, model_flag
from keel.errors import Interrupted
from keel.events import Event


def _ask_flags(flags: Flags) -> None:
    flags.add_argument("text", nargs="?", default="", metavar="PASSAGE|FILE|-", help="The passage to read.")
    flags.add_argument("question", nargs="?", default="", metavar="QUESTION", help="A question about it.")
    _prompt_flags(flags, prompting.ask)


def ask(options: Namespace) -> Answer:
    return _generated(options, prompting.ask, question=options.question)


def _summarize_flags(flags: Flags) -> None:
    flags.add_argument("text", nargs="?", default="", metavar="TEXT|FILE|-", help="The text to summarize.")
    _prompt_flags(flags, prompting.summarize)


def summarize(options: Namespace) -> Answer:
    return _generated(options, prompting.summarize)


def _prompt_flags(flags: Flags, verb: Callable[..., Prompted]) -> None:
    model_flag(flags, "The folder of a causal language model.")
    flags.arguments(verb)
    encoding_flag(flags)
    device_flags(flags)


def _generated(options: Namespace, verb: Callable[..., Prompted], **arguments: str) -> Answer:
    """Run a prompting verb; what it generated before an interruption is printed."""
    parts: list[str] = []
    prompts: list[str] = []

    def listen(event: Event) -> None:
        prompts.extend([event["text"]] if event["event"] == "prompt" else [])
        console(event)

    with Console(quiet=options.quiet) as console:
        try:
            text = "\n".join(lines_of(options, console))
            generate = partial(verb, text, **arguments, **options.settings)
            found = generate(model=load(options, console), on_text=parts.append, on_event=listen)
        except KeyboardInterrupt:
            if not parts:
                raise
            data = {"prompt": prompts[-1], "text": "".join(parts).strip()}
            sys.stdout.write((json.dumps(data, ensure_ascii=False) if options.json else data["text"]) + "\n")
            sys.stdout.flush()
            most = options.settings.get("tokens", signature(verb).parameters["tokens"].default)
            raise Interrupted(f"stopped after {len(parts)} of {most} tokens") from None
    return Answer(lines=[found.text], data={"prompt": found.prompt, "text": found.text})


COMMANDS = {"ask": Command(_ask_flags, ask), "summarize": Command(_summarize_flags, summarize)}
