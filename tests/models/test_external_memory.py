"""External memories against naive loops: values and gradients, for every kind of addressing and every flag."""

import itertools
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import naive_memory as naive
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import fast_then_full, several
from torch import Tensor

from backstory.config import (
    DNCConfig,
    EmbeddingConfig,
    ExternalMemoryConfig,
    MDMConfig,
    ModelConfig,
    NTMConfig,
    SoftmaxConfig,
    TransformerConfig,
    from_dict,
)
from backstory.models import ComposedModel, build_model, flatten
from backstory.models.cores import ExternalMemory
from backstory.models.memory import (
    Addressing,
    AddressingTrace,
    Keys,
    Machine,
    MemoryState,
    NeuralComputer,
    TuringMachine,
    content_weights,
    cosines,
    parse_addressing,
)
from backstory.models.memory.addressing import EPSILON, TIE, sharpened, window_mask
from backstory.utils.errors import UserError

ADDRESSINGS = [
    "dense", "literal", "localized:3", "localized:3x2", "literal:3", "localized:3:strict", "localized:3x2:strict",
]  # fmt: skip
FLAGS = list(itertools.product([False, True], repeat=5))


def drawn(shape: tuple[int, ...], seed: int, low: float | None = None) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if low is not None:
        return low + (1 - low) * torch.rand(shape, dtype=torch.float64, generator=generator)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def state_of(machine: Machine, rows: int, seed: int) -> MemoryState:
    """A state as a reading may have left it: weights that sum to at most one, a link with zeros on its diagonal."""
    n, m, r = machine.slots, machine.width, machine.heads
    state = machine.start(torch.zeros(1, dtype=torch.float64), rows)
    link = 0.3 * drawn((rows, n, n), seed + 5, 0.0) / n
    link = link - torch.diag_embed(link.diagonal(dim1=1, dim2=2))
    return MemoryState(
        drawn((rows, n, m), seed),
        drawn((rows, r, m), seed + 1),
        torch.softmax(drawn((rows, r, n), seed + 2), 2),
        0.8 * torch.softmax(drawn((rows, n), seed + 3), 1),
        None if state.usage is None else drawn((rows, n), seed + 4, 0.0),
        None if state.precedence is None else torch.softmax(drawn((rows, n), seed + 6), 1),
        None if state.link is None else link,
    )


def compare(machine: Machine, said: Tensor, state: MemoryState) -> None:
    """Values and gradients of one step."""
    actual = []
    for step in (machine.step, lambda s, m: naive.step(machine, s, m)):
        given = said.clone().requires_grad_()
        before = state.like(t.clone().requires_grad_() for t in state.tensors())
        after = step(given, before).tensors()
        weigh = [drawn(tuple(t.shape), 90 + i) for i, t in enumerate(after)]
        total = torch.stack([(a * w).sum() for a, w in zip(after, weigh, strict=True)]).sum()
        grads = torch.autograd.grad(total, [given, *before.tensors()], allow_unused=True)
        actual.append(([a.detach() for a in after], [torch.zeros(()) if g is None else g for g in grads]))
    for ours, expected in zip(*actual, strict=True):
        for a, b in zip(ours, expected, strict=True):
            torch.testing.assert_close(a, b.to(a.dtype).expand_as(a), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("addressing", [*ADDRESSINGS, "window:3"])
@pytest.mark.parametrize("heads", [1, 2])
def test_a_turing_machine_steps_as_its_equations_say(addressing: str, heads: int) -> None:
    machine = TuringMachine(6, 4, heads, parse_addressing(addressing, 6))
    compare(machine, 1.5 * drawn((2, machine.interface_size), 7), state_of(machine, 2, 20))
    compare(machine, drawn((2, machine.interface_size), 8), machine.start(torch.zeros(1, dtype=torch.float64), 2))


@pytest.mark.parametrize(
    ("flags",),
    fast_then_full([(f,) for f in FLAGS], [(f,) for f in FLAGS if sum(f) in (0, 1, 5)]),
    ids=lambda flags: "".join("-x"[f] for f in flags),
)
@pytest.mark.parametrize("addressing", ["dense", "localized:3", "window:3"])
def test_a_neural_computer_steps_as_its_equations_say(addressing: str, flags: tuple[bool, ...]) -> None:
    if addressing == "window:3":  # nothing but content says where
        flags = (False, False, *flags[2:])
    machine = NeuralComputer(6, 4, 2, parse_addressing(addressing, 6), *flags)
    compare(machine, 1.5 * drawn((2, machine.interface_size), 7), state_of(machine, 2, 40))
    said = drawn((2, machine.interface_size), 8)
    after = machine.step(said, machine.start(said, 2))
    expected = naive.step(machine, said, machine.start(said, 2))
    torch.testing.assert_close(flatten(after), flatten(expected), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("addressing", ADDRESSINGS)
def test_all_additions_with_every_addressing(addressing: str) -> None:
    machine = NeuralComputer(7, 3, 3, parse_addressing(addressing, 7), mask=True, deallocation=True, sharpness=True)
    compare(machine, drawn((2, machine.interface_size), 9), state_of(machine, 2, 60))


@pytest.mark.parametrize("sharpening", ["plain", "epsilon"])
def test_either_way_to_sharpen_what_the_link_says(sharpening: Any) -> None:
    """From a link that is full, and from the start, where it is empty."""
    machine = replace(NeuralComputer(7, 3, 2, Addressing(), sharpness=True), sharpening=sharpening)
    said = drawn((2, machine.interface_size), 9)
    compare(machine, said, state_of(machine, 2, 60))
    start = machine.start(said, 2)
    torch.testing.assert_close(
        flatten(machine.step(said, start)), flatten(naive.step(machine, said, start)), rtol=1e-9, atol=1e-10
    )


def test_an_empty_link_stays_empty_or_becomes_uniform() -> None:
    """The weights of a read head that follows the link alone, at the first step."""
    weights = {}
    for sharpening in ("plain", "epsilon"):
        machine = NeuralComputer(5, 3, 1, Addressing(), sharpness=True, sharpening=sharpening)  # type: ignore[arg-type]
        said = torch.zeros(1, machine.interface_size, dtype=torch.float64)
        at = sum(machine._sizes[:7])
        said[:, at : at + 3] = torch.tensor([800.0, -800.0, -800.0])
        weights[sharpening] = machine.step(said, machine.start(said, 1)).read_weights[0, 0]
    assert torch.equal(weights["plain"], torch.zeros(5, dtype=torch.float64))
    assert from_dict(MDMConfig, {"kind": "mdm"}, "a run").sharpening == "plain", "as it was before it could be chosen"
    torch.testing.assert_close(weights["epsilon"], torch.full((5,), 0.2, dtype=torch.float64))


@settings(max_examples=several(12, 60), deadline=None)
@given(
    st.lists(st.integers(-3, 3), min_size=1, max_size=12),
    st.integers(0, 5),
    st.floats(1, 8),
    st.booleans(),
    st.booleans(),
)
def test_localized_addressing_is_algorithm_1(
    values: list[int], d: int, strength: float, literal: bool, strict: bool
) -> None:
    """Ties, edges, zeros and all-negative cosines included; some cosines differ by less than counts as equal."""
    actual = torch.tensor(values, dtype=torch.float64) / 3 + 4e-6 * drawn((len(values),), len(values), 0.0)
    how = Addressing("literal" if literal else "localized", min(2 * d + 1, 2 * len(values) - 1), strict=strict)
    ks = torch.tensor(strength, dtype=torch.float64)
    ours = content_weights(actual[None, None], ks[None, None], how)[0, 0]
    assert how.selected is not None
    expected = naive.algorithm_1(list(actual), ks, how.selected // 2, literal, strict)
    torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("found", "selected", "windows", "rows"),
    [
        ([0.1, 0.9, 0.9, 0.2, 0.0], 3, 1, {0, 1, 2}),  # the first of equal ones
        ([0.9, 0.1, 0.1, 0.1, 0.1], 3, 1, {0, 1}),  # clipped at the start
        ([0.1, 0.1, 0.1, 0.1, 0.9], 3, 1, {3, 4}),  # and at the end
        ([-0.1, -0.9, -0.2, -0.3, -0.4], 3, 1, {0, 1, 2, 3, 4}),  # all negative: dense
        ([0.0, -0.9, -0.2, -0.3, -0.4], 3, 1, {0, 1}),  # zero is not negative
        ([0.0, 0.0, 0.0, 0.0, 0.0], 3, 1, {0, 1}),  # an empty memory
        ([0.9, 0.8, 0.1, 0.2, 0.7], 3, 2, {0, 1, 3, 4}),  # the second window outside the first
        ([0.9, 0.8, -0.1, -0.2, -0.7], 3, 2, {0, 1}),  # which opens for nothing negative
        ([0.9, 0.8, 0.1, 0.2, 0.7], 1, 3, {0, 1, 4}),
        ([0.9, 0.8, 0.1], 3, 5, {0, 1, 2}),  # more windows than fit
    ],
)
def test_windows_by_hand(found: list[float], selected: int, windows: int, rows: set[int]) -> None:
    inside = window_mask(torch.tensor(found)[None, None], Addressing("localized", selected, windows))[0, 0]
    assert {i for i, there in enumerate(inside.tolist()) if there} == rows


def test_the_strict_maximum_differs_where_another_row_is_as_near_as_a_tie() -> None:
    """On 200 random lists of cosines with a row up to 0.00002 below the largest before it, against algorithm 1 as printed."""
    ks, differ = torch.tensor(4.0, dtype=torch.float64), 0
    for seed in range(200):
        actual = drawn((12,), seed, -0.5)
        largest = int(actual.argmax())
        if largest:
            actual[0] = actual[largest] - 2e-5 * drawn((), seed + 1000, 0.0)
        ours = {
            strict: content_weights(actual[None, None], ks[None, None], Addressing("localized", 3, strict=strict))[0, 0]
            for strict in (True, False)
        }
        torch.testing.assert_close(ours[True], naive.algorithm_1(list(actual), ks, 1, strict=True), rtol=1e-12, atol=0)
        assert torch.equal(ours[True], ours[False]) == (largest == 0 or bool(actual[0] < actual[largest] - TIE))
        differ += not torch.equal(ours[True], ours[False])
    assert 50 < differ < 150


@pytest.mark.parametrize("kind", [DNCConfig, MDMConfig])
def test_a_model_with_random_weights_has_another_window_by_the_strict_maximum(kind: Any) -> None:
    """Rows that were written alike are as near as a tie; strictly, each lookup is algorithm 1 as printed."""
    torch.manual_seed(0)
    core = kind(layers=(32,), slots=64, width=16, heads=2, addressing="localized:17:strict")
    model = build_model(ModelConfig(EmbeddingConfig(16, 0.0), core, SoftmaxConfig(tied=False)), 50).eval()
    assert isinstance(model.core, ExternalMemory)
    with model.core.traced() as trace:
        model(torch.randint(50, (1, 50)), model.start(1))
    cosines, content = (torch.cat([getattr(step, part) for step in trace]) for part in ("cosines", "content"))
    windows = [window_mask(cosines, Addressing("localized", 17, strict=strict)) for strict in (True, False)]
    differ = (windows[0] != windows[1]).any(2)
    assert 0 < differ.sum() < 20 and differ.numel() == 150
    inside = content > 0
    for step, head in differ.nonzero().tolist():
        actual = cosines[step, head]
        assert actual.max() - actual[windows[1][step, head]].max() <= TIE
        expected = naive.algorithm_1(list(actual), torch.tensor(1.0), 8, strict=True)
        assert torch.equal(inside[step, head], expected > 0)


def test_cosines_of_zeros_are_zero_and_have_gradients() -> None:
    memory = torch.zeros(1, 3, 4, requires_grad=True)
    vectors = torch.zeros(1, 2, 4, requires_grad=True)
    masks = torch.zeros(1, 2, 4, requires_grad=True)
    for keys in (Keys(vectors, torch.ones(1, 2)), Keys(vectors, torch.ones(1, 2), masks)):
        actual = cosines(memory, keys)
        assert torch.equal(actual, torch.zeros(1, 2, 3))
        for gradient in torch.autograd.grad(actual.sum(), [memory, vectors]):
            assert gradient.isfinite().all()


def test_window_only_is_localized_where_nothing_else_says_where() -> None:
    """g = 1, no shift and gamma = 1 in a Turing machine; no link and no allocation in a neural computer."""
    turing = TuringMachine(9, 4, 2, parse_addressing("localized:3", 9))
    said = drawn((3, turing.interface_size), 1)
    heads = said[:, : 3 * 10].unflatten(1, (3, 10))  # a view: what is written there is said
    heads[:, :, 5] = 800.0
    heads[:, :, 6:9] = torch.tensor([-800.0, 800.0, -800.0], dtype=torch.float64)
    heads[:, :, 9] = -800.0
    computer = NeuralComputer(9, 4, 2, parse_addressing("localized:3", 9), link=False, allocation=False)
    for machine in (turing, computer):
        window = replace(machine, addressing=parse_addressing("window:3", 9))
        words = said if machine is turing else drawn((3, computer.interface_size), 2)
        state = state_of(machine, 3, 70)
        torch.testing.assert_close(
            flatten(window.step(words, state)), flatten(machine.step(words, state)), rtol=0, atol=1e-12
        )


def test_interfaces_have_their_published_sizes() -> None:
    dense = Addressing()
    for m, r in ((512, 1), (64, 2), (20, 4)):
        assert TuringMachine(8, m, r, dense).interface_size == (r + 1) * (m + 6) + 2 * m
        assert NeuralComputer(8, m, r, dense).interface_size == m * r + 3 * m + 5 * r + 3
        full = NeuralComputer(8, m, r, dense, mask=True, deallocation=True, sharpness=True)
        assert full.interface_size == m * r + 3 * m + 5 * r + 3 + (r + 1) * m + 2 * r
    assert TuringMachine(8, 512, 2, dense).interface_size == 5 * 512 + 18  # the paper's


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("localized:256", "an odd number"),
        ("localized:0", "not understood"),
        ("localized", "not understood; give `localized:257`"),
        ("localized:17", "more slots than the 16"),
        ("window:3x2", "several windows"),
        ("literal:3x2", "several windows"),
        ("literal:0", "give `literal:257`$"),
        ("dense:3", "`dense` alone"),
        ("dense:strict", "`dense` alone"),
        ("literal:strict", "give `literal:257`$"),
        ("localized:3:lenient", "not understood"),
        ("sparse", "there is no addressing 'sparse'"),
        ("localized:3x0", "not understood"),
        ("localized:-3", "not understood"),
        ("localized:3x9", "more windows than 16 slots of memory can have of that size; give at most 8"),
        ("dense:", "`dense` alone"),
        ("literal:", "give `literal:257`$"),
    ],
)
def test_addressing_that_cannot_be_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_addressing(text, 16)


@pytest.mark.parametrize(
    "text",
    [
        "dense", "literal", "localized:5", "localized:5x3", "window:5", "literal:5", "localized:5:strict",
        "localized:5x3:strict", "window:5:strict", "literal:5:strict",
    ],
)  # fmt: skip
def test_addressing_is_written_as_it_is_read(text: str) -> None:
    assert str(parse_addressing(text, 16)) == text


# --- the core ---


def core_of(
    kind: type[ExternalMemoryConfig], layers: tuple[int, ...], heads: int, addressing: str = "dense", **flags: bool
) -> Any:
    return kind(layers=layers, slots=6, width=3, heads=heads, addressing=addressing, **flags)


CORES = {
    "ntm": core_of(NTMConfig, (5, 4), 2),
    "dnc": core_of(DNCConfig, (5, 4, 3), 1),
    "mdm": core_of(MDMConfig, (5,), 2),
    "mdm without a link": core_of(MDMConfig, (5, 4), 1, link=False),
    "ntm localized": core_of(NTMConfig, (5, 4), 2, "localized:3"),
    "ntm window": core_of(NTMConfig, (5, 4), 2, "window:3"),
}


def model_of(core: Any, types: int = 7, **embedding: Any) -> ComposedModel:
    torch.manual_seed(0)
    settings = {"size": 5, "dropout": 0.0} | embedding
    model = build_model(ModelConfig(EmbeddingConfig(**settings), core, SoftmaxConfig(tied=False)), types).double()
    for parameter in model.parameters():
        parameter.data.mul_(2)  # so that gates and keys are not all alike
    return model


def naively(model: ComposedModel, tokens: Tensor) -> Tensor:
    """The core's output (B, T, H) step by step, by autograd alone."""
    core = model.core
    assert isinstance(core, ExternalMemory)
    embedded, state = model.embedding(tokens), core.start(len(tokens))
    (hidden, cell), memory = state
    hidden, cell, outputs = list(hidden), list(cell), []
    for x in embedded.unbind(1):
        below: list[Tensor] = []
        for i, layer in enumerate(core.layers):
            entry = torch.cat([x, memory.reads.flatten(1), *below], 1)
            gates = entry @ layer.weight_ih.T + hidden[i] @ layer.weight_hh.T + layer.bias  # type: ignore[union-attr]
            a, f, g, o = gates.chunk(4, 1)
            cell[i] = naive.logistic(f) * cell[i] + naive.logistic(a) * torch.tanh(g)
            hidden[i] = naive.logistic(o) * torch.tanh(cell[i])
            below = [hidden[i]]
        said = torch.cat(hidden, 1) @ core.interface.weight.T + core.interface.bias
        memory = naive.step(core.machine, said, memory)
        outputs.append(torch.cat([*hidden, memory.reads.flatten(1)], 1))
    return torch.stack(outputs, 1)


@pytest.mark.parametrize("core", CORES.values(), ids=CORES)
def test_a_segment_is_its_steps(core: Any) -> None:
    """Values, and gradients of all weights and of the words."""
    model = model_of(core)
    tokens = torch.randint(7, (2, 5), generator=torch.Generator().manual_seed(2))
    weigh = drawn((2, 5, model.core.output_size), 3)
    actual = []
    for read in (lambda: model.core(model.embedding(tokens), model.start(2)).dropped, lambda: naively(model, tokens)):
        output = read()
        gradients = torch.autograd.grad((output * weigh).sum(), [*model.core.parameters(), model.embedding.weight])
        actual.append((output.detach(), gradients))
    torch.testing.assert_close(actual[0][0], actual[1][0], rtol=1e-9, atol=1e-11)
    for (name, _), ours, expected in zip(
        [*model.core.named_parameters(), ("words", None)], actual[0][1], actual[1][1], strict=True
    ):
        torch.testing.assert_close(ours, expected, rtol=1e-8, atol=1e-10, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("core", CORES.values(), ids=CORES)
def test_gradients_go_through_the_state_from_segment_to_segment(core: Any) -> None:
    model = model_of(core)
    tokens = torch.randint(7, (2, 6), generator=torch.Generator().manual_seed(4))
    weigh = drawn((2, 6, model.core.output_size), 5)

    def gradients(sizes: list[int]) -> list[Tensor]:
        state, total = model.start(2), torch.zeros((), dtype=torch.float64)
        for part, w in zip(tokens.split(sizes, 1), weigh.split(sizes, 1), strict=True):
            output = model.core(model.embedding(part), state)
            state, total = output.state, total + (output.dropped * w).sum()
        ends = torch.stack([t.square().sum() for t in flatten(state).values()]).sum()
        return list(torch.autograd.grad(total + ends, list(model.core.parameters())))

    for ours, expected in zip(gradients([2, 3, 1]), gradients([6]), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("core", CORES.values(), ids=CORES)
@pytest.mark.parametrize("piece", fast_then_full([1, 7, 1 << 17], [7, 1 << 17]))
def test_what_is_read_in_place_is_what_is_trained(core: Any, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIECE", "LARGE"):
        monkeypatch.setattr(f"backstory.models.memory.slots.{name}", piece)
    monkeypatch.setattr("backstory.models.memory.slots._memory_first", lambda: True)
    model = model_of(core)
    tokens = torch.randint(7, (2, 9), generator=torch.Generator().manual_seed(6))
    embedded, start = model.embedding(tokens), model.start(2)
    trained = model.core(embedded, start)
    with torch.no_grad():
        read = model.core(embedded, start)
    torch.testing.assert_close(read.dropped, trained.dropped, rtol=0, atol=1e-12)
    torch.testing.assert_close(flatten(read.state), flatten(trained.state), rtol=0, atol=1e-12)
    naive_output, weigh = naively(model, tokens), drawn(tuple(read.dropped.shape), 7)
    torch.testing.assert_close(read.dropped, naive_output, rtol=1e-9, atol=1e-11)
    ours, expected = (
        torch.autograd.grad((output * weigh).sum(), list(model.core.parameters()))
        for output in (trained.dropped, naive_output)
    )
    torch.testing.assert_close(ours, expected, rtol=1e-8, atol=1e-10)
    assert all(
        torch.equal(a, b) for a, b in zip(flatten(start).values(), flatten(model.start(2)).values(), strict=True)
    )


@pytest.mark.parametrize("core", CORES.values(), ids=CORES)
@pytest.mark.parametrize("grad", [True, False])
def test_documents_that_begin_anew_are_read_each_by_itself(core: Any, grad: bool) -> None:
    """Values, the state after them, and gradients; documents of other lengths in every row, and cut by the segments."""
    model, plain = model_of(replace(core, reset_token=1)), model_of(core)
    tokens = torch.tensor([[0, 2, 1, 3, 4, 1, 5, 2], [1, 2, 3, 0, 4, 5, 6, 2], [2, 3, 1, 1, 4, 6, 0, 1]])
    weigh, actual = drawn((3, 8, model.core.output_size), 3), []
    with torch.set_grad_enabled(grad):
        for whole in (True, False):
            of = model if whole else plain
            if whole:
                state, parts = of.start(3), []
                for part in tokens.split([3, 4, 1], 1):
                    prediction, state = of(part, state)
                    parts.append(prediction.activations.layers[-1])  # type: ignore[union-attr]
                output, ends = torch.cat(parts, 1), [t[row] for row in range(3) for t in flatten(state).values()]
            else:
                rows, ends = [], []
                for row in tokens:
                    begins = sorted({0, *[i for i, token in enumerate(row.tolist()) if token == 1], len(row)})
                    documents = [row[None, a:b] for a, b in itertools.pairwise(begins)]
                    read = [of(document, of.start(1)) for document in documents]
                    rows.append(torch.cat([p.activations.layers[-1] for p, _ in read], 1))  # type: ignore[union-attr]
                    ends += [t[0] for t in flatten(read[-1][1]).values()]
                output = torch.cat(rows)
            total = (output * weigh).sum() + torch.stack([t.square().sum() for t in ends]).sum()
            gradients = torch.autograd.grad(total, list(of.core.parameters())) if grad else ()
            actual.append([output.detach(), *(t.detach() for t in ends), *gradients])
    for one, other in zip(*actual, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@pytest.mark.full
@pytest.mark.parametrize("addressing", ["localized:33", "localized:33x2", "window:33"])
def test_rows_written_alike_are_equal_in_every_batch(addressing: str) -> None:
    """Rounding, which is another for each number of rows read side by side, does not choose the window."""
    torch.manual_seed(0)
    core = NTMConfig(layers=(32,), slots=128, width=64, heads=2, addressing=addressing)
    model = build_model(ModelConfig(EmbeddingConfig(16, 0.0), core, SoftmaxConfig(tied=False)), 50).eval()
    tokens = torch.randint(50, (4, 60))
    with torch.no_grad():
        together = model(tokens, model.start(4))[0].log_probs()
        alone = torch.cat([model(row[None], model.start(1))[0].log_probs() for row in tokens])
    trained = model(tokens, model.start(4))[0].log_probs()
    torch.testing.assert_close(alone, together, rtol=0, atol=1e-4)
    torch.testing.assert_close(trained, together, rtol=0, atol=1e-4)


@pytest.mark.full
def test_a_kept_state_keeps_no_segment() -> None:
    for core in (NTMConfig(layers=(9, 7), slots=6, width=3), TransformerConfig(layers=1, hidden=8, heads=2, window=5)):
        model = model_of(core)
        for tensor in flatten(model(torch.randint(7, (2, 300)), model.start(2))[1]).values():
            assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


@pytest.mark.parametrize("core", CORES.values(), ids=CORES)
def test_gradients_are_taken_as_precisely_within_autocast(core: Any) -> None:
    model = model_of(core).float()
    tokens, actual = torch.randint(7, (2, 5), generator=torch.Generator().manual_seed(8)), []
    for within in (True, False):
        with torch.autocast("cpu", torch.bfloat16):
            total = model.core(model.embedding(tokens), model.start(2)).dropped.sum()
        with torch.autocast("cpu", torch.bfloat16, enabled=within):
            actual.append(torch.autograd.grad(total, list(model.core.parameters())))
    for within, outside in zip(*actual, strict=True):
        torch.testing.assert_close(within, outside, rtol=0, atol=0)


@pytest.mark.parametrize("low", [0.0, 1e-12, 1e-7, 1e-3])
@pytest.mark.parametrize("power", [1.0, 1.7, 9.0])
def test_sharpening_has_its_gradients_where_next_to_nothing_has_weight(low: float, power: float) -> None:
    weights = (low * drawn((2, 1, 6), 1, 0.0)).requires_grad_()
    powers = torch.full((2, 1, 1), power, dtype=torch.float64, requires_grad=True)
    largest = weights.detach().amax(2, keepdim=True).clamp_min(EPSILON)
    shares = (weights / largest).pow(powers)
    weigh, actual = drawn((2, 1, 6), 2), []
    for sharp in (sharpened(weights, powers), shares / shares.sum(2, keepdim=True).clamp_min(1)):
        actual.append([sharp.detach(), *torch.autograd.grad((sharp * weigh).sum(), [weights, powers])])
    torch.testing.assert_close(actual[0], actual[1], rtol=1e-9, atol=1e-12)
    assert actual[0][1].abs().max() <= 2 * power * weigh.abs().max() / EPSILON


def test_sharpening_next_to_nothing_by_next_to_nothing_has_bounded_slopes() -> None:
    """In float32 1 + softplus(-17) is 1, and an empty link has weights of zero or next to it, or EPSILON, if that is added."""
    for low in (0.0, 1e-20, EPSILON):
        weights = torch.full((1, 1, 8), low, requires_grad=True)
        power = (1 + torch.nn.functional.softplus(torch.full((1, 1, 1), -17.0))).requires_grad_()
        slopes = torch.autograd.grad((sharpened(weights, power) * torch.linspace(-1, 1, 8)).sum(), [weights, power])
        assert all(slope.abs().max() <= 1 / EPSILON for slope in slopes)


@pytest.mark.parametrize("core", ["ntm", "mdm"])
def test_gradients_can_be_taken_again(core: str) -> None:
    model = model_of(CORES[core])
    total = model(torch.randint(7, (2, 5)), model.start(2))[0].log_prob(torch.randint(7, (2, 5))).sum()
    first, second = (torch.autograd.grad(total, list(model.core.parameters()), retain_graph=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("again", [True, False])
def test_steps_are_let_go_once_they_are_gone_back(again: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though outputs and the state after them are still there: the next segment is read before they are replaced."""
    model, states = model_of(CORES["mdm"]), []
    step = NeuralComputer.step

    def seen(machine: NeuralComputer, said: Tensor, state: MemoryState, *rest: Any) -> MemoryState:
        states.append(weakref.ref(state.memory))
        return step(machine, said, state, *rest)

    monkeypatch.setattr(NeuralComputer, "step", seen)
    output = model.core(model.embedding(torch.randint(7, (2, 5))), model.core.start(2))
    total = output.dropped.sum()
    assert len(states) == 5 and all(state() is not None for state in states)
    total.backward(retain_graph=again)
    assert [state() is not None for state in states] == [again] * 5
    assert output.dropped.isfinite().all()


def test_published_parameter_counts() -> None:
    """Lee et al. (2020), table 1: 18.3, 23.6 and 34.2 million, with one, two and four read heads.

    The machine of its equations has the same digits but for one head.
    """
    counts = {
        DNCConfig: {1: 18_392_574, 2: 23_671_811, 4: 34_230_285},
        NTMConfig: {1: 18_400_770, 2: 23_682_056, 4: 34_244_628},
    }
    for kind, of_heads in counts.items():
        for heads, count in of_heads.items():
            config = ModelConfig(EmbeddingConfig(50), kind(heads=heads), SoftmaxConfig(tied=False))
            with torch.device("meta"):
                model = build_model(config, 50)
            assert sum(p.numel() for p in model.parameters()) == count


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_saturated_gates_and_an_empty_memory_stay_finite() -> None:
    for kind, options in ((NTMConfig, {}), (MDMConfig, {}), (MDMConfig, {"sharpening": "epsilon"})):
        for addressing in ("dense", "literal", "localized:3"):
            model = model_of(replace(core_of(kind, (4,), 2, addressing), **options))
            assert isinstance(model.core, ExternalMemory)
            for scale in (0.0, 1e4, 1.0):
                with torch.no_grad():
                    model.core.interface.weight.copy_(scale * torch.randn(model.core.interface.weight.shape))
                    model.core.interface.bias.copy_(1e4 * torch.randn(model.core.interface.bias.shape).sign())
                with torch.autograd.detect_anomaly(check_nan=True):
                    prediction, state = model(torch.randint(7, (2, 4)), model.start(2))
                    prediction.log_prob(torch.randint(7, (2, 4))).sum().backward()
                for tensor in (*flatten(state).values(), *(p.grad for p in model.parameters() if p.grad is not None)):
                    assert tensor.isfinite().all()


def test_settings_that_do_not_fit_are_refused() -> None:
    build: list[tuple[Callable[[], Any], str]] = [
        (lambda: model_of(core_of(DNCConfig, (4,), 1, "window:3")), "link and model.core.allocation must be false"),
        (lambda: model_of(core_of(NTMConfig, (), 1)), "at least one"),
        (lambda: model_of(core_of(NTMConfig, (4, 0), 1)), "each 1 or more"),
        (lambda: model_of(core_of(NTMConfig, (4,), 1, "localized:4")), "odd"),
    ]
    for make, message in build:
        with pytest.raises(UserError, match=message):
            make()


@pytest.mark.parametrize(
    ("core", "numbers", "links"),
    [
        (DNCConfig(layers=(4,), slots=6, width=3, heads=1), 2 * 3 * 6 * (3 + 6), True),
        (DNCConfig(layers=(4,), slots=6, width=3, heads=1, link=False), 2 * 3 * 6 * 3, False),
        (NTMConfig(layers=(4,), slots=6, width=3), 2 * 3 * 6 * 3, False),
        (NTMConfig(layers=(4,), slots=6, width=3, reset_token=1), (3 * 3 + 1) * 6 * 3, False),
    ],
)
def test_a_memory_that_does_not_fit_is_refused_before_it_is_made(
    core: Any, numbers: int, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that reading three texts has at a time, in bytes of float64."""
    model, module = model_of(core), "backstory.models.cores.external_memory."
    monkeypatch.setattr(module + "CHECKED_FROM", 0)
    for free in (8 * numbers, None):  # the last where the system does not say
        monkeypatch.setattr(module + "available", lambda device, free=free: free)
        model.start(3)
    monkeypatch.setattr(module + "available", lambda device: 8 * numbers - 1)
    message = f"6 slots of memory{' with links between them' if links else ''} take .* for 3 texts, and .* are free; "
    message += (
        "lower model.core.slots"
        + (r", or set model.core.link to false \(--model.core.no-link\)" if links else "")
        + "$"
    )
    with pytest.raises(UserError, match=message):
        model.start(3)


def test_a_memory_of_any_size_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backstory.models.cores.external_memory.available", lambda device: 1 << 40)
    for core in (DNCConfig(layers=(4,), slots=1 << 24, heads=1), NTMConfig(layers=(4,), slots=1 << 24, width=1 << 17)):
        with pytest.raises(UserError, match=r"slots of memory.* for 1 text, and 1 TiB are free") as error:
            model_of(core).start(1)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("core", CORES.values(), ids=CORES)
def test_a_traced_reading_is_the_ordinary_one(core: Any) -> None:
    model, tokens = model_of(core), torch.randint(7, (2, 9), generator=torch.Generator().manual_seed(1))
    assert isinstance(model.core, ExternalMemory)
    with torch.no_grad():
        expected, state = model(tokens, model.start(2))
    with model.core.traced() as trace:
        actual, after = model(tokens, model.start(2))
    assert torch.equal(actual.log_probs(), expected.log_probs())
    torch.testing.assert_close(flatten(after), flatten(state), rtol=0, atol=0)
    assert len(trace) == 9
    weights = torch.cat([after.external.write_weights.unsqueeze(1), after.external.read_weights], 1)
    assert torch.equal(trace[-1].weights, weights)
    again, _ = model(tokens, model.start(2))
    assert len(trace) == 9 and again.log_probs().requires_grad


def test_a_trace_is_of_its_own_core_and_thread() -> None:
    core = next(iter(CORES.values()))
    model, other, tokens = model_of(core), model_of(core), torch.zeros(1, 3, dtype=torch.long)
    assert isinstance(model.core, ExternalMemory) and isinstance(other.core, ExternalMemory)
    with ThreadPoolExecutor(1) as thread, model.core.traced() as trace:
        thread.submit(model, tokens, model.start(1)).result()
        other(tokens, other.start(1))
        assert trace == []
        with other.core.traced() as of_other:
            other(tokens, other.start(1))
            model(tokens, model.start(1))
        model(tokens, model.start(1))
    assert (len(trace), len(of_other)) == (6, 3)


@pytest.mark.parametrize("deallocation", [False, True])
def test_what_a_step_leaves_of_a_row_is_what_is_told(deallocation: bool) -> None:
    """A memory of ones without what was written to it is what is left."""
    how = parse_addressing("dense", 6)
    for machine in (TuringMachine(6, 4, 2, how), NeuralComputer(6, 4, 2, how, deallocation=deallocation)):
        said, before = drawn((3, machine.interface_size), 4), state_of(machine, 3, 30)
        before = before._replace(memory=torch.ones_like(before.memory))
        trace: list[AddressingTrace] = []
        after = machine.step(said, before, trace=trace)
        vector = machine.interface(said).vector if isinstance(machine, NeuralComputer) else said[:, -machine.width :]
        left = after.memory - after.write_weights.unsqueeze(2) * vector.unsqueeze(1)
        torch.testing.assert_close(trace[0].left, left.mean(2), rtol=1e-9, atol=1e-12)
