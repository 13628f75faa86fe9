"""Logistic regression on word counts: how far labels alone go, without any network or pre-training."""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

WORD = re.compile(r"\w+")
STEPS, RATE, DECAY = 300, 5.0, 1e-3


class WordCountBaseline:
    """A text is the counts of its words, however ordered; every label has one weight for each word."""

    def __init__(self, texts: Sequence[str], labels: Sequence[str]):
        self.names, targets = np.unique(labels, return_inverse=True)
        words = Counter(word for text in texts for word in set(WORD.findall(text.lower())))
        self.columns = {word: number for number, word in enumerate(words)}
        self.rarity = np.log(len(texts) / np.array(list(words.values())))  # words that are everywhere tell little
        inputs, wanted = self._vectors(texts), np.eye(len(self.names))[targets]
        self.weights = np.zeros((len(words), len(self.names)))
        for _ in range(STEPS):
            # The gradient of cross entropy: what is predicted less what is true, for every word that is there.
            error = (_softmax(inputs @ self.weights) - wanted) / len(texts)
            self.weights -= RATE * (inputs.T @ error + DECAY * self.weights)

    def predict(self, texts: Sequence[str]) -> list[str]:
        """The likeliest label of each text."""
        return self.names[(self._vectors(texts) @ self.weights).argmax(1)].tolist()

    def _vectors(self, texts: Sequence[str]) -> np.ndarray:
        """[texts, words], each row of length 1."""
        counts = np.zeros((len(texts), len(self.columns)))
        for row, text in zip(counts, texts, strict=True):
            for word in WORD.findall(text.lower()):
                if word in self.columns:
                    row[self.columns[word]] += 1
        weighed = counts * self.rarity
        return weighed / np.maximum(np.linalg.norm(weighed, axis=1, keepdims=True), 1e-9)


def _softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)
