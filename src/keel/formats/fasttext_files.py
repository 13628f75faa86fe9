"""fastText models: .bin files are read and written, .ftz files are read."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from keel.data.label_kinds import MultiLabel, SingleLabel
from keel.data.tokenizer import Tokenizer
from keel.errors import KeelError, UsageError
from keel.events import OnEvent, ignore
from keel.formats.fasttext_binary import (
    SUPERVISED,
    Contents,
    Dictionary,
    Settings,
    is_fasttext,
    read_contents,
    read_dictionary,
    write_contents,
)
from keel.formats.stored_model import LABEL_COUNTS, Format, StoredModel, label_settings
from keel.systems.fasttext import FastText
from keel.systems.fasttext_classifier import LABEL_PREFIX, LabelLoss
from keel.training.checkpoint import atomic_file

LOSSES: dict[int, LabelLoss] = {1: "hierarchical", 2: "negative", 3: "softmax", 4: "one-vs-all"}
CBOW, SKIPGRAM = 1, 2


def read(path: Path, on_event: OnEvent = ignore, *, pickled: bool = False) -> StoredModel:
    """Read a fastText model; its tokens are separated by whitespace."""
    contents = read_contents(path)
    return _stored(contents, torch.from_numpy(contents.inputs), torch.from_numpy(contents.outputs))


def read_outline(path: Path) -> StoredModel:
    """Read a fastText model as far as its matrices."""
    found = read_dictionary(path)
    rows = found.input_rows, found.output_rows
    inputs, outputs = (torch.empty(count, found.settings.width, device="meta") for count in rows)
    return _stored(found, inputs, outputs)


def _stored(contents: Dictionary, inputs: Tensor, outputs: Tensor) -> StoredModel:
    settings, words = contents.settings, len(contents.words)
    tokenizer = Tokenizer.from_whitespace_words(
        name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace") for name in contents.words
    )
    supervised = settings.model == SUPERVISED
    system = FastText(
        width=settings.width,
        supervised=supervised,
        architecture="cbow" if settings.model == CBOW else "skipgram",
        window=max(1, settings.window),
        negatives=max(1, settings.negatives),
        subsample=max(0.0, settings.subsample),
        min_n=min(settings.min_n, settings.max_n),
        max_n=settings.max_n,
        buckets=settings.buckets,
        kept_buckets=-1 if contents.kept_buckets is None else len(contents.kept_buckets),
        word_ngrams=max(1, settings.word_ngrams),
        label_loss=LOSSES[settings.loss] if supervised else "softmax",
    )
    special = len(tokenizer) - words
    grams = inputs[words:]
    tensors = {"encoder.words.weight": torch.cat([inputs.new_zeros(special, settings.width), inputs[:words]])}
    if contents.kept_buckets is not None:
        order = np.argsort(contents.kept_buckets)
        grams = grams[order]
        tensors["encoder.buckets"] = torch.from_numpy(contents.kept_buckets[order]).float()
    tensors["encoder.grams.weight"] = grams[: system.ngram_vectors]
    config: dict[str, Any] = {}
    if supervised:
        names = [name.removeprefix(LABEL_PREFIX) for name in contents.labels]
        kind = MultiLabel() if system.label_loss == "one-vs-all" else SingleLabel()
        config = label_settings(names, kind.problem_type)
        config["keel"] = {"task": {LABEL_COUNTS: contents.label_counts.tolist()}}
        tensors |= {"classifier.weight": outputs, "classifier.bias": outputs.new_zeros(len(names))}
    elif LOSSES[settings.loss] == "negative":
        tensors["contexts"] = torch.cat([outputs.new_zeros(special, settings.width), outputs])
    return StoredModel(system=system, tokenizer=tokenizer, vocab_size=len(tokenizer), tensors=tensors, config=config)


def write(path: Path, stored: StoredModel, overwrite: bool = False) -> None:
    """Write a model as fastText's .bin and compare what is read back; a failed write leaves the old file.

    fastText splits text at whitespace only, so its input must be tokenized as here. Word counts are unknown: words get
    descending numbers in their order, and so do labels without counts.
    """
    system, tokenizer, tensors = stored.system, stored.tokenizer, stored.tensors
    assert isinstance(system, FastText)
    labels = stored.labels if stored.label_kind.has_classes else ()
    if path.exists() and not overwrite:
        raise UsageError(f"{path} exists: choose another file, or pass --overwrite to replace it")
    if system.kept_buckets >= 0:
        raise KeelError(f"{path}: this model is pruned (from a .ftz file), and fastText reads no .bin of such a model")
    if labels and not system.supervised:
        remedy = "name it .vec for the vectors alone, or fine-tune without --freeze"
        raise KeelError(f"{path}: fastText has no classifier on frozen vectors: {remedy}")
    special = set(tokenizer.special_ids)
    words = [number for number in range(len(tokenizer)) if number not in special]
    inputs = torch.cat([tensors["encoder.words.weight"][words], tensors["encoder.grams.weight"]])
    counts = np.array(stored.label_counts or range(len(labels), 0, -1), np.int64)[: len(labels)]
    order = np.argsort(-counts, kind="stable")  # fastText orders labels by descending count
    if system.supervised:
        if not labels or "classifier.weight" not in tensors:
            raise KeelError(f"{path}: this model predicts no labels, and a supervised fastText model does")
        outputs = tensors["classifier.weight"]
        if tensors["classifier.bias"].any():
            raise KeelError(f"{path}: the classifier of this model has a bias, and fastText's has none")
        if system.label_loss != "hierarchical":  # rows of a Huffman tree are nodes
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
            lr_update_rate=100,
            subsample=system.subsample,
        ),
        words=[tokenizer.token_of(number) for number in words],
        word_counts=np.arange(len(words), 0, -1),
        labels=[f"{LABEL_PREFIX}{labels[number]}" for number in order],
        label_counts=counts[order],
        tokens=len(words) * (len(words) + 1) // 2,
        inputs=inputs.numpy(),
        outputs=outputs.numpy(),
    )
    with atomic_file(path) as file:
        write_contents(file, contents)
        file.flush()
        copy = read_contents(file.name)
        if (copy.words, copy.labels) != (contents.words, contents.labels) or not (
            np.array_equal(copy.inputs, contents.inputs) and np.array_equal(copy.outputs, contents.outputs)
        ):
            raise KeelError(f"{path} was not written: the model differs when it is read back: write a .vec file")


FASTTEXT = Format(
    name="fastText",
    detect=is_fasttext,
    read=read,
    outline=read_outline,
    write=write,
    system=lambda path: FastText,
    suffixes=(".bin",),
    holds=lambda system: isinstance(system, FastText),
)
