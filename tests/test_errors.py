"""Messages name settings as the caller knows them: arguments in Python, flags on the command line."""

import pytest

from keel.checks import Finding
from keel.errors import KeelError, naming_flags


@pytest.mark.parametrize(
    ("flags", "arguments"),
    [
        ("--dev must be a file", "dev must be a file"),
        ("use --epochs 30 or --batch 16.", "use epochs=30 or batch=16."),
        ("--no-freeze to fine-tune all of it", "freeze=False to fine-tune all of it"),
        ("--labels regression reads them as numbers", "labels='regression' reads them as numbers"),
        ("--labels must be one of these", "labels must be one of these"),
        ("--train.steps is for --task tag", "train.steps is for task='tag'"),
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


def test_findings_name_settings_for_the_caller() -> None:
    found = Finding("warning", "a.tsv", "60 duplicate rows", "use --clean to drop them")
    assert str(found).endswith("60 duplicate rows: use clean to drop them")
    with naming_flags():
        found = Finding("warning", "a.tsv", "60 duplicate rows", "use --clean to drop them")
    assert str(found).endswith("use --clean to drop them")
