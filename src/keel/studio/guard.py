"""The guard in front of the studio: only this browser, with the token, may read models and data.

A page of another site can send requests to 127.0.0.1 (cross-site requests, DNS rebinding). So the Host and Origin
headers must name this server, and every request for data needs the token, as a cookie that other sites cannot send.
"""

from collections.abc import Collection
from http.cookies import CookieError, SimpleCookie
from secrets import compare_digest
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keel.studio.answer_language import TranslatedResponse

MAX_BODY = 1_000_000
"""Bytes of a request."""
GUARDED = ("/api", "/reports")
"""Paths that need the token; the others are the program itself."""
HEADERS = {
    "Cache-Control": "no-cache",  # the built pages have fixed names: a new version must show at once
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data: blob:; object-src 'none'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'self'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Guard:
    """ASGI middleware that refuses requests of other sites and without the token, and adds security headers."""

    def __init__(self, app: ASGIApp, *, token: str, hosts: Collection[str] | None, cookie: str):
        self.app, self.token, self.cookie = app, token, cookie
        self.hosts = hosts
        """Allowed values of the Host header; None: any, for a server that listens on the network."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        answer = self._answer(scope)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await (answer or self.app)(scope, receive, send_with_headers)

    def _answer(self, scope: Scope) -> Response | None:
        """The answer to a request that does not reach the application."""
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if self.hosts is not None and host not in self.hosts:
            return _refusal(403, "this server does not answer to that host name: use the address it printed")
        if origin is not None and origin != f"http://{host}":
            return _refusal(403, "requests of other sites are refused")
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        path: str = scope["path"]
        if given := [value for name, value in query if name == "token"]:
            if not self._is_token(given[0]):
                return _refusal(401, "the token is wrong: use the address that keel studio printed")
            rest = urlencode([each for each in query if each[0] != "token"])
            # One slash: a browser would take //name for the address of another server.
            target = "/" + quote(path.lstrip("/")) + (f"?{rest}" if rest else "")
            answer = RedirectResponse(target, status_code=303)
            answer.set_cookie(self.cookie, self.token, httponly=True, samesite="strict")
            return answer
        if path.startswith(GUARDED) and not self._has_token(headers):
            return _refusal(401, "the token is missing: open the address that keel studio printed")
        if scope["method"] not in ("GET", "HEAD", "DELETE"):
            length = headers.get("content-length", "")
            if not length.isdigit():
                return _refusal(411, "the request has no length")
            if int(length) > MAX_BODY:
                return _refusal(413, f"the request is larger than {MAX_BODY:,} bytes: use a shorter text")
        return None

    def _has_token(self, headers: Headers) -> bool:
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self._is_token(bearer)
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return False
        return self.cookie in cookies and self._is_token(cookies[self.cookie].value)

    def _is_token(self, given: str) -> bool:
        return compare_digest(given.encode(), self.token.encode())


def _refusal(status: int, sentence: str) -> Response:
    return TranslatedResponse({"error": sentence}, status_code=status)
