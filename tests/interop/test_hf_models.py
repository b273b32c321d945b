"""Hugging Face models of many kinds score as their own code does, however the text is cut, padded or gone on with."""

import inspect
import warnings
from collections.abc import Sequence

import foreign
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiers import fast_then_full
from torch import Tensor

from backstory.config.readers import CacheSettings, DynamicSettings, EnsembleSettings, MixtureSettings
from backstory.context.scorer import ReaderScorer
from backstory.evaluation import Audit, block_count, read
from backstory.interop.hf_model import Finish, Finished, OutputLayer
from backstory.interop.model_checks import wrap
from backstory.models import LanguageModel, clone, flatten, unflatten
from backstory.readers import StaticReader
from backstory.readers.dynamic import DynamicEvaluation
from backstory.readers.ensemble import EnsembleReader, Members
from backstory.readers.mixture import MixtureReader
from backstory.readers.neural_cache import NeuralCache
from backstory.utils.errors import UserError

TYPES = 17
WAYS = {
    **dict.fromkeys(foreign.SIZES, "blocks"),
    **dict.fromkeys(("Mamba", "FalconMamba", "Jamba"), "steps"),
    "RecurrentGemma": "whole",
}
"""How each may be read on from its cache, as transformers has them now."""
RECURRENT = ("Mamba", "Mamba2", "FalconMamba", "Rwkv", "xLSTM")
LONGER = {"n_positions": 64}
"""For GPT-2, where nothing is to slide."""


def model_of(kind: str) -> LanguageModel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that it is read slowly, which has tests of its own
        return foreign.wrapped(kind, TYPES, **LONGER if kind == "GPT2" else {})


@pytest.fixture(
    params=fast_then_full(
        foreign.SIZES, ["GPT2", "Mistral", "Bloom", "Mamba", "Mamba2", "Rwkv", "xLSTM", "RecurrentGemma"]
    ),
    scope="module",
)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def model(kind: str) -> LanguageModel:
    return model_of(kind)


@pytest.fixture(scope="module")
def reference(kind: str) -> torch.nn.Module:
    return foreign.causal(kind, TYPES, **LONGER if kind == "GPT2" else {})


def text(rows: int, tokens: int) -> Tensor:
    return torch.randint(TYPES, (rows, tokens), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def own(reference: torch.nn.Module, tokens: Tensor) -> Tensor:
    """log-probabilities (B, T, V) as the model itself has them, of the whole text."""
    return torch.log_softmax(reference(input_ids=tokens, use_cache=False).logits.double(), -1)


@torch.no_grad()
def ours(model: LanguageModel, tokens: Tensor, sizes: Sequence[int]) -> Tensor:
    state, found = model.start(len(tokens)), []
    for piece in tokens.split(list(sizes), 1):
        prediction, state = model(piece, state)
        found.append(prediction.log_probs())
    return torch.cat(found, 1).double()


def test_it_is_read_in_the_fastest_way_that_agrees(kind: str, model: LanguageModel) -> None:
    assert model.way == WAYS[kind]
    assert model.capabilities.recurrent == (kind in RECURRENT)


@pytest.mark.parametrize("sizes", [(20,), (7, 5, 1, 7), (3, 1, 1, 15)], ids=["whole", "blocks", "steps"])
def test_scores_are_the_model_s_own(model: LanguageModel, reference: torch.nn.Module, sizes: tuple[int, ...]) -> None:
    tokens = text(3, 20)
    torch.testing.assert_close(ours(model, tokens, sizes), own(reference, tokens), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_the_cheap_path_quotes_the_distribution(model: LanguageModel) -> None:
    tokens = text(2, 9)
    prediction, _ = model(tokens, model.start(2))
    listed = prediction.log_probs().gather(2, tokens[..., None])[..., 0]
    torch.testing.assert_close(prediction.log_prob(tokens), listed)
    chosen = prediction.select(torch.tensor([1, 0]), torch.tensor([3, 8]))
    torch.testing.assert_close(
        chosen.log_prob(tokens[:, :1]), prediction.log_probs()[[1, 0], [3, 8]].gather(1, tokens[:, :1])
    )


@torch.no_grad()
def test_a_state_is_left_as_it_was_and_can_be_taken_apart(model: LanguageModel) -> None:
    tokens = text(3, 12)
    _, state = model(tokens[:, :7], model.start(3))
    kept = clone(state)
    first = model(tokens[:, 7:], state)[0].log_probs()
    before, after = flatten(kept), flatten(state)
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    rebuilt = unflatten(model.start(3), flatten(kept))
    assert torch.equal(model(tokens[:, 7:], rebuilt)[0].log_probs(), first)
    assert {t.shape[0] for t in flatten(model.start(3)).values()} == {3}
    assert not model.capabilities.recurrent or all(
        t.shape == flatten(model.start(3))[name].shape for name, t in before.items()
    )


def test_padding_changes_no_score(kind: str, model: LanguageModel, reference: torch.nn.Module) -> None:
    random = np.random.default_rng(2)
    contexts = [random.integers(0, TYPES, n) for n in (1, 40, 2, 17, 40, 9, 23, 5)]
    targets = random.integers(0, TYPES, len(contexts))
    found = ReaderScorer(StaticReader(model)).score(contexts, targets)
    alone = [
        own(reference, torch.from_numpy(context)[None])[0, -1, target].item()
        for context, target in zip(contexts, targets, strict=True)
    ]
    np.testing.assert_allclose(found, alone, rtol=1e-5, atol=1e-5)
    # All lengths in one batch, the shortest with the most padding.
    scorer = ReaderScorer(StaticReader(model))
    scorer.rows = lambda longest: len(contexts)
    np.testing.assert_allclose(scorer.score(contexts, targets), alone, rtol=1e-5, atol=1e-5)


@pytest.mark.full
def test_static_and_cached_reading_pass_the_audit(model: LanguageModel) -> None:
    ids = text(1, 70)[0].numpy()
    cached = NeuralCache(StaticReader(model), CacheSettings(window=20, weight=0.3))
    for reader in (cached, StaticReader(model)):
        audit = Audit(block_count(len(ids), 1, 15), 3)
        read(reader, ids, 0, block=15, observer=audit)
        assert audit.report.failures == [] and audit.report.passed


@pytest.mark.full
def test_dynamic_evaluation_moves_a_copy_and_leaves_the_model(model: LanguageModel) -> None:
    ids, before = np.tile(text(1, 12)[0].numpy(), 4), {n: p.clone() for n, p in model.named_parameters()}
    settings = DynamicSettings(rule="nadam", rate=0.01, segment=6, decay=0.0)
    static = read(StaticReader(model), ids, 0, block=6)
    reader = DynamicEvaluation(model, settings)
    audit = Audit(block_count(len(ids), 1, 6), 2)
    learned = read(reader, ids, 0, block=6, observer=audit)
    assert audit.report.failures == []
    assert learned.nats < static.nats - 0.05
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_gradients_go_through_the_state(model: LanguageModel, reference: torch.nn.Module) -> None:
    tokens = text(2, 12)
    logits = reference(input_ids=tokens, use_cache=False).logits[:, :-1]
    wanted = torch.autograd.grad(F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:]), list(reference.parameters()))
    state, total = model.start(2), torch.zeros(())
    for piece, targets in zip(tokens[:, :-1].split([4, 5, 2], 1), tokens[:, 1:].split([4, 5, 2], 1), strict=True):
        prediction, state = model(piece, state)
        total = total - prediction.log_prob(targets).sum()
    parameters = list(model.parameters())
    found = torch.autograd.grad(total / tokens[:, 1:].numel(), parameters)
    assert sum(p.numel() for p in parameters) == sum(p.numel() for p in reference.parameters())
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


# --- what slides ---


def windowed(reference: torch.nn.Module, tokens: Tensor, limit: int) -> Tensor:
    """Every position from the window it is in, one forward pass a position."""
    found = []
    for place in range(tokens.shape[1]):
        steps = 0 if place < limit else (place - limit) // (limit - limit // 2) + 1
        found.append(own(reference, tokens[:, steps * (limit - limit // 2) : place + 1])[:, -1])
    return torch.stack(found, 1)


@pytest.mark.parametrize("limit", [9, 16])
@pytest.mark.parametrize("sizes", [(50,), (16, 16, 16, 2), (1,) * 50], ids=["whole", "blocks", "steps"])
def test_a_window_slides_by_half_of_it(limit: int, sizes: tuple[int, ...]) -> None:
    model = foreign.wrapped("GPT2", TYPES, n_positions=limit)
    reference, tokens = foreign.causal("GPT2", TYPES, n_positions=limit), text(2, 50)
    assert model.capabilities.maximum_length == limit
    wanted = windowed(reference, tokens, limit)
    torch.testing.assert_close(ours(model, tokens, sizes), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sizes", [(60,), (7,) * 8 + (4,), (1,) * 60], ids=["whole", "blocks", "steps"])
@pytest.mark.parametrize("kind, limit, switch", [("Phi3", 40, 30), ("Llama", 40, 12), ("Phi3", 80, 30)])
def test_frequencies_that_change_with_the_length_are_those_of_the_text_so_far(
    kind: str, limit: int, switch: int, sizes: tuple[int, ...]
) -> None:
    """With LongRoPE, position t is as if the text ended there, however long its block is, and whatever is cached."""
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0, 5.0, 6.0, 7.0], "rope_theta": 10000.0}
    changes = {
        "intermediate_size": 32, "max_position_embeddings": limit, "original_max_position_embeddings": switch,
        "rope_parameters": {"rope_type": "longrope", **factors, "original_max_position_embeddings": switch},
    }  # fmt: skip
    model, reference = foreign.wrapped(kind, TYPES, **changes), foreign.causal(kind, TYPES, **changes)
    tokens = text(2, 60)
    assert model.way == "blocks" and model.capabilities.maximum_length == limit
    wanted = windowed(reference, tokens, limit)
    torch.testing.assert_close(ours(model, tokens, sizes), wanted, rtol=1e-5, atol=1e-5)


def test_a_model_that_cannot_be_read_on_is_read_whole_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="RecurrentGemma cannot be read on from its cache"):
        model = foreign.wrapped("RecurrentGemma", TYPES)
    assert model.capabilities.maximum_length == 1024
    assert set(flatten(model.start(2))) == {"cached", "tokens"}


def test_a_model_that_is_read_token_by_token_advises_several_rows() -> None:
    with pytest.warns(UserWarning, match=r"Mamba is read one token at a time.*--batch-size 16"):
        assert foreign.wrapped("Mamba", TYPES).way == "steps"


def test_a_model_without_a_cache_is_not_said_to_have_one() -> None:
    with pytest.warns(UserWarning, match="OpenAIGPT has no cache to be read on from, so every block is read again"):
        assert foreign.wrapped("OpenAIGPT", TYPES, n_positions=64, n_embd=16, n_layer=1, n_head=2).way == "whole"


def test_a_cache_is_found_by_its_newer_name(monkeypatch: pytest.MonkeyPatch) -> None:
    causal = foreign.causal("Llama", TYPES)
    plain = causal.forward
    older = "past_key_values" in inspect.signature(plain).parameters

    def renamed(input_ids: Tensor, cache: object = None, use_cache: bool = True) -> object:
        result = plain(input_ids=input_ids, use_cache=use_cache, **{"past_key_values" if older else "cache": cache})
        if older:
            result.cache = result.past_key_values
        return result

    monkeypatch.setattr(causal, "forward", renamed)
    assert wrap(causal, "it").way == "blocks"


def test_a_cache_that_lies_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    causal = foreign.causal("Llama", TYPES)
    plain = causal.forward

    def forgetful(input_ids: Tensor, past_key_values: object = None, use_cache: bool = True) -> object:
        return plain(input_ids=input_ids, use_cache=use_cache)

    monkeypatch.setattr(causal, "forward", forgetful)
    with pytest.warns(UserWarning, match="read again with up to 64 tokens before it"):
        model = wrap(causal, "it")
    tokens = text(2, 20)
    torch.testing.assert_close(
        ours(model, tokens, (7, 13)), own(foreign.causal("Llama", TYPES), tokens), rtol=1e-5, atol=1e-5
    )


# --- what is not a causal language model ---


def test_a_model_that_looks_ahead_is_refused() -> None:
    with pytest.raises(UserError, match="not a causal language model: its predictions depend on later words"):
        foreign.wrapped("Bert", TYPES, intermediate_size=32)


@pytest.mark.parametrize("length", [1, 2])
def test_a_model_of_hardly_any_positions_is_refused(length: int) -> None:
    with pytest.raises(
        UserError, match=rf"reads {length} tokens at most, by its settings; choose a model that reads 3"
    ):
        foreign.wrapped("GPT2", TYPES, n_positions=length)
    assert foreign.wrapped("GPT2", TYPES, n_positions=3).capabilities.maximum_length == 3


def test_finished_logits_are_scored_once_for_the_same_targets() -> None:
    """The output layer, and the model's own code behind it, run once for the same targets."""
    output, rows = OutputLayer(torch.nn.Linear(5, 7)), []

    class Capped(Finish):
        """Logits between -3 and 3."""

        def __init__(self) -> None:
            self.output = output

        def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
            rows.append(len(hidden))
            return 3 * torch.tanh(output.layer(hidden))

    prediction, targets = Finished(None, torch.randn(2, 3, 5), Capped()), torch.randint(7, (2, 3))
    with torch.no_grad():
        expected = prediction.log_probs().gather(2, targets[..., None])[..., 0]
        assert len(rows) == 1
        for _ in range(3):
            torch.testing.assert_close(prediction.log_prob(targets), expected)
        assert len(rows) == 2
    assert prediction.log_prob(targets).requires_grad and len(rows) == 3


@pytest.mark.full
@pytest.mark.parametrize("kind", ["Mixtral", "Llama"])
def test_rows_of_a_mixture_of_experts_pass_the_audit(kind: str) -> None:
    # A row's experts receive more or fewer tokens with other rows beside it: the product of one token is another kernel.
    model = model_of(kind)
    assert model.capabilities.shares_products == (kind == "Mixtral")
    ids = np.random.default_rng(0).integers(0, 17, 360).astype(np.uint16)
    for seed in range(3):
        audit = Audit(block_count(len(ids), 3, 8), 8, seed)
        read(StaticReader(model), ids, 0, batch_size=3, block=8, observer=audit)
        assert audit.report.passed, audit.report.failures


@pytest.mark.full
def test_an_ensemble_with_a_mixture_of_experts_passes_the_audit() -> None:
    members = Members([StaticReader(model_of("Mixtral"))])
    first, ids = StaticReader(model_of("Llama")), np.random.default_rng(0).integers(0, 17, 360).astype(np.uint16)
    for seed in range(3):
        reader = EnsembleReader(first, EnsembleSettings(), members)
        audit = Audit(block_count(len(ids), 3, 8), 8, seed)
        read(reader, ids, 0, batch_size=3, block=8, observer=audit)
        assert audit.report.passed, audit.report.failures
    assert MixtureReader(first, MixtureSettings(), reader).models() == [first.model, *reader.models()]


def test_a_decoder_that_names_its_longest_target_slides_a_window() -> None:
    sizes = {"d_model": 16, "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 16}
    model = foreign.wrapped("Whisper", TYPES, decoder_start_token_id=0, max_target_positions=12, **sizes)
    assert model.capabilities.maximum_length == 12
    tokens = text(1, 30)
    reference = foreign.causal("Whisper", TYPES, decoder_start_token_id=0, max_target_positions=12, **sizes)
    # Windows of 12 move on by 6: the last 12 tokens are one.
    torch.testing.assert_close(ours(model, tokens, [30])[:, -6:], own(reference, tokens[:, 18:])[:, -6:])
