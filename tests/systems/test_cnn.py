from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from keel.api.evaluation import evaluate
from keel.api.finetuning import finetune
from keel.api.pretraining import pretrain
from keel.claims.claim import Say
from keel.claims.convolution_claims import shrinking_images
from keel.data.token_batch import TokenBatch
from keel.errors import UsageError
from keel.events import ignore
from keel.model import Model
from keel.nn.convolution import ConvolutionFilters, max_over_time
from keel.systems.cnn import Cnn

EXAMPLES = [("what a good film", "yes"), ("not at all good", "no"), ("good, and warm", "yes"), ("not good", "no")] * 5


def test_filters_are_cross_correlations() -> None:
    rng = np.random.default_rng(0)
    filters = ConvolutionFilters(1, {3: 1})
    row, kernel = rng.normal(size=8).astype(np.float32), rng.normal(size=3).astype(np.float32)
    filters.load_state_dict(
        {"windows.0.weight": torch.from_numpy(kernel)[None, None], "windows.0.bias": torch.zeros(1)}
    )
    with torch.no_grad():
        found = filters(torch.from_numpy(row)[None, :, None])[0, :, 0].numpy()
    assert np.allclose(found, np.correlate(row, kernel, "same"), atol=1e-6)
    assert np.allclose(found, np.convolve(row, kernel[::-1], "same"), atol=1e-6)
    assert not np.allclose(found, np.convolve(row, kernel, "same"), atol=0.1)


def test_ten_layers_without_padding_cost_forty_rows() -> None:
    say = Say(ignore)
    assert shrinking_images(say).holds
    assert "240 to 200" in say.rows[0]


@pytest.fixture
def filters() -> ConvolutionFilters:
    torch.manual_seed(0)
    return ConvolutionFilters(4, {2: 3, 3: 5})


def by_hand(filters: ConvolutionFilters, x: Tensor, *, centered: bool) -> Tensor:
    """[positions, filters] of one sequence, by sums over each window; not centered, only where the filter fits."""
    found = []
    for window in filters.windows:
        assert isinstance(window, nn.Conv1d)
        assert window.bias is not None
        size = window.kernel_size[0]
        before, after = ((size - 1) // 2, size // 2) if centered else (0, max(0, size - len(x)))
        padded = torch.cat([torch.zeros(before, 4), x, torch.zeros(after, 4)])
        positions = range(len(padded) - size + 1)
        activations = [
            window.bias + sum(window.weight[:, :, i] @ padded[place + i] for i in range(size)) for place in positions
        ]
        found.append(torch.stack(activations))
    return torch.cat(found, 1) if centered else torch.cat([each.amax(0) for each in found])


def test_filters_equal_the_sum_and_ignore_padding(filters: ConvolutionFilters) -> None:
    vectors, lengths = torch.randn(3, 6, 4), torch.tensor([6, 4, 1])
    centered, largest = filters(vectors, lengths), filters.max_pool(vectors, lengths)
    assert centered.shape == (3, 6, filters.width)
    for row, length in enumerate(lengths.tolist()):
        x = vectors[row, :length]
        assert torch.allclose(centered[row, :length], by_hand(filters, x, centered=True), atol=1e-6)
        assert torch.allclose(largest[row], by_hand(filters, x, centered=False), atol=1e-6)


def test_max_over_time_ignores_padding() -> None:
    x = torch.tensor([[[1.0], [5.0], [9.0]]])
    assert max_over_time(x, torch.tensor([2])).item() == 5
    assert max_over_time(x).item() == 9


def test_a_position_depends_on_its_window_only() -> None:
    encoder = Cnn(width=8, filters=4, kernel_sizes=(3, 5)).build_encoder(50)
    vectors = torch.randn(1, 9, 8, requires_grad=True)
    top = encoder.contextualize(vectors, TokenBatch(ids=torch.zeros(1, 9).long(), lengths=torch.tensor([9]))).top
    (gradient,) = torch.autograd.grad(top[0, 4].sum(), vectors)
    assert gradient[0].abs().sum(1).ne(0).tolist() == [False] * 2 + [True] * 5 + [False] * 2


@pytest.mark.parametrize("units", ["words", "characters"])
def test_finetuning_from_scratch_and_reloading(tmp_path: Path, units: Any) -> None:
    system = Cnn(width=16, filters=8, units=units, dropout=0.0)
    finetune(system, EXAMPLES, dev=None, epochs=15, lr=1e-2, batch=5, threads=1, out=tmp_path / "m")
    model = Model.load(tmp_path / "m")
    assert model.system == system
    assert evaluate(model, EXAMPLES).main_value == 1.0
    assert len(model.tokenizer.encode("good").ids) == (1 if units == "words" else 4)
    assert model.encode(["a good film", ""]).shape == (2, 24)


def test_pretraining_is_refused(english_corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="keel finetune cnn FILE"):
        pretrain("cnn", english_corpus, out=tmp_path / "m")
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("field", "value"), [("width", 0), ("filters", 0), ("kernel_sizes", ()), ("kernel_sizes", (3, 3))]
)
def test_invalid_settings_are_refused(field: str, value: Any) -> None:
    with pytest.raises(UsageError, match=field):
        Cnn(**{field: value})
