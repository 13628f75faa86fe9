"""Embedding tables restricted to the words of a dataset: smaller updates, and the other words would not change."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn

from keel.data.collation import EncodedExamples
from keel.data.token_batch import distinct_ids
from keel.nn.encoder import Encoder


@contextmanager
def restricted_embeddings(encoder: Encoder, data: EncodedExamples) -> Iterator[EncodedExamples]:
    """The data with ids of the restricted tables; the trained vectors are written back at the end of the block."""
    if encoder.embedding_table is None:
        yield data
        return
    if data.subword_units is None:
        used, ids = distinct_ids(data.ids)
        restricted = replace(data, ids=ids)
        used_ids = {"words": torch.from_numpy(used).long()}
    else:
        used_ids, units = encoder.used_embeddings(data.subword_units)
        restricted = replace(data, subword_units=units)
    tables = {
        name: (table, used_ids[name].to(table.weight.device))
        for name, table in encoder.named_children()
        if name in used_ids and isinstance(table, nn.Embedding)
    }
    for name, (table, used) in tables.items():
        setattr(encoder, name, nn.Embedding.from_pretrained(table.weight.detach()[used], freeze=False))
    try:
        yield restricted
    finally:
        for name, (table, used) in tables.items():
            with torch.no_grad():
                table.weight[used] = getattr(encoder, name).weight
            setattr(encoder, name, table)
