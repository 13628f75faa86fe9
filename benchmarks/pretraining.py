"""CPU pre-training steps of Keel against transformers.BertForPreTraining under its Trainer, on the same real sequences.

Runs alternate, each in a process of its own; tokens/s is from the median step, memory is the process's peak.

    python benchmarks/pretraining.py ../shared/data/corpora/en_wikinews.txt.xz --size mini --runs 3
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

WARM = 3


def prepare(options: argparse.Namespace) -> tuple[Any, Any, Any]:
    """The same system, tokenizer and documents for both sides."""
    from keel import Bert, Corpus, Tokenizer, Tokens
    from keel.data.documents import Documents

    vocabulary = Path(options.vocabulary)
    tokenizer = Tokenizer.from_vocabulary(vocabulary, lowercase=True)
    tokens = Tokens.build(Corpus(options.corpus), tokenizer)
    return Bert.sized(options.size), tokenizer, Documents.of(tokens)


def keel_steps(options: argparse.Namespace) -> list[float]:
    import torch

    from keel.training.loop import fit
    from keel.training.plan import Train

    system, tokenizer, documents = prepare(options)
    torch.manual_seed(0)
    objective = system.build_objective(system.build_encoder(len(tokenizer)), tokenizer)
    train = Train(
        steps=options.steps,
        batch=options.batch,
        threads=options.threads,
        precision=options.precision,
        compile=options.compile,
        device="cpu",
        log_every=1,
        checkpoint_every=0,
        evaluate_every=0,
    )
    seconds: list[float] = []

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "step":
            seconds.append(event["seconds_per_step"])

    fit(objective, documents, train, None, listen)
    return seconds


def peer_steps(options: argparse.Namespace) -> list[float]:
    import torch
    from transformers import BertConfig, BertForPreTraining, Trainer, TrainerCallback, TrainingArguments

    from keel.training.counter_rng import CounterRng

    torch.set_num_threads(options.threads)
    system, tokenizer, documents = prepare(options)
    objective = system.build_objective(system.build_encoder(len(tokenizer)), tokenizer)
    examples: list[dict[str, Any]] = []
    for step in range(options.steps):
        batch = objective.batch(
            documents, CounterRng(seed=0, step=step, first_example=step * options.batch), range(options.batch)
        )
        labels = torch.full_like(batch.inputs.ids, -100)
        labels.scatter_(1, batch.masked_positions, torch.where(batch.weights > 0, batch.targets, -100))
        attention_mask = torch.arange(system.sequence_length) < batch.inputs.lengths[:, None]
        for index in range(options.batch):
            examples.append(
                {
                    "input_ids": batch.inputs.ids[index],
                    "token_type_ids": batch.inputs.segments[index],
                    "attention_mask": attention_mask[index].long(),
                    "labels": labels[index],
                    "next_sentence_label": batch.not_next[index],
                }
            )
    del objective
    model = BertForPreTraining(
        BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=system.width,
            num_hidden_layers=system.layers,
            num_attention_heads=system.heads,
            intermediate_size=system.mlp_size,
        )
    )
    seconds: list[float] = []

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.start = time.monotonic()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds.append(time.monotonic() - self.start)

    arguments = TrainingArguments(
        output_dir="/tmp/peer",
        max_steps=options.steps,
        per_device_train_batch_size=options.batch,
        learning_rate=1e-4,
        use_cpu=True,
        bf16=options.precision == "bf16",
        torch_compile=options.compile,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    Trainer(model=model, args=arguments, train_dataset=examples, callbacks=[Clock()]).train()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus")
    data = os.environ.get("KEEL_DATA", "../shared/data")
    parser.add_argument("--vocabulary", default=f"{data}/vocab/bert-base-uncased.vocab.txt")
    parser.add_argument("--size", default="mini")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--side", choices=["keel", "peer"], help="run one side, in this process")
    options = parser.parse_args()
    if options.side:
        seconds = keel_steps(options) if options.side == "keel" else peer_steps(options)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"seconds": median(seconds[WARM:]), "megabytes": peak}))
        return
    found: dict[str, list[dict[str, float]]] = {"keel": [], "peer": []}
    for _ in range(options.runs):
        for side, results in found.items():
            command = [sys.executable, __file__, *sys.argv[1:], "--side", side]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            results.append(json.loads(output.splitlines()[-1]))
            tokens = options.batch * 128 / results[-1]["seconds"]
            print(f"{side}: {tokens:.0f} tokens/s, {results[-1]['megabytes']:.0f} MB", flush=True)
    seconds = {side: median(run["seconds"] for run in runs) for side, runs in found.items()}
    memory = {side: median(run["megabytes"] for run in runs) for side, runs in found.items()}
    print(
        f"BERT-{options.size} {options.precision}{' compiled' if options.compile else ''}: "
        f"{seconds['peer'] / seconds['keel']:.2f}x the tokens/s, {memory['keel'] / memory['peer']:.2f}x the memory"
    )


if __name__ == "__main__":
    main()
