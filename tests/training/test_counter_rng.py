import pytest
import torch

from keel.training.counter_rng import CounterRng, _word, derive_seed, mix, permute_index

MASK = 2**64 - 1


def splitmix(x: int) -> int:
    """SplitMix64's finalizer as published, in Python's unbounded integers."""
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def signed(x: int) -> int:
    return x - (x >> 63 << 64)


def chi_square(counts: torch.Tensor) -> float:
    expected = counts.sum() / len(counts)
    return float(((counts - expected) ** 2 / expected).sum())


def test_mixing_is_splitmix64_bit_for_bit() -> None:
    values = [0, 1, -1, 2**63 - 1, -(2**63), 0x1234_5678_9ABC_DEF0, *(7919**k % 2**62 for k in range(50))]
    assert mix(torch.tensor(values)).tolist() == [signed(splitmix(value & MASK)) for value in values]


def test_stream_equals_the_published_one() -> None:
    # The first outputs of SplitMix64 seeded with 0 are published with the reference code.
    gamma = 0x9E3779B97F4A7C15
    states = torch.tensor([signed(gamma * k & MASK) for k in (1, 2, 3)])
    assert [value & MASK for value in mix(states).tolist()] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]


def test_draws_equal_a_big_integer_oracle() -> None:
    rows, count, gamma = [0, 1, 5, 1000], 7, 0x9E3779B97F4A7C15
    word = _word(3, 11, "mask") & MASK
    expected = []
    for row in rows:
        key = splitmix(row * gamma + word & MASK)
        expected.append([splitmix(key + column * gamma & MASK) & 2**63 - 1 for column in range(count)])
    assert (
        CounterRng(seed=3, step=11, first_example=0).random_bits("mask", torch.tensor(rows), count).tolist() == expected
    )


@pytest.mark.parametrize("size", [*range(1, 20), 97, 128, 1000, 4097])
def test_shuffled_is_a_permutation(size: int) -> None:
    for key in (0, 1, -5, 2**62):
        found = permute_index(torch.arange(size), size, torch.tensor(key))
        assert sorted(found.tolist()) == list(range(size))


def test_shuffles_differ_by_key_and_leave_no_order() -> None:
    size = 1000
    one, other = (permute_index(torch.arange(size), size, torch.tensor(key)) for key in (1, 2))
    assert (one == other).sum() < 10
    assert abs(torch.corrcoef(torch.stack([one, torch.arange(size)]).double())[0, 1]) < 0.13  # four deviations


def test_every_order_of_few_items_is_as_likely() -> None:
    keys = mix(torch.arange(24_000))
    positions = torch.stack([permute_index(torch.full_like(keys, item), 4, keys) for item in range(4)], 1)
    counts = torch.bincount(positions @ torch.tensor([64, 16, 4, 1]), minlength=256)
    assert int((counts > 0).sum()) == 24
    assert chi_square(counts[counts > 0].double()) < 65  # 23 degrees of freedom: p < 1e-5 above


@pytest.mark.parametrize(("size", "batch"), [(10, 4), (100, 7), (5, 12), (1, 3)])
def test_an_epoch_has_every_item_once_whatever_the_batch(size: int, batch: int) -> None:
    epochs = 3
    found = []
    for step in range(-(-size * epochs // batch)):
        items, epoch = CounterRng(seed=1, step=step, first_example=step * batch).epoch_order(torch.arange(batch), size)
        found += zip(epoch.tolist(), items.tolist(), strict=True)
    orders = [[item for number, item in found if number == epoch] for epoch in range(epochs)]
    assert all(sorted(order) == list(range(size)) for order in orders)
    assert size < 10 or orders[0] != orders[1]


def test_a_row_does_not_depend_on_the_rows_around_it() -> None:
    rng = CounterRng(seed=5, step=9, first_example=72)
    rows = torch.arange(8)
    for start, stop in ((0, 3), (3, 8), (7, 8)):
        part = slice(start, stop)
        assert torch.equal(rng.random_bits("a", rows[part], 5), rng.random_bits("a", rows, 5)[part])
        assert torch.equal(rng.randint("a", rows[part], 17, 5), rng.randint("a", rows, 17, 5)[part])
        assert torch.equal(rng.epoch_order(rows[part], 50)[0], rng.epoch_order(rows, 50)[0][part])


def test_seed_step_and_name_give_draws_of_their_own() -> None:
    rows = torch.arange(100)
    draws = [
        CounterRng(seed=seed, step=step, first_example=0).random_bits(name, rows)
        for seed in (0, 1)
        for step in (0, 1)
        for name in "ab"
    ]
    assert len({int(value) for rng in draws for value in rng}) == 800


@pytest.mark.parametrize("high", [2, 10, 30])
def test_draws_are_uniform(high: int) -> None:
    rng = CounterRng(seed=2, step=3, first_example=0)
    found = rng.randint("dice", torch.arange(2000), high, count=10)
    for values in (found.flatten(), found[:, 3]):
        degrees = high - 1
        assert chi_square(torch.bincount(values, minlength=high).double()) < degrees + 5 * (2 * degrees) ** 0.5 + 10


def test_neighbouring_draws_are_independent() -> None:
    found = CounterRng(seed=0, step=0, first_example=0).randint("x", torch.arange(4000), 4, count=2)
    for a, b in ((found[:, 0], found[:, 1]), (found[:-1, 0], found[1:, 0])):
        assert chi_square(torch.bincount(a * 4 + b, minlength=16).double()) < 60  # 15 degrees: p < 1e-6 above


def test_high_may_differ_by_row() -> None:
    high = torch.tensor([[1], [2], [1000]])
    found = CounterRng(seed=0, step=0, first_example=0).randint("x", torch.arange(3), high, count=500)
    assert found.amax(1).tolist()[:2] == [0, 1]
    assert 900 < found[2].max() < 1000


def test_seeds_are_what_torch_takes() -> None:
    seeds = {derive_seed(seed, step, rank) for seed in (0, -1, 2**40) for step in range(20) for rank in range(4)}
    assert len(seeds) == 240
    for seed in seeds:
        torch.manual_seed(seed)
    assert min(seeds) >= 0
