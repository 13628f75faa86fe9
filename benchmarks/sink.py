"""Where heads look when there is nothing to look at: GPTs with and without a vector before the first token (claim 86).

    python benchmarks/sink.py --text en_books.txt.xz --held-out wikitext2/test.txt.xz --out DIR --steps 3000
    python benchmarks/sink.py --text slice.txt --held-out other.txt --out DIR --shape 2x64 --steps 30 --seeds 1

Both learn the same text in the same order, seed by seed. Attention is the mean over heads and layers from the sixteenth
token of a held-out text on; "evenly" is what each would get if all got as much. Bits per byte are of all held-out
text. Settings are those of recipes/h200/gpt.toml but for shape, batch and steps.
"""

import argparse
import tomllib
from itertools import islice
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

import keel
from keel.claims.measures import recorded_attention
from keel.data.text_files import open_text
from keel.systems.gpt import Gpt

RECIPE = Path(__file__).parent.parent / "recipes" / "h200" / "gpt.toml"
TAKEN = ("optimizer", "lr", "schedule", "warmup", "cooldown", "weight_decay", "beta2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="to learn from")
    parser.add_argument("--held-out", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shape", default="8x512", help="layers x width [8x512]")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=16_000)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--texts", type=int, default=200, help="held-out lines whose attention is looked at [200]")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    layers, width = map(int, options.shape.split("x"))
    recipe = tomllib.loads(RECIPE.read_text(encoding="utf-8"))["train"]
    settings: dict[str, Any] = {name: recipe[name] for name in TAKEN} | {
        "vocabulary": options.vocabulary,
        "steps": options.steps,
        "batch": options.batch,
        "device": options.device,
    }
    long = (line for _, line in open_text(options.held_out) if len(line.split()) >= 40)
    texts = list(islice(long, options.texts))
    print("| | bits per byte | of seeds | on the first token | evenly | on the vector before |\n" + "|---" * 6 + "|")
    for sink in (False, True):
        system = Gpt(
            layers=layers, width=width, head_dim=min(64, width), max_positions=options.length,
            sequence_length=options.length, dropout=0.0, attention_dropout=0.0, sink=sink,
        )  # fmt: skip
        losses, shares = [], []
        for seed in range(options.seeds):
            out = options.out / f"{'with' if sink else 'without'}-{seed}"
            keel.pretrain(system, options.text, out=out, seed=seed, **settings)
            model = keel.Model.load(out, device=options.device)
            losses.append(keel.perplexity(model, options.held_out).values["next bits per byte"].value)
            shares += [share for text in texts if (share := first_token_attention(model, text))]
        before, first, even = map(fmean, zip(*shares, strict=True))
        spread = f" ± {stdev(losses):.4f}" if len(losses) > 1 else ""
        listed = ", ".join(f"{loss:.4f}" for loss in losses)
        name, extra = ("with", f"{before:.1%}") if sink else ("without", "")
        print(f"| {name} | {fmean(losses):.4f}{spread} | {listed} | {first:.1%} | {even:.1%} | {extra} |", flush=True)


def first_token_attention(model: keel.Model, text: str) -> tuple[float, float, float] | None:
    """Mean attention of the tokens from the sixteenth on, over heads and layers, on the first position, on the first
    token, and on any token if uniform; None for short texts."""
    ids = [model.tokenizer.end_id, *model.tokenizer.encode(text).ids][: model.system.max_length]
    _, seen = recorded_attention(model, ids)
    sink = seen[0].shape[-1] - len(ids)
    late = torch.stack(seen).float().cpu()[:, :, sink + 16 :]  # [layers, heads, late positions, positions]
    even = torch.arange(sink + 17, sink + len(ids) + 1).float().reciprocal().mean()
    if not late.shape[2]:
        return None
    return float(late[..., 0].mean()), float(late[..., sink].mean()), float(even)


if __name__ == "__main__":
    main()
