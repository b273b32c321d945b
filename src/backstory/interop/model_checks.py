"""What a Hugging Face model is found to do before it is read: nothing of it is taken on trust.

A short random text shows whether later tokens change what was predicted before, whether the vectors and the output layer give
the model's own scores, and whether its cache gives what the whole text gives.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from backstory.config import UserError
from backstory.interop.hf_model import Finish, HuggingFaceModel, Layout, Way, longest
from backstory.models import LanguageModel

T = TypeVar("T")
LENGTH = 24
"""Tokens of the text; it is shorter where the model cannot read so many."""
EXACT, RELATIVE = 1e-5, 1e-4
"""How far log-probabilities may differ, and of what the context changes in them."""
LAST_BIT = 1e-6
"""How far logits may differ that come of the same products, of the largest."""
CUTS = {"blocks": (5, 1, 7, 2, 1), "steps": (5,)}
"""The lengths of the first blocks of the text; what is left is read token by token."""


@torch.no_grad()
def wrap(causal: nn.Module, name: str) -> HuggingFaceModel:
    """A model as one of ours, read in the way that gives what it gives itself.

    Raises UserError for one that cannot be read, also where its scores are no numbers.

    Warns where it is read whole.
    """
    causal.eval()
    text = _text(causal)
    try:
        plain = _log_probs(causal(input_ids=text, use_cache=False).logits)
    except Exception as error:  # whatever the model's code does with settings that do not go together
        raise UserError(f"{name} cannot be read ({type(error).__name__}); give a model that is whole") from None
    if plain.isnan().any():
        raise UserError(f"{name} gives scores that are no numbers: its weights are damaged; fetch it again")
    _check_causal(causal, text, plain, name)
    model = HuggingFaceModel(causal).eval()
    _settle_output(model, text, plain, name)
    model.settled(*_way(model, text, plain))
    if model.way == "whole":
        warnings.warn(
            f"{name} cannot be read on from its cache (what it then says differs), so every block is read whole, with the "
            f"{model.capabilities.maximum_length:,} tokens before it at most; this is slow",
            stacklevel=2,
        )
    return model


def _text(causal: nn.Module) -> Tensor:
    """Random tokens (2, T)."""
    layers = causal.get_output_embeddings(), causal.get_input_embeddings()  # type: ignore[operator]
    types = min(layer.weight.shape[0] for layer in layers)
    length = min(LENGTH, longest(causal.config) or LENGTH)
    device = next(causal.parameters()).device
    return torch.randint(types, (2, length), generator=torch.Generator().manual_seed(0)).to(device)


def _log_probs(logits: Tensor) -> Tensor:
    return torch.log_softmax(logits.double(), -1)


def _check_causal(causal: nn.Module, text: Tensor, plain: Tensor, name: str) -> None:
    half = text.shape[1] // 2
    changed = text.clone()
    changed[:, half:] = (changed[:, half:] + 1) % plain.shape[-1]
    other = _log_probs(causal(input_ids=changed, use_cache=False).logits)
    if not torch.allclose(other[:, :half], plain[:, :half], rtol=0, atol=EXACT):
        raise UserError(
            f"{name} is no causal language model: what it predicts depends on the words that come after; choose a model that "
            "reads from left to right"
        )


def _settle_output(model: HuggingFaceModel, text: Tensor, plain: Tensor, name: str) -> None:
    """See whether the output layer gives the model's own scores, or more is done to the logits after it."""
    hidden, _ = model.body(text, caching=False)
    logits = model.head(hidden)
    if torch.allclose(_log_probs(logits), plain, rtol=0, atol=LAST_BIT * logits.abs().max().item()):
        return
    try:
        model.finish = Finish(model.causal, model._output[0])
        found = model.predicted(text, hidden).log_probs()
    except Exception as error:  # whatever the model's code does with a body that is not its own
        raise UserError(_unfollowed(name, type(error).__name__)) from None
    if not torch.allclose(found.double(), plain, rtol=EXACT, atol=EXACT):
        raise UserError(_unfollowed(name, "it gives other scores"))


def _unfollowed(name: str, why: str) -> str:
    return f"what {name} does after its output layer cannot be followed ({why}); choose another model"


def _way(model: HuggingFaceModel, text: Tensor, plain: Tensor) -> tuple[Way, Layout | None, bool]:
    """The fastest way that gives the scores of the whole text."""
    layout = _attempt(lambda: Layout.learn(lambda rows, tokens: model.body(text[:1, :tokens].repeat(rows, 1))[1]))
    if layout is None:
        return "whole", None, False
    # What the context makes of a score: without its first half the text reads differently by so much.
    half = text.shape[1] // 2
    alone = model.predicted(text[:, half:], model.body(text[:, half:])[0]).log_probs()
    tolerance = EXACT + RELATIVE * (alone - plain[:, half:]).abs().max().item()
    ways: Sequence[tuple[Way, bool]] = (("blocks", False), ("blocks", True), ("steps", False), ("steps", True))
    for way, row_by_row in ways:
        model.settled(way, layout, row_by_row)
        found = _attempt(lambda way=way: _read(model, text, CUTS[way]))
        if found is not None and found.shape == plain.shape and (found - plain).abs().max().item() <= tolerance:
            return way, layout, row_by_row
    return "whole", None, False


def _read(model: LanguageModel, text: Tensor, sizes: Sequence[int]) -> Tensor:
    """Log-probabilities (B, T, V) of a text that is read in blocks, first of these sizes, then of one token."""
    state, found, place = model.start(len(text)), [], 0
    while place < text.shape[1]:
        size = sizes[len(found)] if len(found) < len(sizes) else 1
        prediction, state = model(text[:, place : place + size], state)
        found.append(prediction.log_probs())
        place += size
    return torch.cat(found, 1)


def _attempt(function: Callable[[], T]) -> T | None:
    """What a model's own code makes of its cache, None where it fails: it is then read without."""
    try:
        return function()
    except Exception:  # as many kinds as there are models
        return None
