"""Words with vectors whose answers are known, a slow plain search, and a GPT-2 that transformers wrote."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import keel
from keel.data.tokenizer import Tokenizer
from keel.explain.nearest_neighbors import VectorSpace

# Royal, male, female, fruit, Chinese.
ROYAL: dict[str, list[float]] = {
    "man": [0, 1, 0, 0, 0],
    "woman": [0, 0, 1, 0, 0],
    "king": [3, 1, 0, 0, 0],
    "queen": [3, 0, 1, 0, 0],
    "皇帝": [3, 1, 0, 0, 2],
    "皇后": [3, 0, 1, 0, 2],
    "男": [0, 1, 0, 0, 2],
    "女": [0, 0, 1, 0, 2],
    "apple": [0, 0, 0, 1, 0],
    "pear": [0, 0.1, 0, 2, 0],
    "well-known": [1, 1, 1, 1, 0],
}


@pytest.fixture
def royal() -> VectorSpace:
    return VectorSpace(list(ROYAL), np.array(list(ROYAL.values()), dtype=np.float32))


@pytest.fixture
def random_space() -> VectorSpace:
    random = np.random.default_rng(7)
    return VectorSpace([f"word{number}" for number in range(300)], random.normal(size=(300, 12)).astype(np.float32))


@pytest.fixture
def plain_cosine() -> Callable[..., float]:
    """The cosine of two rows of a space."""

    def cosine(space: VectorSpace, x: int, y: int) -> float:
        a, b = space.matrix[x].astype(float), space.matrix[y].astype(float)
        return float(a @ b / np.sqrt(a @ a) / np.sqrt(b @ b))

    return cosine


@pytest.fixture
def plain_analogy(plain_cosine: Callable[..., float]) -> Callable[..., list[int]]:
    """Reference: all candidate rows, best first, by the published formulas."""

    def analogy(space: VectorSpace, plus: list[int], minus: list[int], by: str, among: int = 0) -> list[int]:
        def worth(x: int) -> float:
            if by == "add":
                return sum(plain_cosine(space, x, p) for p in plus) - sum(plain_cosine(space, x, n) for n in minus)
            above = np.prod([(1 + plain_cosine(space, x, p)) / 2 for p in plus])
            return float(above / np.prod([(1 + plain_cosine(space, x, n)) / 2 + 0.001 for n in minus]))

        return sorted((x for x in range(among or len(space.words)) if x not in plus + minus), key=lambda x: -worth(x))

    return analogy


@pytest.fixture(scope="module")
def gpt_folder(tmp_path_factory: pytest.TempPathFactory, english_corpus: Path) -> Path:
    """A folder of GPT-2 that transformers wrote, with random weights."""
    folder = tmp_path_factory.mktemp("hub") / "gpt"
    tokenizer = Tokenizer.train(keel.Corpus([english_corpus]), kind="bpe", size=300)
    folder.mkdir()
    tokenizer.save(folder)
    torch.manual_seed(0)
    shape: dict[str, Any] = {"n_layer": 3, "n_head": 2, "n_embd": 16, "n_positions": 32}
    config = transformers.GPT2Config(vocab_size=len(tokenizer), initializer_range=0.5, **shape)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder
