"""The one loop. It knows steps, rows and sums of losses; it does not know language."""

import math
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

from keel.config import to_dict
from keel.errors import Interrupted, KeelError, UsageError
from keel.events import OnEvent, counted, ignore, note
from keel.training.batch_loading import PREFETCH_STEPS
from keel.training.checkpoint import Checkpoints
from keel.training.distributed import World, gather_tensor
from keel.training.loss_totals import LossTotals
from keel.training.objective import Objective
from keel.training.plan import Plan, Train
from keel.training.signals import caught_signals
from keel.training.step import stepper_of
from keel.training.weight_average import WeightAverage

Evaluate = Callable[[Objective], dict[str, float]]
"""Figures by name for the network as it now is, "loss" among them."""


@dataclass(kw_only=True)
class History:
    """How a run went."""

    steps: int = 0
    seconds: float = 0.0
    evaluations: list[dict[str, float]] = field(default_factory=list)
    losses: list[tuple[int, float]] = field(default_factory=list)


def fit(
    objective: Objective,
    data: Any,
    train: Train,
    out: Path | None = None,
    on_event: OnEvent = ignore,
    *,
    evaluate: Evaluate | None = None,
    identity: Mapping[str, Any] | None = None,
    sources: Mapping[str, str] | None = None,
) -> History:
    """Train `objective` on `data` until the plan is done; the same call again goes on from the last checkpoint in `out`
    (without `out` nothing is kept).

    `evaluate` gives figures by name, "loss" among them: the checkpoint with the lowest is kept. `identity` is whatever
    else, beside the settings in `train`, makes this the same run; `sources` says in words what its fingerprints are of.
    """
    with _threads(train.threads), World.join(train.device) as world, caught_signals() as stopping:
        heard = on_event if world.is_main else ignore
        # Shards stay inside: the caller's own network gets the whole weights back.
        sharded = world.size > 1 and train.parallel == "fsdp"
        working = deepcopy(objective) if sharded else objective
        learning = [parameter for parameter in objective.parameters() if parameter.requires_grad]
        run = _Run(working, data, train, out, heard, world, evaluate, dict(identity or {}), dict(sources or {}))
        try:
            history = run.go(stopping)
        finally:
            run.checkpoints.wait()  # whatever happened, what was being written is written
            for parameter in learning:  # of which some may have waited for their epoch
                parameter.requires_grad_(True)
        if sharded:
            objective.load_state_dict({name: gather_tensor(value) for name, value in working.state_dict().items()})
        return history


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """So many threads for torch, if it is told, until this run is over: what comes after has its own."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Run:
    """One call of `fit`: what the steps share."""

    def __init__(
        self,
        objective: Objective,
        data: Any,
        train: Train,
        out: Path | None,
        on_event: OnEvent,
        world: World,
        evaluate: Evaluate | None,
        identity: dict[str, Any],
        sources: dict[str, str],
    ):
        least = min(stretch.batch_size for stretch in Plan(1_000_000, train, objective.phases()).segments)
        if least < world.size * train.accumulate:
            raise UsageError(
                f"{least} rows of a step are too few for {world.size} processes with {train.accumulate} micro-batches"
                ": raise --batch or lower --train.accumulate"
            )
        self.objective = objective.to(world.device).train()
        self.objective.setup(data)
        self.data, self.train, self.world, self.on_event, self.evaluate = data, train, world, on_event, evaluate
        self.sources = sources
        self.settings = {**identity, **to_dict(train), "processes": world.size}
        """What a run is of comes first: if it changed, it is what is told."""
        self.checkpoints = Checkpoints(out and out / "checkpoints", train.keep)
        self.stepper = stepper_of(self.objective, data, train, world, on_event)
        self.average = WeightAverage()
        self.costs: dict[tuple[int, int], float] = {}
        """Seconds of a step by its rows and its phase, as rehearsed."""
        self.history = History()
        self.tally = LossTotals()
        self.best: tuple[float, int] = (math.inf, -1)
        self.began = time.monotonic()

    def go(self, stopping: threading.Event) -> History:
        step, plan = self.resume() or (0, self.first_plan())
        levels = self.stepper.levels
        if step == 0 and (reached := levels.reached(plan.step_plan(plan.steps - 1))) < len(levels):
            remedy = f"for all of them, --epochs {len(levels)} or more"
            note(self.on_event, f"this run will be over when {reached} of {len(levels)} levels learn: {remedy}")
        if step == 0:
            self.assess(step, plan)
        saved_at, saved_step = time.monotonic(), step
        while step < plan.steps:
            self.step(step, plan)
            step += 1
            if step % self.train.log_every == 0 or step == plan.steps or self.world.device.type == "cpu":
                self.check(step)
            if step % self.train.log_every == 0 or step == plan.steps:
                self.report(step, plan)
            if step == plan.steps:
                self.average.apply(self.objective)
                self.objective.finish()
            if step == plan.steps or (self.train.evaluate_every and step % self.train.evaluate_every == 0):
                self.assess(step, plan)
            due = self.best[1] == step or time.monotonic() - saved_at > 60 * self.train.checkpoint_minutes
            stop, due = self.agreed(stopping.is_set(), due and self.world.is_main)
            regular = self.train.checkpoint_every and step % self.train.checkpoint_every == 0
            regular = regular or (self.train.minutes > 0 and step == 100)  # to plan by steps as they now are
            if stop or due or regular or step == plan.steps:
                self.check(step)
                if not stop and step - saved_step >= 5:  # fewer tell little, compiling may be among them
                    plan = self.replan(step, plan, saved_step, time.monotonic() - saved_at)
                    if step < plan.average_from:  # a longer plan averages later
                        self.average = WeightAverage()
                self.save(step, plan)
                saved_at, saved_step = time.monotonic(), step
            if stop and step < plan.steps:
                self.checkpoints.wait()
                kept = ", saved: run the same command again to go on" if self.checkpoints.folder else ""
                raise Interrupted(f"stopped at step {step} of {plan.steps}{kept}")
        self.history.steps, self.history.seconds = step, self.seconds
        return self.history

    @property
    def seconds(self) -> float:
        return self.history.seconds + time.monotonic() - self.began

    def step(self, step: int, plan: Plan) -> None:
        """One update, its rows and its rate by the plan."""
        place = plan.step_plan(step)
        coming = [plan.step_plan(later) for later in range(step + 1, min(step + 1 + PREFETCH_STEPS, plan.steps))]
        self.tally.add(self.stepper.train_step(place, coming), place.lr)
        if plan.averages_step(step):
            self.average.add(self.objective)

    def check(self, step: int) -> None:
        """Stop at once on a loss that is no number: the last checkpoint is from before it."""
        if not self.tally.finite(self.world):
            self.checkpoints.wait()
            last = self.checkpoints.steps()
            kept = f"the checkpoint of step {last[-1]} is kept" if last else "no checkpoint was written yet"
            remedy = "try a lower --lr or more --train.warmup"
            raise KeelError(f"the loss or its gradient is not finite before step {step}; {kept}: {remedy}")

    def report(self, step: int, plan: Plan) -> None:
        event = self.tally.summary(self.world)
        self.tally = LossTotals()
        self.history.losses.append((step, event["loss"]))
        left = (plan.steps - step) * event["seconds_per_step"]
        self.on_event({"event": "step", "step": step, "steps": plan.steps, **event, "seconds_left": left})

    def assess(self, step: int, plan: Plan) -> None:
        if self.evaluate is None:
            return
        with self.tally.paused():
            values = self.evaluate(self.objective)
        self.history.evaluations.append({"step": step, **values})
        self.best = min(self.best, (values["loss"], step))
        losses = {name: value for name, value in values.items() if name != "loss"}
        event = {"event": "evaluation", "step": step, "steps": plan.steps, "loss": values["loss"], "losses": losses}
        self.on_event(event)

    def agreed(self, stop: bool, due: bool) -> tuple[bool, bool]:
        """What any process wants, all do: they must save at the same step."""
        if self.world.size == 1:
            return stop, due
        wishes = self.world.sum_over_processes(
            torch.tensor([float(stop), float(due)], device=self.world.device)
        ).tolist()
        return wishes[0] > 0, wishes[1] > 0

    def save(self, step: int, plan: Plan) -> None:
        if self.checkpoints.folder is None:
            return
        state = {
            "plan": plan.steps,
            "parts": self.stepper.parts,
            "carried": self.stepper.carried.last,
            "costs": [[*shape, seconds] for shape, seconds in self.costs.items()],
            "settings": self.settings,
            "sources": self.sources,
            "seconds": self.seconds,
            "best": self.best[0] if self.best[1] >= 0 else None,
            "best_step": self.best[1],
            "evaluations": self.history.evaluations,
            "losses": self.history.losses,
        }
        with self.tally.paused():
            self.checkpoints.save(
                step,
                self.objective,
                self.stepper.optimizer,
                state,
                self.world,
                extra={**self.average.tensors(), **self.stepper.carried.tensors()},
            )
        self.on_event({"event": "checkpoint", "step": step, "folder": str(self.checkpoints.path(step))})

    def resume(self) -> tuple[int, Plan] | None:
        """Go on from the newest checkpoint, if there is one and it is of the same run."""
        state = self.checkpoints.latest(self.on_event)
        if state is None:
            return None
        steps = self.refuse_changes(state)
        self.checkpoints.load(state["step"], self.objective, self.stepper.optimizer)
        extra = self.checkpoints.load_extra(state["step"])
        self.average.restore(extra, self.objective)
        if state["carried"]:
            self.stepper.carried.restore(extra, state["carried"], state["step"])
        self.stepper.parts = state["parts"]
        self.costs = {(rows, phase): seconds for rows, phase, seconds in state["costs"]}
        self.history.evaluations, self.history.losses = state["evaluations"], [tuple(pair) for pair in state["losses"]]
        self.history.seconds = state["seconds"]
        if state["best"] is not None:
            self.best = (state["best"], state["best_step"])
        if state["step"] < steps:
            note(self.on_event, f"going on from step {state['step']} of {steps}")
        return state["step"], self.plan(steps)

    def refuse_changes(self, state: dict[str, Any]) -> int:
        """The steps to go to; a setting that changed since the checkpoint is named and refused."""
        before, now = state["settings"], self.settings
        alike = self.train.schedule == "constant" and len(self.plan(state["plan"]).segments) == 1
        extended = self.train.steps > state["plan"] and before["steps"] and alike and not self.train.average
        free = {*Train.CHANGEABLE, "processes", "parallel", *(["steps"] if extended else [])}
        changed = [name for name in {**before, **now} if name not in free and before.get(name) != now.get(name)]
        if changed:
            old, new = before.get(changed[0]), now.get(changed[0])
            told, give = f"with {changed[0]} = {old!r}, not {new!r}", "the old value"
            if all(isinstance(value, str) and re.fullmatch(r"[0-9a-f]{16,}", value) for value in (old, new)):
                # Nobody knows a fingerprint by heart.
                was_of = state.get("sources", {}).get(changed[0], f"other {changed[0]}")
                now_of = self.sources.get(changed[0], "these")
                told = f"with {was_of}, not {now_of}"
                if was_of == now_of:
                    told = f"with another version or part of {was_of}"
                give = "that"
            raise UsageError(f"this run was started {told}: give {give} to go on, or --overwrite to start anew")
        return self.train.steps if extended else state["plan"]

    def plan(self, steps: int) -> Plan:
        return Plan(steps, self.train, self.objective.phases())

    def first_plan(self) -> Plan:
        """Steps as asked, or as many as fit into the minutes by the first measured steps (which change nothing)."""
        if self.train.steps:
            return self.plan(self.train.steps)
        if self.train.epochs:
            return self.plan(self.plan(1_000_000).steps_for(self.train.epochs * self.objective.epoch_size(self.data)))
        self.rehearse()
        return self.plan_by_clock(0, 1.0)

    def rehearse(self) -> None:
        """Every shape of step that a plan will meet is tried and timed; nothing has changed afterwards."""
        plan = self.plan(1_000_000)
        for stretch in plan.segments:
            times: list[float] = []
            for number in range(6):
                start = time.monotonic()
                tally = LossTotals()
                tally.add(self.stepper.dry_run(plan.step_plan(stretch.begin + number)), 0.0)
                tally.finite(self.world)  # waits for the device
                times.append(time.monotonic() - start)
            self.costs[stretch.batch_size, stretch.phase] = median(times[2:]) * 1.05  # the optimizer takes its part

    def replan(self, step: int, plan: Plan, since: int, took: float) -> Plan:
        """A clock-planned run is planned anew at checkpoints, by the speed that was seen, if it is well off."""
        if not self.train.minutes or step >= plan.steps:
            return plan
        slower = took / (plan.seconds_from(self.costs, since) - plan.seconds_from(self.costs, step))
        left = 60 * self.train.minutes - self.seconds
        off = abs(left - slower * plan.seconds_from(self.costs, step)) >= 0.03 * 60 * self.train.minutes
        _, off = self.agreed(False, off and self.world.is_main)  # every clock differs: the first one counts
        return self.plan_by_clock(step, slower) if off else plan

    def plan_by_clock(self, step: int, slower: float) -> Plan:
        """As many steps as fit into the minutes left, if they are slower than in the rehearsal by that factor."""
        spent = self.seconds
        left = (60 * self.train.minutes - spent) / slower
        fits, beyond = step + 1, step + 2
        while self.plan(beyond).seconds_from(self.costs, step) <= left:
            fits, beyond = beyond, 2 * beyond
        while beyond - fits > 1:
            middle = (fits + beyond) // 2
            fits, beyond = (
                (middle, beyond) if self.plan(middle).seconds_from(self.costs, step) <= left else (fits, middle)
            )
        agreed = self.world.sum_over_processes(
            torch.tensor(fits if self.world.is_main else 0, device=self.world.device)
        )
        plan = self.plan(int(agreed))
        each = slower * plan.seconds_from(self.costs, step) / (plan.steps - step)
        given = "1 minute" if self.train.minutes == 1 else f"{self.train.minutes:g} minutes"
        if step == 0 and spent > 6 * self.train.minutes:  # a tenth of the time is worth a word
            given += f", less {spent:,.1f} s to get ready,"
        text = f"{given} make {counted(plan.steps, 'step')} of {each:.3g} s{plan.describe()}"
        text += f"; the same run by count: --steps {plan.steps}" if step == 0 else ""
        if step == 0 and left < 0:
            text = f"{given} leave no time: 1 step is taken; give more --minutes, or say --steps"
        self.on_event({"event": "plan", "step": step, "steps": plan.steps, "text": text})
        return plan
