"""GPT-2 small on one H200: the speed of pre-training by recipes/h200/gpt.toml, then a run by the clock and its scores.

    python benchmarks/h200/gpt.py --text en_*.txt.xz                         # speed, with the kernels of a step
    python benchmarks/h200/gpt.py --text clean/en_*.txt.xz --minutes 20 --steps 0 \\
        --wikitext wikitext2/ --lambada lambada/lambada_test.jsonl.xz

Take the test sets' articles out of the text first (benchmarks/without_articles.py). FLOPs a token: 6 N for the matrices
(12 L W^2 in the blocks, W V in the head) and 6 L W T for attention, which as it looks back alone is half of 12 L W T.
WikiText-2 is put back into plain text; its perplexity is per published token (words, punctuation and ends of lines), as
GPT-2's is. Published for GPT-2 small: 29.41 on WikiText-2, 46.0% on LAMBADA (by other text, forty times as much).
"""

import argparse
import math
import re
import shutil
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
from keel.data.text_files import open_text
from keel.data.token_store import Tokens
from keel.systems.gpt import Gpt
from keel.training.distributed import World
from keel.training.plan import Plan
from keel.training.step import Stepper

RECIPE = Path(__file__).parents[2] / "recipes" / "h200" / "gpt.toml"
PEAK = 790e12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, nargs="+", required=True)
    parser.add_argument("--tokenizer", default="", help="a folder whose tokenizer is taken, to save learning one")
    parser.add_argument("--work", type=Path, default=Path("/tmp/keel-gpt"))
    parser.add_argument("--steps", type=int, default=60, help="steps per speed measurement; 0 for none")
    parser.add_argument("--shapes", nargs="+", default=["128x2", "64x1", "128x1"], help="rows in a step x its parts")
    parser.add_argument("--minutes", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--wikitext", type=Path, help="the folder of WikiText-2")
    parser.add_argument("--lambada", type=Path)
    parser.add_argument("--stride", type=int, default=512)
    options = parser.parse_args()
    recipe = tomllib.loads(RECIPE.read_text())
    recipe["system"].pop("name")
    settings: dict[str, Any] = {**recipe["system"], **recipe["train"], **recipe["text"], "seed": options.seed}
    settings.pop("minutes")
    if options.tokenizer:
        settings["tokenizer"] = options.tokenizer
    if options.steps:
        for shape in options.shapes:
            rows, parts = map(int, shape.split("x"))
            speed(options, {**settings, "batch": rows, "accumulate": parts})
        profile(options, settings)
    if options.minutes:
        train(options, settings)


def flops_per_token(system: Gpt, vocabulary: int) -> float:
    matrices = 12 * system.layers * system.width**2 + system.width * vocabulary
    return 6 * matrices + 6 * system.layers * system.width * system.sequence_length


def speed(options: argparse.Namespace, settings: dict[str, Any]) -> None:
    events: list[dict[str, Any]] = []
    out = options.work / "speed"
    shutil.rmtree(out, ignore_errors=True)
    torch.cuda.reset_peak_memory_stats()
    model = keel.pretrain("gpt", options.text, out=out, steps=options.steps, on_event=events.append, **settings)
    steps = [event for event in events if event["event"] == "step"]
    for event in events:
        if event["event"] == "note":
            print("  ", event["text"])
    system = model.system
    assert isinstance(system, Gpt)
    seconds = median(event["seconds_per_step"] for event in steps[len(steps) // 2 :])
    tokens = settings["batch"] * system.sequence_length / seconds
    share = flops_per_token(system, model.encoder.vocab_size) * tokens / PEAK
    memory = torch.cuda.max_memory_allocated() / 2**30
    shape = f"{settings['batch']} rows in {settings['accumulate']} parts"
    costs = f"{1e3 * seconds:.1f} ms a step, {memory:.0f} GiB, loss {steps[-1]['loss']:.3f}"
    print(f"{shape}: {tokens / 1e3:.0f}k tokens/s, {100 * share:.1f}% of 790 TFLOP/s, {costs}", flush=True)


def profile(options: argparse.Namespace, settings: dict[str, Any]) -> None:
    """The kernels of a step by time."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as watch

    fields = {name: value for name, value in settings.items() if name not in ("size", "tokenizer")}
    system, train, text = route_settings(
        {**fields, "steps": 1000}, Gpt.sized(settings["size"]), Gpt.pretraining_defaults, TextSettings()
    )
    model = keel.Model.load(options.work / "speed")
    tokens = Tokens.build(corpus_of(options.text, text.resolve(system), print), model.tokenizer)
    objective = system.build_objective(system.build_encoder(len(model.tokenizer)), model.tokenizer)
    plan = Plan(1000, train, objective.phases())
    with World.join("cuda") as world:
        stepper = Stepper(objective.to("cuda").train(), Documents.of(tokens), train, world, lambda event: None)
        for step in range(5):
            stepper.train_step(plan.step_plan(step))
        with watch(activities=[ProfilerActivity.CUDA]) as found:
            for step in range(5, 8):
                stepper.train_step(plan.step_plan(step))
            torch.cuda.synchronize()
    averages = sorted(found.key_averages(), key=lambda each: -each.self_device_time_total)
    print("kernels, ms a step:")
    for each in averages[:30]:
        print(f"  {each.self_device_time_total / 3e3:8.3f}  {each.count / 3:6.1f}x  {each.key[:110]}", flush=True)


def train(options: argparse.Namespace, settings: dict[str, Any]) -> None:
    """A run by the clock; then what it is worth."""
    out = options.work / "model"
    began = time.monotonic()
    log = partial(print, flush=True)
    keel.pretrain(
        "gpt", options.text, out=out, minutes=options.minutes, log_every=100, on_event=log, overwrite=True, **settings
    )
    print(f"{time.monotonic() - began:.0f} s in all")
    model = keel.Model.load(out, device="cuda")
    print("held out, per token:", model.card.scores)
    if options.wikitext:
        for name in ("valid", "test"):
            raw = "\n".join(line for _, line in open_text(options.wikitext / f"{name}.txt.xz"))
            found = keel.perplexity(model, [plain(raw)], stride=options.stride)
            published = len(raw.split()) + raw.count("\n") + 1
            nats = math.log(found.values["next per token"].value) * found.count
            print(f"WikiText-2 {name}:\n{found}")
            print(f"  by {published:,} published tokens: {math.exp(nats / published):.2f} (GPT-2 small: 29.41, test)")
    if options.lambada:
        print(keel.evaluate(model, options.lambada, by="last-word"), "(GPT-2 small: 46.0)")


def plain(text: str) -> str:
    """WikiText's tokens as plain text, a paragraph a line as in our corpora; what it hides as <unk> stays hidden."""
    for punctuation in "-,.":
        text = text.replace(f" @{punctuation}@ ", punctuation)
    text = re.sub(r" ([,.;:!?%)\]}])", r"\1", text)
    text = re.sub(r"([(\[{$£]) ", r"\1", text)
    text = re.sub(r'" ([^"\n]*?) "', r'"\1"', text)
    text = re.sub(r" ('s|'t|'re|'ve|'ll|'d|'m|n't)\b", r"\1", text)
    text = re.sub(r"[ \t]*\n[ \t\n]*", "\n", text)
    return text.strip()


if __name__ == "__main__":
    main()
