"""The GPU path on one H200: checks, speeds of the recipes beside transformers, resume, fine-tuning; a short table last.

    python benchmarks/h200/measure.py --text en_wikinews.txt.xz --glue glue/

speed: every recipe in recipes/h200 through keel.pretrain. draw: batches are equal to the CPU's. lost: what a step costs
beside its kernels, and which these are. peer: transformers on the same batches. muon: its share of a step. resume:
SIGTERM, then the same loss curve. tuning: the kernels of fine-tuning. glue: GLUE-5 with a BERT-base, wall-clock.
"""

import argparse
import itertools
import json
import random
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

import keel
from keel.api.settings import TextSettings, corpus_of, route_settings
from keel.data.documents import Documents
from keel.data.token_store import Tokens
from keel.data.tokenizer import Tokenizer
from keel.systems.bert import Bert
from keel.training import batch_loading
from keel.training.batch_loading import CpuBatches
from keel.training.counter_rng import CounterRng
from keel.training.distributed import World
from keel.training.plan import Plan, Train
from keel.training.step import Stepper

RECIPES = Path(__file__).parents[2] / "recipes" / "h200"
PEAK = 790e12
GLUE = {"SST-2": "classify", "CoLA": "classify", "MRPC": "pair", "RTE": "pair", "STS-B": "pair"}
table: list[str] = []


def say(line: str) -> None:
    table.append(line)
    print(line, flush=True)


def settings_of(recipe: str) -> dict[str, Any]:
    found = tomllib.loads((RECIPES / f"{recipe}.toml").read_text())
    found["system"].pop("name")
    settings = {**found["system"], **found["train"], **found.get("text", {})}
    return {name: value for name, value in settings.items() if name != "minutes"}


def flops_per_token(bert: Bert, vocabulary: int) -> float:
    """FLOPs of the matrix products alone, forward and backward, with the head on the masked tokens."""
    body = 6 * 12 * bert.layers * bert.width**2 + 12 * bert.layers * bert.sequence_length * bert.width
    return body + 6 * bert.mask_rate * (bert.width * vocabulary + bert.width**2)


def pretrain(recipe: str, options: argparse.Namespace, steps: int, **more: Any) -> tuple[list[dict[str, Any]], Path]:
    """The step events of a short run of the recipe."""
    out = Path(options.work) / recipe
    shutil.rmtree(out, ignore_errors=True)
    events: list[dict[str, Any]] = []
    settings = {**settings_of(recipe), "steps": steps, "evaluate_every": 0, "log_every": 10, **more}
    learned = Path(options.tokenizers) / f"tok{settings['vocabulary']}"
    if options.tokenizers and learned.is_dir():
        settings["tokenizer"] = str(learned)
    keel.pretrain("bert", options.text, out=out, on_event=events.append, **settings)
    for event in events:
        if event["event"] in ("note", "plan"):
            print("  ", event.get("text"), flush=True)
    return [event for event in events if event["event"] == "step"], out


def speed(recipe: str, options: argparse.Namespace, **more: Any) -> float:
    began = time.monotonic()
    settings = {**settings_of(recipe), **more}
    torch.cuda.reset_peak_memory_stats()
    steps, _ = pretrain(recipe, options, options.steps, **{"ramp": 0.0, "average": 0.0, **more})
    size = {"size": settings["size"]} if "size" in settings else {}
    names = ("layers", "width", "sequence_length", "mask_rate", "dropout")
    fields = {name: settings[name] for name in names if name in settings}
    bert = Bert.sized(size["size"], **fields) if size else Bert(**fields)
    seconds = median(event["seconds_per_step"] for event in steps[len(steps) // 2 :])
    positions = settings["batch"] * bert.sequence_length / seconds
    used = flops_per_token(bert, settings["vocabulary"]) * positions / PEAK
    real = median(event["tokens_per_second"] for event in steps[len(steps) // 2 :])
    memory = torch.cuda.max_memory_allocated() / 2**30
    summary = " ".join(f"{name}={value}" for name, value in more.items())
    speeds = f"{positions / 1e3:.0f}k tokens/s ({real / 1e3:.0f}k without padding), {100 * used:.0f}% of the limit"
    costs = f"{1e3 * seconds:.1f} ms a step, {memory:.0f} GiB, {time.monotonic() - began:.0f} s in all"
    say(f"{recipe} {summary}: {speeds}, {costs}, loss {steps[-1]['loss']:.3f}")
    return positions


def objective_of(recipe: str, options: argparse.Namespace) -> tuple[Any, Documents, Train]:
    """What `keel.pretrain` trains with this recipe."""
    settings = settings_of(recipe)
    start = Bert.sized(settings.pop("size")) if "size" in settings else Bert()
    system, train, text = route_settings({**settings, "steps": 1000}, start, Bert.pretraining_defaults, TextSettings())
    tokenizer = Tokenizer.load(Path(options.work) / recipe)
    tokens = Tokens.build(corpus_of(options.text, text.resolve(system), print), tokenizer)
    documents, _ = Documents.of(tokens).split_held_out(text.held_out, train.seed)
    torch.manual_seed(0)
    return system.build_objective(system.build_encoder(len(tokenizer)), tokenizer), documents, train


def check_batches(options: argparse.Namespace) -> None:
    """Batches on the GPU, compiled, against the CPU's."""
    objective, data, train = objective_of("bert-base-128", options)
    plan = Plan(1000, train, objective.phases())
    on_cpu = CpuBatches(objective, data, train.seed, torch.device("cpu"))
    with World.join("cuda") as world:
        stepper = Stepper(objective.to("cuda"), data, train, world, lambda event: print(event, flush=True))
        for step in (0, 1, 17, 999):
            place = plan.step_plan(step)
            (batch,), _ = stepper.batches.get(place, [range(place.batch_size)], [])
            (expected,), _ = on_cpu.get(place, [range(place.batch_size)], [])
            equal = all(
                torch.equal(found.cpu(), wanted)
                for found, wanted in zip(batch.tensors(), expected.tensors(), strict=True)
            )
            say(f"draw of step {step}: {'equal to the CPU' if equal else 'DIFFERENT from the CPU'}")
        place = plan.step_plan(5)
        torch.cuda.synchronize()
        began = time.monotonic()
        for _ in range(20):
            stepper.batches.get(place, [range(place.batch_size)], [])
        torch.cuda.synchronize()
        say(f"draw: {(time.monotonic() - began) / 20 * 1e3:.2f} ms a batch")


def lost(options: argparse.Namespace, recipe: str) -> None:
    """What a step costs in `fit` beside the work of its kernels: the same update again and again, nothing else."""
    objective, data, train = objective_of(recipe, options)
    plan = Plan(1000, train, objective.phases())
    with World.join("cuda") as world:
        stepper = Stepper(objective.to("cuda").train(), data, train, world, lambda event: None)
        for step in range(5):
            stepper.train_step(plan.step_plan(step))
        parts, counts = stepper._batches(plan.step_plan(5), [])
        assert stepper.graphs is not None
        update = partial(stepper._update, [None] * len(parts))
        times = []
        for _ in range(3):
            torch.cuda.synchronize()
            began = time.monotonic()
            for _ in range(20):
                stepper.graphs.run(parts, counts, 1, update)
            torch.cuda.synchronize()
            times.append((time.monotonic() - began) / 20)
        profile(stepper, plan, recipe)
    bare = median(times)
    del stepper, objective, parts, update  # their graphs hold the memory of a step
    torch.cuda.empty_cache()
    steps, _ = pretrain(recipe, options, 100, ramp=0.0, average=0.0)
    seconds = median(event["seconds_per_step"] for event in steps[4:])
    batch_loading.MAX_DATA_SHARE = 0.0  # as if there were no room for the tokens
    steps, _ = pretrain(recipe, options, 60, ramp=0.0, average=0.0)
    batch_loading.MAX_DATA_SHARE = 0.25
    say(f"{recipe}, tokens outside: {1e3 * median(event['seconds_per_step'] for event in steps[3:]):.2f} ms a step")
    share = 100 * (1 - bare / seconds)
    say(f"{recipe}: {1e3 * seconds:.2f} ms a step, its kernels alone {1e3 * bare:.2f}: {share:.1f}% lost")


def profile(stepper: Stepper, plan: Plan, recipe: str) -> None:
    """The kernels of a step by time."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as watch

    with watch(activities=[ProfilerActivity.CUDA]) as found:
        for step in range(6, 9):
            stepper.train_step(plan.step_plan(step))
        torch.cuda.synchronize()
    averages = sorted(found.key_averages(), key=lambda each: -each.self_device_time_total)
    print(f"kernels of {recipe}, ms a step:")
    for each in averages[:36]:
        print(f"  {each.self_device_time_total / 3e3:8.3f}  {each.count / 3:6.1f}x  {each.key[:110]}", flush=True)


def peer(options: argparse.Namespace, recipe: str, *, compiled: bool, batch: int) -> float:
    """transformers' BertForPreTraining on the same batches, bf16, fused AdamW."""
    from transformers import BertConfig, BertForPreTraining

    objective, data, _ = objective_of(recipe, options)
    data = data.to("cuda")
    bert = objective.system
    config = BertConfig(
        vocab_size=objective.vocab_size,
        hidden_size=bert.width,
        num_hidden_layers=bert.layers,
        num_attention_heads=bert.heads,
        intermediate_size=bert.hidden,
        hidden_dropout_prob=bert.dropout,
        attention_probs_dropout_prob=bert.attention_dropout,
    )
    model: Any = BertForPreTraining(config)
    model.cuda().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    called = torch.compile(model) if compiled else model
    inputs = []
    for step in range(4):
        batch_sample = objective.batch(data, CounterRng(seed=0, step=step, first_example=step * batch), range(batch))
        labels = torch.full_like(batch_sample.inputs.ids, -100)
        labels.scatter_(
            1, batch_sample.masked_positions, torch.where(batch_sample.weights > 0, batch_sample.targets, -100)
        )
        mask = (torch.arange(bert.sequence_length, device="cuda") < batch_sample.inputs.lengths[:, None]).long()
        inputs.append((batch_sample.inputs.ids, mask, batch_sample.inputs.segments, labels, batch_sample.not_next))
    times = []
    for number in range(30):
        ids, mask, segments, labels, unrelated = inputs[number % 4]
        torch.cuda.synchronize()
        began = time.monotonic()
        with torch.autocast("cuda", torch.bfloat16):
            loss = called(
                input_ids=ids,
                attention_mask=mask,
                token_type_ids=segments,
                labels=labels,
                next_sentence_label=unrelated,
            ).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        times.append(time.monotonic() - began)
    positions = batch * bert.sequence_length / median(times[10:])
    say(
        f"transformers {'compiled' if compiled else 'eager'} on {recipe}, batch {batch}: "
        f"{positions / 1e3:.0f}k tokens/s"
    )
    return positions


def resume(options: argparse.Namespace) -> None:
    """A run stopped by SIGTERM at a random moment and resumed, against one that was not."""
    code = "import sys, keel.cli; sys.exit(keel.cli.main(sys.argv[1:]))"
    recipe = str(RECIPES / "bert-base-128.toml")

    def command(out: Path) -> list[str]:
        given = ["pretrain", *map(str, options.text), "--recipe", recipe, "--steps", "120", "--out", str(out)]
        flags = [
            "--system.layers",
            "4",
            "--batch",
            "256",
            "--train.log_every",
            "1",
            "--train.checkpoint_every",
            "50",
            "--quiet",
        ]
        return [sys.executable, "-c", code, *given, *flags]

    def losses(out: Path) -> dict[int, float]:
        lines = map(json.loads, (out / "run" / "log.jsonl").read_text().splitlines())
        return {event["step"]: event["loss"] for event in lines if event["event"] == "step"}

    whole, cut = Path(options.work) / "whole", Path(options.work) / "cut"
    for folder in (whole, cut):
        shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(command(whole), check=True)
    running = subprocess.Popen(command(cut))
    log, stop = cut / "run" / "log.jsonl", random.randint(20, 90)
    while not log.exists() or sum('"step"' in line for line in log.read_text().splitlines()) < stop:
        time.sleep(0.05)
    running.send_signal(signal.SIGTERM)
    code_seen = running.wait()
    subprocess.run(command(cut), check=True)
    one, two = losses(whole), losses(cut)
    wrong = [step for step in one if one[step] != two.get(step)]
    same = (whole / "model.safetensors").read_bytes() == (cut / "model.safetensors").read_bytes()
    summary = f"{len(wrong)} of {len(one)} losses differ, weights {'equal' if same else 'DIFFER'}"
    say(f"resume: SIGTERM near step {stop} (exit {code_seen}), {summary}")


def tuning(options: argparse.Namespace, model: Path) -> None:
    """The kernels of fine-tuning steps by time."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as watch

    files = {path.name.split(".")[0]: path for path in (Path(options.glue) / "CoLA").iterdir()}
    base = keel.Model.load(model)
    keel.finetune(base, files["train"], dev=files["dev"], epochs=0.3, batch=32)
    began = time.monotonic()
    tuned = keel.finetune(base, files["train"], dev=files["dev"], epochs=3, batch=32, log_every=50)
    say(f"CoLA, three epochs: {time.monotonic() - began:.2f} s, of them in fit {tuned.card.seconds:.2f} s")
    with watch(activities=[ProfilerActivity.CUDA]) as found:
        began = time.monotonic()
        tuned = keel.finetune(base, files["train"], dev=files["dev"], epochs=0.5, batch=32, log_every=50)
        took = time.monotonic() - began
    steps = tuned.card.steps
    print(f"CoLA, one epoch: {took:.2f} s, {steps} steps, of them in fit {tuned.card.seconds:.2f} s")
    averages = sorted(found.key_averages(), key=lambda each: -each.self_device_time_total)
    total = sum(each.self_device_time_total for each in averages)
    say(f"fine-tuning step: {total / 1e3 / steps:.2f} ms of kernels")
    for each in averages[:40]:
        print(
            f"  {each.self_device_time_total / 1e3 / steps:8.3f} ms {each.count / steps:6.1f}x  {each.key[:100]}",
            flush=True,
        )


def glue(options: argparse.Namespace, model: Path) -> None:
    """GLUE-5, one seed, three epochs each: everything from the files to the dev scores."""
    seconds: dict[str, float] = {}
    scores: dict[str, float] = {}
    base = keel.Model.load(model)
    for name, kind in GLUE.items():
        files = {path.name.split(".")[0]: path for path in (Path(options.glue) / name).iterdir()}
        began = time.monotonic()
        tuned = keel.finetune(
            base, files["train"], task=kind, dev=files["dev"], epochs=3, batch=32, lr=5e-5, log_every=200
        )
        seconds[name] = time.monotonic() - began
        scores[name] = next(iter(tuned.card.scores["dev"]["values"].values()))["value"]
        print(f"  {name}: {seconds[name]:.1f} s, {tuned.card.steps} steps, {scores[name]:.3f}", flush=True)
    summary = ", ".join(f"{name} {value:.1f}" for name, value in seconds.items())
    say(f"GLUE-5, BERT-base shape, 3 epochs, one seed: {sum(seconds.values()):.1f} s ({summary})")


def setting(text: str) -> tuple[str, Any]:
    """A setting given as name=value."""
    name, value = text.split("=", 1)
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, nargs="+", required=True)
    parser.add_argument("--glue", default="")
    parser.add_argument("--tokenizers", default="", help="a folder with tok30522 and tok16384, to save learning them")
    parser.add_argument("--work", default="/tmp/keel-h200")
    parser.add_argument("--batches", type=int, nargs="+", default=[])
    parser.add_argument("--accumulate", type=int, nargs="+", default=[], help="parts that a step is cut into")
    parser.add_argument("--set", type=setting, nargs="+", default=[], help="settings of speed, as lr=0.001")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--parts", nargs="+", default=["speed", "draw", "lost", "peer", "muon", "resume", "glue"])
    parser.add_argument(
        "--recipes", nargs="+", default=["bert-base-128", "bert-base-128-no-dropout", "bert-base-512", "bert-12x384"]
    )
    options = parser.parse_args()
    found: dict[str, float] = {}
    for part in options.parts:
        began = time.monotonic()
        try:
            if part == "speed":
                for recipe in options.recipes:
                    target = settings_of(recipe)
                    shapes = itertools.product(
                        options.batches or [target["batch"]], options.accumulate or [target.get("accumulate", 1)]
                    )
                    for batch, accumulate in shapes:
                        adamw = {"optimizer": "adamw", "lr": 1e-3} if recipe == "bert-12x384" else {}
                        more = {"batch": batch, "accumulate": accumulate, **adamw, **dict(options.set)}
                        found[recipe] = speed(recipe, options, **more)
            elif part == "draw":
                check_batches(options)
            elif part == "lost":
                for recipe in options.recipes[:1]:
                    lost(options, recipe)
            elif part == "peer":
                peer(options, "bert-base-128", compiled=False, batch=256)
                theirs = peer(options, "bert-base-128", compiled=True, batch=256)
                say(f"Keel against transformers compiled: {found['bert-base-128'] / theirs:.2f}x")
            elif part == "muon":
                muon = speed("bert-12x384", options, optimizer="muon")
                say(f"Muon's share of a step: {100 * (1 - muon / found['bert-12x384']):.1f}%")
            elif part == "resume":
                resume(options)
            elif part == "tuning":
                tuning(options, Path(options.work) / "bert-base-128")
            elif part == "glue":
                glue(options, Path(options.work) / "bert-base-128")
        except Exception as error:  # the other parts still tell something
            import traceback

            traceback.print_exc()
            say(f"{part}: FAILED {type(error).__name__}: {str(error)[:300]}")
        torch.cuda.empty_cache()
        print(f"-- {part}: {time.monotonic() - began:.0f} s", flush=True)
    print("\n".join(["", torch.cuda.get_device_name(), *table]))


if __name__ == "__main__":
    main()
