"""Text generation: input of the reader, prompts, stops and seeds, for all kinds of runs and predictions."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_models import TYPES
from torch import Tensor

import backstory as bs
from backstory.config import AlgorithmConfig, MixtureConfig, TextConfig
from backstory.data import Vocabulary, build, prepare, tokenizer
from backstory.evaluation import Sampling, generate, generate_ids
from backstory.evaluation.generation import encode_prompt, until
from backstory.models import ComposedModel, Interpolation, Prediction
from backstory.readers import StaticReader
from backstory.results import result_from
from backstory.utils.errors import UserError

GREEDY = Sampling(0.0)


def test_a_prompt_needs_no_unknown_word() -> None:
    """Vocabularies of tasks have no such token."""
    words = prepare(
        TextConfig("copy", algorithm=AlgorithmConfig(bits=3, longest=4, documents=20, held_out=9))
    ).vocabulary
    assert words.unknown is None
    prompt = [words.words[i] for i in (words.start, 3, 4)]
    assert words.tokens(encode_prompt(words, " ".join(prompt))) == prompt


def take(ids: Iterator[int], count: int) -> list[int]:
    return list(islice(ids, count))


def test_greedy_is_the_likeliest_given_all_before(model: ComposedModel) -> None:
    context = [0, 3, 5, 1]
    found = take(generate_ids(StaticReader(model), context, GREEDY), 12)
    for i, token in enumerate(found):
        with torch.no_grad():
            whole, _ = model(torch.tensor([context + found[:i]]), model.start(1))
        assert token == int(whole.log_probs()[0, -1].argmax())


def test_a_long_context_is_read_in_blocks(small_lstm: ComposedModel) -> None:
    context = torch.randint(TYPES, (23,), generator=torch.Generator().manual_seed(0)).tolist()
    whole, blocks = StaticReader(small_lstm), StaticReader(small_lstm)
    blocks.block = 4
    for sampling in (GREEDY, Sampling(1.3, 5, 0.9)):
        assert take(generate_ids(whole, context, sampling, 3), 20) == take(
            generate_ids(blocks, context, sampling, 3), 20
        )


class Watched(StaticReader):
    """Records its calls, and predicts a blend that forbids a type."""

    def __init__(self, model: ComposedModel) -> None:
        super().__init__(model)
        self.calls: list[tuple[str, list[int]]] = []

    def predict(self, tokens: Tensor) -> Prediction:
        self.calls.append(("predict", tokens[0].tolist()))
        inner = super().predict(tokens)
        return Interpolation(None, inner, inner, torch.zeros(*tokens.shape, 2))

    def observe(self, targets: Tensor) -> None:
        self.calls.append(("observe", targets[0].tolist()))
        super().observe(targets)


def test_what_is_drawn_is_predicted_then_observed(small_lstm: ComposedModel) -> None:
    reader = Watched(small_lstm)
    a, b = take(generate_ids(reader, [0, 1, 2], Sampling(), 1), 2)
    assert reader.calls == [
        ("predict", [0, 1]), ("observe", [1, 2]),
        ("predict", [2]), ("observe", [a]),
        ("predict", [a]), ("observe", [b]),
    ]  # fmt: skip


def test_a_seed_decides_and_the_callers_generator_stays(small_lstm: ComposedModel) -> None:
    reader, before = StaticReader(small_lstm), torch.get_rng_state()
    texts = [take(generate_ids(reader, [0], Sampling(2.0), seed), 30) for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.full
def test_what_is_banned_is_never_drawn(model: ComposedModel) -> None:
    free = Counter(take(generate_ids(StaticReader(model), [0], Sampling(20.0)), 300))
    assert len(free) == TYPES
    found = Counter(take(generate_ids(StaticReader(model), [0], Sampling(20.0), banned=[2, 5]), 300))
    assert set(found) == set(range(TYPES)) - {2, 5}


# --- stops ---


def naive_until(text: str, stops: list[str]) -> str:
    for end in range(len(text) + 1):
        if found := [s for s in stops if text[:end].endswith(s)]:
            return text[: end - max(map(len, found))]
    return text


short = st.text("ab.", max_size=3)


@given(st.lists(short, max_size=8), st.lists(st.text("ab.", min_size=1, max_size=4), max_size=3))
def test_a_text_ends_before_the_stop_however_it_is_cut(texts: list[str], stops: list[str]) -> None:
    found = list(until(iter(texts), stops))
    assert "".join(found) == naive_until("".join(texts), stops)
    assert all(found)


@given(st.lists(short, max_size=8), st.text("ab.", min_size=1, max_size=4))
def test_no_more_is_held_back_than_may_become_a_stop(texts: list[str], stop: str) -> None:
    seen, shown = "", ""

    def watched() -> Iterator[str]:
        nonlocal seen
        for text in texts:
            seen += text
            yield text
            held = seen[len(shown) :]  # the next token is requested only after all finished text was shown
            assert stop.startswith(held) and held != stop

    for text in until(watched(), [stop]):
        shown += text


def test_nothing_is_taken_after_a_stop() -> None:
    texts = iter(["a", "b.", "c"])
    assert "".join(until(texts, ["."])) == "ab"
    assert list(texts) == ["c"]


# --- prompts ---


def made(name: str, text: str = "the cat (3.5) sat.\n\nno, no\n") -> Vocabulary:
    chosen = tokenizer(name)
    return build(Counter(chosen.split(text)), chosen)


@pytest.mark.parametrize(
    ("name", "prompt", "expected"),
    [
        ("words", "", []),
        ("words", "  ", []),
        ("words", "the cat", ["the", "cat"]),
        ("words", "the cat ", ["the", "cat"]),
        ("words", "the cat\n", ["the", "cat", "<eos>"]),
        ("words", "the\r\ncat", ["the", "<eos>", "cat"]),
        ("words", "a zebra", ["<unk>", "<unk>"]),
        ("regex", "the cat", ["the", "cat"]),
        ("regex", "cat sat.", ["cat", "sat", "."]),
        ("regex", "sat\n", ["sat"]),
        ("regex", "sat.\n\n", ["sat", ".", "<eos>"]),
        ("regex", "(3.5", ["(", "3.5"]),
        ("characters", "no, ", ["n", "o", ",", " "]),
        ("characters", "a\r", ["a", "\n"]),
        ("bytes", "é", ["\xc3", "\xa9"]),
        ("bytes", "\udcff\x00", ["\xff", "\x00"]),
    ],
)
def test_a_prompt_is_not_ended(name: str, prompt: str, expected: list[str]) -> None:
    vocabulary = made(name)
    assert vocabulary.tokens(encode_prompt(vocabulary, prompt)) == expected


@pytest.mark.parametrize(("prompt", "says"), [("a\x00", "the prompt holds a NUL"), ("\udcff", "is not UTF-8 text")])
@pytest.mark.parametrize("name", ["words", "regex", "characters"])
def test_what_is_no_text_is_refused(name: str, prompt: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        encode_prompt(made(name), prompt)


# --- runs ---


@pytest.fixture(scope="module", params=["words", "regex", "characters", "bytes", "pieces", "mixture"])
def run(request: pytest.FixtureRequest, tokenized_run: Callable[..., Path]) -> Path:
    """A run of each tokenizer, and of another head."""
    if request.param == "mixture":
        return tokenized_run("words", MixtureConfig(experts=2))
    return tokenized_run(request.param)


def test_a_run_goes_on(run: Path) -> None:
    pieces = list(bs.generate(run, "ann saw the", tokens=30, seed=4))
    _, vocabulary = bs.load(run)
    context = encode_prompt(vocabulary, "ann saw the")
    assert "".join(bs.generate(run, "ann saw the", tokens=30, seed=4)) == "".join(pieces)
    assert "".join(bs.generate(run, "ann saw the", tokens=30, seed=5)) != "".join(pieces)
    echoed = "".join(bs.generate(run, "ann saw the", tokens=30, seed=4, echo=True))
    assert echoed == vocabulary.decode(context) + "".join(pieces)
    assert echoed.startswith("ann saw the")
    assert "<unk>" not in echoed
    # As many tokens as were asked for, and the text of exactly these.
    model, _ = bs.load(run)
    banned = [] if vocabulary.unknown is None else [vocabulary.unknown]
    ids = take(generate_ids(StaticReader(model), [vocabulary.start, *context], Sampling(), 4, banned), 30)
    assert vocabulary.decode([*context, *ids]) == echoed


def test_a_run_goes_on_from_nothing_and_to_a_stop(run: Path) -> None:
    whole = "".join(bs.generate(run, tokens=40, temperature=0.8, top_k=8, top_p=0.95))
    assert whole and "".join(bs.generate(run, tokens=40, temperature=0.8, top_k=8, top_p=0.95, echo=True)) == whole
    stop = whole[len(whole) // 2 :][:3]
    assert "".join(bs.generate(run, tokens=40, temperature=0.8, top_k=8, top_p=0.95, stop=[stop])) == naive_until(
        whole, [stop]
    )


@pytest.mark.full
def test_unknown_words_come_only_where_they_are_allowed(tiny_run: Path) -> None:
    hot = {"tokens": 400, "temperature": 50.0}
    assert "<unk>" not in "".join(generate(tiny_run, "zebra", **hot))
    assert "<unk>" in "".join(generate(tiny_run, "zebra", **hot, allow_unknown=True))
    assert "".join(generate(tiny_run, "a zebra", tokens=1, echo=True)).startswith("<unk> <unk>")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"tokens": 0}, "tokens must be 1 or more, not 0"),
        ({"stop": ["a", ""]}, "a text to stop at must not be empty"),
        ({"temperature": -1.0}, "the temperature must be 0 or above"),
        ({"reader": "statik"}, "did you mean 'static'"),
        ({"prompt": "a\x00"}, "the prompt holds a NUL"),
    ],
)
def test_mistakes_are_told_before_the_first_piece(given: dict, says: str, tiny_run: Path) -> None:
    with pytest.raises(UserError, match=says):
        bs.generate(tiny_run, **given)
    with pytest.raises(UserError, match="there is no run folder nowhere"):
        bs.generate("nowhere")


def test_no_gradients_are_kept(small_lstm: ComposedModel) -> None:
    reader = StaticReader(small_lstm)
    take(generate_ids(reader, [0], Sampling()), 3)
    assert not any(t.requires_grad for t in reader.snapshot()[0])
    assert torch.is_grad_enabled()


def test_a_saved_text_is_the_one_that_was_told(tiny_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(tiny_run, tmp_path / "run")
    told = "".join(generate(run, "ann saw", tokens=12, temperature=0.8, seed=4, echo=True, save=True))
    result = result_from((run / "sample" / "result.json").read_text(), "sample")
    assert result.kind == "sample" and result.figures.prompt + result.figures.text == told
    assert result.figures.settings["seed"] == 4
    assert "".join(generate(run, "ann saw", tokens=12, temperature=0.8, seed=4)) == result.figures.text


def test_a_text_that_is_not_read_to_its_end_is_not_saved(tiny_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(tiny_run, tmp_path / "run")
    next(generate(run, "ann saw", tokens=12, save=True))
    assert not (run / "sample").exists()
