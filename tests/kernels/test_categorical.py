import pytest
import torch

from keel.kernels.categorical import sample_categorical, sample_categorical_twin


@pytest.mark.parametrize(("width", "columns"), [(64, 64), (128, 100), (8704, 8650)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_samples_equal_the_twin(numbers, device, width, columns, dtype):
    torch.manual_seed(0)
    logits = 3 * numbers(200, width, dtype=dtype).detach()
    logits[:, columns:] = 1e4  # padding is never sampled
    uniform = torch.rand(200, device=device)
    uniform[:2] = torch.tensor([0.0, 1 - 2.0**-24])
    found = sample_categorical(logits, uniform, columns)
    # Sums in another order may pass the number one column earlier or later.
    assert (found == sample_categorical_twin(logits, uniform, columns)).float().mean() > 0.98
    assert 0 <= int(found.min()) <= int(found.max()) < columns


def test_frequencies_are_the_probabilities(device):
    logits = torch.tensor([0.5, 0.25, 0.125, 0.125, 0.0], device=device).log()
    uniform = (torch.arange(1000, device=device) + 0.5) / 1000
    found = sample_categorical(logits.expand(1000, -1), uniform, 5)
    assert torch.bincount(found, minlength=5).tolist() == [500, 250, 125, 125, 0]
