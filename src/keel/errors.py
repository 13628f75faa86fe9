"""Errors for the user: one sentence with what is wrong, where, and the remedy.

Messages are written once, with settings as command-line flags (`--train.steps`). Python callers read the argument's
name instead (`steps`); the command line shows messages unchanged, inside `naming_flags`.
"""

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

FLAGS = {"beams": "beam", "among": "in", "from_word": "from", "to_word": "to"}
"""Arguments whose flag has another name."""
ARGUMENTS = {flag: argument for argument, flag in FLAGS.items()}
KNOWN = {"accumulate", "among", "approximate", "average", "batch", "beams", "best", "by", "by_pattern", "characters",
         "classes", "clean", "cut", "data", "dedup", "dev", "device", "encoding", "epochs", "fix", "folds", "format",
         "freeze", "from_scratch", "l2", "label_column", "labels", "layer_decay", "length_penalty", "lm_loss", "loss",
         "crf", "examples", "from_word", "head", "kind", "language", "layer", "merge", "occupations",
         "pronouns", "templates", "to_word",
         "lowercase", "lr", "max_positions", "max_tokens", "memory", "min_count", "minutes", "mix", "model", "network",
         "optimizer", "order", "orders", "out", "overwrite", "pair_encoding", "pair_objective",
         "pairs", "parallel", "pool", "precision",
         "probe", "probe_task", "scheme", "second_column", "seed", "seeds", "sentences", "separate", "sequence_length",
         "size", "slice", "steps", "stop", "stride", "task", "temperature", "test", "text", "text_column",
         "select_by", "sweep_minutes", "tasks", "tensorboard",
         "threads", "tokenizer", "tokens", "top", "top_k", "trace", "train", "unfreeze", "vocabulary",
         "warmup", "words", "head_dim", "width", "against",
         "calibrate", "class_weights", "clusters", "corpus", "equal", "normalize", "separator", "suspects", "threshold",
         "train_sizes", "transfer", "word_ngrams", "workers", "autotune", "entities", "entity_model", "phrases",
         "language_smoothing", "also", "baseline", "center", "chinese_words", "control", "cue", "curves", "groups",
         "label", "random", "second", "title", "word", "final_weights", "held_out", "oversize"}  # fmt: skip
"""Arguments that messages name as flags; `Validated` adds all settings."""
KEPT = r"(?P<kept>\bkeel [a-z]+ [^:;,()`]*|(?<!\w)(?P<quote>['\"])(?:\\.|(?!(?P=quote)).)*(?P=quote))"
"""A whole command to copy, or quoted data."""
FLAG = re.compile(KEPT + r"|(?<![\w/\\-])--(?P<no>no-)?(?P<name>[a-z][a-z0-9._-]*[a-z0-9])(?![\w/])", re.DOTALL)
VALUE = re.compile(r" (?:(?P<number>\d[\w.%]*\w|\d%?)|(?P<word>[a-z0-9]+(?:\|[a-z0-9]+)*)\b)")
WORDS = {
    "labels": ("single", "multi", "regression"),
    "dedup": ("lines", "documents"),
    "tokenizer": ("wordpiece", "bpe", "words", "characters"),
    "format": ("columns", "conllu", "slashes", "segmented", "text"),
}
"""Flags whose value is one of these words; every word after --task is a value, and true and false are everywhere."""

_flags_named = False
_line: tuple[str, ...] = ()


def flag_of(argument: str) -> str:
    """The command-line flag of an argument."""
    return f"--{FLAGS.get(argument, argument).replace('_', '-')}"


@contextmanager
def naming_flags(line: Sequence[str] = ()) -> Iterator[None]:
    """Let messages name settings by their command-line flags; `line` is the command, for the model card."""
    global _flags_named, _line
    before, (_flags_named, _line) = (_flags_named, _line), (True, tuple(line))
    try:
        yield
    finally:
        _flags_named, _line = before


def command_line() -> str:
    """The command that runs, without flags of its output; empty in Python."""
    words = [word for word in _line if word not in ("--json", "--quiet", "--debug")]
    return shlex.join(["keel", *words]) if words else ""


def flags_are_named() -> bool:
    """Whether this runs on the command line, inside `naming_flags`."""
    return _flags_named


def for_caller(message: str) -> str:
    """A message with settings named as the caller knows them: flags on the command line, arguments in Python."""
    if _flags_named:
        return message
    parts: list[str] = []
    end = 0
    for found in FLAG.finditer(message):
        name = ARGUMENTS.get(found["name"], found["name"] or "").replace("-", "_").rpartition(".")[2]
        if name not in KNOWN:  # kept, or the name of a file
            continue
        parts.append(message[end : found.start()])
        end = found.end()
        value = VALUE.match(message, end)
        if found["no"]:
            name += "=False"
        elif value and (value["number"] or value["word"] in ("true", "false")):
            name += f"={value['number'] or value['word'].capitalize()}"
            end = value.end()
        elif value and (name == "task" or {*value["word"].split("|")} <= {*WORDS.get(name, ())}):
            name += f"={' or '.join(map(repr, value['word'].split('|')))}"
            end = value.end()
        parts.append(name)
    return "".join([*parts, message[end:]])


class KeelError(ValueError):
    """An error that the user can fix; the message is one sentence that says how."""

    exit_code = 1

    def __str__(self) -> str:
        return for_caller(super().__str__())


class UsageError(KeelError):
    """An invalid command, argument or setting."""

    exit_code = 2


class Interrupted(KeelError):  # noqa: N818 - not an error of anybody's
    """The user interrupted the run (Ctrl-C, SIGTERM); all progress is saved."""

    exit_code = 130


class MissingExtra(KeelError):  # noqa: N818
    """An optional package is not installed."""

    def __init__(self, package: str, extra: str, purpose: str):
        super().__init__(f"{purpose} needs the package {package!r}: pip install 'keel-nlp[{extra}]'")
