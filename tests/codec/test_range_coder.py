"""The range coder and the byte model restore every choice, at the length given by its share."""

import random
from fractions import Fraction

import numpy as np
import pytest
import torch
from tiers import several

from backstory.codec.byte_model import ByteModel
from backstory.codec.range_coder import AdaptiveBits, Decoder, Encoder
from backstory.codec.shares import cumulative_shares
from backstory.models.kernels import compiled
from backstory.utils.errors import UserError

Choices = list[tuple[list[int], int]]


def drawn_choices(seed: int) -> Choices:
    """Choices of all sizes: near certain ones, of one step in 2^32, at both ends, and with nothing to choose."""
    draw = random.Random(seed)
    choices: Choices = []
    for _ in range(draw.randrange(0, 150)):
        total = draw.choice([1, 2, 5, 4096, 1 << 20, 1 << 32])
        cuts = sorted(
            {0, total, *(draw.randrange(total + 1) for _ in range(4)), *([1, total - 1] if total > 2 else [])}
        )
        choices.append((cuts, draw.choice([0, len(cuts) - 2, draw.randrange(len(cuts) - 1)])))
    return choices


def exact_interval(choices: Choices) -> tuple[Fraction, Fraction]:
    """Start and size of the interval of a sequence of choices within [0, 1), in exact fractions: the naive coder."""
    start, size = Fraction(0), Fraction(1)
    for cuts, choice in choices:
        start += size * Fraction(cuts[choice], cuts[-1])
        size *= Fraction(cuts[choice + 1] - cuts[choice], cuts[-1])
    return start, size


@pytest.mark.parametrize("seed", range(several(40, 400)))
def test_choices_come_back_at_the_length_of_the_exact_interval(seed: int) -> None:
    choices, encoder = drawn_choices(seed), Encoder()
    for cuts, choice in choices:
        encoder.choose(np.array(cuts) if seed % 2 else cuts, choice)
    code = encoder.finish()
    decoder = Decoder(code)
    assert [decoder.choose(cuts, 0) for cuts, _ in choices] == [choice for _, choice in choices]
    size = exact_interval(choices)[1]
    bits = size.denominator.bit_length() - size.numerator.bit_length()
    assert abs(encoder.bits - bits) <= 2
    assert 8 * len(code) <= encoder.bits + 9
    assert decoder.bits == encoder.bits


def test_a_carry_runs_through_all_that_is_written() -> None:
    # The code of the first of the upper half of everything: 0.5 after a row of ones.
    choices: Choices = [([0, (1 << 32) - 1, 1 << 32], 0)] * 3 + [([0, 1, 2], 1)] * 200 + [([0, 1, 2], 0)] * 5
    choices = [([0, 1, 2], 0), *[([0, 1, 2], 1)] * 300, ([0, 3, 4], 1), *choices]
    encoder = Encoder()
    for cuts, choice in choices:
        encoder.choose(cuts, choice)
    decoder = Decoder(encoder.finish())
    assert [decoder.choose(cuts, 0) for cuts, _ in choices] == [choice for _, choice in choices]


@pytest.mark.full
def test_the_cost_of_rounding_is_less_than_a_thousandth_of_a_percent() -> None:
    draw, encoder, bits = np.random.default_rng(0), Encoder(), 0.0
    for _ in range(600):
        probabilities = draw.dirichlet(np.full(5000, 0.02)).astype(np.float32)
        token = int(draw.choice(5000, p=probabilities.astype(np.float64) / probabilities.astype(np.float64).sum()))
        bits -= np.log2(probabilities[token])
        encoder.choose(cumulative_shares(torch.from_numpy(probabilities).log()[None], "test")[0], token)
    assert bits > 2000
    assert abs(8 * len(encoder.finish()) - bits) < 1e-5 * bits + 16


def test_every_type_has_a_share() -> None:
    table = torch.full((1, 50_000), -torch.inf)
    table[0, 7] = 0.0
    shares = np.diff(cumulative_shares(table, "test"))
    assert shares.min() == 1 and shares[0, 7] > 0.9999 * 2**32 and shares.sum() <= 2**32


@pytest.mark.skipif(compiled.library() is None, reason="no C compiler here")
@pytest.mark.parametrize("types", [1, 2, 255, 10_001])
def test_compiled_shares_are_the_same_to_the_last_step(types: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    table = torch.log_softmax(5 * torch.randn(3, types), 1)
    table[1], table[1, types // 2] = -torch.inf, 0.0
    fast = cumulative_shares(table, "test")
    monkeypatch.setattr(compiled, "library", lambda: None)
    np.testing.assert_array_equal(fast, cumulative_shares(table, "test"))


@pytest.mark.parametrize(("factor", "shown"), [(1.01, "1.01"), (0.5, "0.5"), (float("nan"), "nan")])
def test_a_distribution_that_does_not_sum_to_one_is_refused_with_its_sum(factor: float, shown: str) -> None:
    table = torch.log_softmax(torch.randn(2, 30), 1)
    table[1] += float(np.log(factor))
    with pytest.raises(UserError, match=rf"the reader odd gives a distribution that sums to {shown}\d*, not to 1"):
        cumulative_shares(table, "odd")


@pytest.mark.parametrize(
    "data",
    [b"", b"\0", bytes(200), bytes(range(256)), b"the cat and the dog and the cat " * 10, "żółć 🐈".encode()],
    ids=["empty", "NUL", "zeros", "all bytes", "text", "UTF-8"],
)
def test_strings_of_bytes_come_back(data: bytes) -> None:
    encoder, model = Encoder(), ByteModel()
    for kind in (0, 1, 1):
        model.code(encoder, data, kind)
    code = encoder.finish()
    decoder, model = Decoder(code), ByteModel()
    assert [model.code(decoder, b"", kind) for kind in (0, 1, 1)] == [data] * 3


def test_a_string_that_was_seen_becomes_short() -> None:
    encoder, model, lengths = Encoder(), ByteModel(), []
    for _ in range(5):
        before = encoder.bits
        model.code(encoder, b"Mississippi")
        lengths.append(encoder.bits - before)
    assert lengths[0] > 50 and lengths[4] < 12


def test_a_flag_that_never_changes_costs_next_to_nothing() -> None:
    encoder, bits = Encoder(), AdaptiveBits()
    for _ in range(10_000):
        bits.code(encoder, "flag", False)
    assert encoder.bits < 9
