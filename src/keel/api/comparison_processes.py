"""Processes of a comparison: jobs run in parallel as far as cores and memory allow; each in a process of its own."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import IO, Any, cast

from keel.api.comparison_worker import FinetuneJob, PretrainJob
from keel.errors import flags_are_named
from keel.events import Event

GRACE = 20.0
"""Seconds that interrupted jobs have to save a checkpoint."""
BASE_MEMORY = 800_000_000
"""Bytes of a process with torch alone."""
PRETRAINING_FAILED = "its pre-training failed"
"""Reason of jobs that need a model whose pre-training failed."""
PER_BYTE = 6
"""Memory of training per byte of a model file: weights, a copy of them, gradients, two moments, activations."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """A job, the work that must be finished before it, and how to show it."""

    name: str
    job: PretrainJob | FinetuneJob
    row: str
    task: int | None = None
    """Which of the train/test pairs; None: pre-training."""
    after: "Work | None" = None
    bytes: int = 0
    """Size of the model."""

    @property
    def memory(self) -> int:
        return BASE_MEMORY + PER_BYTE * self.bytes


OnUpdate = Callable[[Work, Event], None]


class Processes:
    """Runs all work; `on_update` gets the events of each job, the last of which is "done" or "failed"."""

    def __init__(self, workers: int, threads: int):
        self.workers, self.threads = workers, threads
        self.running: dict[int, tuple[Work, subprocess.Popen[bytes]]] = {}
        self.events: SimpleQueue[tuple[int, Event]] = SimpleQueue()

    def run(self, work: Sequence[Work], on_update: OnUpdate, on_stop: Callable[[Sequence[str]], None]) -> None:
        """Run until all is done or failed; whatever ends this call ends the processes.

        `on_stop` gets the names of running jobs when Ctrl-C stops them; another Ctrl-C kills them.
        """
        waiting, failed = list(work), set[int]()
        done = set[int]()
        try:
            while waiting or self.running:
                for each in [each for each in waiting if each.after is not None and id(each.after) in failed]:
                    waiting.remove(each)
                    failed.add(id(each))
                    on_update(each, {"event": "failed", "reason": PRETRAINING_FAILED})
                ready = [each for each in waiting if each.after is None or id(each.after) in done]
                for each in ready:
                    if len(self.running) < self.workers and self._fits(each):
                        waiting.remove(each)
                        self._start(each)
                        on_update(each, {"event": "started"})
                if not self.running:
                    continue
                try:
                    pid, event = self.events.get(timeout=1.0)
                except Empty:
                    continue
                each, process = self.running[pid]
                if event["event"] in ("done", "failed"):
                    del self.running[pid]
                    _end(process)
                    (done if event["event"] == "done" else failed).add(id(each))
                on_update(each, event)
        except KeyboardInterrupt:
            on_stop([each.name for each, _ in self.running.values()])
            raise
        finally:
            self._stop_all()

    def _fits(self, work: Work) -> bool:
        """Whether there is memory for one more process, beside what those that run have yet to take; one may always
        run."""
        growing = sum(max(0, each.memory - used_memory(pid)) for pid, (each, _) in self.running.items())
        return not self.running or growing + work.memory < available_memory()

    def _start(self, work: Work) -> None:
        threads = str(self.threads)
        process = subprocess.Popen(
            [sys.executable, "-c", "from keel.api.comparison_worker import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ
            | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TOKENIZERS_PARALLELISM": "false"}
            | {"OMP_NUM_THREADS": threads, "NUMBA_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
            start_new_session=True,  # Ctrl-C is for the parent, which ends the workers itself
        )
        self.running[process.pid] = work, process
        threading.Thread(target=self._read, args=(process, (work.job, flags_are_named())), daemon=True).start()

    def _read(self, process: subprocess.Popen[bytes], job: Any) -> None:
        """Send the job, and put the events of its process into the queue."""
        answers, errors = cast(IO[bytes], process.stdout), cast(IO[bytes], process.stderr)
        tail: list[bytes] = []
        reader = threading.Thread(target=lambda: tail.extend(errors.read()[-4000:].splitlines()), daemon=True)
        reader.start()
        event: Event = {}
        try:
            requests = cast(IO[bytes], process.stdin)
            pickle.dump(job, requests, pickle.HIGHEST_PROTOCOL)
            requests.flush()
            while event.get("event") not in ("done", "failed"):
                event = pickle.load(answers)
                self.events.put((process.pid, event))
        except (OSError, EOFError, pickle.UnpicklingError, ValueError):
            code = process.wait()
            reader.join(timeout=1.0)
            last = tail[-1].decode("utf-8", "replace").strip() if tail else ""
            reason = f"its process ended with code {code}{last and f': {last}'}"
            if code < 0:
                killed = " (out of memory?)" if -code == signal.SIGKILL else ""
                reason = f"its process was ended by {signal.Signals(-code).name}{killed}"
            self.events.put((process.pid, {"event": "failed", "reason": reason}))

    def _stop_all(self) -> None:
        """Let running jobs save a checkpoint, then end them."""
        processes = [process for _, process in self.running.values()]
        for process in processes:
            with suppress(OSError):
                process.terminate()
        until = time.monotonic() + GRACE
        try:
            for process in processes:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=max(0.1, until - time.monotonic()))
        finally:  # another Ctrl-C too
            for process in processes:
                _end(process)
            self.running.clear()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream:
            with suppress(OSError):  # unsent data
                stream.close()


def available_memory() -> int:
    """Bytes of memory that are free; a large number where the system does not say."""
    try:
        with open("/proc/meminfo") as lines:
            found = dict(line.split(":") for line in lines)
        return 1024 * int(found["MemAvailable"].split()[0])
    except (OSError, KeyError):
        return 1 << 60


def used_memory(pid: int) -> int:
    """Bytes of memory that a process has; 0 where the system does not say."""
    try:
        with open(f"/proc/{pid}/statm") as line:
            return int(line.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0
