"""The training loop: steps, evaluation, checkpoints, resume. It knows nothing about language."""

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
from keel.events import OnEvent, ignore, note, pluralize
from keel.training.batch_loading import PREFETCH_STEPS
from keel.training.best_weights import BestWeights
from keel.training.checkpoint import Checkpoints
from keel.training.distributed import World, gather_tensor
from keel.training.loss_names import PART
from keel.training.loss_totals import LossTotals
from keel.training.objective import CustomUpdate, Objective
from keel.training.plan import Plan, Train
from keel.training.signals import caught_signals
from keel.training.step import stepper_of
from keel.training.time_estimate import TimeEstimate
from keel.training.weight_average import WeightAverage

SCORE = "score"
Evaluate = Callable[[Objective], dict[str, float]]
"""Metrics by name, "loss" among them; `PART` begins the name of the loss on a part of the data. The best evaluation has
the highest SCORE or, without one and among equal ones, the lowest loss."""


@dataclass(kw_only=True)
class History:
    """Losses and evaluations of a run."""

    steps: int = 0
    epochs: float = 0.0
    """Passes over the training data."""
    seconds: float = 0.0
    threads: int = 0
    """CPU threads of the run."""
    nondeterministic: bool = False
    """Whether they updated the same parameters without locks (Hogwild): the same seed gives other weights."""
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
    earlier_identity: Mapping[str, Any] | None = None,
    sources: Mapping[str, str] | None = None,
) -> History:
    """Train `objective` on `data`; the same call again resumes from the last checkpoint in `out` (none without `out`).

    `evaluate` returns metrics by name; the checkpoint of the best evaluation is kept. `identity` holds what must be
    equal on resume besides `train`, such as fingerprints of the data; `earlier_identity` holds what of it checkpoints
    of earlier versions lack, with the values of that time; `sources` describes each fingerprint in words.
    """
    train.check_length()
    if train.final_weights == "best" and evaluate is None and not isinstance(objective, CustomUpdate):
        what = "--train.final_weights best needs a validation set"
        raise UsageError(f"{what}: give --dev, or --text.held_out in pre-training")
    with thread_limit(train.threads), World.join(train.device) as world, caught_signals() as stopping:
        on_event = on_event if world.is_main else ignore
        trainable = [parameter for parameter in objective.parameters() if parameter.requires_grad]
        run = _Run(
            objective=objective,
            data=data,
            train=train,
            out=out,
            on_event=on_event,
            world=world,
            evaluate=evaluate,
            identity=identity or {},
            earlier_identity=earlier_identity or {},
            sources=sources or {},
        )
        try:
            history = run.train_all(stopping)
        finally:
            run.checkpoints.wait()
            for parameter in trainable:  # gradual unfreezing may have left some frozen
                parameter.requires_grad_(True)
        if run.objective is not objective:
            weights = run.objective.state_dict()
            objective.load_state_dict({name: gather_tensor(value) for name, value in weights.items()})
        return history


@contextmanager
def thread_limit(count: int) -> Iterator[None]:
    """Set the number of torch's threads for this run (0: unchanged)."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Run:
    """State of one call of `fit`."""

    def __init__(
        self,
        *,
        objective: Objective,
        data: Any,
        train: Train,
        out: Path | None,
        on_event: OnEvent,
        world: World,
        evaluate: Evaluate | None,
        identity: Mapping[str, Any],
        earlier_identity: Mapping[str, Any],
        sources: Mapping[str, str],
    ):
        smallest = min(segment.batch_size for segment in Plan(1_000_000, train, objective.phases()).segments)
        if smallest < world.size * train.accumulate:
            needed = f"{world.size} processes with {train.accumulate} micro-batches"
            remedy = "raise --batch or lower --train.accumulate"
            raise UsageError(f"a batch of {smallest} is too small for {needed}: {remedy}")
        objective.setup(data)
        # FSDP shards a copy: the caller's network gets the full weights back.
        sharded = world.size > 1 and train.parallel == "fsdp"
        self.objective = (deepcopy(objective) if sharded else objective).to(world.device).train()
        self.data = data
        self.train = train
        self.world = world
        self.on_event = on_event
        self.evaluate = evaluate
        self.sources = dict(sources)
        self.earlier_identity = earlier_identity
        self.settings = {**identity, **to_dict(train), "processes": world.size}
        """The identity comes first: if it changed, the error names it rather than a setting."""
        self.checkpoints = Checkpoints(out and out / "checkpoints", train.keep)
        self.model_folder = str(out.parent) if out else "the model"
        self.stepper = stepper_of(self.objective, data, train, world, on_event)
        self.average = WeightAverage()
        self.best_weights = BestWeights()
        self.costs: dict[tuple[int, int], float] = {}
        """Seconds per step by (batch size, phase), measured in dry runs."""
        self.history = History()
        self.totals = LossTotals()
        self.time_estimate = TimeEstimate()
        self.best: tuple[tuple[float, ...], int] = ((math.inf,), -1)
        """What an evaluation is compared by, lower is better, and the step of the best one."""
        self.began = time.monotonic()

    def train_all(self, stopping: threading.Event) -> History:
        step, plan = self.resume() or (0, self.first_plan())
        groups = self.stepper.parameter_groups
        if step == 0 and (reached := groups.trainable_at(plan.step_plan(plan.steps - 1))) < len(groups):
            remedy = f"to train all of them, use --epochs {len(groups)} or more"
            note(self.on_event, f"this run unfreezes only {reached} of {len(groups)} layer groups: {remedy}")
        if step == 0:
            self.run_evaluation(step, plan)
        saved_at, saved_step = time.monotonic(), step
        while step < plan.steps:
            self.step(step, plan)
            step += 1
            logged = step % self.train.log_every == 0 or step == plan.steps
            if logged or self.world.device.type == "cpu":
                self.check_finite(step)
            if logged:
                self.log(step, plan)
            if step == plan.steps:
                self.average.apply(self.objective)
                self.objective.finish()
            if step == plan.steps or (self.train.evaluate_every and step % self.train.evaluate_every == 0):
                self.run_evaluation(step, plan)
            if step == plan.steps and self.train.final_weights == "best":
                self.restore_best(step)
            due = self.best[1] == step or time.monotonic() - saved_at > 60 * self.train.checkpoint_minutes
            stop, due = self.agree(stopping.is_set(), due and self.world.is_main)
            regular = self.train.checkpoint_every and step % self.train.checkpoint_every == 0
            # Replan early by the actual speed, and after the batch size has changed.
            replan = {100, *(segment.begin + 100 for segment in plan.segments)} if self.train.minutes else ()
            regular = regular or step in replan
            if stop or due or regular or step == plan.steps:
                self.check_finite(step)
                if not stop and step - saved_step >= 5:  # fewer are too noisy, and may include compilation
                    plan = self.replan(step, plan, saved_step, time.monotonic() - saved_at)
                    if step < plan.average_from:  # a longer plan starts averaging later
                        self.average = WeightAverage()
                self.save(step, plan)
                saved_at, saved_step = time.monotonic(), step
            if stop and step < plan.steps:
                self.checkpoints.wait()
                remedy = ", checkpoint saved: rerun the command to resume" if self.checkpoints.folder else ""
                raise Interrupted(f"stopped at step {step:,}/{plan.steps:,}{remedy}")
        self.history.steps, self.history.seconds = step, self.seconds
        self.history.threads, self.history.nondeterministic = self.stepper.threads, self.stepper.nondeterministic
        self.history.epochs = plan.examples_between(0, step) / max(1, self.objective.epoch_size(self.data))
        self.on_event({"event": "finished", "steps": step, "epochs": self.history.epochs})
        return self.history

    @property
    def seconds(self) -> float:
        return self.history.seconds + time.monotonic() - self.began

    def step(self, step: int, plan: Plan) -> None:
        here = plan.step_plan(step)
        if step and here.phase != plan.step_plan(step - 1).phase:
            self.objective.start_phase(here.phase)
        coming = [plan.step_plan(later) for later in range(step + 1, min(step + 1 + PREFETCH_STEPS, plan.steps))]
        self.totals.add(self.stepper.train_step(here, coming), here.lr)
        if plan.averages_step(step):
            self.average.add(self.objective)

    def check_finite(self, step: int) -> None:
        """Stop at once on a non-finite loss: the last checkpoint is from before it."""
        if not self.totals.finite(self.world):
            self.checkpoints.wait()
            steps = self.checkpoints.steps()
            last = f"the last checkpoint is of step {steps[-1]}" if steps else "there is no checkpoint yet"
            remedy = "try a lower --lr or more --train.warmup"
            raise KeelError(f"the loss or its gradient is not finite before step {step}; {last}: {remedy}")

    def log(self, step: int, plan: Plan) -> None:
        event, steps = self.totals.summary(self.world), self.totals.steps
        self.totals = LossTotals()
        self.history.losses.append((step, event["loss"]))
        self.time_estimate.add(steps * event["seconds_per_step"], plan.examples_between(step - steps, step))
        left = self.time_estimate.seconds_for(plan.examples_between(step, plan.steps))
        self.on_event({"event": "step", "step": step, "steps": plan.steps, **event, "seconds_left": left})

    def run_evaluation(self, step: int, plan: Plan) -> None:
        if self.evaluate is None:
            return
        with self.totals.paused():
            values = self.evaluate(self.objective)
        self.history.evaluations.append({"step": step, **values})
        value = (-values[SCORE], values["loss"]) if SCORE in values else (values["loss"],)
        if value < self.best[0]:
            self.best = value, step
            if self.train.final_weights == "best":
                self.best_weights.keep(self.objective)
        parts = {name.removeprefix(PART): value for name, value in values.items() if name.startswith(PART)}
        scores = {name: value for name, value in values.items() if name in ("loss", SCORE)}
        losses = {name: value for name, value in values.items() if name not in scores and not name.startswith(PART)}
        event = {"event": "evaluation", "step": step, "steps": plan.steps, **scores, "losses": losses}
        event |= {"parts": parts} if parts else {}
        self.on_event(event)

    def restore_best(self, step: int) -> None:
        """Put the weights of the best evaluation in place of those of the last step."""
        if 0 <= self.best[1] < step:
            self.best_weights.apply(self.objective)
            self.objective.finish()
            best = next(values for values in self.history.evaluations if values["step"] == self.best[1])
            shown = ", ".join(f"{name} {best[name]:.3f}" for name in (SCORE, "loss") if name in best)
            what = f"final weights: those of step {self.best[1]:,}, the best on the validation set ({shown})"
            note(self.on_event, what)
            self.history.evaluations.append(best)

    def agree(self, *votes: bool) -> list[bool]:
        """Whether any process votes for each: all must stop, save and replan at the same step."""
        if self.world.size == 1:
            return [*votes]
        counts = torch.tensor(votes, dtype=torch.float32, device=self.world.device)
        return (self.world.sum_over_processes(counts) > 0).tolist()

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
            "best": [*self.best[0]] if self.best[1] >= 0 else None,
            "best_step": self.best[1],
            "evaluations": self.history.evaluations,
            "losses": self.history.losses,
        }
        with self.totals.paused():
            extra = {**self.average.tensors(), **self.best_weights.tensors(), **self.stepper.carried.tensors()}
            self.checkpoints.save(step, self.objective, self.stepper.optimizer, state, self.world, extra)
        self.on_event({"event": "checkpoint", "step": step, "folder": str(self.checkpoints.path(step))})

    def resume(self) -> tuple[int, Plan] | None:
        """Resume from the newest checkpoint, if there is one; refuse that of another run."""
        state = self.checkpoints.latest(self.on_event)
        if state is None:
            return None
        steps = self.refuse_changes(state)
        extra = self.checkpoints.load(state["step"], self.objective, self.stepper.optimizer)
        self.average.restore(extra, self.objective)
        self.best_weights.restore(extra, self.objective)
        if state["carried"]:
            self.stepper.carried.restore(extra, state["carried"], state["step"])
        self.stepper.parts = state["parts"]
        self.costs = {(rows, phase): seconds for rows, phase, seconds in state["costs"]}
        self.history.evaluations, self.history.losses = state["evaluations"], [tuple(pair) for pair in state["losses"]]
        self.history.seconds = state["seconds"]
        if state["best"] is not None:
            best = state["best"]  # a number in checkpoints of earlier versions
            self.best = (tuple(best) if isinstance(best, list) else (best,), state["best_step"])
        if state["step"] < steps:
            note(self.on_event, f"resuming from step {state['step']:,}/{steps:,}")
        return state["step"], self.plan(steps)

    def refuse_changes(self, state: dict[str, Any]) -> int:
        """Number of steps to resume to; refuses a setting that changed since the checkpoint."""
        before, now = {**dict(Train.LATER), **self.earlier_identity, **state["settings"]}, self.settings
        alike = self.train.schedule == "constant" and len(self.plan(state["plan"]).segments) == 1
        alike = alike and not self.train.average and not self.objective.follows_progress
        extended = self.train.steps > state["plan"] and before["steps"] and alike
        free = {*Train.CHANGEABLE, "processes", "parallel", *(["steps"] if extended else [])}
        changed = [name for name in {**before, **now} if name not in free and before.get(name) != now.get(name)]
        if changed:
            old, new = before.get(changed[0]), now.get(changed[0])
            if changed[0].startswith("system.") and not (changed[0] in before and changed[0] in now):
                what = f"this run was started by a version of Keel with other settings ({changed[0]})"
                raise UsageError(f"{what}: finish it with that version, or use --overwrite to start from scratch")
            shown = [f"{value:g}" if isinstance(value, float) else repr(value) for value in (old, new)]
            change, remedy = f"{changed[0]} = {shown[0]}, not {shown[1]}", "the old value"
            if all(isinstance(value, str) and re.fullmatch(r"[0-9a-f]{16,}", value) for value in (old, new)):
                # A fingerprint says nothing to the user: name what it is of.
                was_of = state.get("sources", {}).get(changed[0], f"other {changed[0]}")
                now_of = self.sources.get(changed[0], "these")
                change = f"another version or part of {was_of}" if was_of == now_of else f"{was_of}, not {now_of}"
                remedy = "that"
            remedy = f"use {remedy} to resume, or --overwrite to start from scratch"
            if changed[0] in Train.LENGTHS and state["step"] >= state["plan"]:
                longer = f"continue from the model {self.model_folder} with another --out, or use --overwrite"
                remedy = f"it is finished, and its schedules have ended; to train longer, {longer}"
            raise UsageError(f"this run was started with {change}: {remedy}")
        return self.train.steps if extended else state["plan"]

    def plan(self, steps: int) -> Plan:
        return Plan(steps, self.train, self.objective.phases())

    def first_plan(self) -> Plan:
        """The given number of steps, or as many as fit into the minutes by timed dry runs."""
        if self.train.steps:
            return self.plan(self.train.steps)
        if self.train.epochs:
            return self.plan(self.plan(1_000_000).steps_for(self.train.epochs * self.objective.epoch_size(self.data)))
        self.measure_costs()
        return self.plan_by_clock(0, self.costs)

    def measure_costs(self) -> None:
        """Time dry runs of a step, optimizer and CUDA graph included, for every batch size and phase of the plan."""
        plan = self.plan(1_000_000)
        for segment in plan.segments:
            times: list[float] = []
            # As in training, a GPU is not synchronized at every step. The first ones compile, and capture a graph.
            steps = 3 if self.world.device.type == "cuda" else 1
            for number in range(6):
                start = time.monotonic()
                totals = LossTotals()
                for step in range(steps):
                    totals.add(self.stepper.dry_run(plan.step_plan(segment.begin + number * steps + step)), 0.0)
                totals.finite(self.world)  # synchronizes with the device
                times.append((time.monotonic() - start) / steps)
            self.costs[segment.batch_size, segment.phase] = median(times[2:])
        self.stepper.undo_dry_runs()

    def replan(self, step: int, plan: Plan, since: int, took: float) -> Plan:
        """Replan a run with a time budget at a checkpoint, by the observed speed, if it is off by 3% or more."""
        if not self.train.minutes or step >= plan.steps:
            return plan
        expected = plan.seconds_from(self.costs, since) - plan.seconds_from(self.costs, step)
        # Overhead is mostly per step (logging, evaluation), not per example: measured on the small batches of a ramp,
        # it must not be scaled up to large ones. Only a speed-up is limited to the same factor.
        overhead, factor = (took - expected) / (step - since), min(1.0, took / expected)
        costs = {shape: max(cost + overhead, cost * factor) for shape, cost in self.costs.items()}
        left = 60 * self.train.minutes - self.seconds
        off = abs(left - plan.seconds_from(costs, step)) >= 0.03 * 60 * self.train.minutes
        (off,) = self.agree(off and self.world.is_main)  # clocks differ: that of rank 0 counts
        return self.plan_by_clock(step, costs) if off else plan

    def plan_by_clock(self, step: int, costs: Mapping[tuple[int, int], float]) -> Plan:
        """Plan as many steps as fit into the remaining time, given the seconds of a step by (batch size, phase)."""
        spent = self.seconds
        left = 60 * self.train.minutes - spent
        fits, beyond = step + 1, step + 2
        while self.plan(beyond).seconds_from(costs, step) <= left:
            fits, beyond = beyond, 2 * beyond
        while beyond - fits > 1:
            middle = (fits + beyond) // 2
            fits, beyond = (middle, beyond) if self.plan(middle).seconds_from(costs, step) <= left else (fits, middle)
        agreed = torch.tensor(fits if self.world.is_main else 0, device=self.world.device)
        plan = self.plan(int(self.world.sum_over_processes(agreed)))
        each = plan.seconds_from(costs, step) / (plan.steps - step)
        given = "1 minute" if self.train.minutes == 1 else f"{self.train.minutes:g} minutes"
        if step == 0 and spent > 6 * self.train.minutes:  # a tenth of the time
            given += f" (less {spent:,.1f} s of set-up)"
        text = f"plan: {given} = {pluralize(plan.steps, 'step')} of {each:.3g} s{plan.describe()}"
        text += f"; repeat this run with --steps {plan.steps}" if step == 0 else ""
        if step == 0 and left < 0:
            text = f"plan: {given} leave no time for more than 1 step: use more --minutes, or --steps"
        self.on_event({"event": "plan", "step": step, "steps": plan.steps, "text": text})
        return plan
