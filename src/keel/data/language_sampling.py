"""Documents of several languages, sampled by smoothed size."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from keel.data.documents import Documents
from keel.data.language_mix import repeats_per_epoch
from keel.data.token_store import Tokens
from keel.errors import KeelError
from keel.training.counter_rng import derive_seed


def documents_by_language(tokens: Tokens) -> dict[str, Documents]:
    """The documents of each language, as views of the same tokens."""
    whole = Documents.of(tokens, least=0)
    ends = np.cumsum([each["documents"] for each in tokens.languages.values()]).tolist()
    found: dict[str, Documents] = {}
    for language, start, end in zip(tokens.languages, [0, *ends], ends, strict=False):
        try:
            found[language] = whole.select(whole.spans[start:end])
        except KeelError as error:
            raise KeelError(f"{language}: {error}") from None
    return found


def mix_languages(documents: Mapping[str, Documents], sizes: Sequence[int], smoothing: float, seed: int) -> Documents:
    """One epoch of all languages, whose documents are repeated by `repeats_per_epoch` of these sizes.

    A fractional repeat reads randomly chosen documents once more, the last of them in part. `regions` has the bounds
    of the languages, so that next sentence prediction can take both texts of a pair from one.
    """
    spans: list[Tensor] = []
    for (language, each), count in zip(documents.items(), repeats_per_epoch(sizes, smoothing).tolist(), strict=True):
        whole, rest = divmod(count, 1)
        further = _sample(each, rest * each.size, derive_seed(seed, "language", language))
        spans.append(torch.cat([each.spans.repeat(int(whole), 1), further]))
    bounds = torch.tensor([0, *np.cumsum([len(each) for each in spans]).tolist()])
    mixed = next(iter(documents.values())).select(torch.cat(spans))
    assert len(mixed.spans) == bounds[-1], "a span of fewer than two tokens"
    # A language of one document has no other one to take a text from.
    return replace(mixed, regions=bounds) if min(len(each.spans) for each in documents.values()) > 1 else mixed


def _sample(documents: Documents, size: float, seed: int) -> Tensor:
    """[documents, 2] sentences of randomly chosen documents with about `size` tokens; the last one ends early."""
    order = torch.randperm(len(documents.spans), generator=torch.Generator().manual_seed(seed))
    spans = documents.spans[order]
    starts = documents.starts
    ends = (starts[spans[:, 1]] - starts[spans[:, 0]]).cumsum(0)
    count = int((ends <= size).sum())
    chosen = spans[:count].clone()
    room = size - (int(ends[count - 1]) if count else 0)
    if count < len(spans):
        first, last = spans[count].tolist()
        cut = int(torch.searchsorted(starts, int(starts[first] + room), right=True)) - 1
        if cut > first and int(starts[min(cut, last)] - starts[first]) > 1:
            chosen = torch.cat([chosen, torch.tensor([[first, min(cut, last)]])])
    return chosen
