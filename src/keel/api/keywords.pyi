"""Keywords of verbs; `python -m keel.api.keywords` updates the fields of settings."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, TypedDict

from keel.events import OnEvent

STUB: Path

def render() -> str: ...

# Fields of settings, generated.
class TrainKeywords(TypedDict, total=False):
    steps: int
    epochs: float
    minutes: float
    batch: int
    ramp: float
    accumulate: int
    optimizer: Literal["adamw", "muon", "own"]
    lr: float
    schedule: Literal["linear", "cosine", "constant", "trapezoid", "slanted", "inverse_sqrt"]
    warmup: float
    cooldown: float
    layer_decay: float
    unfreeze: Literal["none", "gradual"]
    weight_decay: float
    beta1: float
    beta2: float
    epsilon: float
    clip: float
    average: float
    final_weights: Literal["last", "best"]
    precision: Literal["auto", "fp32", "bf16"]
    compile: bool
    parallel: Literal["ddp", "fsdp"]
    device: str
    threads: int
    seed: int
    evaluate_every: int
    checkpoint_every: int
    checkpoint_minutes: float
    keep: int
    log_every: int

class SweptTrainKeywords(TypedDict, total=False):
    steps: int
    epochs: float | Sequence[float]
    minutes: float
    batch: int | Sequence[int]
    ramp: float
    accumulate: int
    optimizer: Literal["adamw", "muon", "own"]
    lr: float | Sequence[float]
    schedule: Literal["linear", "cosine", "constant", "trapezoid", "slanted", "inverse_sqrt"]
    warmup: float
    cooldown: float
    layer_decay: float
    unfreeze: Literal["none", "gradual"]
    weight_decay: float
    beta1: float
    beta2: float
    epsilon: float
    clip: float
    average: float
    final_weights: Literal["last", "best"]
    precision: Literal["auto", "fp32", "bf16"]
    compile: bool
    parallel: Literal["ddp", "fsdp"]
    device: str
    threads: int
    seed: int
    evaluate_every: int
    checkpoint_every: int
    checkpoint_minutes: float
    keep: int
    log_every: int

class TextKeywords(TypedDict, total=False):
    text_column: str
    separator: str
    encoding: str
    dedup: Literal["none", "lines", "documents"]
    sentences: Literal["auto", "split", "lines", "none"]
    tokenizer: str
    vocabulary: int
    oversize: float
    min_count: int
    phrases: int
    entities: str
    entity_model: str
    lowercase: Literal["auto", "yes", "no"]
    sample: int
    language_smoothing: float
    held_out: float

class VocabularyKeywords(TypedDict, total=False):
    tokenizer: Literal["auto", "wordpiece", "bpe", "words", "characters"]
    vocabulary: int
    separate: bool

class ColumnKeywords(TypedDict, total=False):
    text_column: str
    second_column: str
    label_column: str
    labels: Literal["auto", "single", "multi", "regression"]
    format: Literal["auto", "columns", "conllu", "slashes", "segmented", "text"]
    scheme: Literal["auto", "BIO", "BIOES", "BMES"]
    separator: str
    encoding: str

class HeadKeywords(TypedDict, total=False):
    network: Literal["none", "cnn", "rnn", "gru", "lstm"]
    network_width: int
    network_layers: int
    network_dropout: float
    characters: Literal["none", "cnn", "lstm", "bigrams"]
    crf: bool
    window_ngrams: int
    pool: Literal["default", "concat", "mean", "max", "first", "last"]
    normalize: bool
    max_tokens: int
    mix: bool
    orders: Literal["default", "given", "both"]
    pair_encoding: Literal["default", "cross", "siamese"]
    align: bool
    pooled_null: bool
    lm_loss: float
    class_weights: str
    threshold: Literal["auto"] | float
    calibrate: bool

class SamplingKeywords(TypedDict, total=False):
    temperature: float
    top_k: int
    top_p: float
    repetition_penalty: float
    seed: int

class BeamSearchKeywords(TypedDict, total=False):
    beams: int
    length_penalty: float
    best: int

class SystemKeywords(TypedDict, total=False):
    order: int
    memory: float
    weighting: Literal["binary", "count", "tfidf"]
    sublinear: bool
    word_ngrams: int
    ngrams: int
    l2: float
    cell: Literal["rnn", "gru", "lstm"] | Literal["gru", "lstm"]
    width: int
    layers: int
    bidirectional: bool
    dropout: float
    tie_embeddings: bool
    bptt: int
    classes: int
    hidden: int
    direct_connections: bool
    loss: Literal["softmax", "negative", "nce", "hierarchical"] | Literal["negative", "hierarchical"]
    negatives: int
    sampling_power: float
    chunk_length: int
    architecture: Literal["skipgram", "cbow"]
    window: int
    subsample: float
    x_max: float
    alpha: float
    units: Literal["words", "characters"]
    kernel_sizes: tuple[int, ...]
    filters: int
    label_smoothing: float
    r_drop: float
    scoring: Literal["additive", "dot"]
    attention_dim: int
    min_n: int
    max_n: int
    buckets: int
    kept_buckets: int
    supervised: bool
    label_loss: Literal["softmax", "hierarchical", "negative", "one-vs-all"]
    autotune: bool
    head_dim: int
    mlp_ratio: float
    attention_dropout: float
    activation: Literal["relu", "gelu", "gelu_tanh", "silu"] | Literal["relu", "tanh"]
    norm_epsilon: float
    decoder_layers: int
    position_encoding: Literal["sinusoidal", "learned", "none"]
    pre_norm: bool
    max_positions: int
    cell_size: int
    residual: bool
    cell_clip: float
    projection_clip: float
    max_characters: int
    character_dim: int
    character_filters: tuple[int, ...]
    highway_layers: int
    softmax_samples: int
    bos_token: bool
    hidden_size: int
    input_dropout: float
    layer_dropout: float
    word_dropout: float
    weight_dropout: float
    ar: float
    tar: float
    sink: bool
    sequence_length: int
    segment_types: int
    final_sequence_length: int
    final_share: float
    mask_rate: float
    final_mask_rate: float
    whole_word_masking: bool
    mask_span: int
    pair_objective: Literal["none", "segments", "nsp", "sop"] | Literal["none", "segments"]
    masking: Literal["stages", "mixed"]
    phrase_share: float
    entity_share: float
    embedding_ratio: float
    generator_ratio: float
    embedding_sharing: Literal["disentangled", "tied"]
    detection_weight: float
    global_attn_every_n_layers: int
    local_attention: int
    global_rope_theta: float
    local_rope_theta: float
    classifier_pooling: Literal["cls", "mean"]
    sandwich_norm: bool

# Keywords of verbs.
class DecodingKeywords(SamplingKeywords, total=False):
    beams: int | None
    length_penalty: float | None

class GenerateKeywords(DecodingKeywords, total=False):
    tokens: int
    stop: str | Sequence[str]
    trace: str | Path | None
    on_text: Callable[[str], object]
    on_event: OnEvent

class TranslateKeywords(BeamSearchKeywords, total=False):
    by_pattern: str | Path | Iterable[tuple[str, str]] | None
    tokens: int | None
    cut: bool
    trace: str | Path | None
    on_event: OnEvent

class PretrainKeywords(TrainKeywords, TextKeywords, SystemKeywords, total=False):
    size: str

class FinetuneKeywords(
    SweptTrainKeywords, ColumnKeywords, HeadKeywords, VocabularyKeywords, SystemKeywords, total=False
):
    size: str

class PredictKeywords(ColumnKeywords, BeamSearchKeywords, total=False): ...

class EvaluateKeywords(ColumnKeywords, BeamSearchKeywords, total=False):
    stride: int | None
    dedup: Literal["none", "lines", "documents"]
    sentences: Literal["auto", "split", "lines", "none"]
