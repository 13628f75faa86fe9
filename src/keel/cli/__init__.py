"""The verbs as commands. Nothing heavy is imported before a verb is known: `keel --help` is instant."""

import errno
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from keel.errors import Interrupted, KeelError, UsageError


class Line(NamedTuple):
    """How a command is listed."""

    usage: str
    does: str


GROUPS = {
    "learn": {
        "check": Line(
            "FILE...", "read data before any compute is spent: encoding, labels, overlap, duplicates, lengths"
        ),
        "pretrain": Line("SYSTEM|FOLDER CORPUS... --out DIR", "learn from raw text, or go on with a model on new text"),
        "finetune": Line("MODEL FILE [FILE] --task TASK --out DIR", "teach a model a task by labelled examples"),
    },
    "use": {
        "evaluate": Line(
            "MODEL FILE [FILE]", "scores with intervals, confusion, the surest errors; perplexity of a text"
        ),
        "predict": Line("MODEL FILE", "what a model says of each text, as JSON lines"),
        "fill": Line("TEXT --model FOLDER", "the likeliest words for each [MASK] of a text"),
        "translate": Line("TEXT|FILE|- --model FOLDER", "what a model that rewrites makes of each line"),
        "generate": Line("PROMPT|FILE|- --model FOLDER", "text that goes on from a prompt, as it is drawn"),
        "ask": Line("PASSAGE|FILE QUESTION --model FOLDER", "what a language model says to a question about a text"),
        "summarize": Line("TEXT|FILE --model FOLDER", "what a language model writes after a text and TL;DR:"),
        "embed": Line("TEXT|FILE|- --model FOLDER", "vectors of texts, or of words in their context"),
        "nearest": Line("WORD|TEXT --model M [--in FILE]", "the nearest words, or texts of your own"),
        "analogy": Line('"A - B + C" --model M', "what words come to, added and taken away"),
        "map": Line('MODEL [--words "A B C"] [--out FILE]', "words as points of a plane: SVG or HTML"),
        "odd": Line("WORD WORD WORD... --model M", "which of some words does not belong"),
        "senses": Line("WORD --in FILE --model M", "which uses of a word mean the same, by its vectors there"),
        "similarity": Line("A B --model M", "how near two words or texts are"),
    },
    "look inside": {
        "layers": Line("MODEL", "which layers a fine-tuned model's task likes"),
    },
    "look after": {
        "info": Line("[FOLDER]", "what a folder, a file of word vectors or this machine holds"),
        "convert": Line("IN OUT", "another's model folder to one of Keel's, with a check that nothing changed"),
    },
    "see for yourself": {
        "demo": Line("[--out DIR]", "the tour, from raw text to a fine-tuned BERT in five minutes"),
        "claim": Line("[N]", "run the experiment behind a claim; without N, list them"),
    },
}
NO_MEMORY = ("OutOfMemoryError", "can't allocate memory")
VERBS = {name: line for group in GROUPS.values() for name, line in group.items()}
EXAMPLE = """\
  keel pretrain bert wiki.txt --size mini --minutes 20 --out models/wiki
  keel finetune models/wiki train.tsv --task classify --out models/reviews
  keel predict models/reviews new.txt"""


def main(arguments: list[str] | None = None) -> int:
    """Run one command; gives the exit code: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        with _terminated_as_interrupted():
            code = _run(words)
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (Exception, KeyboardInterrupt) as error:
        if "--debug" in words:
            from traceback import print_exc

            print_exc()
        sentence, code = _explain(error)
        if _leads():
            sys.stderr.write(f"keel: {sentence}\n")
        return code


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM does what Ctrl-C does, so that what was written is printed; whoever mutes or answers it goes first."""
    # One of several processes may stand in a barrier, where no handler of Python's is ever called.
    ours = threading.current_thread() is threading.main_thread() and int(os.environ.get("WORLD_SIZE", "1")) == 1
    if not ours or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
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
        remedy = f"did you mean {near[0]!r}?" if near else "keel --help lists them"
        raise UsageError(f"there is no command {name!r}: {remedy}")
    from keel.cli.commands import COMMANDS
    from keel.cli.flags import Flags

    flags = Flags(name, *VERBS[name], line=words[1:])
    command = COMMANDS[name]
    command.add_flags(flags)
    options = flags.read(flags.line)
    options.quiet |= not _leads()
    answer = command.run(options)
    if not _leads():
        return answer.code
    lines = [json.dumps(answer.data, ensure_ascii=False)] if options.json and answer.data is not None else answer.lines
    for line in lines:
        sys.stdout.write(f"{line}\n")
    return answer.code


def _leads() -> bool:
    """Whether this process speaks for all that torchrun started; a misspelled command does not load torch to ask."""
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
            return "no room is left where this is written to: free some, or write it elsewhere", 1
        case _ if isinstance(error, MemoryError) or any(sign in repr(error) for sign in NO_MEMORY):
            return "out of memory: lower --batch, or cut a batch into parts with --train.accumulate", 1
    what = " ".join(f"{type(error).__name__}: {error}".split())
    return f"this is a bug in Keel: {what} (run it with --debug and report what it prints)", 1


def _overview() -> str:
    lines = ["usage: keel COMMAND ...     (keel COMMAND --help says more)"]
    for group, verbs in GROUPS.items():
        lines += ["", group, *(f"  {name:11}{line.does}" for name, line in verbs.items())]
    lines += ["", "Results go to stdout, messages to stderr; --json for machines, - for stdin.", "", EXAMPLE]
    return "\n".join(lines) + "\n"
