import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from keel.errors import KeelError
from keel.studio import jobs as module
from keel.studio.jobs import MAX_JOBS, Job, Jobs
from keel.studio.server import create_app
from keel.studio.workspace import Workspace

WAITS = "import time; time.sleep(60)"
RESULT = "import json, sys; print(json.dumps({'words': sys.argv[1:]}))"


def program(code: str) -> list[str]:
    """A command that stands in for keel."""
    return [sys.executable, "-c", code]


def finished(job: Job) -> dict[str, Any]:
    """The job when it has ended."""
    end = time.monotonic() + 60
    while (state := job.to_dict())["state"] == "running" and time.monotonic() < end:
        time.sleep(0.02)
    return state


def test_a_job_has_the_result_of_its_command() -> None:
    state = finished(Jobs(program(f"import sys; print('a message', file=sys.stderr); {RESULT}")).start(25))
    assert (state["state"], state["lines"]) == ("done", ["a message"])
    assert state["result"] == {"words": ["claim", "25", "--json"]}


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (program("import sys; sys.stderr.buffer.write(b'caf\\xff'); sys.exit(1)"), "caf\ufffd"),
        (program("import sys; sys.exit(3)"), "code 3"),
        (program("print('this is no JSON')"), "end"),
        (["/nowhere/at/all"], "/nowhere/at/all"),
    ],
)
def test_a_failed_job_ends_with_a_reason(command: list[str], error: str) -> None:
    jobs = Jobs(command)
    for _ in range(MAX_JOBS + 1):
        state = finished(jobs.start(1))
        assert state["state"] == "failed"
        assert error in state["error"]


def test_only_some_jobs_run_at_once_and_cancelling_makes_room() -> None:
    jobs = Jobs(program(WAITS))
    first, *_ = [jobs.start(number) for number in range(MAX_JOBS)]
    with pytest.raises(KeelError):
        jobs.start(9)
    first.cancel()
    jobs.start(9)
    jobs.cancel_all()
    assert {each.state for each in jobs.all()} == {"cancelled"}
    for each in jobs.all():
        end = time.monotonic() + 30
        while (each.process is None or each.process.poll() is None) and time.monotonic() < end:
            time.sleep(0.02)
        assert each.process is not None
        assert each.process.returncode != 0


def test_a_job_that_has_ended_is_not_cancelled() -> None:
    job = Jobs(program(RESULT)).start(25)
    finished(job)
    job.cancel()
    assert job.state == "done"


def test_the_last_results_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_FINISHED", 2)
    jobs = Jobs(["/nowhere"])
    started = []
    for number in range(5):
        started.append(jobs.start(number))
        finished(started[-1])
    assert [each.number for each in jobs.all()] == [4, 3, 2]
    assert jobs.get(started[-1].id) is started[-1]
    with pytest.raises(KeelError):
        jobs.get(started[0].id)


def test_keel_is_found_by_a_relative_path_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["src", "more"]))
    code = "import json, os; print(json.dumps(os.environ['PYTHONPATH'].split(os.pathsep)))"
    paths: list[str] = finished(Jobs(program(code)).start(1))["result"]
    assert [*map(Path, paths)] == [module.PACKAGE, tmp_path / "src", tmp_path / "more"]


def test_jobs_are_listed_with_their_claims_and_cancelled() -> None:
    app = create_app(Workspace(), token="secret", hosts={"studio:1"})
    app.state.jobs.program = program(WAITS)
    client = TestClient(app, base_url="http://studio:1", headers={"Authorization": "Bearer secret"})
    assert client.get("/api/jobs").json() == {"jobs": []}
    first, second = (client.post(f"/api/claims/{number}").json()["job"] for number in (25, 41))
    assert client.post("/api/claims/25").status_code == 400
    listed = client.get("/api/jobs").json()["jobs"]
    assert [(each["id"], each["number"], each["state"]) for each in listed] == [
        (second, 41, "running"),
        (first, 25, "running"),
    ]
    cancelled = client.delete(f"/api/jobs/{first}").json()
    assert cancelled["state"] == "cancelled"
    assert client.get("/api/jobs").json()["jobs"][1] == cancelled == client.get(f"/api/jobs/{first}").json()
    client.delete(f"/api/jobs/{second}")
