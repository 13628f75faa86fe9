"""Text of token ids that are generated one by one, up to the first stop string."""

from collections.abc import Sequence

from keel.data.sentence_splitting import detokenize
from keel.data.tokenizer import Tokenizer

INCOMPLETE = "\ufffd"
"""A character whose bytes are not complete yet."""
CONTEXT = 16
"""Previous ids that may affect the text of the next one."""


class IncrementalText:
    """The text of generated ids, decoded incrementally."""

    def __init__(self, tokenizer: Tokenizer, prompt: list[int], stop: Sequence[str] = ()):
        self.tokenizer, self.stop = tokenizer, stop
        self.emitted = ""
        """The text returned so far."""
        self.ended = False
        """Whether a stop string was generated."""
        self._special = set(tokenizer.special_ids)
        self._text = ""
        self._rebase(prompt)

    def add(self, *ids: int) -> bool:
        """Add generated ids; returns whether a stop string has ended the text."""
        if shown := [number for number in ids if number not in self._special]:
            self._ids += shown
            self._text = self._decoded + self._decode(self._ids)[self._context_length :]
            ends = [self._text.find(stop, max(0, len(self.emitted) - len(stop))) for stop in self.stop]
            ends = [end for end in ends if end >= 0]
            if ends:
                self._text, self.ended = self._text[: min(ends)], True
            elif len(self._ids) > 8 * CONTEXT and not self._text.endswith(INCOMPLETE):
                self._rebase(self._ids)
        return self.ended

    def _rebase(self, ids: list[int]) -> None:
        """Keep the last few ids as context, so that decoding stays linear in the length of the text."""
        self._decoded, self._ids = self._text, ids[-CONTEXT:]
        self._context_length = len(self._decode(self._ids))

    def _decode(self, ids: list[int]) -> str:
        text = self.tokenizer.decode(ids)
        return detokenize(text) if self.tokenizer.kind == "words" else text

    def new(self, *, last: bool = False) -> str:
        """Text that was not returned yet, without a possible start of a stop string or of an incomplete character;
        all of it if it is the `last`."""
        text = self._text
        if not last and not self.ended:
            if text.endswith(INCOMPLETE):
                return ""
            starts = (size for stop in self.stop for size in range(1, len(stop)) if text.endswith(stop[:size]))
            text = text[: len(text) - max(starts, default=0)]
        fresh = text[len(self.emitted) :] if text.startswith(self.emitted) else ""
        self.emitted += fresh
        return fresh

    def whole(self, ids: Sequence[int]) -> str:
        """The text of all these ids."""
        for number in ids:
            if self.add(number):
                break
        return self.new(last=True)
