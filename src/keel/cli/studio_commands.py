"""The command that starts the studio."""

import json
import sys
import webbrowser
from argparse import ArgumentTypeError, Namespace

from keel.cli.command import Answer, argument, command, device_flags
from keel.errors import MissingExtra
from keel.events import note
from keel.report.console import Console

FOLDERS = "Folders with your models, runs, comparisons and data files; bundled models are always there."
HOST = "Address to listen on; with any other than 127.0.0.1, machines that know the token can connect. [127.0.0.1]"
PORT = "Port; default: 8411, or a free one if it is taken."


def port(value: str) -> int:
    """The number of a port; 0: any free one."""
    if not value.isdecimal() or int(value) >= 2**16:
        raise ArgumentTypeError(f"must be a whole number from 0 to {2**16 - 1}, not {value!r}")
    return int(value)


@command(
    "learn",
    "[FOLDER...]",
    argument("folders", "FOLDER", FOLDERS, nargs="*"),
    argument("--host", "ADDRESS", HOST, default="127.0.0.1"),
    argument("--port", "N", PORT, type=port),
    argument("--token", "TEXT", "Token of the address; default: a random one.", default=""),
    lambda flags: flags.add_argument("--no-browser", action="store_true", help="Print the address without opening it."),
    device_flags,
)
def studio(options: Namespace, console: Console) -> Answer:
    """A local web page to try models, look inside, and follow runs."""
    try:
        from keel.studio import server
    except ModuleNotFoundError as error:
        raise MissingExtra(error.name or "fastapi", "studio", "the studio") from None
    from keel.studio.workspace import Workspace

    workspace = Workspace(options.folders, device=options.device)
    token = options.token or server.new_token()
    listener, address = server.listen(options.host, options.port)
    if not address.is_local:
        note(console, f"the studio listens on {address.host}: whoever knows this address can use your models")
    url = address.url(token)
    note(console, "the studio is ready; Ctrl-C ends it")
    sys.stdout.write((json.dumps({"address": url}) if options.json else url) + "\n")  # before it serves
    sys.stdout.flush()
    if address.is_local and not options.no_browser:
        webbrowser.open(url)
    with listener:
        server.serve(workspace, listener, address, token)
    return Answer()
