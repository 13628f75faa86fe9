"""An unsupervised contrastive stage for sentence embeddings, beside ELECTRA's own objective; a rerun resumes.

    python benchmarks/h200/contrastive.py run/electra run/sentences text/*.txt.xz --steps 500

As in SimCSE (Gao et al., 2021), the other sentences of the batch are the negatives of a pair. A sentence and itself,
with dropout, are too easy a pair, and adjacent sentences a better one (docs/log.md); both lose some of their tokens.
Replaced token detection continues beside it, as in COCO-LM (Meng et al., 2021), so that the encoder stays what it was.
Sentence embeddings are the mean over tokens, which `keel embed` has.
"""

import argparse
import dataclasses
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import keel
from keel.api.run_folder import run_folder
from keel.data.documents import Documents
from keel.data.mlm_sampling import SampledSpans
from keel.data.token_batch import TokenBatch
from keel.events import Event
from keel.nn.encoder import EncoderObjective
from keel.systems.electra import Electra, ElectraBatch, ElectraEncoder, ElectraPretraining
from keel.training.counter_rng import CounterRng
from keel.training.distributed import World
from keel.training.loop import fit
from keel.training.objective import State, Tensors

LARGEST = 2**63 - 1
"""Largest integer of random bits."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContrastiveBatch(Tensors):
    first: TokenBatch
    second: TokenBatch
    replaced: ElectraBatch


class SentenceContrast(EncoderObjective):
    """-log exp(cos(a_i, b_i) / t) / sum_j exp(cos(a_i, b_j) / t) for pairs a, b of sentences ("contrast", weighted),
    beside the losses of ELECTRA."""

    def __init__(self, pretraining: ElectraPretraining, options: argparse.Namespace):
        super().__init__()
        self.pretraining = pretraining
        self.length, self.temperature, self.weight = options.length, options.temperature, options.weight
        self.deletion, self.adjacent = options.deletion, options.adjacent

    @property
    def encoder(self) -> ElectraEncoder:  # pyright: ignore[reportIncompatibleVariableOverride] - that of ELECTRA
        return self.pretraining.encoder

    @property
    def output_embeddings(self) -> Tensor:
        return self.pretraining.output_embeddings

    def blocks(self) -> list[nn.Module]:
        return self.pretraining.blocks()

    def setup(self, data: Documents) -> None:
        self.pretraining.setup(data)

    def finish(self) -> None:
        self.pretraining.finish()

    def epoch_size(self, data: Documents) -> int:
        return self.pretraining.epoch_size(data)

    def batch(self, data: Documents, rng: CounterRng, examples: range) -> ContrastiveBatch:
        """Sentences that contain random tokens, so that headings are rare, and themselves or the next ones."""
        numbers = torch.arange(examples.start, examples.stop, device=data.ids.device)
        position, document = data.locate_token(rng.randint("sentence", numbers, data.size).squeeze(1))
        sentence = torch.searchsorted(data.starts, position, right=True) - 1
        is_last = sentence + 1 >= data.spans[document, 1]
        adjacent = rng.random_bits("adjacent", numbers).squeeze(1) < min(LARGEST, int(self.adjacent * LARGEST))
        following = torch.where(adjacent & ~is_last, sentence + 1, sentence)
        return ContrastiveBatch(
            first=self.sentences(data, sentence, rng.random_bits("first", numbers, self.length)),
            second=self.sentences(data, following, rng.random_bits("second", numbers, self.length)),
            replaced=self.pretraining.batch(data, rng, examples),
        )

    def sentences(self, data: Documents, sentence: Tensor, bits: Tensor) -> TokenBatch:
        """These sentences without a random share of their tokens; special tokens stay."""
        first = data.starts[sentence]
        size = (data.starts[sentence + 1] - first).clamp(max=self.length - 2)
        none = torch.zeros_like(size)
        spans = SampledSpans(first=first, first_length=size, second=none, second_length=none, paired=False)
        source, in_text = spans.locate(self.length)
        generator = self.pretraining.generator
        special = {"cls_id": generator.cls_id, "sep_id": generator.sep_id, "pad_id": generator.pad_id}
        ids = spans.to_ids(data, source, in_text, **special)
        position = torch.arange(self.length, device=ids.device)
        kept = spans.is_special(self.length) | (bits >= min(LARGEST, int(self.deletion * LARGEST)))
        kept &= position < spans.lengths[:, None]
        moved = ids.gather(1, (~kept).long().argsort(dim=1, stable=True))  # kept tokens first, in their order
        lengths = kept.sum(1)
        return TokenBatch(ids=moved.masked_fill(position >= lengths[:, None], generator.pad_id), lengths=lengths)

    def counts(self, batch: ContrastiveBatch) -> dict[str, Tensor]:
        counts = self.pretraining.counts(batch.replaced)
        return {**counts, "contrast": counts["mlm"].new_full((), len(batch.first.ids))}

    def forward(self, batch: ContrastiveBatch, state: State | None = None) -> tuple[dict[str, Tensor], State | None]:
        one, two = batch.first, batch.second
        twice = TokenBatch(ids=torch.cat([one.ids, two.ids]), lengths=torch.cat([one.lengths, two.lengths]))
        top = self.pretraining.encode(twice).float()  # [2 batch, time, width]
        inside = torch.arange(self.length, device=top.device) < twice.lengths[:, None]
        vectors = F.normalize((top * inside[..., None]).sum(1), dim=1)
        with torch.autocast(top.device.type, enabled=False):
            first, second = vectors.chunk(2)
            logits = first @ second.T / self.temperature  # [batch, batch]
            targets = torch.arange(len(logits), device=top.device)
            contrast = F.cross_entropy(logits, targets, reduction="sum")
        losses, _ = self.pretraining(batch.replaced)
        return {**losses, "contrast": self.weight * contrast}, None


def train(options: argparse.Namespace) -> None:
    parent = keel.Model.load(options.parent, device="cpu")
    assert isinstance(parent.system, Electra)
    assert isinstance(parent.objective, ElectraPretraining)
    lengths = {"sequence_length": min(parent.system.max_length, options.text_length), "final_sequence_length": 0}
    rates = {"dropout": options.dropout, "attention_dropout": options.dropout}
    system = dataclasses.replace(parent.system, **rates, **lengths)
    pretraining = system.build_objective(system.build_encoder(parent.encoder.vocab_size), parent.tokenizer)
    assert isinstance(pretraining, ElectraPretraining)
    pretraining.load_state_dict(parent.objective.state_dict())
    plan = keel.Train(
        steps=options.steps,
        batch=options.batch,
        optimizer="muon",
        lr=options.lr,
        schedule="linear",
        warmup=0.1,
        weight_decay=0.05,
        log_every=options.log_every,
        evaluate_every=0,
        checkpoint_every=options.checkpoint_every,
        device=options.device,
    )
    tokens = keel.Tokens.build(keel.Corpus([Path(name) for name in options.texts]), parent.tokenizer)

    def show(event: Event) -> None:
        print(event, flush=True)

    with World.join(plan.device) as world, run_folder(options.out, "contrast", False, world, show) as (run, report):
        objective = SentenceContrast(pretraining, options)
        names = ("length", "temperature", "weight", "deletion", "adjacent", "dropout", "text_length")
        identity = {"settings": [getattr(options, name) for name in names], "tokens": str(tokens.index["settings"])}
        torch.manual_seed(plan.seed)
        fit(objective, Documents.of(tokens), plan, run, report, identity=identity)
    parent.objective.load_state_dict(pretraining.state_dict())
    parent.save(options.out, overwrite=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parent", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=1024, help="sentences per step, and sequences for ELECTRA [1024]")
    parser.add_argument("--adjacent", type=float, default=1.0, help="share of pairs of adjacent sentences [1]")
    parser.add_argument("--deletion", type=float, default=0.2, help="share of the tokens that a sentence loses [0.2]")
    parser.add_argument("--length", type=int, default=64, help="tokens of a sentence, later ones are cut [64]")
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--temperature", type=float, default=0.05)
    parser.add_argument(
        "--weight", type=float, default=5.0, help="weight of the contrast; that of ELECTRA's losses is 1 [5]"
    )
    parser.add_argument("--text-length", type=int, default=128, help="tokens of a sequence for ELECTRA [128]")
    parser.add_argument("--log-every", type=int, default=50)
    parser.add_argument("--checkpoint-every", type=int, default=250)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    if not (options.out / "config.json").exists():
        train(options)


if __name__ == "__main__":
    main()
