"""The dropouts: what their masks hold, and along what they are constant."""

import pytest
import torch

from backstory.models.dropout import gaussian_noise, keep_mask, locked_dropout, token_dropout, weight_drop, word_dropout


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("probability", [0.05, 0.29, 0.5, 0.9])
def test_masks_are_zero_or_the_inverse_of_the_share_kept(probability: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    count = 200_001  # no multiple of four, as four decisions come from one random number
    mask = keep_mask((count,), probability, torch.empty(0, dtype=dtype))
    assert mask.dtype == dtype and mask.shape == (count,)
    kept = torch.tensor(1 / (1 - probability), dtype=torch.float64).to(dtype)
    assert set(mask.tolist()) == {0.0, kept.item()}
    deviation = (probability * (1 - probability) / count) ** 0.5
    assert abs((mask == 0).double().mean().item() - probability) < 5 * deviation
    assert abs(mask.double().mean().item() - kept.item() * (1 - probability)) < 5 * deviation * kept.item()


def test_decisions_are_independent_of_their_neighbours() -> None:
    torch.manual_seed(0)
    drops = (keep_mask((400_000,), 0.3, torch.empty(0)) == 0).double() - 0.3
    for distance in (1, 2, 3, 4, 5, 8):
        correlation = (drops[distance:] * drops[:-distance]).mean().item() / 0.21
        assert abs(correlation) < 5 / 400_000**0.5, distance


def test_masks_follow_the_seed() -> None:
    masks = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        masks.append(keep_mask((5, 7), 0.4, torch.empty(0)))
    assert torch.equal(masks[0], masks[1]) and not torch.equal(masks[0], masks[2])


@pytest.mark.parametrize("shape", [(0,), (1,), (3, 1), (2, 3, 5)])
def test_masks_have_the_shape_asked_for(shape: tuple[int, ...]) -> None:
    assert keep_mask(shape, 0.5, torch.empty(0)).shape == shape


def test_locked_dropout_is_constant_over_time_and_differs_by_row() -> None:
    torch.manual_seed(0)
    x = torch.rand(4, 9, 50) + 1
    ratio = locked_dropout(x, 0.4, True) / x
    torch.testing.assert_close(ratio, ratio[:, :1].expand_as(ratio))
    dropped = ratio[:, 0] == 0
    assert dropped.any(1).all() and not dropped.all(1).any()
    assert all(not torch.equal(dropped[a], dropped[b]) for a in range(4) for b in range(a))
    torch.testing.assert_close(ratio[:, 0][~dropped], torch.full((int((~dropped).sum()),), 1 / 0.6))


def test_token_dropout_differs_over_time_and_by_row() -> None:
    torch.manual_seed(0)
    x = torch.rand(4, 9, 50) + 1
    ratio = token_dropout(x, 0.4, True) / x
    dropped = (ratio == 0).flatten(0, 1)
    assert len({tuple(row) for row in dropped.tolist()}) == len(dropped)
    torch.testing.assert_close(ratio[ratio != 0], torch.full((int((~dropped).sum()),), 1 / 0.6))
    assert 0.35 < dropped.float().mean() < 0.45


def test_word_dropout_is_masking_rows_of_the_embedding() -> None:
    table, tokens = torch.randn(9, 5), torch.randint(9, (3, 20))
    torch.manual_seed(0)
    actual = word_dropout(table[tokens], tokens, 9, 0.4, True)
    torch.manual_seed(0)
    mask = keep_mask((9, 1), 0.4, table)
    assert 0 < (mask == 0).sum() < 9
    assert torch.equal(actual, (table * mask)[tokens])


def test_weight_drop_passes_gradients_through_its_mask() -> None:
    torch.manual_seed(0)
    raw = torch.rand(20, 20).add(1).requires_grad_()
    dropped = weight_drop(raw, 0.5, True)
    dropped.sum().backward()
    assert raw.grad is not None
    torch.testing.assert_close(raw.grad, (dropped / raw).detach())
    assert set(raw.grad.unique().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("deviation", [0.15, 2.0])
def test_noise_is_normal_and_drawn_for_every_number(deviation: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(200, 100, 20, requires_grad=True)
    noisy = gaussian_noise(x, deviation, True)
    noise = ((noisy - x) / deviation).detach().double()
    count = noise.numel()
    for actual, expected, spread in ((noise, 0.0, 1.0), (noise**2, 1.0, 2.0), (noise**4, 3.0, 96.0)):
        assert abs(actual.mean().item() - expected) < 5 * (spread / count) ** 0.5
    for other in (noise.roll(1, 0), noise.roll(1, 1), noise.roll(1, 2)):
        assert abs((noise * other).mean().item()) < 5 / count**0.5
    noisy.sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.ones_like(x))


def test_nothing_is_dropped_in_evaluation_or_at_probability_zero() -> None:
    x, tokens = torch.randn(2, 3, 4), torch.zeros(2, 3, dtype=torch.long)
    for probability, training in ((0.5, False), (0.0, True)):
        assert locked_dropout(x, probability, training) is x
        assert token_dropout(x, probability, training) is x
        assert word_dropout(x, tokens, 9, probability, training) is x
        assert weight_drop(x, probability, training) is x
        assert gaussian_noise(x, probability, training) is x
