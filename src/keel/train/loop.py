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
from torch import Tensor, nn

from keel.config import to_dict
from keel.errors import Interrupted, KeelError, UsageError
from keel.events import Event, OnEvent, ignore, note
from keel.train.checkpoint import Checkpoints
from keel.train.draw import Draw, seed_of
from keel.train.objective import Objective, Tensors
from keel.train.optimizers import adamw
from keel.train.parallel import World, hold_gradients, whole
from keel.train.plan import Plan, Train
from keel.train.signals import caught_signals

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
) -> History:
    """Train `objective` on `data` until the plan is done; the same call again goes on from the last checkpoint in `out`
    (without `out` nothing is kept).

    `evaluate` gives figures by name, "loss" among them: the checkpoint with the lowest is kept. `identity` is whatever
    else, beside the settings in `train`, makes this the same run.
    """
    if train.threads:
        torch.set_num_threads(train.threads)
    with World.join(train.device) as world, caught_signals() as stopping:
        heard = on_event if world.leads else ignore
        # Shards stay inside: the caller's own network gets the whole weights back.
        sharded = world.size > 1 and train.parallel == "fsdp"
        working = deepcopy(objective) if sharded else objective
        history = _Run(working, data, train, out, heard, world, evaluate, dict(identity or {})).go(stopping)
        if sharded:
            objective.load_state_dict({name: whole(value) for name, value in working.state_dict().items()})
        return history


def held_out_loss(data: Any, train: Train, rows: int = 512) -> Evaluate:
    """An evaluation: each loss of an objective on up to `rows` rows of held-out data, the same ones every time."""

    def evaluate(objective: Objective) -> dict[str, float]:
        device = next(objective.parameters()).device
        was_training = objective.training
        objective.eval()
        sums: dict[str, Tensor] = {}
        counts: dict[str, Tensor] = {}
        chunk = max(1, train.batch // train.accumulate)
        total = min(rows, objective.rows(data))
        with torch.no_grad():
            for start in range(0, total, chunk):
                part = range(start, min(start + chunk, total))
                batch = objective.batch(data, Draw(seed=0, step=0, first=0), part).to(device)
                with _autocast(train, device):
                    losses, _ = objective(batch)
                _add(sums, losses)
                _add(counts, objective.counts(batch))
        objective.train(was_training)
        values = {name: float(value / counts[name].clamp(min=1)) for name, value in sums.items()}
        return {"loss": sum(values.values()), **values}

    return evaluate


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
    ):
        if train.batch < world.size * train.accumulate:
            raise UsageError(
                f"batch {train.batch} has too few rows for {world.size} processes with {train.accumulate} micro-batches"
                ": raise --batch or lower --train.accumulate"
            )
        self.objective = objective.to(world.device).train()
        self.data, self.train, self.world, self.on_event, self.evaluate = data, train, world, on_event, evaluate
        self.settings = {**to_dict(train), "processes": world.size, **identity}
        self.checkpoints = Checkpoints(out and out / "checkpoints", train.keep)
        if train.compile:
            for block in objective.blocks():
                block.compile()
        self.wrapped = world.wrap(objective, train.parallel)
        self.optimizer = adamw(
            objective.named_parameters(),
            lr=train.lr,
            weight_decay=train.weight_decay,
            betas=(train.beta1, train.beta2),
            epsilon=train.epsilon,
        )
        self.history = History()
        self.tally = _Tally()
        self.best: tuple[float, int] = (math.inf, -1)
        self.began = time.monotonic()

    def go(self, stopping: threading.Event) -> History:
        step, plan = self.resume() or (0, self.first_plan())
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
            if step == plan.steps or (self.train.evaluate_every and step % self.train.evaluate_every == 0):
                self.assess(step, plan)
            due = self.best[1] == step or time.monotonic() - saved_at > 60 * self.train.checkpoint_minutes
            stop, due = self.agreed(stopping.is_set(), due and self.world.leads)
            regular = self.train.checkpoint_every and step % self.train.checkpoint_every == 0
            if stop or due or regular or step == plan.steps:
                self.check(step)
                if not stop and step - saved_step >= 5:  # fewer tell little, compiling may be among them
                    plan = self.replan(step, plan, (time.monotonic() - saved_at) / (step - saved_step))
                self.save(step, plan)
                saved_at, saved_step = time.monotonic(), step
            if stop and step < plan.steps:
                kept = ", saved: run the same command again to go on" if self.checkpoints.folder else ""
                raise Interrupted(f"stopped at step {step} of {plan.steps}{kept}")
        self.history.steps, self.history.seconds = step, self.seconds
        return self.history

    @property
    def seconds(self) -> float:
        return self.history.seconds + time.monotonic() - self.began

    def step(self, step: int, plan: Plan) -> None:
        """One update: rows drawn by number, sums of losses over global counts, one backward pass a micro-batch."""
        batches, counts = self.draw(step)
        rate = plan.rate(step, self.train)
        losses = self.gradients(step, batches, counts)
        norm = whole(nn.utils.clip_grad_norm_(self.objective.parameters(), self.train.clip or math.inf))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.tally.add(losses, counts, norm, rate)

    def draw(self, step: int) -> tuple[list[Tensors], dict[str, Tensor]]:
        """This process's micro-batches of one step, and the global counts of what they predict."""
        draw = Draw(seed=self.train.seed, step=step, first=step * self.train.batch)
        rows = range(self.train.batch)
        parts = [self.world.part(rows, self.train.accumulate, number) for number in range(self.train.accumulate)]
        batches = [self.objective.batch(self.data, draw, part).to(self.world.device) for part in parts]
        counts: dict[str, Tensor] = {}
        for batch in batches:
            _add(counts, self.objective.counts(batch))
        names = sorted(counts)
        totals = self.world.total(torch.stack([counts[name].double() for name in names]))
        return batches, dict(zip(names, totals, strict=True))

    def gradients(self, step: int, batches: list[Tensors], counts: dict[str, Tensor]) -> dict[str, Tensor]:
        """Gradients of the mean losses; gives this process's share of each mean."""
        shares: dict[str, Tensor] = {}
        for number, batch in enumerate(batches):
            torch.manual_seed(seed_of(self.train.seed, step, self.world.rank, number))  # for dropout alone
            with hold_gradients(self.wrapped, number < len(batches) - 1):
                with _autocast(self.train, self.world.device):
                    losses, _ = self.wrapped(batch)
                means = {name: loss / counts[name].clamp(min=1).to(loss.dtype) for name, loss in losses.items()}
                # Processes average their gradients, so each one brings its share of the mean times their number.
                (sum(means.values(), start=torch.zeros((), device=self.world.device)) * self.world.size).backward()
            _add(shares, {name: mean.detach() for name, mean in means.items()})
        return shares

    def check(self, step: int) -> None:
        """Stop at once on a loss that is no number: the last checkpoint is from before it."""
        if not self.tally.finite(self.world):
            last = self.checkpoints.steps()
            kept = f"the checkpoint of step {last[-1]} is kept" if last else "no checkpoint was written yet"
            remedy = "try a lower --lr or more --train.warmup"
            raise KeelError(f"the loss or its gradient is not finite before step {step}; {kept}: {remedy}")

    def report(self, step: int, plan: Plan) -> None:
        event = self.tally.summary(self.world)
        self.tally = _Tally()
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
        wishes = self.world.total(torch.tensor([float(stop), float(due)], device=self.world.device)).tolist()
        return wishes[0] > 0, wishes[1] > 0

    def save(self, step: int, plan: Plan) -> None:
        if self.checkpoints.folder is None:
            return
        state = {
            "plan": plan.steps,
            "settings": self.settings,
            "seconds": self.seconds,
            "best": self.best[0] if self.best[1] >= 0 else None,
            "best_step": self.best[1],
            "evaluations": self.history.evaluations,
            "losses": self.history.losses,
        }
        with self.tally.paused():
            self.checkpoints.save(step, self.objective, self.optimizer, state, self.world)
        self.on_event({"event": "checkpoint", "step": step, "folder": str(self.checkpoints.path(step))})

    def resume(self) -> tuple[int, Plan] | None:
        """Go on from the newest checkpoint, if there is one and it is of the same run."""
        state = self.checkpoints.latest(self.on_event)
        if state is None:
            return None
        steps = self.refuse_changes(state)
        self.checkpoints.load(state["step"], self.objective, self.optimizer)
        self.history.evaluations, self.history.losses = state["evaluations"], [tuple(pair) for pair in state["losses"]]
        self.history.seconds = state["seconds"]
        if state["best"] is not None:
            self.best = (state["best"], state["best_step"])
        if state["step"] < steps:
            note(self.on_event, f"going on from step {state['step']} of {steps}")
        return state["step"], Plan(steps)

    def refuse_changes(self, state: dict[str, Any]) -> int:
        """The steps to go to; a setting that changed since the checkpoint is named and refused."""
        before, now = state["settings"], self.settings
        extended = self.train.steps > state["plan"] and before["steps"] and self.train.schedule == "constant"
        free = {*Train.FREE, "processes", "parallel", *(["steps"] if extended else [])}
        changed = [name for name in {**before, **now} if name not in free and before.get(name) != now.get(name)]
        if changed:
            old, new = before.get(changed[0]), now.get(changed[0])
            told = f"with {changed[0]} = {old!r}, not {new!r}"
            if all(isinstance(value, str) and re.fullmatch(r"[0-9a-f]{16,}", value) for value in (old, new)):
                told = f"with other {changed[0]}"  # nobody knows a fingerprint by heart
            remedy = "give the old value to go on, or --overwrite to start anew"
            raise UsageError(f"this run was started {told}: {remedy}")
        return self.train.steps if extended else state["plan"]

    def first_plan(self) -> Plan:
        """Steps as asked, or as many as fit into the minutes by the first measured steps (which change nothing)."""
        if self.train.steps:
            return Plan(self.train.steps)
        if self.train.epochs:
            return Plan(max(1, math.ceil(self.train.epochs * self.objective.rows(self.data) / self.train.batch)))
        times: list[float] = []
        for number in range(6):
            start = time.monotonic()
            batches, counts = self.draw(number)
            tally = _Tally()
            tally.add(self.gradients(number, batches, counts), counts, None, 0.0)
            tally.finite(self.world)  # waits for the device
            times.append(time.monotonic() - start)
        self.optimizer.zero_grad(set_to_none=True)
        seconds = median(times[2:]) * 1.1  # the optimizer, evaluations and checkpoints take their part
        return self.agree_on_plan(0, (60 * self.train.minutes - self.seconds) / seconds, seconds)

    def replan(self, step: int, plan: Plan, seconds: float) -> Plan:
        """A clock-planned run is planned anew at checkpoints, by the speed that was seen, if it is well off."""
        if not self.train.minutes or step >= plan.steps:
            return plan
        left = 60 * self.train.minutes - self.seconds
        off = abs(left - (plan.steps - step) * seconds) >= 0.05 * 60 * self.train.minutes
        _, off = self.agreed(False, off and self.world.leads)  # every clock differs: the first one counts
        return self.agree_on_plan(step, left / seconds, seconds) if off else plan

    def agree_on_plan(self, step: int, left: float, seconds: float) -> Plan:
        agreed = self.world.total(torch.tensor(left if self.world.leads else 0.0, device=self.world.device))
        plan = Plan(step + max(1, int(agreed)))
        text = f"{self.train.minutes:g} minutes are {plan.steps} steps of {seconds:.3g} s"
        text += f"; the same run by count: --steps {plan.steps}"
        self.on_event({"event": "plan", "step": step, "steps": plan.steps, "text": text})
        return plan


class _Tally:
    """Losses and counts between two reports; they stay on the device until somebody must know."""

    def __init__(self) -> None:
        self.steps = 0
        self.sums: dict[str, Tensor] = {}
        self.counted: dict[str, Tensor] = {}
        self.norm: Tensor | None = None
        self.rate = 0.0
        self.began = time.monotonic()

    def add(self, losses: dict[str, Tensor], counts: dict[str, Tensor], norm: Tensor | None, rate: float) -> None:
        _add(self.sums, losses)
        _add(self.counted, {name: count for name, count in counts.items() if name not in losses})
        self.norm, self.rate = norm, rate
        self.steps += 1

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What is not a step does not slow the steps down in the report."""
        start = time.monotonic()
        yield
        self.began += time.monotonic() - start

    def finite(self, world: World) -> bool:
        """Whether every loss and the last gradient are numbers, in every process."""
        values = [value.float() for value in (*self.sums.values(), self.norm) if value is not None]
        return not values or bool(world.total(torch.stack(values)).isfinite().all())

    def summary(self, world: World) -> Event:
        """Mean losses, and what was counted beside them by the second."""
        names = list(self.sums)
        means = world.total(torch.stack([self.sums[name].double() for name in names])) / self.steps
        losses = dict(zip(names, means.tolist(), strict=True))
        seconds = time.monotonic() - self.began
        event: Event = {"loss": sum(losses.values()), "losses": losses, "lr": self.rate}
        event["seconds_per_step"] = seconds / self.steps
        event |= {f"{name}_per_second": float(count) / seconds for name, count in self.counted.items()}
        if self.norm is not None:
            event["norm"] = float(self.norm)
        return event


def _add(totals: dict[str, Tensor], values: Mapping[str, Tensor]) -> None:
    for name, value in values.items():
        totals[name] = totals[name] + value if name in totals else value


def _autocast(train: Train, device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=train.precision == "bf16")
