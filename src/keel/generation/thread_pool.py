"""Batches side by side on the cores of a CPU: the steps of a search are too small to be shared out among them."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


def run_in_threads(
    work: Callable[[Item], Result], items: Iterable[Item], device: torch.device, halted: Event | None = None
) -> list[Result]:
    """The work of each item, in order: on a CPU by as many threads as torch has, with one core each.

    When one goes wrong, or the user interrupts, what has not begun never does, and `halted` tells what has to break
    off: it is waited for.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        return [*map(work, items)]
    pool = ThreadPoolExecutor(threads, "keel-search", partial(torch.set_num_threads, 1))
    try:
        return [*pool.map(work, items)]
    except BaseException:
        if halted is not None:
            halted.set()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)  # the last to set it counts for threads yet to come
