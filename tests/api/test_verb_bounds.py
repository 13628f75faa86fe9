"""Every verb enforces the bounds of its signature, in Python as on the command line."""

import inspect
from typing import get_origin, get_type_hints

import pytest

import keel
from keel.config import has_bounds
from keel.errors import UsageError

BOUNDED = [
    (name, parameter)
    for name in dir(keel)
    if inspect.isfunction(verb := getattr(keel, name))
    for parameter, hint in get_type_hints(verb, include_extras=True).items()
    if has_bounds(hint)
]


@pytest.mark.parametrize(("name", "parameter"), BOUNDED)
def test_every_verb_enforces_the_bounds_of_its_signature(name: str, parameter: str) -> None:
    verb = getattr(keel, name)
    parameters = inspect.signature(verb).parameters.values()
    sources = [None for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    needed = {each.name: None for each in parameters if each.kind is each.KEYWORD_ONLY and each.default is each.empty}
    bad = (-1,) if get_origin(get_type_hints(verb)[parameter]) is tuple else -1
    with pytest.raises(UsageError, match=rf"^{parameter}(\[0\])? must be .*, not -1"):
        verb(*sources, **{**needed, parameter: bad})


def test_some_verbs_have_bounds() -> None:
    assert {("evaluate", "suspects"), ("summarize", "sentences"), ("glue", "lr")} <= {*BOUNDED}
