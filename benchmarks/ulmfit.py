"""ULMFiT on SST-2, with and without its first two stages and each of its three tools.

    python benchmarks/ulmfit.py --text en_wikipedia.txt.xz --data glue/SST-2 --out DIR --minutes 20 --seeds 3

Every row is fine-tuned on the same labels with the same epochs, learning rate and batch; `--examples 500` shows what
few labels do. The tokenizer is always that of the first stage, so that rows differ in what they say. A stage that is
done is read and not done again: after --stages-only several processes may fill the table side by side, each by its
--rows (1 to 9) or from its --first-seed. Small on a CPU: --size mini --steps 300 --stage-2-epochs 1 --examples 1000
--epochs 5 --seeds 2
"""

import argparse
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import keel
from keel.data.examples import read_examples

TOOLS: dict[str, dict[str, Any]] = {
    "all three tools": {},
    "without discriminative learning rates": {"layer_decay": 1.0},
    "without slanted triangular schedule": {"schedule": "constant"},
    "without gradual unfreezing": {"unfreeze": "none"},
    "without any of them": {"layer_decay": 1.0, "schedule": "constant", "unfreeze": "none"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True, help="general text, for the first stage")
    parser.add_argument("--data", type=Path, required=True, help="the folder of SST-2")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--size", default="base")
    parser.add_argument("--vocabulary", type=int, default=30_000)
    parser.add_argument("--minutes", type=float, default=0.0, help="minutes of the first stage; or --steps")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--batch", type=int, default=64, help="batch size of the first two stages")
    parser.add_argument("--stage-2-epochs", type=float, default=5)
    parser.add_argument("--epochs", type=float, default=10)
    parser.add_argument("--lr", type=float, default=1e-2, help="learning rate of the third stage")
    parser.add_argument("--examples", type=int, default=0, help="labels to learn from; 0 takes all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--rows", type=int, nargs="+", default=range(1, 10), help="numbers of the rows to fill [all]")
    parser.add_argument("--stages-only", action="store_true", help="end when the three stages are done")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    if not {*options.rows} <= {*range(1, 10)}:
        parser.error("--rows are numbers from 1 to 9")
    common: dict[str, Any] = {"device": options.device, "threads": options.threads}
    reviews = options.data / "train.tsv.xz"
    length = {"steps": options.steps} if options.steps else {"minutes": options.minutes or 20}
    second: dict[str, Any] = {"text_column": "sentence", "epochs": options.stage_2_epochs, "batch": options.batch}
    first, both, own = (options.out / name for name in ("stage-1", "stage-2", "stage-2-alone"))

    def pretrain(system: Any, text: Any, out: Path, **settings: Any) -> keel.Model:
        if (out / "config.json").exists():  # which is written last: nothing is locked, so that many may read it
            model = keel.Model.load(out, device=options.device)
            recipe = {name: value for part in model.card.recipe.values() for name, value in part.items()}
            shape = keel.Ulmfit.sized(options.size)
            for name, value in {**settings, "width": shape.width, "hidden_size": shape.hidden_size}.items():
                if recipe.get(name, value) != value:
                    raise SystemExit(f"{out} was made with {name} {recipe[name]}, not {value}: choose another --out")
            print(f"{out.name}: done already")
            return model
        start = time.monotonic()
        model = keel.pretrain(system, text, out=out, **settings, **common)
        loss = model.card.scores.get("next", float("nan"))
        print(f"{out.name}: {model.card.steps:,} steps, {(time.monotonic() - start) / 60:.1f} minutes, loss {loss:.3f}")
        return model

    general = pretrain(
        "ulmfit", options.text, first, size=options.size, vocabulary=options.vocabulary, batch=options.batch, **length
    )
    tuned = pretrain(first, reviews, both, **second)
    alone = pretrain("ulmfit", reviews, own, size=options.size, tokenizer=str(first), **second)
    if options.stages_only:
        return

    examples = read_examples(reviews, pair=False)
    examples = examples[: options.examples or len(examples)]
    dev = read_examples(options.data / "dev.tsv", pair=False)
    rows: list[tuple[str, str, keel.Model, dict[str, Any]]] = [
        *(("1 and 2", tools, tuned, settings) for tools, settings in TOOLS.items()),
        ("1 alone", "all three tools", general, {}),
        ("2 alone", "all three tools", alone, {}),
        ("neither", "all three tools", general, {"from_scratch": True}),
        ("neither", "without any of them", general, {"from_scratch": True, **TOOLS["without any of them"]}),
    ]
    print(f"\n{len(examples):,} labels, {options.epochs:g} epochs, lr {options.lr:g}, {options.seeds} seeds\n")
    print("| stages | tools | dev accuracy | of seeds | minutes |\n|---|---|---|---|---|")
    for stages, tools, base, settings in (rows[number - 1] for number in options.rows):
        start = time.monotonic()
        found: list[float] = []
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            model = keel.finetune(
                base, examples, dev=dev, epochs=options.epochs, lr=options.lr, seed=seed, **settings, **common
            )
            found.append(model.card.scores["dev"]["values"]["accuracy"]["value"])
        spread = f" ± {stdev(found):.3f}" if len(found) > 1 else ""
        listed = ", ".join(f"{value:.3f}" for value in found)
        minutes = (time.monotonic() - start) / 60
        print(f"| {stages} | {tools} | {mean(found):.3f}{spread} | {listed} | {minutes:.1f} |", flush=True)


if __name__ == "__main__":
    main()
