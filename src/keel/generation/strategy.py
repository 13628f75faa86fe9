"""Choice of a decoding strategy from its settings."""

from keel.errors import UsageError
from keel.generation.beam_search import BeamSearch
from keel.generation.sampling import Sampling


def decoding_strategy(
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    repetition_penalty: float = 1.0,
    seed: int = 0,
    beams: int | None = None,
    best: int | None = None,
    length_penalty: float | None = None,
) -> Sampling | BeamSearch:
    """Beam search if `beams` is given, else sampling; settings of the other strategy raise."""
    sampling = Sampling(
        temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=repetition_penalty, seed=seed
    )
    if beams is None:
        if best is not None:
            raise UsageError("--best is a setting of beam search: add --beam N")
        if length_penalty is not None:
            raise UsageError("--length-penalty is a setting of beam search: add --beam N")
        return sampling
    if sampling != Sampling(seed=seed):
        raise UsageError("beam search does not sample: omit --beam, or temperature, top-k, top-p and penalty")
    given = {"best": best, "length_penalty": length_penalty}
    return BeamSearch(beams=beams, **{name: value for name, value in given.items() if value is not None})
