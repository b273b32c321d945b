"""The matrix products of a training step, counted against those of a plain step that autograd differentiates."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from backstory.config import (
    AuxiliarySoftmaxConfig,
    DualConfig,
    EmbeddingConfig,
    LSTMConfig,
    MixtureConfig,
    ModelConfig,
    MogrifierConfig,
    RunConfig,
    SoftmaxConfig,
    TrainingConfig,
)
from backstory.models import build_model, choose_precision
from backstory.models.sampled_softmax import sampled_softmax
from backstory.training import matrix_products
from backstory.training.matrix_products import Product, fastest_run, step_products

BATCH, TIME, TYPES, WORD, UNITS = 3, 5, 40, 7, 9
CPU = torch.device("cpu")
CORE = LSTMConfig(layers=2, hidden=UNITS)
CASES = {
    "softmax": ModelConfig(EmbeddingConfig(WORD), CORE, SoftmaxConfig()),
    "own output weights": ModelConfig(EmbeddingConfig(WORD), CORE, SoftmaxConfig(tied=False)),
    "size of the output": ModelConfig(EmbeddingConfig(WORD), LSTMConfig(hidden=UNITS, output=6), SoftmaxConfig(tied=False)),
    "sampled": ModelConfig(EmbeddingConfig(WORD), CORE, SoftmaxConfig(sampled=4, frequent=5)),
    "mixture": ModelConfig(EmbeddingConfig(WORD), CORE, MixtureConfig(experts=3)),
    "sampled mixture": ModelConfig(EmbeddingConfig(WORD), CORE, MixtureConfig(experts=3, sampled=4, frequent=5)),
    "dual": ModelConfig(EmbeddingConfig(WORD), CORE, SoftmaxConfig(), dual=DualConfig()),
    "dual without the words": ModelConfig(
        EmbeddingConfig(WORD), CORE, MixtureConfig(experts=2), dual=DualConfig(size=6, direct=False)
    ),
}  # fmt: skip


def operations(products: list[Product] | None) -> int:
    assert products is not None
    return sum(2 * p.rows * p.inner * p.columns * p.times for p in products)


def random_targets() -> Tensor:
    torch.manual_seed(0)
    return torch.randint(TYPES, (BATCH, TIME))


def weights(*shapes: tuple[int, int]) -> Iterator[Tensor]:
    return (torch.randn(shape).requires_grad_() for shape in shapes)


def plain_step(config: ModelConfig, targets: Tensor) -> None:
    """Take a step of nothing but `F.linear`, cell by cell, and the softmax."""
    batch, steps = targets.shape
    embedding, core = torch.randn(TYPES, WORD).requires_grad_(), config.core
    assert isinstance(core, LSTMConfig)
    words = hidden = F.embedding(targets, embedding)
    for inputs, units in pairwise([WORD, *[core.hidden] * (core.layers - 1), config.core_output or core.hidden]):
        w_ih, w_hh = weights((4 * units, inputs), (4 * units, units))
        gates, h, c, outputs = F.linear(hidden, w_ih), torch.zeros(batch, units), torch.zeros(batch, units), []
        for t in range(steps):
            i, f, g, o = (gates[:, t] + F.linear(h, w_hh)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            outputs.append(h)
        hidden = torch.stack(outputs, 1)
    if isinstance(dual := config.dual, DualConfig):
        w_dh, w_de = weights(*((dual.size or WORD, len_) for len_ in (hidden.shape[2], WORD)))
        hidden = (F.linear(hidden, w_dh) + (F.linear(words, w_de) if dual.direct else 0)).relu()
    head, extra = config.head, torch.zeros(())
    if isinstance(head, MixtureConfig):
        w_latent, w_prior = weights((head.experts * WORD, hidden.shape[2]), (head.experts, hidden.shape[2]))
        extra = F.linear(hidden, w_prior).logsumexp(2).sum()
        hidden = F.linear(hidden, w_latent).unflatten(2, (head.experts, WORD))
    (output,) = weights((TYPES, hidden.shape[-1]))
    if head.sampled:
        taken = {*range(head.frequent), *targets.flatten().tolist()}
        output = output[: min(TYPES, len(taken) + head.sampled)]
    (F.linear(hidden, output).logsumexp(-1).sum() + extra).backward()


@pytest.mark.parametrize("name", CASES)
def test_the_products_are_those_of_a_plain_step(name: str) -> None:
    config, targets = RunConfig(model=CASES[name]), random_targets()
    with FlopCounterMode(display=False) as counter:
        plain_step(config.model, targets)
    assert operations(step_products(config, targets, TYPES)) == counter.get_total_flops()
    build_model(config.model, TYPES)  # the settings fit together


def test_the_words_of_a_sampled_softmax_are_those_that_it_takes() -> None:
    head, targets = SoftmaxConfig(sampled=4, frequent=5), random_targets()
    model = build_model(CASES["sampled"], TYPES)
    prediction, _ = model(targets, model.start(BATCH))
    part, _ = sampled_softmax(prediction, targets, head.frequent, head.sampled)
    products = step_products(RunConfig(model=CASES["sampled"]), targets, TYPES)
    assert products is not None and products[-3] == Product(BATCH * TIME, WORD, len(part.weight))
    assert len(part.weight) < TYPES


def test_parts_of_a_batch_follow_one_another() -> None:
    whole = RunConfig(model=CASES["softmax"])
    parts = RunConfig(model=CASES["softmax"], training=TrainingConfig(accumulate=2))
    products = step_products(parts, random_targets(), TYPES)
    assert products is not None and operations(products) == operations(step_products(whole, random_targets(), TYPES))
    assert {product.rows for product in products if product.times == TIME} == {1, 2}


@pytest.mark.parametrize("model", [ModelConfig(core=MogrifierConfig()), ModelConfig(buffer=AuxiliarySoftmaxConfig())])
def test_products_that_are_not_listed(model: ModelConfig) -> None:
    assert step_products(RunConfig(model=model), random_targets(), TYPES) is None


def test_the_plain_form_is_the_product() -> None:
    a, b, result = torch.randn(3, 8), torch.randn(16, 8), torch.empty(3, 16)
    matrix_products.plain(a, b, result, 2)
    torch.testing.assert_close(result, a @ b.t())


@pytest.mark.parametrize("fastest", ["plain", "packed"])
def test_the_fastest_form_runs(fastest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix_products, "packs", lambda _: True)
    monkeypatch.setattr(matrix_products, "_seconds", lambda run: run.func is not getattr(matrix_products, fastest))
    ran = []
    for form in ("plain", "packed"):
        monkeypatch.setattr(matrix_products, form, lambda *arguments, form=form: ran.append((form, arguments[-1])))
    fastest_run([Product(3, 8, 16, 2), Product(4, 5, 6)], CPU, choose_precision("float32", CPU))()
    assert ran == [(fastest, 2), (fastest, 1)]
