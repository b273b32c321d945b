"""Checks of a Hugging Face model before it is read: nothing is taken on trust.

A short random text shows whether later tokens change what was predicted before, whether the vectors and the output layer give
the model's own scores, and whether its cache gives what the whole text gives.
"""

import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from backstory.interop.hf_cache import Layout
from backstory.interop.hf_model import Finish, HuggingFaceModel, OutputNotCalledError, Way, longest, switch_length
from backstory.models import LanguageModel
from backstory.utils.errors import UserError, first_line, out_of_memory
from backstory.utils.formats import quantity

T = TypeVar("T")
LENGTH = 24
"""Tokens of the text; it is shorter where the model cannot read so many."""
SHORTEST = 3
"""Fewest tokens at once: in fewer no cache can be told from one that does not grow."""
EXACT, RELATIVE = 1e-5, 1e-4
"""Tolerance of log-probabilities, and its share of the change that the context makes in them."""
LAST_BIT = 1e-6
"""Relative tolerance of logits from the same products."""
HALF_EXACT, HALF_RELATIVE, HALF_BIT = 0.05, 0.1, 0.01
"""The same for weights of 16 bits, whose products are rounded to 3 decimal digits or fewer."""
CUTS = {"blocks": (5, 1, 7, 2, 1), "steps": (5,)}
"""Lengths of the first blocks of the text; the rest is read token by token."""


@torch.no_grad()
def wrap(causal: nn.Module, name: str) -> HuggingFaceModel:
    """Return a model as a `LanguageModel`, read in the fastest way that gives the model's own scores.

    Warns if every block is read whole, or one token at a time. Raises UserError for a model that cannot be read, or whose
    scores are not numbers.
    """
    causal.eval()
    check_kind(causal, name)
    for module in causal.modules():
        config: Any = getattr(module, "config", None)
        if hasattr(config, "return_dict"):
            config.return_dict = True  # not a tuple
    if (longest(causal) or LENGTH) < SHORTEST:
        raise UserError(
            f"{name} reads {longest(causal)} tokens at most, by its settings; choose a model that reads {SHORTEST} or more"
        )
    text = _text(causal)
    try:
        plain = _log_probs(causal(input_ids=text, use_cache=False).logits)
    except Exception as error:  # whatever the model's code does with settings that do not go together
        if no_memory := out_of_memory(error):
            raise no_memory from None
        why = f"{type(error).__name__}: {first_line(error)[:100]}"
        wide = next(causal.parameters()).dtype == torch.float64  # some products are not written for it
        remedy = "load it in float32" if wide else "give a model that reads token ids by itself"
        raise UserError(f"{name} cannot be read ({why}); {remedy}") from None
    if plain.shape[1] != text.shape[1]:
        raise UserError(
            f"{name} gives {plain.shape[1]} predictions for {text.shape[1]} tokens, as with prompts that are learned; choose a "
            "model without tokens of its own"
        )
    if plain.isnan().any():
        raise UserError(f"{name} gives scores that are not numbers: its weights are damaged; fetch it again")
    _check_causal(causal, text, plain, name)
    model = HuggingFaceModel(causal).eval()
    _settle_output(model, text, plain, name)
    model.use_way(*_way(model, text, plain))
    if model.way == "whole":
        why = "has no cache to be read on from"
        if model.cache_name is not None:
            why = "cannot be read on from its cache (its predictions change)"
        warnings.warn(
            f"{name} {why}, so every block is read again with up to "
            f"{model.capabilities.maximum_length:,} tokens before it; this is slow",
            stacklevel=2,
        )
    if model.way == "steps":
        warnings.warn(
            f"{name} is read one token at a time, as longer blocks would change its predictions; this is slow, and faster with "
            "several rows side by side (--batch-size 16)",
            stacklevel=2,
        )
    return model


def check_kind(causal: nn.Module, name: str) -> None:
    """Raise UserError for a model with an encoder, or without an output layer that is known."""
    if getattr(causal.config, "is_encoder_decoder", False):
        raise UserError(f"{name} reads a text with an encoder and writes another; choose a causal language model")
    layer = causal.get_output_embeddings()  # type: ignore[operator]
    if layer is None:
        raise UserError(f"{name} has no output layer that predicts tokens; load it with AutoModelForCausalLM")
    if not isinstance(layer, nn.Linear):
        raise UserError(
            f"the output layer of {name} is not a plain torch.nn.Linear ({type(layer).__name__}); "
            "leave that layer as it was, or merge an adapter (merge_and_unload)"
        )


def check_unused(causal: nn.Module, names: Iterable[str], name: str) -> None:
    """Warn of weights in the files that the model has no place for; `names` are theirs.

    Raises UserError if they are those of layers beyond the last that its settings have it built with.
    """
    unused = sorted(names)
    if not unused:
        return
    layers: dict[str, int] = {}
    for stack, number in filter(None, map(_layer, causal.state_dict())):
        layers[stack] = max(layers.get(stack, 0), number + 1)
    for stack, number in filter(None, map(_layer, unused)):
        # The files of a model without its head leave out the first part of every name.
        built = next((size for known, size in layers.items() if f".{known}".endswith(f".{stack}")), None)
        if built is not None and number >= built:
            raise UserError(
                f"{name} has weights for layer {number} of {stack}, and its settings ask for {built} (counted from 0); "
                "give the config.json that belongs to the weights"
            )
    count = quantity(len(unused), "tensor")
    warnings.warn(f"{name} has {count} of weights that the model has no place for: {unused[0]}", stacklevel=2)


def _layer(weight: str) -> tuple[str, int] | None:
    """Return the stack that a weight belongs to, and the number of its layer: the first in its name."""
    match = re.match(r"(.+?)\.(\d+)\.", weight)
    return None if match is None else (match[1], int(match[2]))


def _text(causal: nn.Module) -> Tensor:
    """Return random tokens (2, T)."""
    layers = causal.get_output_embeddings(), causal.get_input_embeddings()  # type: ignore[operator]
    types = min(layer.weight.shape[0] for layer in layers)
    length = min(LENGTH, longest(causal) or LENGTH, max(SHORTEST, switch_length(causal) or LENGTH))
    device = next(causal.parameters()).device
    return torch.randint(types, (2, length), generator=torch.Generator().manual_seed(0)).to(device)


def _log_probs(logits: Tensor) -> Tensor:
    return torch.log_softmax(logits.double(), -1)


def _check_causal(causal: nn.Module, text: Tensor, plain: Tensor, name: str) -> None:
    half = text.shape[1] // 2
    changed = text.clone()
    changed[:, half:] = (changed[:, half:] + 1) % plain.shape[-1]
    other = _log_probs(causal(input_ids=changed, use_cache=False).logits)
    if not torch.allclose(other[:, :half], plain[:, :half], rtol=0, atol=_tolerances(causal)[0]):
        raise UserError(
            f"{name} is not a causal language model: its predictions depend on later words; "
            "choose a model that reads from left to right"
        )


def _settle_output(model: HuggingFaceModel, text: Tensor, plain: Tensor, name: str) -> None:
    """Let the model finish its logits if the output layer alone does not give its scores. Raises UserError."""
    try:
        hidden, _ = model.body(text, caching=False)
    except OutputNotCalledError:
        raise UserError(_unfollowed(name, "its own code does not call that layer")) from None
    if hidden.shape[:-1] != text.shape:
        raise UserError(
            f"the output layer of {name} reads other vectors than one for each token, as in models that predict several tokens "
            "at once; choose a model that predicts the next token"
        )
    logits = model.head(hidden)
    exact, _, last_bit = _tolerances(model)
    if torch.allclose(_log_probs(logits), plain, rtol=0, atol=last_bit * logits.abs().max().item()):
        return
    try:
        model.finish = Finish(model.causal, model._output[0])
        scores = model.predicted(text, hidden).log_probs()
    except Exception as error:  # whatever the model's code does with a body that is not its own
        raise UserError(_unfollowed(name, type(error).__name__)) from None
    if not torch.allclose(scores.double(), plain, rtol=exact, atol=exact):
        raise UserError(_unfollowed(name, "it gives other scores"))


def _tolerances(model: nn.Module) -> tuple[float, float, float]:
    """Return the tolerances of log-probabilities: absolute, as a share of the context's effect, and of the same products."""
    if torch.finfo(next(model.parameters()).dtype).bits >= 32:
        return EXACT, RELATIVE, LAST_BIT
    return HALF_EXACT, HALF_RELATIVE, HALF_BIT


def _unfollowed(name: str, why: str) -> str:
    return f"what {name} does after its output layer cannot be followed ({why}); choose another model"


def _way(model: HuggingFaceModel, text: Tensor, plain: Tensor) -> tuple[Way, Layout | None, bool]:
    """Return the fastest way that gives the scores of the whole text."""
    layout = _attempt(lambda: Layout.learn(lambda rows, tokens: model.body(text[:1, :tokens].repeat(rows, 1))[1]))
    if layout is None:
        return "whole", None, False
    # Change that the context makes: scores of the text without its first half.
    half = text.shape[1] // 2
    alone = model.predicted(text[:, half:], model.body(text[:, half:])[0]).log_probs()
    exact, relative, _ = _tolerances(model)
    tolerance = exact + relative * (alone - plain[:, half:]).abs().max().item()
    ways: Sequence[tuple[Way, bool]] = (("blocks", False), ("blocks", True), ("steps", False), ("steps", True))
    for way, row_by_row in ways:
        model.use_way(way, layout, row_by_row)
        scores = _attempt(lambda way=way: _read(model, text, CUTS[way]))
        if scores is not None and scores.shape == plain.shape and (scores - plain).abs().max().item() <= tolerance:
            return way, layout, row_by_row
    return "whole", None, False


def _read(model: LanguageModel, text: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the log-probabilities (B, T, V) of a text that is read in blocks, first of these sizes, then of one token."""
    state, tables, start = model.start(len(text)), [], 0
    while start < text.shape[1]:
        size = sizes[len(tables)] if len(tables) < len(sizes) else 1
        prediction, state = model(text[:, start : start + size], state)
        tables.append(prediction.log_probs())
        start += size
    return torch.cat(tables, 1)


def _attempt(function: Callable[[], T]) -> T | None:
    """Return the result of a model's own code; None if it fails, so that the model is read without its cache."""
    try:
        return function()
    except Exception:  # as many kinds as there are models
        return None
