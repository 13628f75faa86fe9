"""Multi30k, English to German: trained by the recipe, test_2016_flickr written by a beam of 5, scored by sacrebleu.

    python benchmarks/multi30k.py --data multi30k/ --system transformer --out DIR
    python benchmarks/multi30k.py --data multi30k/ --out DIR --score          # where sacrebleu is, if it was not there

Times are wall-clock: of `keel.finetune` as a whole, tokenizer and all, of its steps, and of writing the 1,000 sentences
(the second time, the first one warms up). What was written lies in DIR/SYSTEM.de; DIR/SYSTEM.val.de has that of val, by
which settings are chosen. On a CPU few epochs show whether BLEU climbs: --epochs 3 --pairs 10000 --set batch=64
"""

import argparse
import importlib.util
import time
import tomllib
from pathlib import Path
from typing import Any

import torch

import keel
from keel.config import parse_value
from keel.data.text_files import open_text
from keel.events import Event

RECIPES = Path(__file__).parent.parent / "recipes"
TEST = "test_2016_flickr"
LENGTHS = {"epochs", "steps", "minutes"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of train, val and test_2016_flickr")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--system", choices=("transformer", "seq2seq"), default="transformer")
    parser.add_argument("--pairs", type=int, default=0, help="to learn from; 0 takes all")
    parser.add_argument("--epochs", type=float, default=0.0, help="instead of the recipe's")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the recipe")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--length-penalty", type=float, default=0.6)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--score", action="store_true", help="only score what was written before")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.threads:
        torch.set_num_threads(options.threads)
    files = {"val": options.out / f"{options.system}.val.de", TEST: options.out / f"{options.system}.de"}
    if not options.score:
        model = train(options)
        for part, path in files.items():
            write(model, lines(options.data, f"{part}.en"), path, options)
    if importlib.util.find_spec("sacrebleu") is None:
        print(f"sacrebleu is not installed here: score {files[TEST]} where it is, by --score")
        return
    for part, path in files.items():
        print(f"{part}:")
        score(path.read_text(encoding="utf-8").splitlines(), lines(options.data, f"{part}.de"))


def write(model: keel.Model, sources: list[str], path: Path, options: argparse.Namespace) -> None:
    """What the model makes of some texts, twice, the second time by the clock."""
    search = {"beams": options.beam, "length_penalty": options.length_penalty}
    keel.translate(sources, model=model, **search)
    start = time.monotonic()
    texts = keel.translate(sources, model=model, **search)
    seconds = time.monotonic() - start
    print(f"{len(sources):,} sentences by a beam of {options.beam} in {seconds:.2f} s")
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


def train(options: argparse.Namespace) -> keel.Model:
    recipe = tomllib.loads((RECIPES / f"multi30k-{options.system}.toml").read_text(encoding="utf-8"))
    recipe["system"].pop("name")
    settings: dict[str, Any] = recipe["system"] | recipe["text"] | recipe["train"]
    for item in options.set:
        name, _, value = item.partition("=")
        settings[name] = parse_value(type(settings.get(name, 0.0)), value, name)
    if options.epochs:
        settings = {name: value for name, value in settings.items() if name not in LENGTHS}
        settings["epochs"] = options.epochs
    count = options.pairs or None
    pairs = tuple(lines(options.data, f"train.{side}")[:count] for side in ("en", "de"))
    last: dict[str, Any] = {}

    def listen(event: Event) -> None:
        if event["event"] == "step":
            last.update(event)
            if event["step"] % 100 == 0:
                print(f"step {event['step']:,} loss {event['loss']:.3f} {event['tokens_per_second']:,.0f} tokens/s")
        elif "text" in event:
            print(event["text"])

    start = time.monotonic()
    model = keel.finetune(
        options.system,
        pairs,
        task="seq2seq",
        dev=None,
        device=options.device,
        threads=options.threads,
        on_event=listen,
        **settings,
    )
    seconds = time.monotonic() - start
    task = model.task
    assert task is not None
    count = sum(weight.numel() for weight in task.parameters())
    print(f"{options.system}: {count:,} numbers, {len(pairs[0]):,} pairs, {settings}")
    print(
        f"trained in {seconds:.1f} s, {model.card.steps:,} steps in {model.card.seconds:.1f} s on {model.card.hardware}"
    )
    model.save(options.out / options.system, overwrite=True)
    return model


def lines(folder: Path, name: str) -> list[str]:
    return open_text(folder / f"{name}.gz").lines()


def score(hypotheses: list[str], references: list[str]) -> None:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    for metric in (BLEU(), BLEU(lowercase=True), CHRF()):
        print(metric.corpus_score(hypotheses, [references]), metric.get_signature())


if __name__ == "__main__":
    main()
