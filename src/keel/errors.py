"""What a user is told when something cannot be done: one sentence with what, where and the remedy."""


class KeelError(ValueError):
    """Something that the user can set right; the message is one sentence that says how."""

    exit_code = 1


class UsageError(KeelError):
    """A command or a setting that makes no sense as given."""

    exit_code = 2


class Interrupted(KeelError):  # noqa: N818 - not an error of anybody's
    """The user asked to stop (Ctrl-C, SIGTERM); whatever was done is saved."""

    exit_code = 130


class MissingExtra(KeelError):  # noqa: N818
    """An optional package is needed for what was asked."""

    def __init__(self, package: str, extra: str, purpose: str):
        super().__init__(f"{purpose} needs the package {package!r}: pip install 'keel-nlp[{extra}]'")
