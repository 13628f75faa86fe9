"""Experiments of claims that run in the background, each in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from tempfile import TemporaryDirectory, TemporaryFile
from threading import Lock, Thread
from typing import Any, Literal

from keel.errors import KeelError, UsageError

State = Literal["running", "done", "failed", "cancelled"]
MAX_JOBS = 2
"""Jobs that run at once."""
MAX_FINISHED = 50
"""Finished jobs whose results are kept."""


@dataclass
class Job:
    """A command with --json that runs in the background: its messages so far, then its result."""

    words: Sequence[str]
    state: State = "running"
    lines: list[str] = field(default_factory=list)
    result: dict[str, Any] | None = None
    error: str = ""
    process: subprocess.Popen[str] | None = None

    def run(self) -> None:
        """Run the command to its end; a thread of its own waits for it."""
        command = [sys.executable, "-m", "keel", *self.words, "--json"]
        # The result goes to a file: a full pipe would stop the command while its messages are read.
        with TemporaryDirectory() as folder, TemporaryFile("w+", encoding="utf-8") as result:
            with subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=result,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                cwd=folder,
            ) as self.process:
                if self.state == "cancelled":  # before it had started
                    self.process.terminate()
                assert self.process.stderr is not None
                for line in self.process.stderr:
                    self.lines.append(line.rstrip())
            code = self.process.returncode
            result.seek(0)
            output = result.read()
        if self.state == "cancelled":
            return
        if code == 0:
            self.result, self.state = json.loads(output), "done"
        else:
            self.error, self.state = self.lines[-1] if self.lines else f"it ended with code {code}", "failed"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"state": self.state, "lines": self.lines[-200:], "result": self.result, "error": self.error}


class Jobs:
    """The jobs of a studio, by id."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._lock = Lock()

    def start(self, words: Sequence[str]) -> str:
        """Start a command and return the id of its job."""
        with self._lock:
            running = [job for job in self._jobs.values() if job.state == "running"]
            if len(running) >= MAX_JOBS:
                raise KeelError(f"{MAX_JOBS} experiments are running already: wait for one of them, or cancel it")
            finished = [id for id, job in self._jobs.items() if job.state != "running"]
            for id in finished[: max(0, len(finished) - MAX_FINISHED)]:
                del self._jobs[id]
            id, job = token_hex(8), Job(words)
            self._jobs[id] = job
        Thread(target=job.run, daemon=True).start()
        return id

    def get(self, id: str) -> Job:
        """The job with this id."""
        if id not in self._jobs:
            raise UsageError("this experiment is not known any more: start it again")
        return self._jobs[id]

    def cancel(self, id: str) -> None:
        """End a job."""
        job = self.get(id)
        if job.state == "running":
            job.state = "cancelled"
            if job.process is not None:
                job.process.terminate()

    def cancel_all(self) -> None:
        """End all jobs, when the studio ends."""
        for id in [*self._jobs]:
            self.cancel(id)
