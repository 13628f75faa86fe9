"""The studio's web server: the pages, the requests behind them, and the guard in front."""

import socket
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from secrets import token_urlsafe
from typing import NamedTuple

import uvicorn
from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

from keel.errors import KeelError, UsageError
from keel.studio import (
    claim_routes,
    figure_routes,
    layer_routes,
    look_inside_routes,
    map_routes,
    project_routes,
    try_routes,
    word_routes,
)
from keel.studio.answer_language import AnswerLanguage, TranslatedResponse
from keel.studio.guard import Guard
from keel.studio.invalid_inputs import describe_invalid
from keel.studio.jobs import Jobs
from keel.studio.listings import NotFound
from keel.studio.workspace import Workspace

STATIC = Path(__file__).parent / "static"
"""The built pages; their sources are in frontend/."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
PORT = 8411


def create_app(workspace: Workspace, *, token: str, hosts: Collection[str] | None, cookie: str = "keel") -> FastAPI:
    """The application; `hosts` are the allowed values of the Host header, None for any."""
    jobs = Jobs()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        jobs.cancel_all()

    app = FastAPI(
        title="Keel studio",
        lifespan=lifespan,
        default_response_class=TranslatedResponse,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.state.workspace, app.state.jobs = workspace, jobs
    api = APIRouter(prefix="/api")
    routes = (
        try_routes,
        word_routes,
        look_inside_routes,
        layer_routes,
        map_routes,
        figure_routes,
        project_routes,
        claim_routes,
    )
    for each in routes:
        api.include_router(each.router)
    app.include_router(api)
    app.include_router(project_routes.pages)
    app.mount("/assets", StaticFiles(directory=STATIC / "assets", check_dir=False), name="assets")
    app.add_exception_handler(KeelError, _explain)
    app.add_exception_handler(RequestValidationError, _explain_validation)
    app.add_exception_handler(HTTPException, _explain_http)

    @app.get("/{path:path}")
    def page(path: str) -> Response:
        if path.startswith("api/"):
            raise HTTPException(404, f"there is no request {path!r:.100}")
        icon = STATIC / "favicon.svg"
        return FileResponse(icon if path == icon.name else STATIC / "index.html")

    app.add_middleware(Guard, token=token, hosts=hosts, cookie=cookie)
    app.add_middleware(AnswerLanguage)  # the last one is the outermost: refusals of the guard have a language too
    return app


async def _explain(request: Request, error: Exception) -> Response:
    sentence = request.app.state.workspace.without_paths(str(error))
    return TranslatedResponse({"error": sentence}, status_code=404 if isinstance(error, NotFound) else 400)


async def _explain_validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return TranslatedResponse(describe_invalid(error.errors()), status_code=422)


async def _explain_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return TranslatedResponse({"error": str(error.detail)}, status_code=error.status_code)


class Address(NamedTuple):
    """Where the studio listens."""

    host: str
    port: int

    @property
    def is_local(self) -> bool:
        return self.host in LOOPBACK

    def url(self, token: str) -> str:
        """The address to open, with the token."""
        host = socket.gethostname() if self.host in ("0.0.0.0", "::") else _in_url(self.host)
        return f"http://{host}:{self.port}/?token={token}"


def listen(host: str, port: int | None) -> tuple[socket.socket, Address]:
    """A socket at this address; without a port the usual one or, if it is taken, any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    reason = ""
    for number in (PORT, 0) if port is None else (port,):
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, number))
            listener.listen()  # a browser that comes before the server waits
            return listener, Address(host, listener.getsockname()[1])
        except OSError as error:
            listener.close()
            reason = error.strerror or str(error)
    raise UsageError(f"the studio cannot listen on {host}, port {port}: {reason}: choose another one with --port")


def serve(workspace: Workspace, listener: socket.socket, address: Address, token: str) -> None:
    """Serve the studio until it is interrupted."""
    names = {address.host, *LOOPBACK} if address.is_local else None
    hosts = names and {f"{_in_url(name)}:{address.port}" for name in names}
    app = create_app(workspace, token=token, hosts=hosts, cookie=f"keel-{address.port}")
    config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False)
    uvicorn.Server(config).run(sockets=[listener])


def new_token() -> str:
    """A random token."""
    return token_urlsafe(24)


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
