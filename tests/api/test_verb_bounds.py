"""Every verb enforces the bounds and choices of its signature, in Python as on the command line."""

import inspect
import re
from typing import Any, get_origin, get_type_hints

import pytest

import keel
from keel.config import has_bounds, has_choices
from keel.errors import UsageError

HINTS = [
    (name, parameter, hint)
    for name in dir(keel)
    if inspect.isfunction(verb := getattr(keel, name))
    for parameter, hint in get_type_hints(verb, include_extras=True).items()
    if parameter != "return"
]
BOUNDED = [(name, parameter) for name, parameter, hint in HINTS if has_bounds(hint)]
CHOICES = [(name, parameter) for name, parameter, hint in HINTS if has_choices(hint)]


def refusal(name: str, parameter: str, value: Any) -> str:
    """The message of a verb that gets this value, and None for whatever else it needs."""
    verb = getattr(keel, name)
    parameters = inspect.signature(verb).parameters.values()
    sources = [None for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    needed = {each.name: None for each in parameters if each.kind is each.KEYWORD_ONLY and each.default is each.empty}
    with pytest.raises(UsageError) as refused:
        verb(*sources, **{**needed, parameter: value})
    return str(refused.value)


@pytest.mark.parametrize(("name", "parameter"), BOUNDED)
def test_every_verb_enforces_the_bounds_of_its_signature(name: str, parameter: str) -> None:
    bad = (-1,) if get_origin(get_type_hints(getattr(keel, name))[parameter]) is tuple else -1
    assert re.match(rf"{parameter}(\[0\])? must be .*, not -1", refusal(name, parameter, bad))


@pytest.mark.parametrize(("name", "parameter"), CHOICES)
def test_every_verb_refuses_values_that_are_no_choice(name: str, parameter: str) -> None:
    assert re.match(rf"{parameter} must be .*one of '.*, not '../x'", refusal(name, parameter, "../x"))


def test_some_verbs_have_bounds() -> None:
    assert {("evaluate", "suspects"), ("summarize", "sentences"), ("glue", "lr")} <= {*BOUNDED}
    assert {("word_map", "seed"), ("word_map", "top"), ("clusters", "seed"), ("probe_layers", "seed")} <= {*BOUNDED}
    assert {("bias", "language"), ("attention", "kind"), ("clusters", "clusters")} <= {*CHOICES}
