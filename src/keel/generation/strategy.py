"""Choice of a decoding strategy from its settings."""

from dataclasses import fields
from typing import Any

from keel.errors import UsageError, flag_of
from keel.generation.beam_search import BeamSearch
from keel.generation.sampling import Sampling


def decoding_strategy(**settings: Any) -> Sampling | BeamSearch:
    """Beam search if `beams` is given, else sampling; settings (None: the default) of the other strategy raise."""
    given = {name: value for name, value in settings.items() if value is not None}
    search = {field.name: given.pop(field.name) for field in fields(BeamSearch) if field.name in given}
    sampling = Sampling(**given)
    if "beams" not in search:
        if search:
            flag = flag_of(next(iter(search)))
            raise UsageError(f"{flag} is a setting of beam search: add --beam N")
        return sampling
    if sampling != Sampling(seed=sampling.seed):
        raise UsageError("beam search does not sample: omit --beam, or temperature, top-k, top-p and penalty")
    return BeamSearch(**search)
