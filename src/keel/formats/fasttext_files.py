"""fastText's models, in and out: .bin, and .ftz in. The bytes are in fasttext_bytes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from keel.data.label_kinds import MultiLabel, SingleLabel
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError
from keel.formats.fasttext_binary import SUPERVISED, Contents, Settings, is_fasttext, read_contents, write_contents
from keel.formats.hf_architectures import LEARNING_HEAD
from keel.formats.huggingface import Stored, label_settings
from keel.systems.fasttext import FastText
from keel.systems.fasttext_classifier import LABEL_PREFIX, LabelLoss

__all__ = ["is_fasttext", "read", "write"]
LOSSES: dict[int, LabelLoss] = {1: "hierarchical", 2: "negative", 3: "softmax", 4: "one-vs-all"}
CBOW, SKIPGRAM = 1, 2


def read(path: Path) -> Stored:
    """A model of fastText's in our words; it cuts text at blanks and nowhere else."""
    contents = read_contents(path)
    told, words = contents.settings, len(contents.words)
    tokenizer = Tokenizer.from_whitespace_words(
        name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace") for name in contents.words
    )
    supervised = told.model == SUPERVISED
    system = FastText(
        width=told.width,
        supervised=supervised,
        architecture="cbow" if told.model == CBOW else "skipgram",
        window=max(1, told.window),
        negatives=max(1, told.negatives),
        subsample=max(0.0, told.subsample),
        min_n=min(told.min_n, told.max_n),
        max_n=told.max_n,
        buckets=told.buckets,
        kept_buckets=-1 if contents.kept is None else len(contents.kept),
        word_ngrams=max(1, told.word_ngrams),
        label_loss=LOSSES[told.loss] if supervised else "softmax",
        label_counts=tuple(contents.label_counts.tolist()),
    )
    special = len(tokenizer) - words
    inputs, outputs = torch.from_numpy(contents.inputs), torch.from_numpy(contents.outputs)
    grams = inputs[words:]
    tensors = {"encoder.words.weight": torch.cat([inputs.new_zeros(special, told.width), inputs[:words]])}
    if contents.kept is not None:
        order = np.argsort(contents.kept)
        grams = grams[order]
        tensors["encoder.buckets"] = torch.from_numpy(contents.kept[order]).float()
    tensors["encoder.grams.weight"] = grams[: system.ngram_vectors]
    config: dict[str, Any] = {"model_type": system.name}
    missing = (LEARNING_HEAD,)
    if supervised:
        names = [name.removeprefix(LABEL_PREFIX) for name in contents.labels]
        kind = MultiLabel() if system.label_loss == "one-vs-all" else SingleLabel()
        config |= label_settings(names, kind.problem_type)
        tensors |= {"classifier.weight": outputs, "classifier.bias": torch.zeros(len(names))}
    elif LOSSES[told.loss] == "negative":
        tensors["contexts"] = torch.cat([outputs.new_zeros(special, told.width), outputs])
        missing = ()
    return Stored(
        system=system, tokenizer=tokenizer, vocabulary=len(tokenizer), tensors=tensors, config=config, missing=missing
    )


def write(
    path: Path, system: FastText, tokenizer: Tokenizer, tensors: Mapping[str, Tensor], labels: Sequence[str]
) -> None:
    """Write a model as fastText's .bin, and read it again to see that nothing changed.

    fastText cuts text at blanks alone, so it must be given text in words as the tokenizer cuts it. How often words
    came is not kept: they get falling numbers in their order.
    """
    if system.kept_buckets >= 0:
        raise KeelError(f"{path}: this model was pruned, as .ftz files are, and fastText takes no .bin of such a one")
    if labels and not system.supervised:
        remedy = "name it .vec for the vectors alone, or teach it without --freeze"
        raise KeelError(f"{path}: fastText has no head on frozen vectors: {remedy}")
    special = set(tokenizer.special_ids)
    words = [place for place in range(len(tokenizer)) if place not in special]
    inputs = torch.cat([tensors["encoder.words.weight"][words], tensors["encoder.grams.weight"]])
    order = np.arange(len(labels))
    if system.supervised:
        if not labels or "classifier.weight" not in tensors:
            raise KeelError(f"{path}: this model was taught numbers or nothing, and fastText knows labels alone")
        outputs = tensors["classifier.weight"]
        if tensors["classifier.bias"].any():
            raise KeelError(f"{path}: the head of this model has a bias, which fastText's has not")
        order = np.argsort(-np.array(system.label_counts), kind="stable")  # as it wants them: the frequent ones first
        if system.label_loss != "hierarchical":  # of a tree, rows are nodes
            outputs = outputs[order]
    else:
        outputs = tensors["contexts"][words] if "contexts" in tensors else torch.zeros(len(words), system.width)
    loss = system.label_loss if system.supervised else "negative"
    contents = Contents(
        settings=Settings(
            width=system.width,
            window=system.window,
            epochs=int(system.pretraining_defaults.epochs),
            min_count=1,
            negatives=system.negatives,
            word_ngrams=system.word_ngrams,
            loss=next(code for code, name in LOSSES.items() if name == loss),
            model=SUPERVISED if system.supervised else CBOW if system.architecture == "cbow" else SKIPGRAM,
            buckets=system.ngram_vectors,
            min_n=system.min_n,
            max_n=system.max_n,
            rate_updates=100,
            subsample=system.subsample,
        ),
        words=[tokenizer.token_of(place) for place in words],
        word_counts=np.arange(len(words), 0, -1),
        labels=[LABEL_PREFIX + labels[number] for number in order.tolist()],
        label_counts=np.array(system.label_counts, np.int64)[order],
        tokens=len(words) * (len(words) + 1) // 2,
        inputs=inputs.numpy(),
        outputs=outputs.numpy(),
    )
    write_contents(path, contents)
    copy = read_contents(path)
    if (copy.words, copy.labels) != (contents.words, contents.labels) or not (
        np.array_equal(copy.inputs, contents.inputs) and np.array_equal(copy.outputs, contents.outputs)
    ):
        raise KeelError(f"the model came back changed from {path}: do not use it")
