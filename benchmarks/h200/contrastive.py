"""An unsupervised contrastive stage for sentence embeddings (SimCSE; Gao et al., 2021); a rerun resumes.

    python benchmarks/h200/contrastive.py run/english run/english-sentences text/*.txt.xz

Two passes of a sentence with different dropout are a positive pair, the other sentences of the batch are negatives. The
masked language model is trained beside it with a small weight, so that the model still fills masks. Sentence embeddings
are the mean over tokens, which `keel embed` has.
"""

import argparse
import dataclasses
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

import keel
from keel.api.run_folder import run_folder
from keel.data.documents import Documents
from keel.data.mlm_sampling import SampledSpans
from keel.data.token_batch import TokenBatch
from keel.events import Event
from keel.nn.encoder import EncoderObjective
from keel.systems.bert import Bert, BertBatch, BertEncoder, BertPretraining
from keel.training.counter_rng import CounterRng
from keel.training.distributed import World
from keel.training.loop import fit
from keel.training.objective import State, Tensors


@dataclasses.dataclass(frozen=True, kw_only=True)
class ContrastiveBatch(Tensors):
    sentences: TokenBatch
    masked: BertBatch


class SentenceContrast(EncoderObjective):
    """-log exp(cos(a_i, b_i) / t) / sum_j exp(cos(a_i, b_j) / t) for two passes a, b with dropout ("contrast"), and a
    weighted masked language model ("mlm")."""

    def __init__(self, masked: BertPretraining, length: int, temperature: float, mlm_weight: float):
        super().__init__()
        self.masked = masked
        self.length, self.temperature, self.mlm_weight = length, temperature, mlm_weight

    @property
    def encoder(self) -> BertEncoder:  # pyright: ignore[reportIncompatibleVariableOverride] - that of `masked`
        return self.masked.encoder

    def epoch_size(self, data: Documents) -> int:
        return self.masked.epoch_size(data)

    def batch(self, data: Documents, rng: CounterRng, examples: range) -> ContrastiveBatch:
        """Sentences that contain random tokens, so that headings and fragments are rare."""
        numbers = torch.arange(examples.start, examples.stop, device=data.ids.device)
        position, _ = data.locate_token(rng.randint("sentence", numbers, data.size).squeeze(1))
        sentence = torch.searchsorted(data.starts, position, right=True) - 1
        first = data.starts[sentence]
        size = (data.starts[sentence + 1] - first).clamp(max=self.length - 2)
        none = torch.zeros_like(size)
        spans = SampledSpans(first=first, first_length=size, second=none, second_length=none, paired=False)
        source, in_text = spans.locate(self.length)
        special = {"cls_id": self.masked.cls_id, "sep_id": self.masked.sep_id, "pad_id": self.masked.pad_id}
        ids = spans.to_ids(data, source, in_text, **special)
        sentences = TokenBatch(ids=ids, lengths=spans.lengths)
        return ContrastiveBatch(sentences=sentences, masked=self.masked.batch(data, rng, examples))

    def counts(self, batch: ContrastiveBatch) -> dict[str, Tensor]:
        return {
            **self.masked.counts(batch.masked),
            "contrast": batch.masked.weights.new_full((), len(batch.sentences.ids)),
        }

    def forward(self, batch: ContrastiveBatch, state: State | None = None) -> tuple[dict[str, Tensor], State | None]:
        one = batch.sentences
        twice = TokenBatch(ids=torch.cat([one.ids, one.ids]), lengths=torch.cat([one.lengths, one.lengths]))
        top = self.encoder(twice).top.float()  # [2 batch, time, width]
        inside = torch.arange(self.length, device=top.device) < twice.lengths[:, None]
        vectors = F.normalize((top * inside[..., None]).sum(1), dim=1)
        with torch.autocast(top.device.type, enabled=False):
            first, second = vectors.chunk(2)
            logits = first @ second.T / self.temperature  # [batch, batch]
            contrast = F.cross_entropy(logits, torch.arange(len(logits), device=top.device), reduction="sum")
        losses, _ = self.masked(batch.masked)
        return {"contrast": contrast, "mlm": self.mlm_weight * losses["mlm"]}, None


def train(options: argparse.Namespace) -> None:
    parent = keel.Model.load(options.parent, device="cpu")
    assert isinstance(parent.system, Bert)
    assert isinstance(parent.objective, BertPretraining)
    lengths = {"sequence_length": min(parent.system.max_length, options.mlm_length), "final_sequence_length": 0}
    rates = {"dropout": options.dropout, "attention_dropout": options.dropout}
    system = dataclasses.replace(parent.system, **rates, **lengths)
    masked = system.build_objective(system.build_encoder(parent.encoder.vocab_size), parent.tokenizer)
    masked.load_state_dict(parent.objective.state_dict())
    objective = SentenceContrast(masked, options.length, options.temperature, options.mlm_weight)
    plan = keel.Train(
        steps=options.steps,
        batch=options.batch,
        optimizer="adamw",
        lr=options.lr,
        warmup=0.1,
        log_every=options.log_every,
        evaluate_every=0,
        checkpoint_every=options.checkpoint_every,
        device=options.device,
    )
    tokens = keel.Tokens.build(keel.Corpus([Path(name) for name in options.texts]), parent.tokenizer)

    def show(event: Event) -> None:
        print(event, flush=True)

    with World.join(plan.device) as world, run_folder(options.out, "contrast", False, world, show) as (run, report):
        given = (options.length, options.temperature, options.mlm_weight, options.dropout, options.mlm_length)
        identity = {"settings": [*given], "tokens": str(tokens.index["settings"])}
        torch.manual_seed(plan.seed)
        fit(objective, Documents.of(tokens), plan, run, report, identity=identity)
    parent.encoder.load_state_dict(masked.encoder.state_dict())
    parent.objective.load_state_dict(masked.state_dict())
    parent.save(options.out, overwrite=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parent", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=512, help="sentences per step: one and 511 negatives [512]")
    parser.add_argument("--length", type=int, default=64, help="tokens of a sentence, later ones are cut [64]")
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--temperature", type=float, default=0.05)
    parser.add_argument("--mlm-weight", type=float, default=0.1)
    parser.add_argument("--mlm-length", type=int, default=128)
    parser.add_argument("--log-every", type=int, default=50)
    parser.add_argument("--checkpoint-every", type=int, default=250)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    if not (options.out / "config.json").exists():
        train(options)


if __name__ == "__main__":
    main()
