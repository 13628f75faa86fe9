"""Graceful stop on SIGINT and SIGTERM."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def caught_signals() -> Iterator[threading.Event]:
    """Event that is set by SIGINT or SIGTERM; a second Ctrl-C stops at once."""
    stopping = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopping
        return

    def handle(signum: int, frame: object) -> None:
        if stopping.is_set() and signum == signal.SIGINT:
            raise KeyboardInterrupt
        stopping.set()

    before = {signum: signal.signal(signum, handle) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
