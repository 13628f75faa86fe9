"""Fine-tuning on SST-2 at real lengths: Keel against Hugging Face's Trainer, with and without its length grouping.

Same model folder, examples, batch size, learning rate, epochs and dtype; runs alternate, each in a process of its own.

    python benchmarks/finetuning.py MODEL --examples 8000 --seeds 3
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean, median
from typing import Any

SIDES = ("keel", "plain", "grouped")


def read(options: argparse.Namespace) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    from keel.data.examples import read_examples

    folder = Path(options.data)
    train = read_examples(folder / "train.tsv.xz", pair=False)[: options.examples]
    dev = read_examples(folder / "dev.tsv", pair=False)
    return [(e.text, str(e.label)) for e in train], [(e.text, str(e.label)) for e in dev]


def keel_run(options: argparse.Namespace) -> dict[str, float]:
    import keel

    train, dev = read(options)
    clock: dict[str, float] = {}

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "step":  # the last one is when training ends and dev begins
            clock["stop"] = time.monotonic()

    base = keel.Model.load(options.model)
    start = time.monotonic()  # tokenizing included
    model = keel.finetune(
        base,
        train,
        dev=dev,
        epochs=options.epochs,
        lr=options.lr,
        batch=32,
        seed=options.seed,
        threads=options.threads,
        precision=options.precision,
        on_event=listen,
    )
    return {"seconds": clock["stop"] - start, "accuracy": model.card.scores["dev"]["values"]["accuracy"]["value"]}


def peer_run(options: argparse.Namespace) -> dict[str, float]:
    import numpy as np
    import torch
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        DataCollatorWithPadding,
        Trainer,
        TrainingArguments,
    )

    torch.set_num_threads(options.threads)
    train, dev = read(options)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForSequenceClassification.from_pretrained(options.model, num_labels=2)
    start = time.monotonic()

    def encode(pairs: list[tuple[str, str]]) -> list[dict[str, Any]]:
        found = tokenizer([text for text, _ in pairs], truncation=True)
        return [
            {**{name: values[i] for name, values in found.items()}, "labels": int(label)}
            for i, (_, label) in enumerate(pairs)
        ]

    arguments = TrainingArguments(
        output_dir="/tmp/peer",
        num_train_epochs=options.epochs,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=64,
        learning_rate=options.lr,
        warmup_steps=0.1,
        weight_decay=0.01,
        seed=options.seed,
        use_cpu=True,
        bf16=options.precision == "bf16",
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        train_sampling_strategy="group_by_length" if options.side == "grouped" else "random",
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=encode(train),
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=lambda found: {"accuracy": float(np.mean(np.argmax(found.predictions, -1) == found.label_ids))},
    )
    trainer.train()
    seconds = time.monotonic() - start
    validation: Any = encode(dev)
    return {"seconds": seconds, "accuracy": trainer.evaluate(validation)["eval_accuracy"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--data", default=os.environ.get("KEEL_DATA", "../shared/data") + "/tasks/glue/SST-2")
    parser.add_argument("--examples", type=int, default=8000)
    parser.add_argument("--epochs", type=float, default=2)
    parser.add_argument("--lr", type=float, default=1.5e-4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--side", choices=SIDES, help="run one side, in this process")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(keel_run(options) if options.side == "keel" else peer_run(options)))
        return
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for seed in range(options.seeds):
        for side, results in found.items():
            command = [sys.executable, __file__, *sys.argv[1:], "--side", side, "--seed", str(seed)]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            results.append(json.loads(output.splitlines()[-1]))
            speed = options.examples * options.epochs / results[-1]["seconds"]
            print(f"{side} seed {seed}: {speed:.0f} examples/s, dev accuracy {results[-1]['accuracy']:.4f}", flush=True)
    seconds = {side: median(run["seconds"] for run in runs) for side, runs in found.items()}
    accuracy = {side: mean(run["accuracy"] for run in runs) for side, runs in found.items()}
    plain, grouped = seconds["plain"] / seconds["keel"], seconds["grouped"] / seconds["keel"]
    print(f"against Trainer: {plain:.2f}x the examples/s, {grouped:.2f}x with its length grouping")
    print("mean dev accuracy: " + ", ".join(f"{side} {value:.4f}" for side, value in accuracy.items()))


if __name__ == "__main__":
    main()
