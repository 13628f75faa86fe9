"""The AWD-LSTM on WikiText-2: learned by the recipe, judged on the test file word by word, its state carried.

    python benchmarks/wikitext2.py DATA --out DIR [--epochs 90] [--device cuda] [--lines 0] [--system.hidden_size 1152]

DATA holds train.txt and test.txt (or .xz). Words are separated by whitespace, <unk> among them; each line ends with
an end token, also an empty one. Papers also predict the 147 end tokens of empty lines after empty ones,
which are easy: their 245,569 predictions are 245,422 here, and a perplexity of 70 here is one of 69.8 or a little more
there.
Other flags are those of `keel pretrain`.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import keel
from keel.api.settings import TextSettings
from keel.cli.flags import Flags, Recipe
from keel.data.text_files import open_text
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError
from keel.systems.ulmfit import Ulmfit

RECIPE = Path(__file__).parent.parent / "recipes" / "h200" / "ulmfit-wikitext2.toml"


def find(folder: Path, name: str) -> Path:
    found = sorted(folder.glob(f"{name}.txt*"))
    if not found:
        raise KeelError(f"{folder} has no {name}.txt: name the folder of WikiText-2")
    return found[0]


def copy_lines(source: Path, target: Path, lines: int) -> None:
    """Copy the first lines; 0: all."""
    with open(target, "w", encoding="utf-8") as file:
        for number, (_, line) in enumerate(open_text(source)):
            if lines and number >= lines:
                break
            file.write(line.rstrip("\n") + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lines", type=int, default=0, help="lines of each file, for a trial")
    options, rest = parser.parse_known_args()
    flags = Flags("pretrain")
    flags.section("train", Ulmfit.pretraining_defaults)
    flags.section("text", TextSettings())
    flags.section("system", Ulmfit())
    settings = flags.read(Recipe.read(str(RECIPE)).flags).settings
    given = flags.read(rest).settings
    if given.keys() & {"steps", "epochs", "minutes"}:
        settings.pop("epochs")
    settings |= given
    work = options.out / "text"
    work.mkdir(parents=True, exist_ok=True)
    for name in ("train", "test"):
        copy_lines(find(options.data, name), work / f"{name}.txt", options.lines)
    words = dict.fromkeys(word for _, line in open_text(work / "train.txt") for word in line.split())
    Tokenizer.from_whitespace_words(words).save(work / "words")
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
    print(f"{model.card.steps:,} steps, {(learned - start) / 60:.1f} minutes on {model.card.hardware}")
    found = keel.perplexity(model, work / "test.txt", sentences="lines")
    print(f"{found}\n({time.monotonic() - learned:.0f} s; the papers' figure is that by token)")


if __name__ == "__main__":
    main()
