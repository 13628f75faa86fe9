"""Requests of the page Claims: the list of claims, and experiments in the background."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request

from keel.claims import CLAIMS
from keel.studio.jobs import Jobs
from keel.studio.listings import NotFound

router = APIRouter()


def jobs_of(request: Request) -> Jobs:
    return request.app.state.jobs


CurrentJobs = Annotated[Jobs, Depends(jobs_of)]


@router.get("/claims")
def list_claims() -> dict[str, Any]:
    """All claims that have an experiment."""
    return {"claims": [{"number": n, "title": each.title, "minutes": each.minutes} for n, each in CLAIMS.items()]}


@router.post("/claims/{number}")
def start_claim(number: int, jobs: CurrentJobs) -> dict[str, Any]:
    """Run the experiment of a claim."""
    if number not in CLAIMS:
        raise NotFound(f"there is no claim {number}: choose one of the list")
    return {"job": jobs.start(number).id}


@router.get("/jobs")
def list_jobs(jobs: CurrentJobs) -> dict[str, Any]:
    """Running and recent experiments, the newest first."""
    return {"jobs": [job.to_dict() for job in jobs.all()]}


@router.get("/jobs/{id}")
def job_state(id: str, jobs: CurrentJobs) -> dict[str, Any]:
    """The messages and the result of an experiment."""
    return jobs.get(id).to_dict()


@router.delete("/jobs/{id}")
def cancel_job(id: str, jobs: CurrentJobs) -> dict[str, Any]:
    """End an experiment."""
    job = jobs.get(id)
    job.cancel()
    return job.to_dict()
