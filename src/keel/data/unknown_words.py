"""Numbers for words that a vocabulary lacks, so that a system that spells can be asked for them."""

from threading import Lock

MANY = 100_000
"""Words after which a new shelf is begun; only the last two are kept, so that a server does not fill up."""
HIGHEST = 1 << 30


class UnknownWords:
    """Words numbered in the order of their coming; threads of a server may meet new ones at once."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._numbers: list[dict[str, int]] = [{}, {}]  # the shelf before, and this one
        self._words: list[dict[int, str]] = [{}, {}]
        self._next = 0

    def begin(self) -> None:
        """Before texts are read: whatever they bring is kept until they, and many words more, are dealt with."""
        with self._lock:
            if len(self._numbers[1]) >= MANY:
                self._numbers, self._words = [self._numbers[1], {}], [self._words[1], {}]
                self._next = self._next if self._next < HIGHEST else 0

    def number(self, word: str) -> int:
        """The number of a word, given to it now if it has none."""
        with self._lock:
            before, here = self._numbers
            if word not in here:
                number = before.get(word, self._next)
                self._next += word not in before
                here[word], self._words[1][number] = number, word
            return here[word]

    def word(self, number: int) -> str | None:
        """The word of a number, None if there is none or it is long gone."""
        before, here = self._words
        return here.get(number, before.get(number))
