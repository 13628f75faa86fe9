"""What GPTs of four sizes can do zero-shot, all trained on the same text for the same steps or minutes: the curve that
GPT-2's paper draws of CoQA against size, here of SQuAD, with LAMBADA, choices by likelihood and translation by pattern.

    python benchmarks/zero_shot.py DATA --text TEXT... --out DIR --minutes 5 --device cuda
    python benchmarks/zero_shot.py DATA --text slice.txt --out DIR --steps 300 --shapes 1x64,2x64 --count 20

DATA holds tasks/ (squad, lambada, swag_slice, csqa, tatoeba). A shape is layers x width. All read sequences of --length
tokens, one BPE of --vocabulary tokens. Answers are greedy after "passage, Q: ..., A:" up to the end of the line; the
F1 is SQuAD's, a passage that is too long loses its beginning. An n-gram model of the same text is evaluated alike.
chrF needs sacrebleu. Articles of SQuAD stand in en_wikipedia: leave that file out, or say that it was read.
Writes zero_shot.md, zero_shot.json and zero_shot.svg into DIR, and the models, which are not made twice.
"""

import argparse
import json
import time
from collections.abc import Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import keel
from keel.data.text_files import open_bytes, open_text
from keel.metrics.squad_scores import AnswerScorer
from keel.report.charts import lines
from keel.report.html_page import write_picture
from keel.systems.gpt import Gpt
from keel.systems.ngram import Ngram

ENGLISH = AnswerScorer("english")
SHAPES = "2x128,4x256,8x512,12x768"
COLUMNS = {
    "bits per byte": "bits per byte",
    "lambada": "LAMBADA",
    "lambada perplexity": "its perplexity",
    "squad f1": "SQuAD F1",
    "squad exact": "exact",
    "swag": "SWAG",
    "csqa": "CommonsenseQA",
    "french exact": "en = fr exact",
    "french chrf": "chrF",
}


def squad(data: Path, count: int) -> list[tuple[str, str, list[str]]]:
    """Passage, question and right answers, one question of each passage, until there are enough."""
    with open_bytes(next((data / "tasks" / "squad").glob("dev-v1.1*"))) as file:
        articles = json.load(file)["data"]
    found = [
        (paragraph["context"], question["question"], [answer["text"] for answer in question["answers"]])
        for article in articles
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"][:1]
    ]
    return found[:: max(1, len(found) // count)][:count]


def french(data: Path, count: int) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Eight pairs for the pattern, and some to be translated, of four to eight words."""
    path = next((data / "tasks" / "tatoeba").glob("fra*"))
    pairs = [(cells[0], cells[1]) for _, line in open_text(path) if len(cells := line.split("\t")) > 1]
    fitting = [pair for pair in pairs if 4 <= len(pair[0].split()) <= 8]
    spread = fitting[:: max(1, len(fitting) // (count + 8))]
    return spread[:8], spread[8 : 8 + count]


def head(path: Path, out: Path, count: int) -> Path:
    """A file of the first lines of another."""
    part = out / f"{path.parent.name}-{count}.jsonl"
    part.write_text("\n".join(line for _, line in islice(open_text(path), count)) + "\n", encoding="utf-8")
    return part


def chrf(output: Sequence[str], right: Sequence[str]) -> float:
    try:
        return import_module("sacrebleu").corpus_chrf(list(output), [list(right)]).score
    except ImportError:
        return float("nan")


def judge(model: keel.Model, data: Path, out: Path, count: int, held: Path) -> dict[str, float]:
    perplexity = keel.perplexity(model, held)
    found = {"bits per byte": perplexity.values[f"{perplexity.losses[0]} bits per byte"].value}
    tasks = data / "tasks"
    last = keel.evaluate(model, head(tasks / "lambada" / "lambada_test.jsonl.xz", out, 10 * count), by="last-word")
    found |= {"lambada": last.values["accuracy"].value, "lambada perplexity": last.values["perplexity"].value}
    questions = squad(data, count)
    output = [keel.ask(passage, question, model=model, tokens=20, cut=True).text for passage, question, _ in questions]
    answers = [right for *_, right in questions]
    found["squad f1"] = 100 * fmean(map(ENGLISH.f1, output, answers))
    found["squad exact"] = 100 * fmean(map(ENGLISH.exact_match, output, answers))
    for name, file in (("swag", "swag_slice/all.jsonl.xz"), ("csqa", "csqa/dev.jsonl.xz")):
        found[name] = keel.evaluate(model, head(tasks / file, out, 5 * count), by="choices").main_value
    examples, pairs = french(data, count)
    wrote = [keel.translate(text, by_pattern=examples, model=model, tokens=30, cut=True).text for text, _ in pairs]
    found["french exact"] = 100 * fmean(
        ENGLISH.exact_match(one, [right]) for one, (_, right) in zip(wrote, pairs, strict=True)
    )
    found["french chrf"] = chrf(wrote, [right for _, right in pairs])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="to learn from")
    parser.add_argument("--held-out", type=Path, help="to measure bits per byte on [WikiText-2's test file]")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shapes", default=SHAPES, help=f"layers x width [{SHAPES}]")
    parser.add_argument("--minutes", type=float, default=0.0, help="training minutes for each size")
    parser.add_argument("--steps", type=int, default=0, help="training steps for each size, instead")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=16_000)
    parser.add_argument("--count", type=int, default=500, help="questions of SQuAD; ten times as many last words [500]")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    held = options.held_out or next((options.data / "tasks" / "wikitext2").glob("*test*"))
    budget: dict[str, Any] = {"steps": options.steps} if options.steps else {"minutes": options.minutes or 5.0}
    rows: dict[str, dict[str, float]] = {}
    hardware = ""
    shapes = [tuple(map(int, shape.split("x"))) for shape in options.shapes.split(",")]
    systems: dict[str, Any] = {"ngram": Ngram()} | {
        f"{layers} x {width}": Gpt(
            layers=layers, width=width, head_dim=min(64, width), max_positions=options.length,
            sequence_length=options.length, dropout=0.0, attention_dropout=0.0,
        )
        for layers, width in shapes
    }  # fmt: skip
    for name, system in systems.items():
        folder, start = options.out / name.replace(" ", ""), time.monotonic()
        settings: dict[str, Any] = {"vocabulary": options.vocabulary, "device": "cpu"}
        if isinstance(system, Gpt):
            settings["device"] = options.device
            settings |= {"batch": options.batch, "lr": options.lr, "warmup": 0.05, "evaluate_every": 0, **budget}
        if not (folder / "config.json").is_file():
            keel.pretrain(system, options.text, out=folder, **settings)
        model = keel.Model.load(folder, device=settings["device"])
        learned, weights = time.monotonic(), sum(weight.numel() for weight in model.encoder.parameters())
        rows[name] = {"weights": weights, "steps": model.card.steps, "seconds": model.card.seconds}
        hardware = model.card.hardware
        rows[name] |= judge(model, options.data, options.out, options.count, held)
        print(
            f"{name}: {learned - start:.0f} s to learn, {time.monotonic() - learned:.0f} s to ask",
            rows[name],
            flush=True,
        )
    table = [f"| shape | weights | steps | {' | '.join(COLUMNS.values())} |", "|---" * (3 + len(COLUMNS)) + "|"]
    for name, row in rows.items():
        cells = [f"{row[column]:.3f}" if row[column] < 10 else f"{row[column]:.4g}" for column in COLUMNS]
        table.append(f"| {name} | {row['weights']:,.0f} | {row['steps']:,.0f} | {' | '.join(cells)} |")
    output = f"{options.text}; {budget}, batch {options.batch} x {options.length}, lr {options.lr:g}"
    output += f", {options.count} questions"
    text = "\n".join([*table, "", f"{output}; bits per byte on {held.name}; {hardware}"])
    print(text)
    (options.out / "zero_shot.md").write_text(text + "\n", encoding="utf-8")
    (options.out / "zero_shot.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    sized = [row for name, row in rows.items() if name != "ngram"]
    curves = {
        "SQuAD F1": [(row["weights"] / 1e6, row["squad f1"]) for row in sized],
        "LAMBADA": [(row["weights"] / 1e6, 100 * row["lambada"]) for row in sized],
    }
    write_picture(options.out / "zero_shot.svg", lines(curves, across="millions of weights", upward="right, in 100"))


if __name__ == "__main__":
    main()
