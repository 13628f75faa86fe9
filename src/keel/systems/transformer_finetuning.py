"""How pre-trained Transformers, encoders and decoders, are fine-tuned."""

from dataclasses import replace

from keel.systems.system import EpochRule, FineTuningPolicy
from keel.training.plan import Train

EPOCHS = EpochRule(total=60_000, least=3, most=10, minimum=2_500)
LAYER_DECAY = 0.9
MUON_LR, ADAMW_LR = 2e-4, 5e-5
"""Learning rates for an encoder that Muon has pre-trained. Measured on GLUE (docs/log.md), the best are 1e-4 to 3e-4,
and 3e-5 to 5e-5 by AdamW."""


class TransformerFineTuning(FineTuningPolicy):
    """Fine-tuning of a pre-trained Transformer: small sets need more epochs, lower layers smaller learning rates, and
    an encoder that was pre-trained by Muon is fine-tuned by Muon."""

    may_collapse = True

    def fits_size(self, train: Train, *, trained: bool) -> bool:
        return trained

    def fit_to_pretraining(self, train: Train, pretraining_optimizer: str, given_optimizer: str = "") -> Train:
        if pretraining_optimizer != "muon":
            return replace(train, layer_decay=min(train.layer_decay, LAYER_DECAY))
        tuned = replace(train, layer_decay=LAYER_DECAY, warmup=0.1)
        if given_optimizer == "adamw":
            return replace(tuned, lr=min(train.lr, ADAMW_LR))
        return replace(tuned, optimizer="muon", lr=MUON_LR)
