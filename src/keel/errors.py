"""Errors for the user: one sentence with what, where and the remedy."""


class KeelError(ValueError):
    """An error that the user can fix; the message is one sentence that says how."""

    exit_code = 1


class UsageError(KeelError):
    """A wrong command or setting."""

    exit_code = 2


class Interrupted(KeelError):  # noqa: N818 - not an error
    """Stopped by the user (Ctrl-C, SIGTERM), with a checkpoint saved."""

    exit_code = 130


class MissingExtra(KeelError):  # noqa: N818
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str, purpose: str):
        super().__init__(f"{purpose} needs the package {package!r}: pip install 'keel-nlp[{extra}]'")
