"""Embedding tables restricted to the words of a dataset: smaller updates, and the other words would not change."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from keel.data.collation import EncodedExamples
from keel.data.token_batch import distinct_ids
from keel.nn.encoder import Encoder


class RestrictedEmbeddings:
    """Within the block, the encoder has tables with the words of the data alone, and `data` has ids of these; the
    trained vectors are written back at its end. Nothing changes without `restrict`, or if there is no such table."""

    def __init__(self, encoder: Encoder, data: EncodedExamples, *, restrict: bool = True):
        self.encoder, self.data = encoder, data
        self.tables: dict[str, tuple[nn.Embedding, Tensor]] = {}
        """The whole table by name, and the ids that the data uses."""
        if not restrict or encoder.embedding_table is None:
            return
        if data.subword_units is None:
            used, ids = distinct_ids(data.ids)
            self.data = replace(data, ids=ids)
            used_ids = {"words": torch.from_numpy(used).long()}
        else:
            used_ids, units = encoder.used_embeddings(data.subword_units)
            self.data = replace(data, subword_units=units)
        self.tables = {
            name: (table, used_ids[name].to(table.weight.device))
            for name, table in encoder.named_children()
            if name in used_ids and isinstance(table, nn.Embedding)
        }

    def __enter__(self) -> EncodedExamples:
        for name, (table, used) in self.tables.items():
            restricted = nn.Embedding.from_pretrained(table.weight.detach()[used], freeze=False)
            setattr(self.encoder, name, restricted)
        return self.data

    def __exit__(self, *error: object) -> None:
        for name, (table, used) in self.tables.items():
            with torch.no_grad():
                table.weight[used] = getattr(self.encoder, name).weight
            setattr(self.encoder, name, table)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Within the block, the encoder has its whole tables, with the vectors that have been trained so far."""
        restricted = {name: getattr(self.encoder, name) for name in self.tables}
        self.__exit__()
        try:
            yield
        finally:
            for name, table in restricted.items():
                setattr(self.encoder, name, table)
