"""Experiments of claims that run in the background, each in a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
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
MAX_LINES = 200
"""The last messages of a job that are shown."""
PACKAGE = Path(__file__).parents[2]
"""The folder that Keel is imported from."""


@dataclass
class Job:
    """The experiment of a claim in the background: its messages so far, then its result."""

    id: str
    number: int
    """Number of the claim."""
    state: State = "running"
    lines: list[str] = field(default_factory=list)
    result: dict[str, Any] | None = None
    error: str = ""
    process: subprocess.Popen[str] | None = None
    _lock: Lock = field(default_factory=Lock, repr=False)

    def run(self, program: Sequence[str]) -> None:
        """Run the experiment to its end; a thread of its own waits for it."""
        try:
            self._run([*program, "claim", str(self.number), "--json"])
        except (OSError, ValueError) as error:
            self._finish("failed", error=f"the experiment did not run to its end: {error}")
        finally:  # whatever happens, it takes no place any more
            self._finish("failed", error="the experiment did not run to its end")

    def cancel(self) -> None:
        """End the experiment."""
        if self._finish("cancelled") and self.process is not None:
            self.process.terminate()

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        found = {"id": self.id, "number": self.number, "state": self.state}
        return {**found, "lines": self.lines[-MAX_LINES:], "result": self.result, "error": self.error}

    def _run(self, command: Sequence[str]) -> None:
        # The result goes to a file: a full pipe would stop the command while its messages are read.
        with TemporaryDirectory() as folder, TemporaryFile("w+", encoding="utf-8", errors="replace") as result:
            with subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=result,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
                cwd=folder,
                env=_environment(),
            ) as self.process:
                if self.state == "cancelled":  # before it had started
                    self.process.terminate()
                assert self.process.stderr is not None
                for line in self.process.stderr:
                    self.lines.append(line.rstrip())
            code = self.process.returncode
            result.seek(0)
            output = result.read()
        if code == 0:
            self._finish("done", result=json.loads(output))
        else:
            self._finish("failed", error=self.lines[-1] if self.lines else f"it ended with code {code}")

    def _finish(self, state: State, *, result: dict[str, Any] | None = None, error: str = "") -> bool:
        """End a running job with its result; False if it had ended before."""
        with self._lock:
            if self.state != "running":
                return False
            self.result, self.error, self.state = result, error, state
            return True


class Jobs:
    """The jobs of a studio, by id."""

    def __init__(self, program: Sequence[str] = (sys.executable, "-m", "keel")) -> None:
        self.program = program
        self._jobs: dict[str, Job] = {}
        self._lock = Lock()

    def start(self, number: int) -> Job:
        """Start the experiment of a claim."""
        with self._lock:
            running = [job for job in self._jobs.values() if job.state == "running"]
            if len(running) >= MAX_JOBS:
                raise KeelError(f"{MAX_JOBS} experiments are running already: wait for one of them, or cancel it")
            finished = [id for id, job in self._jobs.items() if job.state != "running"]
            for id in finished[: max(0, len(finished) - MAX_FINISHED)]:
                del self._jobs[id]
            job = Job(token_hex(8), number)
            self._jobs[job.id] = job
        Thread(target=job.run, args=[self.program], daemon=True).start()
        return job

    def all(self) -> list[Job]:
        """The running and the last finished jobs, the newest first."""
        return [*reversed([*self._jobs.values()])]

    def get(self, id: str) -> Job:
        """The job with this id."""
        if (job := self._jobs.get(id)) is None:
            raise UsageError("this experiment is not known any more: start it again")
        return job

    def cancel_all(self) -> None:
        """End all jobs, when the studio ends."""
        for job in self.all():
            job.cancel()


def _environment() -> dict[str, str]:
    """The environment of an experiment, which runs in a folder of its own: PYTHONPATH with absolute folders."""
    paths = [PACKAGE, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, paths))}
