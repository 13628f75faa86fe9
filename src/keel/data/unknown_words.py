"""Ids of out-of-vocabulary words, for systems with character or subword features."""

from threading import Lock

GENERATION_SIZE = 100_000
"""Words per generation; only the last two are kept, so that a server's memory is bounded."""
MAX_NUMBER = 1 << 30


class UnknownWords:
    """Words numbered in the order of their first occurrence; thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._numbers: list[dict[str, int]] = [{}, {}]  # previous and current generation
        self._words: list[dict[int, str]] = [{}, {}]
        self._next = 0

    def begin(self) -> None:
        """Start encoding texts: their words are kept at least until another generation is full."""
        with self._lock:
            if len(self._numbers[1]) >= GENERATION_SIZE:
                self._numbers, self._words = [self._numbers[1], {}], [self._words[1], {}]
                self._next = self._next if self._next < MAX_NUMBER else 0

    def number(self, word: str) -> int:
        """The number of a word, a new one if it has none."""
        with self._lock:
            before, here = self._numbers
            if word not in here:
                number = before.get(word, self._next)
                self._next += word not in before
                here[word], self._words[1][number] = number, word
            return here[word]

    def word(self, number: int) -> str | None:
        """The word of a number, None if there is none or it has been dropped."""
        before, here = self._words
        return here.get(number, before.get(number))
