"""Recommended model size for a training time on this device, from a short measurement."""

import math
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from keel.data.corpus import Corpus
from keel.data.documents import Documents
from keel.data.token_store import Tokens
from keel.data.tokenizer import Tokenizer
from keel.events import Event, OnEvent, note
from keel.nn.meta_device import meta_device
from keel.systems.bert import Bert
from keel.training.distributed import pick_device
from keel.training.loop import fit
from keel.training.objective import Objective
from keel.training.plan import Train

PER_PARAMETER = 5
"""Rule of thumb for short runs: training tokens per parameter of the blocks."""
SECONDS = 15.0
"""Time budget of all measurements; larger sizes are reported as not measured."""
GROWTH = 4.0
"""Upper bound of the time ratio between consecutive sizes."""
MEASURED = 3
"""Training steps per measurement, the first of them warm-up."""
STEPS = 3000
"""Minimum number of updates; the batch is made smaller to reach it."""


def recommend(
    sample: list[str], tokens: int, minutes: float, device: str, tokenizer: Tokenizer | None, on_event: OnEvent
) -> dict[str, Any]:
    """Recommended size, length and batch for a text of `tokens` tokens, and a forecast."""
    tokenizer = tokenizer or Tokenizer.train(Corpus.of(sample), size=8000, sample=2_000_000)
    with tempfile.TemporaryDirectory() as folder:
        built = Tokens.build(Corpus.of(sample), tokenizer, Path(folder) / "tokens", workers=1)
        documents = Documents.of(built).to(pick_device(device))
        length = 64 if np.quantile(np.diff(built.starts[built.documents]), 0.95) < 64 else 128
        speeds: dict[str, float] = {}
        not_measured: dict[str, str] = {}
        chosen = next(iter(Bert.sizes))
        batch_size = 256 if pick_device(device).type == "cuda" else 8
        began = time.monotonic()
        for size in Bert.sizes:
            system = Bert.sized(
                size, sequence_length=length, pair_objective="nsp" if len(documents.spans) > 1 else "none"
            )
            needed = PER_PARAMETER * _block_parameters(system)
            if speeds and speeds[chosen] * 60 * minutes < needed:  # larger sizes are slower
                break
            seconds = GROWTH * MEASURED * batch_size * length / speeds[chosen] if speeds else 0.0
            if time.monotonic() - began + seconds > SECONDS:
                not_measured["not measured"] = f"{size} and larger: too slow on this device"
                break
            objective = system.build_objective(system.build_encoder(len(tokenizer)), tokenizer)
            speeds[size] = _speed(objective, documents, batch_size, device)
            note(on_event, f"{size}: {speeds[size]:,.0f} tokens/s measured on {pick_device(device)}")
            if speeds[size] * 60 * minutes < needed:
                break
            chosen = size
    seen = speeds[chosen] * 60 * minutes
    batch = min(256, max(16, 2 ** int(math.log2(max(1, seen / length / STEPS)))))
    return {
        "measured tokens/s": {size: round(speed) for size, speed in speeds.items()},
        **not_measured,
        "recommended": f"--size {chosen} --system.sequence_length {length} --batch {batch} --minutes {minutes:g}",
        "forecast": f"{seen:,.0f} tokens in {round(seen / length / batch):,} steps, {seen / tokens:.2g} times the text",
    }


def _block_parameters(system: Bert) -> int:
    with meta_device():  # counted without allocating
        blocks = system.build_encoder(1).blocks()
    return sum(weight.numel() for block in blocks for weight in block.parameters())


def _speed(objective: Objective, documents: Documents, batch_size: int, device: str) -> float:
    """Tokens per second over some training steps, without the first."""
    speeds: list[float] = []

    def listen(event: Event) -> None:
        if event["event"] == "step":
            speeds.append(event["tokens_per_second"])

    fit(objective, documents, Train(steps=MEASURED, batch=batch_size, log_every=1, device=device), on_event=listen)
    return float(np.median(speeds[1:]))
