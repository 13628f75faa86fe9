"""Several things at once, their results in order."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

MOST_WORKERS = 8
"""Above this the one process that reads the text is what all wait for, and every worker takes memory."""


def default_workers() -> int:
    """One for each core that this process may use, up to a bound."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_WORKERS)


def ordered_map(do: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Iterator[Result]:
    """Do something with items on so many threads at once, and give what comes of it in their order."""
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(do, item))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
