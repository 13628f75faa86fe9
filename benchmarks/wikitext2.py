"""The AWD-LSTM on WikiText-2: learned by the recipe, judged on the test file word by word, its state carried.

    python benchmarks/wikitext2.py DATA --out DIR [--epochs 90] [--device cuda] [--lines 0] [--system.hidden 1152 ...]

DATA holds train.txt and test.txt (or .xz). Words are what stands between blanks, <unk> among them; each line ends with
a mark, an empty one is a mark by itself: so the test file has 245,569 predictions, as in the papers. Other flags are
those of `keel pretrain`.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import torch

import keel
from keel.cli.flags import Flags, Recipe
from keel.errors import KeelError
from keel.run import Text
from keel.systems.documents import Documents
from keel.systems.ulmfit import Ulmfit
from keel.text.corpus import Corpus
from keel.text.files import open_text
from keel.text.tokenizer import Tokenizer
from keel.text.tokens import Tokens
from keel.train.draw import Draw

RECIPE = Path(__file__).parent.parent / "recipes" / "h200" / "ulmfit-wikitext2.toml"


def find(folder: Path, name: str) -> Path:
    found = sorted(folder.glob(f"{name}.txt*"))
    if not found:
        raise KeelError(f"{folder} has no {name}.txt: name the folder of WikiText-2")
    return found[0]


def cut(source: Path, target: Path, lines: int) -> None:
    """The first so many lines as they are; without a number, all."""
    with open(target, "w", encoding="utf-8") as file:
        for number, (_, line) in enumerate(open_text(source)):
            if lines and number >= lines:
                break
            file.write(line.rstrip("\n") + "\n")


@torch.no_grad()
def judge(model: keel.Model, path: Path, readers: int = 1) -> tuple[float, int]:
    """The mean -log p of every word and mark of a text, and how many they are; by one reader it is exact."""
    objective: Any = model.objective
    objective.eval()
    data = Documents.of(Tokens.build(Corpus(path), model.tokenizer, sentences="lines"))
    size, length = data.marked_size, objective.system.length
    total, seen, state = 0.0, 0, objective.start(readers)
    data = data.to(model.device)
    rows = torch.arange(readers, device=model.device)
    while seen < size // readers:
        draw = Draw(seed=0, step=0, first=seen // length * readers, rows=readers)
        batch = objective.batch(data, draw, range(len(rows)))
        left = min(length, size // readers - seen)
        batch = type(batch)(forwards=batch.forwards[:, : left + 1])
        losses, state = objective(batch, state)
        total += float(losses["next"])
        seen += left
    return total / (seen * readers), seen * readers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lines", type=int, default=0, help="of each file, for a try")
    options, rest = parser.parse_known_args()
    flags = Flags("pretrain")
    flags.section("train", Ulmfit.train)
    flags.section("text", Text())
    flags.section("system", Ulmfit())
    settings = flags.read(Recipe.read(str(RECIPE)).flags).settings
    given = flags.read(rest).settings
    if given.keys() & {"steps", "epochs", "minutes"}:
        settings.pop("epochs")
    settings |= given
    work = options.out / "text"
    work.mkdir(parents=True, exist_ok=True)
    for name in ("train", "test"):
        cut(find(options.data, name), work / f"{name}.txt", options.lines)
    words = dict.fromkeys(word for _, line in open_text(work / "train.txt") for word in line.split())
    Tokenizer.at_blanks(words).save(work / "words")
    print(f"{len(words):,} words; {settings}")

    def say(event: dict[str, Any]) -> None:
        if (event["event"] == "step" and event["step"] % 500 == 0) or event["event"] == "note":
            line = {name: event[name] for name in ("text", "step", "losses", "lr", "seconds_per_step") if name in event}
            print(line, flush=True)

    start = time.monotonic()
    model = keel.pretrain(
        "ulmfit", work / "train.txt", out=options.out / "model", tokenizer=str(work / "words"), sentences="lines",
        on_event=say, **settings,
    )  # fmt: skip
    learned = time.monotonic()
    found, count = judge(model, work / "test.txt")
    judged = time.monotonic()
    print(f"{model.card.steps:,} steps, {(learned - start) / 60:.1f} minutes on {model.card.hardware}")
    print(f"test perplexity {2.718281828459045**found:.2f} over {count:,} words and marks ({judged - learned:.0f} s)")


if __name__ == "__main__":
    main()
