"""Errors of single rows of a file: raised, or collected so that all of them can be reported."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from keel.errors import KeelError, UsageError

MAX_ROW_ERRORS = 20
"""Errors that are stored; the others are counted."""


@dataclass
class RowErrors:
    """Errors of single rows of a file, the first of them with their sentences."""

    first: list[KeelError] = field(default_factory=list)
    count: int = 0

    def add(self, error: KeelError) -> None:
        """Count an error; only the first ones are stored."""
        self.count += 1
        if self.count <= MAX_ROW_ERRORS:
            self.first.append(error)

    def extend(self, other: "RowErrors") -> None:
        """Add the errors of another file or reading."""
        self.first, self.count = (self.first + other.first)[:MAX_ROW_ERRORS], self.count + other.count


_row_errors: ContextVar[RowErrors | None] = ContextVar("row_errors", default=None)


@contextmanager
def collect_row_errors() -> Iterator[RowErrors]:
    """Within it, readers skip invalid rows and their errors are collected, so that `check` can list all of them."""
    found = RowErrors()
    token = _row_errors.set(found)
    try:
        yield found
    finally:
        _row_errors.reset(token)


def row_error(error: KeelError) -> None:
    """Raise the error of a single row; inside `collect_row_errors` collect it, and the caller skips the row."""
    found = _row_errors.get()
    if found is None or isinstance(error, UsageError):
        raise error
    found.add(error)


def collects_row_errors() -> bool:
    """Whether a check reads the file: it lists what a training only mentions."""
    return _row_errors.get() is not None
