"""Parallel map over threads, with results in order."""

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_WORKERS = 8
"""Above this, reading the text is the bottleneck, and every worker needs memory."""


def default_workers() -> int:
    """One worker per available core and thread of torch, up to MAX_WORKERS."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch = sys.modules.get("torch")  # not imported here: corpora and tokenizers work without it
    limit = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()  # "4,2": 4, and 2 in nested regions
    threads = torch.get_num_threads() if torch else int(limit) if limit.isdecimal() else cores
    return max(1, min(cores, threads, MAX_WORKERS))


def ordered_map(function: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Iterator[Result]:
    """Map `function` over items on threads; yields the results in order."""
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
