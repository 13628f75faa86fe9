"""Make a bundled model from a trained one, and show what its card must say.

    python benchmarks/bundled_models.py make run/bert src/keel/assets/models/chinese
    python benchmarks/bundled_models.py show chinese --text held_out.txt --against run/bert

make quantises the weights; the card, README.md, is written by hand in the folder. show reports size and loading time
and, against the trained model, the loss of quantisation.
"""

import argparse
import json
import shutil
import time
from pathlib import Path

import torch

import keel
from keel.data.token_batch import TokenBatch
from keel.formats.bundled_models import locate
from keel.formats.huggingface import EXTRA
from keel.formats.model_folder import QUANTIZED, WEIGHTS, read_tensors, write_tensors
from keel.formats.quantization import STEPS_PER_RMS
from keel.systems.capabilities import MaskedLM


def make(source: Path, out: Path, steps_per_rms: float = STEPS_PER_RMS) -> None:
    """Write the folder with quantised weights and JSON without spaces; its card stays, and paths of the training run
    stay behind."""
    out.mkdir(parents=True, exist_ok=True)
    for path in sorted(path for path in source.iterdir() if path.is_file()):
        if path.name in (WEIGHTS, EXTRA):
            target = out / {WEIGHTS: QUANTIZED}.get(path.name, EXTRA)
            write_tensors(target, read_tensors(path), steps_per_rms=steps_per_rms)
        elif path.name == "config.json":
            config = json.loads(path.read_text(encoding="utf-8"))
            card = {"title": out.name, "parent": "", "command": ""}
            config["keel"]["card"] = config["keel"].get("card", {}) | card  # converted word vectors have none
            text = config["keel"]["card"].get("recipe", {}).get("text", {})
            if "tokenizer" in text:
                text["tokenizer"] = Path(text["tokenizer"]).name
            (out / path.name).write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        elif path.name == "tokenizer.json":
            rules = json.loads(path.read_text(encoding="utf-8"))
            text = json.dumps(rules, separators=(",", ":"), ensure_ascii=False)
            (out / path.name).write_text(text + "\n", encoding="utf-8")
        elif path.name not in ("README.md", "vocab.txt"):  # tokenizer.json has the vocabulary
            shutil.copyfile(path, out / path.name)


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


@torch.inference_mode()
def masked_loss(model: keel.Model, text: str, share: float = 0.15) -> float:
    """Cross-entropy of a random share of the tokens, masked, of a text's first 20,000."""
    ids = model.tokenizer.encode(text).ids[:20_000]
    window, losses = model.system.max_length - 2, []
    assert isinstance(model.objective, MaskedLM)
    for start in range(0, len(ids) - window, window):
        part = torch.tensor(ids[start : start + window])
        generator = torch.Generator().manual_seed(start)
        masked = torch.rand(len(part), generator=generator) < share
        inputs = model.system.build_inputs(model.tokenizer, part.where(~masked, model.tokenizer.mask_id).tolist())
        batch = TokenBatch.pad([inputs.ids])
        positions = masked.nonzero().flatten() + 1
        logits = model.objective.masked_logits(batch, positions[None])[0]
        losses.append(torch.nn.functional.cross_entropy(logits, part[masked], reduction="none"))
    return torch.cat(losses).mean().item()


def show(name: str, text: Path | None, against: str | None) -> None:
    folder = locate(name)
    start = time.perf_counter()
    model = keel.Model.load(folder, device="cpu")
    print(f"{name}: {size(folder) / 1e6:.1f} MB, loaded in {time.perf_counter() - start:.2f} s")
    models = {"bundled": model}
    if against:
        models["as trained"] = keel.Model.load(against, device="cpu")
    for label, each in models.items():
        if text:
            print(f"{label}: masked language model loss {masked_loss(each, text.read_text(encoding='utf-8')):.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("make")
    command.add_argument("source", type=Path)
    command.add_argument("out", type=Path)
    command.add_argument("--steps-per-rms", type=float, default=STEPS_PER_RMS)
    command.set_defaults(run=lambda options: make(options.source, options.out, options.steps_per_rms))
    command = commands.add_parser("show")
    command.add_argument("name")
    command.add_argument("--text", type=Path)
    command.add_argument("--against")
    command.set_defaults(run=lambda options: show(options.name, options.text, options.against))
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
