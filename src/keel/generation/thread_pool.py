"""Data parallelism over batches on a CPU: one decoding step is too small to use several cores."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


def run_in_threads(
    work: Callable[[Item], Result], items: Iterable[Item], device: torch.device, cancelled: Event | None = None
) -> list[Result]:
    """Ordered results of `work`; on a CPU by as many single-core threads as torch has.

    After an error or interrupt no further item starts, and `cancelled` is set so that running ones stop before this
    function returns.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        return [*map(work, items)]
    pool = ThreadPoolExecutor(threads, "keel-search", partial(torch.set_num_threads, 1))
    try:
        return [*pool.map(work, items)]
    except BaseException:
        if cancelled is not None:
            cancelled.set()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)  # the last to set it counts for threads yet to come
