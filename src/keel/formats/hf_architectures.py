"""All architectures of model folders: those that Hugging Face has, and one for each other system."""

from dataclasses import dataclass, replace

from keel.formats.architecture import (
    BODY,
    CLASSIFIER,
    FOREIGN,
    MULTIPLE_CHOICE,
    NEXT_HEAD,
    OBJECTIVE_HEAD,
    POOLER,
    TAGGING,
    TASK_LAYERS,
    WORD_HEAD,
    Architecture,
)
from keel.systems import SYSTEMS
from keel.systems.bert import Bert
from keel.systems.gpt import Gpt
from keel.systems.system import System

BERT = Architecture(
    system=Bert,
    model_type="bert",
    classes={
        "BertForSequenceClassification": {BODY, POOLER, CLASSIFIER},
        f"Bert{TAGGING}": {BODY, CLASSIFIER},
        f"Bert{MULTIPLE_CHOICE}": {BODY, POOLER, CLASSIFIER},
        "BertForPreTraining": {BODY, POOLER, WORD_HEAD, NEXT_HEAD},
        "BertForMaskedLM": {BODY, WORD_HEAD},
        "BertModel": {BODY, POOLER},
    },
    whole=(POOLER, WORD_HEAD, NEXT_HEAD),
    settings={
        "num_attention_heads": "heads",
        "intermediate_size": "mlp_size",
        "hidden_act": "activation",
        "num_hidden_layers": "layers",
        "hidden_size": "width",
        "max_position_embeddings": "max_positions",
        "type_vocab_size": "segment_types",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "layer_norm_eps": "norm_epsilon",
    },
    supported={
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
        "pruned_heads": {},
    },
    vocab_size=30_522,
    mlp_size=3072,
    more_settings=lambda values, parts: {
        "sequence_length": min(values["max_positions"], 4096),
        "next_sentence": NEXT_HEAD in parts or WORD_HEAD not in parts,
    },
    modules={
        "encoder.words": "bert.embeddings.word_embeddings",
        "encoder.positions": "bert.embeddings.position_embeddings",
        "encoder.segments": "bert.embeddings.token_type_embeddings",
        "encoder.norm": "bert.embeddings.LayerNorm",
        "encoder.stack.*.attention.qkv": "bert.encoder.layer.*.attention.self.query|key|value",
        "encoder.stack.*.attention.out": "bert.encoder.layer.*.attention.output.dense",
        "encoder.stack.*.attention_norm": "bert.encoder.layer.*.attention.output.LayerNorm",
        "encoder.stack.*.expand": "bert.encoder.layer.*.intermediate.dense",
        "encoder.stack.*.contract": "bert.encoder.layer.*.output.dense",
        "encoder.stack.*.output_norm": "bert.encoder.layer.*.output.LayerNorm",
        "encoder.pooler": "bert.pooler.dense",
        "transform": "cls.predictions.transform.dense",
        "norm": "cls.predictions.transform.LayerNorm",
        "bias": "cls.predictions.bias",
        "next": "cls.seq_relationship",
        "classifier": "classifier",
    },
    prefix="bert.",
    parts={
        "bert.pooler.": POOLER,
        "bert.": BODY,
        "cls.predictions.": WORD_HEAD,
        "cls.seq_relationship.": NEXT_HEAD,
        "classifier.": CLASSIFIER,
        "qa_outputs.": FOREIGN,
    },
    ties={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    old_names={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    buffers=r"(.*\.)?(position_ids|token_type_ids)",
    untrained=lambda system: set() if system.next_sentence else {NEXT_HEAD},
)
GPT2 = Architecture(
    system=Gpt,
    model_type="gpt2",
    classes={f"GPT2{TAGGING}": {BODY, CLASSIFIER}, "GPT2LMHeadModel": {BODY}, "GPT2Model": {BODY}},
    settings={
        "n_head": "heads",
        "n_inner": "mlp_size",
        "activation_function": "activation",
        "embd_pdrop": "dropout",
        "n_layer": "layers",
        "n_embd": "width",
        "n_positions": "max_positions",
        "resid_pdrop": "dropout",
        "attn_pdrop": "attention_dropout",
        "layer_norm_epsilon": "norm_epsilon",
    },
    supported={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    vocab_size=50_257,
    more_settings=lambda values, parts: {"sequence_length": values["max_positions"]},
    modules={
        "encoder.words": "transformer.wte",
        "encoder.positions": "transformer.wpe",
        "encoder.stack.*.attention_norm": "transformer.h.*.ln_1",
        "encoder.stack.*.attention.qkv": "transformer.h.*.attn.c_attn",
        "encoder.stack.*.attention.out": "transformer.h.*.attn.c_proj",
        "encoder.stack.*.output_norm": "transformer.h.*.ln_2",
        "encoder.stack.*.expand": "transformer.h.*.mlp.c_fc",
        "encoder.stack.*.contract": "transformer.h.*.mlp.c_proj",
        "encoder.norm": "transformer.ln_f",
        "classifier": "classifier",
    },
    prefix="transformer.",
    parts={
        "transformer.": BODY,
        "classifier.": CLASSIFIER,
        "score.": FOREIGN,
        "qa_outputs.": FOREIGN,
        "multiple_choice_head.": FOREIGN,
    },
    ties={"lm_head.weight": "transformer.wte.weight"},
    buffers=r".*\.attn\.(bias|masked_bias)",
    transposed=frozenset({"qkv", "out", "expand", "contract"}),
    holds=lambda system: system.pre_norm and not system.sink,
)


@dataclass(frozen=True, kw_only=True)
class KeelArchitecture(Architecture):
    """A system that Hugging Face does not have: tensors keep our names, with the system's for the encoder."""

    def theirs(self, ours: str) -> tuple[str, ...]:
        return (f"{self.model_type}.{ours.removeprefix('encoder.')}" if ours.startswith("encoder.") else ours,)

    def part(self, theirs: str) -> str:
        if theirs.startswith(f"{self.model_type}."):
            return BODY
        if theirs.startswith(("crf.", "mix.", "network.", "decoder.")):
            return TASK_LAYERS
        return CLASSIFIER if theirs.startswith("classifier.") else OBJECTIVE_HEAD

    def current_name(self, theirs: str) -> str:
        return theirs


def _keel_architecture(system: type[System]) -> KeelArchitecture:
    name = system.__name__
    classes = {
        f"{name}ForSequenceClassification": {BODY, CLASSIFIER},
        f"{name}{TAGGING}": {BODY, CLASSIFIER},
        f"{name}{MULTIPLE_CHOICE}": {BODY, CLASSIFIER},
        f"{name}ForPreTraining": {BODY, OBJECTIVE_HEAD},
        f"{name}Model": {BODY},
    }
    return KeelArchitecture(system=system, model_type=system.name, classes=classes, whole=(OBJECTIVE_HEAD,))


ARCHITECTURES: dict[str, Architecture] = {
    "bert": BERT,
    "gpt2": GPT2,
    **{name: _keel_architecture(system) for name, system in SYSTEMS.items() if not issubclass(system, Bert | Gpt)},
    "gpt": replace(_keel_architecture(Gpt), whole=()),  # the softmax is tied to the embeddings
}
"""By the `model_type` of config.json."""


def architecture_of(system: System) -> Architecture:
    """The architecture that a system is written as."""
    able = [one for one in ARCHITECTURES.values() if isinstance(system, one.system) and one.holds(system)]
    # A descendant may be written otherwise than its ancestor.
    return next((one for one in able if one.system is type(system)), able[0])
