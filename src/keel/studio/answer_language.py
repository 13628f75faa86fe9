"""The language of answers: which of their fields are Keel's own sentences, and the language that a request asks for.

Texts, tokens, words, labels and names of users are never translated, so the fields are listed by request and path.
"""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from keel.localization import Language, translate

EVERYWHERE = ("error", "notes.*")
"""Paths of fields with sentences of Keel in all answers; * is every item of a list, or every value of a table, and @
every name of a table."""
JOB = ("lines.*", "result.title", "result.figures", "result.rows.*", "result.pictures.*.caption")
SENTENCES: dict[str, tuple[str, ...]] = {
    "models": ("models.*.error",),
    "runs": ("runs.*.error",),
    "claims": ("claims.*.title",),
    "jobs": (*JOB, *(f"jobs.*.{path}" for path in ("error", *JOB))),
    "check": (
        "findings.*.cause",
        "findings.*.remedy",
        "files.*.*",  # labels of a file are deeper than its facts
        "facts.*.*.name",
        "facts.*.*.value",
        "facts.*.*.parts.*.name",
    ),
    "errors": ("note", "names.*"),
    "report": ("names.*",),
    "senses": ("note",),
    "map": ("caption", "clusters.note"),
    "clusters": ("caption", "clusters.note"),
    "bias": ("caution",),
    "figures": ("figures.*.summary",),
    "figure": ("title", "caption"),
    "trace": (
        "summary",
        "explanations.*",
        "axis_names.*",
        "kinds.*.name",
        "kinds.*.meaning",
        "kinds.*.part",
        "steps.*.title",
        "steps.*.predictions.next sentence.*.token",
        "steps.*.predictions.@",
    ),
}
"""Further paths by the first part of a request's path, below /api."""


class Request(NamedTuple):
    """The part of a request that its answer depends on."""

    name: str = ""
    """The first part of its path, below /api."""
    language: Language = "en"


NO_REQUEST = Request()
_request: ContextVar[Request] = ContextVar("request", default=NO_REQUEST)


class AnswerLanguage:
    """ASGI middleware that stores the language of a request: the first one of its Accept-Language header."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            wanted = Headers(scope=scope).get("accept-language", "").strip().lower()
            name = scope["path"].removeprefix("/api/").partition("/")[0]
            _request.set(Request(name, "zh" if wanted.startswith("zh") else "en"))
        await self.app(scope, receive, send)


class TranslatedResponse(JSONResponse):
    """JSON whose sentences are in the language of the request."""

    def render(self, content: Any) -> bytes:
        name, language = _request.get()
        if language != "en":
            content = map_sentences(content, name, lambda text: translate(text, language))
        return super().render(content)


def map_sentences(answer: Any, request: str, change: Callable[[str], str]) -> Any:
    """The answer to a request with its sentences changed, and all else unchanged."""
    for path in (*EVERYWHERE, *SENTENCES.get(request, ())):
        answer = _map_path(answer, path.split("."), change)
    return answer


def _map_path(value: Any, path: Sequence[str], change: Callable[[str], str]) -> Any:
    if not path:
        return change(value) if isinstance(value, str) else value
    name, *rest = path
    match value:
        case dict() if name == "@":
            return {change(key): each for key, each in value.items()}
        case dict() if name == "*":
            return {key: _map_path(each, rest, change) for key, each in value.items()}
        case dict() if name in value:
            return {**value, name: _map_path(value[name], rest, change)}
        case list() if name == "*":
            return [_map_path(each, rest, change) for each in value]
        case _:
            return value
