"""The command line. Heavy modules are imported only for the verb that runs: `keel --help` is instant."""

import errno
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from keel.errors import Interrupted, KeelError, UsageError, naming_flags

if TYPE_CHECKING:
    from keel.cli.command import Command


SUMMARIES = {
    "train": {
        "check": "check data before training: encoding, labels, overlap, duplicates, lengths",
        "pretrain": "pre-train a system on raw text, or continue to pre-train a model",
        "finetune": "fine-tune a model on labelled examples",
    },
    "use": {
        "evaluate": "scores with confidence intervals, confusion matrix, errors; perplexity of a language model",
        "predict": "predictions for each text, as JSON lines",
        "fill": "the most probable words for each [MASK] of a text",
        "translate": "translate each line with a seq2seq model",
        "generate": "continue a prompt with a language model",
        "ask": "answer a question about a text with a language model, zero-shot",
        "summarize": "summarize a text with a language model, zero-shot",
        "embed": "embeddings of texts, or of tokens in context",
        "nearest": "nearest neighbours of a word or a text",
        "analogy": "word analogies by vector arithmetic",
        "map": "2D map of word vectors: SVG or HTML",
        "odd": "the odd one out of several words",
        "senses": "word senses: clusters of a word's contextual vectors",
        "similarity": "cosine similarity of two words or texts",
    },
    "inspect": {"layers": "layer weights of a fine-tuned model's scalar mix"},
    "manage": {
        "info": "describe a model, a run, tokens, a word vector file or this machine",
        "convert": "convert another format to a Keel folder, without loss",
    },
    "learn": {
        "demo": "the tour: from raw text to a fine-tuned BERT in five minutes",
        "claim": "run the experiment behind a claim; without N, list all claims",
    },
}
"""What each command does, by groups; the commands themselves are declared in the modules below."""
MODULES = {
    "training_commands": "pretrain finetune",
    "evaluation_commands": "evaluate predict fill embed",
    "generation_commands": "translate generate ask summarize",
    "vector_commands": "nearest analogy map odd senses similarity",
    "tool_commands": "check layers info convert demo claim",
}
VERBS = {verb: module for module, verbs in MODULES.items() for verb in verbs.split()}
NO_MEMORY = ("OutOfMemoryError", "can't allocate memory")
EXAMPLE = """\
  keel pretrain bert wiki.txt --size mini --minutes 20 --out models/wiki
  keel finetune models/wiki train.tsv --task classify --out models/reviews
  keel predict models/reviews new.txt"""


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    with naming_flags():
        return _main(sys.argv[1:] if arguments is None else arguments)


def _main(words: list[str]) -> int:
    try:
        with _sigterm_as_interrupt():
            code = _run(words)
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (Exception, KeyboardInterrupt) as error:
        if "--debug" in words:
            from traceback import print_exc

            print_exc()
        sentence, code = _explain(error)
        if _is_main_process():
            sys.stderr.write(f"keel: {sentence}\n")
        return code


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C, so that partial results are printed; an existing handler stays."""
    # One of several processes may wait in a barrier, where no Python handler is ever called.
    handled = threading.current_thread() is threading.main_thread() and int(os.environ.get("WORLD_SIZE", "1")) == 1
    if not handled or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _run(words: list[str]) -> int:
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    if not words or words[0] in ("-h", "--help"):
        sys.stdout.write(_overview())
        return 0
    if words[0] == "--version":
        from keel import __version__

        sys.stdout.write(f"keel {__version__}\n")
        return 0
    name = words[0]
    if name not in VERBS:
        from difflib import get_close_matches

        near = get_close_matches(name, VERBS, n=1)
        remedy = f"did you mean {near[0]!r}?" if near else "keel --help lists all commands"
        raise UsageError(f"there is no command {name!r}: {remedy}")
    from keel.cli.console import Console

    command = load_command(name)
    flags = command.flags(name, summary_of(name), words[1:])
    options = flags.read(flags.line)
    options.quiet |= not _is_main_process()
    with Console(quiet=options.quiet) as console:
        answer = command.run(options, console)
        if not _is_main_process():
            return answer.code
        as_json = options.json and answer.data is not None
        for line in [json.dumps(answer.data, ensure_ascii=False)] if as_json else answer.lines:
            sys.stdout.write(f"{line}\n")
    return answer.code


def load_command(verb: str) -> "Command":
    """The command of a verb."""
    import_module(f"keel.cli.{VERBS[verb]}")
    from keel.cli.command import COMMANDS

    return COMMANDS[verb]


def summary_of(verb: str) -> str:
    """What a command does, in a few words."""
    return next(group[verb] for group in SUMMARIES.values() if verb in group)


def _is_main_process() -> bool:
    """Whether this process prints for all that torchrun started; torch is not imported to find out."""
    parallel = sys.modules.get("keel.training.distributed")
    return parallel is None or parallel.is_main_process()


def _explain(error: BaseException) -> tuple[str, int]:
    """One sentence for the user, and the exit code."""
    match error:
        case KeelError():
            return str(error), error.exit_code
        case KeyboardInterrupt():
            return "interrupted", Interrupted.exit_code
        case OSError(filename=str(path), strerror=str(reason)):
            return f"{path}: {reason}", 1
        case OSError(errno=errno.ENOSPC):
            return "no space left on the disk: free some, or write elsewhere", 1
        case _ if isinstance(error, MemoryError) or any(sign in repr(error) for sign in NO_MEMORY):
            return "out of memory: lower --batch, or use gradient accumulation with --train.accumulate", 1
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return f"this is a bug in Keel: {what} (run it with --debug and report the output)", 1


def _overview() -> str:
    lines = ["usage: keel COMMAND ...     (keel COMMAND --help shows its flags)"]
    for group, verbs in SUMMARIES.items():
        lines += ["", group, *(f"  {verb:11}{summary}" for verb, summary in verbs.items())]
    lines += ["", "Results go to stdout, messages to stderr. --json prints JSON, - reads stdin.", "", EXAMPLE]
    return "\n".join(lines) + "\n"
