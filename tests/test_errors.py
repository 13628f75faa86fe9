"""Messages name settings as the caller knows them: arguments in Python, flags on the command line."""

import ast
import inspect
import re
import runpy
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import keel
from keel import errors
from keel.checks import Finding
from keel.config import Doc
from keel.errors import ARGUMENTS, KeelError, flag_of, naming_flags


@pytest.mark.parametrize(
    ("flags", "arguments"),
    [
        ("--dev must be a file", "dev must be a file"),
        ("use --epochs 30 or --batch 16.", "use epochs=30 or batch=16."),
        ("--no-freeze to fine-tune all of it", "freeze=False to fine-tune all of it"),
        ("--labels regression reads them as numbers", "labels='regression' reads them as numbers"),
        ("--labels must be one of these", "labels must be one of these"),
        ("--train.steps is for --task tag", "steps is for task='tag'"),
        ("change with --text.tokenizer bpe|words", "change with tokenizer='bpe' or 'words'"),
        ("--text.tokenizer bpe has none", "tokenizer='bpe' has none"),
        ("(--format text reads whole lines)", "(format='text' reads whole lines)"),
        ("data/--no-x.tsv:3: the label '--task foo' is new", "data/--no-x.tsv:3: the label '--task foo' is new"),
        ('--no-x.tsv:3: --task tag reads "it\'s --lr 3"', "--no-x.tsv:3: task='tag' reads \"it's --lr 3\""),
        ("the system's --lr 3 and the paper's --batch 4", "the system's lr=3 and the paper's batch=4"),
        ("a/--seed 3/b.txt has no column --lr-x", "a/--seed 3/b.txt has no column --lr-x"),
        ("use keel finetune cnn FILE --task tag: or --beam 5", "use keel finetune cnn FILE --task tag: or beams=5"),
    ],
)
def test_settings_are_named_for_the_caller(flags: str, arguments: str) -> None:
    assert str(KeelError(flags)) == arguments
    with naming_flags():
        assert str(KeelError(flags)) == flags
    assert str(KeelError(flags)) == arguments


def test_every_flag_in_a_message_is_known() -> None:
    root = Path(errors.__file__).parent
    files = [path for folder in ("api", "data", "explain", "formats", "generation", "systems", "tasks", "training")
             for path in (root / folder).rglob("*.py")]  # fmt: skip
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    flags = {flag for text in texts for flag in re.findall(r"(?<![\w-])--(?:no-)?([a-z][a-z0-9._-]*[a-z0-9])", text)}
    names = {str(ARGUMENTS.get(flag, flag)).rpartition(".")[2].replace("-", "_") for flag in flags}
    known = runpy.run_path(errors.__file__)["KNOWN"]  # whatever settings have been imported
    assert names - known == {"recipe", "all", "json"}  # in a command to copy, and in lines for the terminal


DOCUMENTED = {
    parameter
    for name in dir(keel)
    if inspect.isfunction(verb := getattr(keel, name))
    for parameter, hint in get_type_hints(verb, include_extras=True).items()
    if any(isinstance(each, Doc) for each in get_args(hint))
}
"""Arguments of verbs that are flags of their commands."""


@pytest.mark.parametrize("argument", sorted(DOCUMENTED))
def test_every_argument_with_a_flag_is_named_for_the_caller(argument: str) -> None:
    assert str(KeelError(f"leave out {flag_of(argument)}: it changes nothing")).startswith(f"leave out {argument}: ")


def test_findings_name_settings_for_the_caller() -> None:
    found = Finding("warning", "a.tsv", "60 duplicate rows", "use --clean to drop them")
    assert str(found).endswith("60 duplicate rows: use clean to drop them")
    with naming_flags():
        found = Finding("warning", "a.tsv", "60 duplicate rows", "use --clean to drop them")
    assert str(found).endswith("use --clean to drop them")
