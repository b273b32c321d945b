"""Products with a matrix that oneDNN packs once, against the plain ones."""

import pytest
import torch
from torch import Tensor

from backstory.models.kernels import packed
from backstory.models.kernels.packed import PAYS_FROM, PackedLinear, many_linear, packs

NATIVE = pytest.mark.skipif(not packs(torch.bfloat16), reason="this build of torch packs no matrices in bfloat16")


def operands(rows: int = 3, inner: int = 40, columns: int = 24) -> tuple[Tensor, Tensor, Tensor]:
    """x (rows, inner), weight (columns, inner) and what is added (rows, columns), in bfloat16."""
    torch.manual_seed(0)
    return tuple(torch.randn(*shape).bfloat16() for shape in ((rows, inner), (columns, inner), (rows, columns)))  # type: ignore


def assert_rounded(actual: Tensor, exact: Tensor) -> None:
    """Check that numbers of bfloat16 are those of float64, rounded once."""
    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(actual.double(), exact, rtol=2**-8, atol=1e-4)


@NATIVE
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 33])
def test_packed_products_are_those_of_the_matrix(rows: int, transposed: bool) -> None:
    x, weight, added = operands(rows)
    weight = weight.t().contiguous().t() if transposed else weight
    product, exact = PackedLinear(weight, 3), x.double() @ weight.double().t()  # packed for three rows, right for any
    assert_rounded(product(x), exact)
    assert_rounded(product.plus(x, added), exact + added.double())


@pytest.mark.parametrize("times", [PAYS_FROM - 1, PAYS_FROM])
def test_many_products_are_the_same_packed_or_not(times: int) -> None:
    x, weight, added = operands()
    exact = x.double() @ weight.double().t()
    product = many_linear(weight, len(x), times)
    assert_rounded(product(x), exact)
    assert_rounded(product.plus(x, added), exact + added.double())


@pytest.mark.parametrize("native", [pytest.param(True, marks=NATIVE), False])
def test_a_matrix_is_packed_if_that_pays(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "packs", lambda _: native)
    weight = operands()[1]
    assert isinstance(many_linear(weight, 3, PAYS_FROM), PackedLinear) == native
    for other, times in ((weight, PAYS_FROM - 1), (weight.float(), PAYS_FROM), (weight.to("meta"), PAYS_FROM)):
        assert not isinstance(many_linear(other, 3, times), PackedLinear)


def test_a_build_without_packing_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("not built")

    monkeypatch.setattr(PackedLinear, "plus", refuse)
    packs.cache_clear()
    assert not packs(torch.bfloat16)
    packs.cache_clear()
