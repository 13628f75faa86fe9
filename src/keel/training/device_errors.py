"""Errors of the device or compiler below a training step."""


class OutOfMemoryError(Exception):
    """The micro-batch does not fit into GPU memory."""


def is_compiler_error(error: Exception) -> bool:
    """Whether torch.compile failed."""
    return type(error).__module__.startswith(("torch._dynamo", "torch._inductor"))


def error_tail(error: Exception) -> str:
    """The end of a library's error message, where the reason is."""
    return " ".join(str(error).split())[-300:]
