"""Many trainings on one GPU that is there for a limited time, by commands of limited length; a rerun continues.

    python benchmarks/h200/lease.py prepare INPUTS --data DATA --reader MINILM        # before, anywhere
    python benchmarks/h200/lease.py run WORK --inputs INPUTS/1 --out OUT --minutes 9  # on the GPU, again and again
    python benchmarks/h200/lease.py unpack OUT --to MODELS                            # after, anywhere

With --queue chinese, prepare and run have the inputs and stages of another queue (lease_chinese_stages.py).

prepare writes uploads INPUTS/1, INPUTS/2, ... of limited size (--upload-mb). run takes one upload (give each once, the
first first; without --inputs none), starts the queue of stages (lease_stages.py) as a process that outlives the
command, or finds it running, and waits until the time is over or all is done. As soon as they exist it copies results
to OUT: report.tar (status, logs, scores) and parts of packed models, at most --files of them and --out-mb in all;
the next call copies what is left. With --again it copies everything again. unpack joins the parts of all calls, which
may lie in several folders below OUT.

Every stage continues after a kill, in the next call of run: from a checkpoint, or from the results that it has written.
A stage that failed twice is left out with those that need it; --retry NAME tries it again. --stages NAME ... chooses
and orders stages, --steps NAME=N shortens one; both may change from call to call.

    python benchmarks/h200/lease.py prepare /tmp/in --data DATA --reader MINILM --lines 3000 --vocabulary 2000
    python benchmarks/h200/lease.py run /tmp/work --inputs /tmp/in/1 --out /tmp/out --minutes 9 --tiny   # on a CPU
"""

import argparse
import dataclasses
import fcntl
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import lease_chinese_stages
import lease_stages
from lease_chinese_inputs import prepare_chinese
from lease_inputs import prepare, receive
from lease_stages import ROOT, Paths, Sizes, Stage, deliver, finish_stage
from packing import unpack, write

QUEUES = {"english": lease_stages, "chinese": lease_chinese_stages}
STAGES = (*lease_stages.STAGES, *lease_chinese_stages.STAGES)
GPU = 1.3
"""Sum of shares of stages that run side by side: small ones beside a large one."""
FAILURES = 2
STARTS = 20
"""Failures and starts after which a stage is given up: a start that was killed is no failure."""
LOG_TAIL = 200_000
REPORT = "report.tar"


@contextmanager
def lock(path: Path) -> Iterator[int | None]:
    """The descriptor of a lock that ends with the last process that holds it, or None if another has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    with lock(path) as descriptor:
        return descriptor is None


@dataclasses.dataclass(frozen=True)
class Plan:
    """Which stages run, at which size; from the flags of the latest call."""

    stages: tuple[Stage, ...]
    sizes: Sizes

    @classmethod
    def load(cls, work: Path) -> Self:
        stored = json.loads((work / "plan.json").read_text())
        queue = QUEUES[stored.get("queue", "english")]
        sizes = queue.TINY if stored["tiny"] else queue.FULL
        known = {stage.name: stage for stage in STAGES}
        names = stored["stages"] or [stage.name for stage in queue.STAGES]
        return cls(
            tuple(known[name] for name in names), dataclasses.replace(sizes, steps=sizes.steps | stored["steps"])
        )


class Queue:
    """Starts stages in order of priority, each when its inputs and the stages before it are there."""

    def __init__(self, work: Path):
        self.work = work
        self.children: list[subprocess.Popen[bytes]] = []

    def state(self, stage: Stage) -> str:
        if (self.work / "done" / stage.name).exists():
            return "done"
        if is_locked(self.work / "locks" / stage.name):
            return "running"
        if count(self.work, "failures", stage.name) >= FAILURES or count(self.work, "starts", stage.name) >= STARTS:
            return "failed"
        return "waiting"

    def can_start(self, stage: Stage) -> bool:
        inputs = all((self.work / "inputs" / f"{name}.complete").exists() for name in stage.inputs)
        return inputs and all((self.work / "done" / name).exists() for name in stage.after)

    def run(self) -> None:
        start_gpu_sharing(self.work)
        while True:
            self.children = [child for child in self.children if child.poll() is None]
            plan = Plan.load(self.work)
            states = {stage.name: self.state(stage) for stage in plan.stages}
            write_status(self.work, plan, states)
            used = sum(stage.share for stage in STAGES if is_locked(self.work / "locks" / stage.name))
            for stage in plan.stages:
                if states[stage.name] != "waiting" or not self.can_start(stage):
                    continue
                if used and used + stage.share > GPU:
                    break  # what comes later in the order does not overtake it
                self.start(stage)
                used += stage.share
            known = {stage.name for stage in plan.stages}
            failed = {name for name, state in states.items() if state == "failed"}
            open_stages = [stage for stage in plan.stages if states[stage.name] == "waiting"]
            if not used and all(is_blocked(stage, failed, known, self.work) for stage in open_stages):
                return
            time.sleep(1)

    def start(self, stage: Stage) -> None:
        with lock(self.work / "locks" / stage.name) as descriptor:
            if descriptor is None:
                return
            add_one(self.work, "starts", stage.name)
            (self.work / "logs").mkdir(parents=True, exist_ok=True)
            with open(self.work / "logs" / f"{stage.name}.log", "ab") as log:
                command = [sys.executable, __file__, "stage", str(self.work), stage.name]
                child = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[descriptor],
                    env=environment(self.work, descriptor), start_new_session=True,
                )  # fmt: skip
            self.children.append(child)  # it holds the lock from now on


def is_blocked(stage: Stage, failed: set[str], known: set[str], work: Path) -> bool:
    """Whether it cannot run any more: a stage that it needs has failed, or is neither done nor in the plan."""
    needed = [name for name in stage.after if not (work / "done" / name).exists()]
    stages = {each.name: each for each in STAGES}
    return any(name in failed or name not in known or is_blocked(stages[name], failed, known, work) for name in needed)


def count(work: Path, kind: str, name: str) -> int:
    path = work / kind / name
    return int(path.read_text().split()[0]) if path.exists() else 0


def add_one(work: Path, kind: str, name: str) -> None:
    (work / kind).mkdir(parents=True, exist_ok=True)
    write(work / kind / name, f"{count(work, kind, name) + 1} {time.time():.0f}".encode())


def environment(work: Path, descriptor: int) -> dict[str, str]:
    """The stage's commands inherit the descriptor of its lock, so that none of them outlives it unseen."""
    paths = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
    return os.environ | {
        "PYTHONPATH": paths,
        "KEEL_CACHE": str(work / "cache"),
        "LEASE_LOCK": str(descriptor),
        "PYTHONUNBUFFERED": "1",
    }


def start_gpu_sharing(work: Path) -> None:
    """The daemon by which processes share the GPU, if there is one."""
    if shutil.which("nvidia-cuda-mps-control"):
        with open(work / "mps.log", "ab") as log:
            subprocess.run(
                ["nvidia-cuda-mps-control", "-d"], stdout=log, stderr=log, check=False, start_new_session=True
            )


def run_stage(work: Path, name: str) -> None:
    """The commands of a stage one after the other, then its packed results."""
    plan, paths = Plan.load(work), Paths(work)
    stage = next(stage for stage in STAGES if stage.name == name)
    descriptor = int(os.environ["LEASE_LOCK"])
    began = time.monotonic()
    try:
        for command in stage.commands(paths, plan.sizes):
            print("$", " ".join(command), flush=True)
            subprocess.run(command, pass_fds=[descriptor], stdin=subprocess.DEVNULL, check=True)
        deliver(paths, stage)
    except subprocess.CalledProcessError as error:
        add_one(work, "failures", name)
        raise SystemExit(f"exit status {error.returncode} after {time.monotonic() - began:.0f} s") from None
    except Exception:
        add_one(work, "failures", name)
        raise
    finish_stage(work, name)
    print(f"done in {time.monotonic() - began:.0f} s", flush=True)


def write_status(work: Path, plan: Plan, states: dict[str, str]) -> None:
    stages = {}
    for stage in plan.stages:
        path, done = work / "starts" / stage.name, work / "done" / stage.name
        ended = done.stat().st_mtime if done.exists() else time.time()
        seconds = round(ended - int(path.read_text().split()[1])) if path.exists() else 0
        stages[stage.name] = {"state": states[stage.name], "seconds": seconds}
        stages[stage.name] |= {kind: count(work, kind, stage.name) for kind in ("starts", "failures")}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in stages.items())
    write(work / "status.json", f"{{\n{lines}\n}}\n".encode())


def report(work: Path) -> bytes:
    """Status, the ends of the logs and all results as a tar file."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as tar:
        patterns = ["status.json", "queue.log", "mps.log", "logs/*.log", "models/*/run/log.jsonl"]
        patterns += [pattern for stage in STAGES for pattern in stage.results]
        for path in sorted({path for pattern in patterns for path in work.glob(pattern)}):
            content = path.read_bytes()
            if path.suffix == ".log" or path.name == "log.jsonl":
                content = content[-LOG_TAIL:]
            entry = tarfile.TarInfo(path.relative_to(work).as_posix())
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


class Delivery:
    """Copies results to OUT within the limits of one call; the next call continues where it ended."""

    def __init__(self, work: Path, out: Path, files: int, size: float, again: bool):
        self.work, self.out, self.files, self.size = work, out, files - 1, size - 2e6  # the rest is for the report
        self.path = work / "delivered.json"
        if again:
            self.path.unlink(missing_ok=True)

    def remaining(self) -> list[Path]:
        """By priority, of a stage's parts the newest version; the file that ends a model's parts comes with them."""
        delivered: dict[str, float] = json.loads(self.path.read_text()) if self.path.exists() else {}
        complete = (self.work / "results").glob("*.packed")
        parts = [
            part
            for path in sorted(complete, key=lambda path: (path.name[0], -path.stat().st_mtime))
            for part in sorted(path.parent.glob(f"{path.name.removesuffix('.packed')}.*"))
        ]
        return [path for path in parts if delivered.get(path.name) != path.stat().st_mtime]

    def copy(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        for path in self.remaining():
            size = path.stat().st_size
            if not self.files or size > self.size:
                break
            write(self.out / path.name, path.read_bytes())
            self.files, self.size = self.files - 1, self.size - size
            delivered = json.loads(self.path.read_text()) if self.path.exists() else {}
            write(self.path, json.dumps(delivered | {path.name: path.stat().st_mtime}).encode())
        write(self.out / REPORT, report(self.work))


def prepare_inputs(options: argparse.Namespace) -> None:
    if options.queue == "english" and not options.reader:
        raise SystemExit("--reader is missing: the stage answers needs it")
    {"english": prepare, "chinese": prepare_chinese}[options.queue](options)


def run(options: argparse.Namespace) -> None:
    work, deadline = options.work.resolve(), time.monotonic() + 60 * options.minutes
    work.mkdir(parents=True, exist_ok=True)
    if options.inputs:
        receive(options.inputs, work)
    steps = {name: int(value) for name, _, value in (each.partition("=") for each in options.steps)}
    stored = {"queue": options.queue, "stages": options.stages, "steps": steps, "tiny": options.tiny}
    write(work / "plan.json", json.dumps(stored).encode())
    for name in options.retry:
        for kind in ("starts", "failures"):
            (work / kind / name).unlink(missing_ok=True)
    with lock(work / "queue.lock") as descriptor, open(work / "queue.log", "ab") as log:
        if descriptor is not None:  # the queue holds it from now on
            command = [sys.executable, __file__, "queue", str(work)]
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[descriptor], start_new_session=True
            )
    delivery = Delivery(work, options.out, options.files, 1e6 * options.out_mb, options.again)
    while True:
        delivery.copy()
        over = not is_locked(work / "queue.lock")
        if over or time.monotonic() > deadline:
            break
        time.sleep(min(5, max(0.1, deadline - time.monotonic())))
    print((work / "status.json").read_text() if (work / "status.json").exists() else "the queue is starting")
    left = len(delivery.remaining())
    print("all stages are done or have failed" if over else "stages are left: run again")
    print(f"{left} files are left to be copied: run again" if left else "all results so far are copied")


def unpack_all(options: argparse.Namespace) -> None:
    """Join the parts that several calls have copied, wherever below the folder they lie; the newest count."""
    merged = options.to / "parts"
    merged.mkdir(parents=True, exist_ok=True)
    for path in sorted(options.out.rglob("*.*"), key=lambda path: path.stat().st_mtime):
        if path.is_file() and merged not in path.parents:
            shutil.copyfile(path, merged / path.name)
    for path in sorted(merged.glob("*.packed")):
        name = path.name.removesuffix(".packed")
        count = int(path.read_text().split()[1])
        missing = [f"{name}.{number:02}" for number in range(count) if not (merged / f"{name}.{number:02}").exists()]
        if missing:
            print(f"{name}: {', '.join(missing)} did not arrive")
            continue
        unpack(merged / name, options.to / name.partition("-")[2])
        print(f"{options.to / name.partition('-')[2]}")
    if (merged / REPORT).exists():
        with tarfile.open(merged / REPORT) as tar:
            tar.extractall(options.to / "report", filter="data")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("prepare")
    command.set_defaults(run=prepare_inputs)
    command.add_argument("inputs", type=Path)
    command.add_argument("--queue", choices=QUEUES, default="english")
    command.add_argument("--data", type=Path, required=True, help="folder with corpora/ and tasks/")
    command.add_argument("--reader", type=Path, help="folder of the BERT of the stage answers")
    command.add_argument("--upload-mb", type=float, default=30, help="size of an upload [30]")
    command.add_argument("--lines", type=int, default=0, help="lines of each text, to try it [all]")
    command.add_argument(
        "--vocabulary", type=int, default=0, help="vocabulary size of the tokenizers [as in the recipes]"
    )
    command.add_argument("--preset", type=int, default=9, help="compression level of xz [9]")
    command = commands.add_parser("run")
    command.set_defaults(run=run)
    command.add_argument("work", type=Path)
    command.add_argument("--queue", choices=QUEUES, default="english")
    command.add_argument("--inputs", type=Path, help="an upload")
    command.add_argument("--out", type=Path, required=True)
    command.add_argument("--minutes", type=float, default=9, help="how long to wait [9]")
    command.add_argument("--files", type=int, default=8, help="files in OUT, at most [8]")
    command.add_argument("--out-mb", type=float, default=64, help="their size together [64]")
    command.add_argument("--stages", nargs="*", default=[], choices=[stage.name for stage in STAGES], metavar="NAME")
    command.add_argument("--steps", nargs="*", default=[], metavar="NAME=N")
    command.add_argument("--retry", nargs="*", default=[], metavar="NAME")
    command.add_argument("--again", action="store_true")
    command.add_argument("--tiny", action="store_true")
    command = commands.add_parser("unpack")
    command.set_defaults(run=unpack_all)
    command.add_argument("out", type=Path)
    command.add_argument("--to", type=Path, required=True)
    command = commands.add_parser("queue")  # what `run` starts
    command.set_defaults(run=lambda options: Queue(options.work).run())
    command.add_argument("work", type=Path)
    command = commands.add_parser("stage")  # what the queue starts
    command.set_defaults(run=lambda options: run_stage(options.work, options.name))
    command.add_argument("work", type=Path)
    command.add_argument("name")
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
