"""What is wrong with an input of a request: its field, and the problem in plain words instead of pydantic's."""

from collections.abc import Mapping, Sequence
from typing import Any

PROBLEMS = {
    "missing": "is missing",
    "greater_than_equal": "must be {limit} or more",
    "greater_than": "must be more than {limit}",
    "less_than_equal": "must be {limit} or less",
    "string_too_long": "must have {limit} characters or fewer",
    "too_long": "must have {limit} entries or fewer",
    "too_short": "must have {limit} entries or more",
    "whole_number": "must be a whole number",
    "number": "must be a number",
    "text": "must be a text",
    "list": "must be a list",
    "choice": "must be one of {limit}",
    "unknown": "is no input of this page",
    "invalid": "has a value that is not possible",
}
"""Problems by their names, which the pages put into words in their language."""
KINDS = {
    "int_type": "whole_number",
    "int_parsing": "whole_number",
    "int_from_float": "whole_number",
    "float_type": "number",
    "float_parsing": "number",
    "finite_number": "number",
    "string_type": "text",
    "list_type": "list",
    "literal_error": "choice",
    "extra_forbidden": "unknown",
}
"""Problems by pydantic's type of error, where it has another name."""
LIMITS = ("ge", "gt", "le", "max_length", "min_length", "expected")


def describe_invalid(errors: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The first error as a sentence and, of an input, as the field, problem and limit that it is made of."""
    first = errors[0]
    if first["type"] == "json_invalid":
        return {"error": "the request is not valid JSON: send a JSON object"}
    if len(first["loc"]) < 2:
        return {"error": "the request is not a JSON object: send one with the inputs of the page"}
    field = next((str(part) for part in first["loc"][1:]), "")
    problem = KINDS.get(first["type"], first["type"])
    if not field or problem not in PROBLEMS:
        problem = "invalid"
    context = first.get("ctx") or {}
    limit = next((context[name] for name in LIMITS if name in context), None)
    shown = f"{limit:,}" if isinstance(limit, int | float) else str(limit)
    sentence = f"{field or 'the request'} {PROBLEMS[problem].format(limit=shown)}"
    return {"error": sentence, "invalid": {"field": field, "problem": problem, "limit": limit}}
