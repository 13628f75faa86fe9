"""Baseline: logistic regression on tf-idf weighted word counts."""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

WORD = re.compile(r"\w+")
STEPS, LR, WEIGHT_DECAY = 300, 5.0, 1e-3


class WordCountBaseline:
    """Bag of words; each label has one weight per word."""

    def __init__(self, texts: Sequence[str], labels: Sequence[str]):
        self.names, targets = np.unique(labels, return_inverse=True)
        words = Counter(word for text in texts for word in set(WORD.findall(text.lower())))
        self.columns = {word: number for number, word in enumerate(words)}
        self.idf = np.log(len(texts) / np.array(list(words.values())))
        inputs, wanted = self._vectors(texts), np.eye(len(self.names))[targets]
        self.weights = np.zeros((len(words), len(self.names)))
        for _ in range(STEPS):
            # Gradient of the cross-entropy: predicted minus true probability, per word.
            error = (_softmax(inputs @ self.weights) - wanted) / len(texts)
            self.weights -= LR * (inputs.T @ error + WEIGHT_DECAY * self.weights)

    def predict(self, texts: Sequence[str]) -> list[str]:
        """Most probable label of each text."""
        return self.names[(self._vectors(texts) @ self.weights).argmax(1)].tolist()

    def _vectors(self, texts: Sequence[str]) -> np.ndarray:
        """Normalised tf-idf vectors [texts, words]."""
        counts = np.zeros((len(texts), len(self.columns)))
        for row, text in zip(counts, texts, strict=True):
            for word in WORD.findall(text.lower()):
                if word in self.columns:
                    row[self.columns[word]] += 1
        weighted = counts * self.idf
        return weighted / np.maximum(np.linalg.norm(weighted, axis=1, keepdims=True), 1e-9)


def _softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)
