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
from typing import TYPE_CHECKING, NamedTuple

from keel.errors import Interrupted, KeelError, UsageError, naming_flags

if TYPE_CHECKING:
    from keel.cli.command_output import Command


class Verb(NamedTuple):
    """A command in the overview: its usage, what it does, and the module that declares it."""

    usage: str
    summary: str
    module: str


GROUPS = {
    "train": {
        "check": Verb(
            "FILE...", "check data before training: encoding, labels, overlap, duplicates, lengths", "tool_commands"
        ),
        "pretrain": Verb(
            "SYSTEM|FOLDER CORPUS... --out DIR",
            "pre-train a system on raw text, or continue to pre-train a model",
            "training_commands",
        ),
        "finetune": Verb(
            "MODEL FILE [FILE] --task TASK --out DIR", "fine-tune a model on labelled examples", "training_commands"
        ),
    },
    "use": {
        "evaluate": Verb(
            "MODEL FILE [FILE]",
            "scores with confidence intervals, confusion matrix, errors; perplexity of a language model",
            "evaluation_commands",
        ),
        "predict": Verb("MODEL FILE", "predictions for each text, as JSON lines", "evaluation_commands"),
        "fill": Verb("TEXT --model FOLDER", "the most probable words for each [MASK] of a text", "evaluation_commands"),
        "translate": Verb(
            "TEXT|FILE|- --model FOLDER", "translate each line with a seq2seq model", "generation_commands"
        ),
        "generate": Verb(
            "PROMPT|FILE|- --model FOLDER", "continue a prompt with a language model", "generation_commands"
        ),
        "ask": Verb(
            "PASSAGE|FILE QUESTION --model FOLDER",
            "answer a question about a text with a language model, zero-shot",
            "prompting_commands",
        ),
        "summarize": Verb(
            "TEXT|FILE --model FOLDER", "summarize a text with a language model, zero-shot", "prompting_commands"
        ),
        "embed": Verb(
            "TEXT|FILE|- --model FOLDER", "embeddings of texts, or of tokens in context", "evaluation_commands"
        ),
        "nearest": Verb("WORD|TEXT --model M [--in FILE]", "nearest neighbours of a word or a text", "vector_commands"),
        "analogy": Verb('"A - B + C" --model M', "word analogies by vector arithmetic", "vector_commands"),
        "map": Verb('MODEL [--words "A B C"] [--out FILE]', "2D map of word vectors: SVG or HTML", "vector_commands"),
        "odd": Verb("WORD WORD WORD... --model M", "the odd one out of several words", "vector_commands"),
        "senses": Verb(
            "WORD --in FILE --model M", "word senses: clusters of a word's contextual vectors", "vector_commands"
        ),
        "similarity": Verb("A B --model M", "cosine similarity of two words or texts", "vector_commands"),
    },
    "inspect": {
        "layers": Verb("MODEL", "layer weights of a fine-tuned model's scalar mix", "tool_commands"),
    },
    "manage": {
        "info": Verb(
            "[FOLDER]", "describe a model, a run, tokens, a word vector file or this machine", "tool_commands"
        ),
        "convert": Verb("IN OUT", "convert another format to a Keel folder, without loss", "tool_commands"),
    },
    "learn": {
        "demo": Verb("[--out DIR]", "the tour: from raw text to a fine-tuned BERT in five minutes", "tool_commands"),
        "claim": Verb("[N]", "run the experiment behind a claim; without N, list all claims", "tool_commands"),
    },
}
NO_MEMORY = ("OutOfMemoryError", "can't allocate memory")
VERBS = {name: verb for group in GROUPS.values() for name, verb in group.items()}
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
    from keel.cli.flags import Flags

    flags = Flags(name, VERBS[name].usage, VERBS[name].summary, line=words[1:])
    command = load_command(name)
    command.add_flags(flags)
    options = flags.read(flags.line)
    options.quiet |= not _is_main_process()
    answer = command.run(options)
    if not _is_main_process():
        return answer.code
    lines = [json.dumps(answer.data, ensure_ascii=False)] if options.json and answer.data is not None else answer.lines
    for line in lines:
        sys.stdout.write(f"{line}\n")
    return answer.code


def load_command(name: str) -> "Command":
    """The command of a verb."""
    return import_module(f"keel.cli.{VERBS[name].module}").COMMANDS[name]


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
    for group, verbs in GROUPS.items():
        lines += ["", group, *(f"  {name:11}{verb.summary}" for name, verb in verbs.items())]
    lines += ["", "Results go to stdout, messages to stderr. --json prints JSON, - reads stdin.", "", EXAMPLE]
    return "\n".join(lines) + "\n"
