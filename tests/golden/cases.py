"""The golden runs: each system and each task with the smallest settings that still exercise it.

Names of settings, systems and tasks are used in this file only; fingerprints.json is keyed by the names of the cases,
so that a renamed setting does not change it.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from keel.systems import SYSTEMS
from keel.systems.system import supports
from tests.golden import texts
from tests.systems.tiny_systems import ADAMW, BLOCKS, TINY, of_line, tiny_settings
from tests.tasks.task_sample import sample_of

COMMON: dict[str, Any] = {"threads": 1, "device": "cpu", "log_every": 1, "seed": 7}
VOCABULARY: dict[str, Any] = {"vocabulary": 150, "min_count": 1}
HELD_OUT: dict[str, Any] = {"held_out": 0.1}
TUNED: dict[str, Any] = {"steps": 24, "batch": 8, **ADAMW, "lr": 2e-2, "dev": None}
TRANSLATE: dict[str, Any] = {"steps": 60, "batch": 8, **ADAMW, "lr": 2e-2, "vocabulary": 60, "tokenizer": "words"}


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """A task, its training examples and the inputs to predict."""

    task: str
    examples: list[Any]
    inputs: list[Any]
    settings: dict[str, Any] = field(default_factory=lambda: TUNED)
    columns: dict[str, Any] = field(default_factory=dict)
    """How the examples are read, in training and in evaluation."""
    stop: int = 7
    """The step after which the second run is interrupted; 0: after its end, for a run of one step."""


def _labelled(task: str, **fields: Any) -> Labelled:
    """A run on the sample of a task."""
    sample = sample_of(task)
    return Labelled(task=task, examples=sample.examples, inputs=sample.inputs, **fields)


CLASSIFY = _labelled("classify")
LOW_RATE = replace(CLASSIFY, settings=TUNED | {"lr": 1e-2})
SOLVED = replace(CLASSIFY, settings={"dev": None}, stop=0)
FASTTEXT = replace(CLASSIFY, settings={"steps": 24, "batch": 8, "lr": 0.5, "dev": None})


@dataclass(frozen=True, kw_only=True)
class Case:
    """A system through pre-training, if it is pre-trained, and one task."""

    system: str
    pretrain: dict[str, Any] | None = None
    corpus: list[str] = field(default_factory=lambda: texts.documents(60))
    stop: int = 2
    more: dict[str, Any] | None = None
    """Settings for continued pre-training on other text."""
    queries: tuple[str, ...] = ("vectors",)
    """What is recorded of the pre-trained model: vectors, perplexity, generate, fill, nearest."""
    masked_text: str = "the ___ paints the ___ ."
    """The text whose mask tokens are filled in."""
    finetune: Labelled | None = CLASSIFY
    new: dict[str, Any] = field(default_factory=dict)
    """Settings of a system that is trained from scratch on labels."""


WORDS = ("vectors", "nearest")
CAUSAL = ("vectors", "perplexity", "generate")
OTHER_TEXT = texts.documents(30, seed=11)

TRANSLATED = _labelled("seq2seq", settings=TRANSLATE)


MORE: dict[str, Any] = {"steps": 6, "batch": 4, "epsilon": 1e-4}
CASE_FIELDS: dict[str, dict[str, Any]] = {
    "onehot": {"finetune": SOLVED},
    "wordclass": {"queries": WORDS},
    "ngram": {"queries": ("perplexity", "generate"), "finetune": None},
    "nnlm": {"queries": (*CAUSAL, "nearest")},
    "word2vec": {"queries": WORDS},
    "glove": {"queries": WORDS},
    "fasttext": {"queries": WORDS, "finetune": FASTTEXT},
    "rnn": {"queries": CAUSAL},
    "ulmfit": {"more": MORE, "queries": CAUSAL},
    "elmo": {"queries": ("vectors", "perplexity")},
    "transformer": {"finetune": TRANSLATED},
    "seq2seq": {"finetune": TRANSLATED},
    "gpt": {"queries": CAUSAL, "finetune": LOW_RATE},
    "bert": {"more": MORE | {"lr": 1e-4, "warmup": 0.01}, "queries": ("vectors", "fill"), "finetune": LOW_RATE},
}
"""What is recorded of a system other than vectors and classification; a descendant without an entry has that of its
ancestor."""


def _system_case(name: str) -> Case:
    settings = of_line(TINY, name, None) or tiny_settings(name)
    path: dict[str, Any] = {"pretrain" if supports(SYSTEMS[name](), "pretrain") else "new": settings}
    return Case(system=name, **path, **of_line(CASE_FIELDS, name, {}))


SYSTEM_CASES: dict[str, Case] = {name: _system_case(name) for name in SYSTEMS}

VARIANT_CASES: dict[str, Case] = {
    "bert, Chinese": Case(
        system="bert",
        pretrain=TINY["bert"] | {"whole_word_masking": True, "vocabulary": 120},
        corpus=texts.documents(60, language="zh"),
        queries=("vectors", "fill"),
        masked_text="渔夫检查___网。",
        finetune=Labelled(task="tag", examples=texts.segmented(40), inputs=["渔夫检查渔网。", "法官阅读合同"]),
    ),
    "bert, two lengths, ramp, average and Muon": Case(
        system="bert",
        pretrain=TINY["bert"]
        | {"final_sequence_length": 32, "final_share": 0.4, "ramp": 0.4, "average": 0.4, "optimizer": "muon"},
        queries=(),
        finetune=None,
    ),
    "word2vec, CBOW, hierarchical softmax": Case(
        system="word2vec",
        pretrain={
            "width": 8,
            "chunk_length": 40,
            "steps": 15,
            "batch": 4,
            "architecture": "cbow",
            "loss": "hierarchical",
        },
        queries=WORDS,
        finetune=None,
    ),
    "nnlm, noise-contrastive": Case(
        system="nnlm",
        pretrain={"width": 8, "hidden": 8, "order": 3, "chunk_length": 8, "loss": "nce", "direct_connections": True}
        | {"steps": 15, "batch": 4, **ADAMW},
        queries=("perplexity",),
        finetune=None,
    ),
    "rnn, GRU, both directions": Case(
        system="rnn",
        pretrain={"cell": "gru", "bidirectional": True, "width": 12, "bptt": 8, "steps": 15, "batch": 4, **ADAMW},
        queries=("vectors", "perplexity"),
    ),
    "gpt, fine-tuned with a language-model loss": Case(
        system="gpt",
        pretrain=TINY["gpt"],
        queries=(),
        finetune=replace(CLASSIFY, settings=TUNED | {"lr": 1e-2, "lm_loss": 0.5}),
    ),
    "fasttext, labels alone": Case(
        system="fasttext",
        new={"width": 8, "buckets": 200, "word_ngrams": 2},
        finetune=FASTTEXT,
    ),
}
"""Options that no default run covers."""

NEW_BERT: dict[str, Any] = {**BLOCKS, "layers": 1, "sequence_length": 32, "max_positions": 32, "vocabulary": 150}


def _new_bert(finetune: Labelled) -> Case:
    return Case(system="bert", new=NEW_BERT, finetune=finetune)


LSTM_TAGGER: dict[str, Any] = {"network": "lstm", "network_width": 8, "characters": "cnn", "crf": True}
TASK_CASES: dict[str, Case] = {
    "single-label": _new_bert(CLASSIFY),
    "multi-label": _new_bert(replace(CLASSIFY, examples=texts.multi_label(48))),
    "regression": Case(
        system="cnn",
        new=TINY["cnn"],
        finetune=replace(CLASSIFY, examples=texts.regression(48), columns={"labels": "regression"}),
    ),
    "pair": _new_bert(_labelled("pair")),
    "pair, both orders": _new_bert(_labelled("pair", settings=TUNED | {"orders": "both"})),
    "tag": _new_bert(_labelled("tag")),
    "tag, CRF": _new_bert(_labelled("tag", settings=TUNED | {"crf": True})),
    "tag, LSTM and characters on an RNN": Case(
        system="rnn",
        new={"width": 12, "layers": 1, "bidirectional": True},
        finetune=_labelled("tag", settings=TUNED | LSTM_TAGGER),
    ),
    # The bias of this head has no gradient but rounding.
    "choose": _new_bert(_labelled("choose", settings=TUNED | {"epsilon": 1e-2})),
    "seq2seq, two vocabularies": Case(
        system="transformer",
        new=TINY["transformer"] | {"r_drop": 1.0},
        finetune=_labelled("seq2seq", settings=TRANSLATE | {"separate": True}),
    ),
}
"""The tasks of which runs are recorded, trained on labels from scratch; the contract tests cover all tasks."""

ALL_CASES = {
    **{f"system: {name}": case for name, case in SYSTEM_CASES.items()},
    **{f"variant: {name}": case for name, case in VARIANT_CASES.items()},
    **{f"task: {name}": case for name, case in TASK_CASES.items()},
}
