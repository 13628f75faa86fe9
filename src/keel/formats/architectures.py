"""Architectures of model folders, Hugging Face's and Keel's own, by the `model_type` of config.json."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from keel.errors import KeelError
from keel.formats.folder_architecture import (
    BODY,
    CLASSIFIER,
    DETECTION_HEAD,
    MULTIPLE_CHOICE,
    NEXT_HEAD,
    OBJECTIVE_HEAD,
    POOLER,
    QUESTION_ANSWERING,
    TAGGING,
    WORD_HEAD,
    Architecture,
    KeelArchitecture,
)
from keel.systems import SYSTEMS
from keel.systems.bert import Bert
from keel.systems.electra import Electra
from keel.systems.ernie import Ernie
from keel.systems.gpt import Gpt
from keel.systems.modernbert import ModernBert
from keel.systems.system import System


def _task_classes(name: str, *more: str) -> dict[str, set[str]]:
    """The classes of tasks with a linear layer; `more` are further parts of those for whole texts."""
    return {
        f"{name}ForSequenceClassification": {BODY, *more, CLASSIFIER},
        f"{name}{TAGGING}": {BODY, CLASSIFIER},
        f"{name}{MULTIPLE_CHOICE}": {BODY, *more, CLASSIFIER},
        f"{name}{QUESTION_ANSWERING}": {BODY, CLASSIFIER},
    }


def _bert_settings(values: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Settings of a BERT that its folder does not have."""
    return {"sequence_length": min(values["max_positions"], 4096), **more}


BERT = Architecture(
    system=Bert,
    model_type="bert",
    classes={
        **_task_classes("Bert", POOLER),
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
    more_settings=lambda values, parts: _bert_settings(
        values, pair_objective="nsp" if NEXT_HEAD in parts or WORD_HEAD not in parts else "none"
    ),
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
    },
    ties={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    old_names={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias", "qa_outputs.": "classifier."},
    class_names={f"Bert{QUESTION_ANSWERING}": {"classifier.": "qa_outputs."}},
    buffers=r"(.*\.)?(position_ids|token_type_ids)",
    untrained=lambda system: set() if system.predicts_pairs else {NEXT_HEAD},
    holds=lambda system: system.variant == "bert",
)


def _bert_encoder(prefix: str) -> dict[str, str]:
    """BERT's modules of the encoder, under another prefix."""
    body = {ours: theirs for ours, theirs in BERT.modules.items() if ours.startswith("encoder.")}
    return {ours: theirs.replace(BERT.prefix, prefix, 1) for ours, theirs in body.items()}


ELECTRA = Architecture(
    system=Electra,
    model_type="electra",
    classes={
        **_task_classes("Electra", POOLER),
        "ElectraForPreTraining": {BODY, DETECTION_HEAD},
        "ElectraModel": {BODY},
    },
    whole=(DETECTION_HEAD, WORD_HEAD),
    settings=BERT.settings | {"embedding_size": "embedding_width"},
    supported={**BERT.supported, "summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"},
    vocab_size=30_522,
    mlp_size=1024,
    more_settings=lambda values, parts: _bert_settings(values),
    modules={
        **_bert_encoder("electra."),
        "encoder.project": "electra.embeddings_project",
        "encoder.pooler": "classifier.dense",
        "transform": "discriminator_predictions.dense",
        "detector": "discriminator_predictions.dense_prediction",
        "classifier": "classifier.out_proj",
    },
    prefix="electra.",
    parts={
        "electra.": BODY,
        "discriminator_predictions.": DETECTION_HEAD,
        "classifier.dense.": POOLER,
        "classifier.": CLASSIFIER,
    },
    extra_parts={"generator.": WORD_HEAD},
    old_names={
        "classifier.weight": "classifier.out_proj.weight",
        "classifier.bias": "classifier.out_proj.bias",
        "sequence_summary.summary.": "classifier.dense.",
        "qa_outputs.": "classifier.out_proj.",
    },
    class_names={
        f"Electra{QUESTION_ANSWERING}": {"classifier.out_proj.": "qa_outputs."},
        f"Electra{TAGGING}": {"classifier.out_proj.": "classifier."},
        f"Electra{MULTIPLE_CHOICE}": {
            "classifier.out_proj.": "classifier.",
            "classifier.dense.": "sequence_summary.summary.",
        },
    },
    buffers=BERT.buffers,
    holds=lambda system: not system.generator_only,
)
ELECTRA_GENERATOR = replace(
    ELECTRA,
    classes={
        **{name: parts for name, parts in ELECTRA.classes.items() if CLASSIFIER in parts},
        "ElectraForMaskedLM": {BODY, WORD_HEAD},
        "ElectraModel": {BODY},
    },
    whole=(WORD_HEAD,),
    supported={**ELECTRA.supported, "hidden_act": "gelu"},  # its head has GELU whatever the activation
    more_settings=lambda values, parts: _bert_settings(values, generator_only=True),
    modules={
        **{ours: theirs for ours, theirs in ELECTRA.modules.items() if ours != "detector"},
        "transform": "generator_predictions.dense",
        "norm": "generator_predictions.LayerNorm",
        "bias": "generator_lm_head.bias",
    },
    parts={
        **{start: part for start, part in ELECTRA.parts.items() if part != DETECTION_HEAD},
        "generator_predictions.": WORD_HEAD,
        "generator_lm_head.": WORD_HEAD,
    },
    extra_parts={},
    ties={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
    holds=lambda system: system.generator_only,
)
ROBERTA = Architecture(
    system=Bert,
    model_type="roberta",
    classes={
        **_task_classes("Roberta", POOLER),
        "RobertaForMaskedLM": {BODY, WORD_HEAD},
        "RobertaModel": {BODY, POOLER},
    },
    whole=(POOLER, WORD_HEAD),
    settings=BERT.settings,
    # The head of its masked language model has GELU whatever the activation.
    supported={**BERT.supported, "hidden_act": "gelu", "pad_token_id": 1},
    vocab_size=50_265,
    mlp_size=3072,
    more_settings=lambda values, parts: _bert_settings(values, variant="roberta", pair_objective="none"),
    modules={
        **_bert_encoder("roberta."),
        "transform": "lm_head.dense",
        "norm": "lm_head.layer_norm",
        "bias": "lm_head.bias",
        "classifier": "classifier",
    },
    prefix="roberta.",
    parts={"roberta.pooler.": POOLER, "roberta.": BODY, "lm_head.": WORD_HEAD, "classifier.": CLASSIFIER},
    ties={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    old_names={
        "classifier.dense.": "roberta.pooler.dense.",
        "classifier.out_proj.": "classifier.",
        "qa_outputs.": "classifier.",
    },
    class_names={
        f"Roberta{QUESTION_ANSWERING}": {"classifier.": "qa_outputs."},
        "RobertaForSequenceClassification": {
            "classifier.": "classifier.out_proj.",
            "roberta.pooler.dense.": "classifier.dense.",
        },
    },
    buffers=BERT.buffers,
    position_offset=2,  # after that of the padding token, 1
    holds=lambda system: system.variant == "roberta",
)
DISTILBERT = Architecture(
    system=Bert,
    model_type="distilbert",
    classes={
        **_task_classes("DistilBert", POOLER),
        "DistilBertForMaskedLM": {BODY, WORD_HEAD},
        "DistilBertModel": {BODY},
    },
    whole=(WORD_HEAD,),
    settings={
        "n_heads": "heads",
        "hidden_dim": "mlp_size",
        "activation": "activation",
        "n_layers": "layers",
        "dim": "width",
        "max_position_embeddings": "max_positions",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
    },
    vocab_size=30_522,
    mlp_size=3072,
    more_settings=lambda values, parts: _bert_settings(values, variant="distilbert", pair_objective="none"),
    modules={
        "encoder.words": "distilbert.embeddings.word_embeddings",
        "encoder.positions": "distilbert.embeddings.position_embeddings",
        "encoder.norm": "distilbert.embeddings.LayerNorm",
        "encoder.stack.*.attention.qkv": "distilbert.transformer.layer.*.attention.q_lin|k_lin|v_lin",
        "encoder.stack.*.attention.out": "distilbert.transformer.layer.*.attention.out_lin",
        "encoder.stack.*.attention_norm": "distilbert.transformer.layer.*.sa_layer_norm",
        "encoder.stack.*.expand": "distilbert.transformer.layer.*.ffn.lin1",
        "encoder.stack.*.contract": "distilbert.transformer.layer.*.ffn.lin2",
        "encoder.stack.*.output_norm": "distilbert.transformer.layer.*.output_layer_norm",
        "encoder.pooler": "pre_classifier",
        "transform": "vocab_transform",
        "norm": "vocab_layer_norm",
        "bias": "vocab_projector.bias",
        "classifier": "classifier",
    },
    prefix="distilbert.",
    parts={"distilbert.": BODY, "pre_classifier.": POOLER, "vocab_": WORD_HEAD, "classifier.": CLASSIFIER},
    ties={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
    old_names={"qa_outputs.": "classifier."},
    class_names={f"DistilBert{QUESTION_ANSWERING}": {"classifier.": "qa_outputs."}},
    holds=lambda system: system.variant == "distilbert",
)


def _modernbert_config(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The fields as published, from lists by layer and by kind of attention (transformers 5)."""
    found: dict[str, Any] = {"classifier_pooling": "cls", **config}
    if layer_types := found.pop("layer_types", None):
        every = len(layer_types)
        if "full_attention" in layer_types[1:]:
            every = layer_types.index("full_attention", 1)
        expected = ["sliding_attention" if number % every else "full_attention" for number in range(len(layer_types))]
        if layer_types != expected:
            what = "layer_types has no regular pattern; Keel's ModernBert has full_attention in every n-th layer"
            raise KeelError(f"{where}: {what}, from the first on")
        found["global_attn_every_n_layers"] = every
    ropes = found.pop("rope_parameters", None) or {}
    for name, kind in (("global_rope_theta", "full_attention"), ("local_rope_theta", "sliding_attention")):
        rope = ropes.get(kind)
        if not isinstance(rope, dict):
            continue
        if (rope_type := rope.get("rope_type", "default")) != "default":
            raise KeelError(f"{where}: rope_type is {rope_type!r}; Keel's ModernBert supports only 'default'")
        if "rope_theta" in rope:
            found[name] = rope["rope_theta"]
    if found.get("local_rope_theta", 0.0) is None:  # as in transformers 4
        found["local_rope_theta"] = found.get("global_rope_theta", ModernBert().global_rope_theta)
    return found


MODERNBERT = Architecture(
    system=ModernBert,
    model_type="modernbert",
    classes={
        **{name: {*parts, POOLER} for name, parts in _task_classes("ModernBert").items()},
        "ModernBertForMaskedLM": {BODY, POOLER, WORD_HEAD},
        "ModernBertModel": {BODY},
    },
    whole=(POOLER, WORD_HEAD),
    settings={
        "num_attention_heads": "heads",
        "intermediate_size": "mlp_size",
        "hidden_activation": "activation",
        "num_hidden_layers": "layers",
        "hidden_size": "width",
        "max_position_embeddings": "max_positions",
        "embedding_dropout": "dropout",
        "mlp_dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "norm_eps": "norm_epsilon",
        "global_attn_every_n_layers": "global_attn_every_n_layers",
        "local_attention": "local_attention",
        "global_rope_theta": "global_rope_theta",
        "local_rope_theta": "local_rope_theta",
        "classifier_pooling": "classifier_pooling",
    },
    supported={
        **dict.fromkeys(("norm_bias", "attention_bias", "mlp_bias", "classifier_bias"), False),
        "decoder_bias": True,
        "tie_word_embeddings": True,
        "classifier_activation": "gelu",
    },
    vocab_size=50_368,
    mlp_size=1152,
    read_config=_modernbert_config,
    special_tokens={
        "pad_token_id": "pad",
        **dict.fromkeys(("cls_token_id", "bos_token_id"), "cls"),
        **dict.fromkeys(("sep_token_id", "eos_token_id"), "sep"),
    },
    more_settings=lambda values, parts: {"sequence_length": min(values["max_positions"], 65_536)},
    modules={
        "encoder.words": "model.embeddings.tok_embeddings",
        "encoder.norm": "model.embeddings.norm",
        "encoder.stack.*.attention_norm": "model.layers.*.attn_norm",
        "encoder.stack.*.attention.qkv": "model.layers.*.attn.Wqkv",
        "encoder.stack.*.attention.out": "model.layers.*.attn.Wo",
        "encoder.stack.*.output_norm": "model.layers.*.mlp_norm",
        "encoder.stack.*.expand": "model.layers.*.mlp.Wi",
        "encoder.stack.*.contract": "model.layers.*.mlp.Wo",
        "encoder.final_norm": "model.final_norm",
        "encoder.pooler.dense": "head.dense",
        "encoder.pooler.norm": "head.norm",
        "bias": "decoder.bias",
        "classifier": "classifier",
    },
    prefix="model.",
    parts={"model.": BODY, "head.": POOLER, "decoder.": WORD_HEAD, "classifier.": CLASSIFIER},
    ties={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    holds=lambda system: not system.sandwich_norm,
)
GPT2 = Architecture(
    system=Gpt,
    model_type="gpt2",
    classes={
        f"GPT2{TAGGING}": {BODY, CLASSIFIER},
        f"GPT2{QUESTION_ANSWERING}": {BODY, CLASSIFIER},
        "GPT2LMHeadModel": {BODY},
        "GPT2Model": {BODY},
    },
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
    parts={"transformer.": BODY, "classifier.": CLASSIFIER},
    ties={"lm_head.weight": "transformer.wte.weight"},
    old_names={"qa_outputs.": "classifier."},
    class_names={f"GPT2{QUESTION_ANSWERING}": {"classifier.": "qa_outputs."}},
    buffers=r".*\.attn\.(bias|masked_bias)",
    transposed=frozenset({"qkv", "out", "expand", "contract"}),
    holds=lambda system: system.pre_norm and not system.sink,
)


def _keel_architecture(system: type[System]) -> KeelArchitecture:
    name = system.__name__
    classes = _task_classes(name) | {f"{name}ForPreTraining": {BODY, OBJECTIVE_HEAD}, f"{name}Model": {BODY}}
    return KeelArchitecture(system=system, model_type=system.name, classes=classes, whole=(OBJECTIVE_HEAD,))


SANDWICH_MODERNBERT = replace(
    _keel_architecture(ModernBert), model_type="sandwich_modernbert", holds=lambda system: system.sandwich_norm
)
ARCHITECTURES: dict[str, Architecture] = {
    "bert": BERT,
    "roberta": ROBERTA,
    "distilbert": DISTILBERT,
    "electra": ELECTRA,
    "modernbert": MODERNBERT,
    "sandwich_modernbert": SANDWICH_MODERNBERT,
    "gpt2": GPT2,
    **{
        name: _keel_architecture(system)
        for name, system in SYSTEMS.items()
        if system not in (Bert, Ernie, Electra, ModernBert, Gpt)
    },
    "gpt": replace(_keel_architecture(Gpt), whole=()),  # the softmax is tied to the embeddings
}
"""By the `model_type` of config.json."""


def folder_architecture(config: Mapping[str, Any]) -> Architecture:
    """The architecture of a config.json."""
    settings = config.get("keel", {}).get("settings", {})
    generates = "ElectraForMaskedLM" in (config.get("architectures") or []) or settings.get("generator_only")
    return ELECTRA_GENERATOR if config["model_type"] == "electra" and generates else ARCHITECTURES[config["model_type"]]


def architecture_of(system: System) -> Architecture:
    """The architecture that a system is written as."""
    every = [*ARCHITECTURES.values(), ELECTRA_GENERATOR]
    able = [one for one in every if isinstance(system, one.system) and one.holds(system)]
    # A descendant may be written otherwise than its ancestor.
    return next((one for one in able if one.system is type(system)), able[0])
