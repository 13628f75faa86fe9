"""What can go wrong below a step, without being the fault of the run."""


class OutOfMemoryError(Exception):
    """The rows of a step do not fit into memory at once."""


def is_compiler_error(error: Exception) -> bool:
    """Whether torch's compiler could not do its work."""
    return type(error).__module__.startswith(("torch._dynamo", "torch._inductor"))


def error_tail(error: Exception) -> str:
    """The end of what a library says, where the reason stands."""
    return " ".join(str(error).split())[-300:]
