"""Batches side by side on the cores of a CPU: the steps of a search are too small to be shared out among them."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


def side_by_side(work: Callable[[Item], Result], items: Iterable[Item], device: torch.device) -> Iterator[Result]:
    """The work of each item, in order: on a CPU by as many threads as torch has, with one core each."""
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        yield from map(work, items)
        return
    try:
        with ThreadPoolExecutor(threads, "keel-search", partial(torch.set_num_threads, 1)) as pool:
            yield from pool.map(work, items)
    finally:
        torch.set_num_threads(threads)  # the last to set it counts for threads yet to come
