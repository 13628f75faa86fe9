"""Settings of a task head: what is between the encoder and the last linear layer."""

from dataclasses import dataclass
from typing import Annotated, Literal

from keel.config import Count, Dropout, Ge, Gt, LayerCount, Lt, Validated
from keel.errors import UsageError
from keel.nn.aligned_question import aligned_width
from keel.nn.encoder import Encoder
from keel.nn.pooling import Pool
from keel.nn.task_network import CharacterEncoderKind, HeadNetwork, HeadNetworkKind


@dataclass(frozen=True, kw_only=True)
class HeadSettings(Validated):
    """Task head on an encoder."""

    network: HeadNetworkKind = "none"
    """Network between encoder and classifier: a CNN or a bidirectional recurrent network."""
    network_width: Count = 200
    """Hidden size of the network per direction, or CNN filters per filter width."""
    network_layers: LayerCount = 1
    """Layers of the network."""
    network_dropout: Dropout = 0.5
    """Dropout probability at the network's input, between its layers and at its output."""
    characters: CharacterEncoderKind = "none"
    """Character encoder whose output is concatenated to each word's vector; bigrams: embeddings of the bigrams with its
    neighbours instead, for Chinese characters."""
    crf: bool = False
    """Linear-chain CRF layer on the tags."""
    window_ngrams: Annotated[int, Ge(0)] = 0
    """Number of n-grams (the most frequent ones in a window of five words) with a score for each tag, added to the
    logits; default: 0 (none), or 524288 for word vectors with --crf on Chinese characters."""
    pool: Pool = "default"
    """Pooling of token vectors: mean, max, first or last token, or concat (last, max, mean); default: the system's."""
    normalize: bool = False
    """L2 normalisation of the pooled token vectors, as some sentence-transformers folders define it."""
    max_tokens: Annotated[int, Ge(0)] = 0
    """Truncate texts to this number of tokens, special tokens included, as sentence-transformers folders define it; 0:
    long texts are split into windows."""
    mix: bool = False
    """Scalar mix: learned weighted sum of all encoder layers (ELMo) instead of the top layer."""
    orders: Literal["default", "given", "both"] = "default"
    """Order of a pair: as given, or both orders with pooled outputs added (GPT-1); default: the system's."""
    pair_encoding: Literal["default", "cross", "siamese"] = "default"
    """Encoding of a pair: cross, both texts in one sequence; siamese, each text alone, and the classifier reads
    u, v, |u - v| and u * v; default: siamese for word vectors and frozen encoders."""
    align: bool = False
    """Aligned question embedding: each passage token attends to the question, for readers without self-attention."""
    pooled_null: bool = False
    """Score of "no answer" from max pooling over the passage, for readers without a [CLS] token."""
    lm_loss: Annotated[float, Ge(0), Lt(float("inf"))] = 0.0
    """Weight of an auxiliary language-modelling loss on the same sequences (GPT-1: 0.5)."""

    class_weights: str = "none"
    """Class weights in the loss: balanced (inverse frequency), or for each label, as in spam=5,ham=1."""
    threshold: Literal["auto"] | Annotated[float, Gt(0), Lt(1)] = 0.5
    """Probability above which a label (multi-label), or the positive class of two, is predicted: a number between
    0 and 1, or auto, the one with the highest F1 on dev."""
    calibrate: bool = False
    """Temperature scaling of the probabilities on dev; labels and logits stay the same."""

    NETWORK = ("network", "network_width", "network_layers", "network_dropout")

    @property
    def tuned_on_dev(self) -> tuple[str, ...]:
        """The flags of settings that are tuned on validation examples."""
        return tuple(["--calibrate"] * self.calibrate + ["--threshold auto"] * (self.threshold == "auto"))

    def build_network(self, encoder: Encoder) -> HeadNetwork | None:
        """The head network, if any, for this encoder."""
        if self.network == "none" and self.characters == "none":
            return None
        if encoder.bag_of_words:
            what = "--network needs a vector for each word, and this model has none"
            raise UsageError(f"{what}: use word2vec, glove, an unsupervised fasttext or bert")
        return HeadNetwork(
            aligned_width(encoder.width) if self.align else encoder.width,
            kind=self.network,
            width=self.network_width,
            layers=self.network_layers,
            dropout=self.network_dropout,
            characters=self.characters,
        )
