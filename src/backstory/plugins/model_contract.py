"""The contract of a language model as functions: the tests run them on ours, `backstory check` on those of plugins.

Each check takes a model, or the settings of a core, and raises ContractError with a sentence that says what is wrong.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from backstory.config import EmbeddingConfig, ModelConfig, RunConfig, SoftmaxConfig, TrainingConfig
from backstory.models import (
    ComposedModel,
    LanguageModel,
    Precision,
    State,
    build_model,
    clone,
    detach,
    flatten,
    map_state,
    unflatten,
)
from backstory.models.contract import ParamGroup
from backstory.runs.run import load_weights, weights
from backstory.training.memory_estimate import Text, estimate
from backstory.training.optimizers import build_optimizer, parameter_groups

BATCH, TIME, TYPES = 3, 12, 17
FULL_PRECISION = Precision(torch.float32, "the default for reading")


class ContractError(Exception):
    """A part does not keep the contract."""


def require(holds: bool, sentence: str) -> None:
    """Raise ContractError with the sentence unless it holds."""
    if not holds:
        raise ContractError(sentence)


def example_tokens() -> Tensor:
    """Return tokens (BATCH, TIME), the same each time."""
    return torch.randint(TYPES, (BATCH, TIME), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def log_probs(model: LanguageModel, tokens: Tensor, state: State, *sizes: int) -> tuple[Tensor, State]:
    """Return the distributions (B, T, V) over a text read in chunks of the given sizes, and the state after it."""
    tables = []
    for chunk in tokens.split(list(sizes or (tokens.shape[1],)), 1):
        prediction, state = model(chunk, state)
        tables.append(prediction.log_probs())
    return torch.cat(tables, 1), state


def _close(a: Tensor, b: Tensor, tolerance: float) -> bool:
    return a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=tolerance, equal_nan=False)


def _close_states(a: State, b: State, tolerance: float) -> bool:
    one, other = flatten(a), flatten(b)
    return one.keys() == other.keys() and all(_close(one[name], other[name], tolerance) for name in one)


def predicts_distributions(model: LanguageModel) -> None:
    table, _ = log_probs(model, example_tokens(), model.start(BATCH))
    require(table.shape == (BATCH, TIME, model.vocabulary_size), f"log_probs() has shape {tuple(table.shape)}")
    error = (table.exp().sum(2) - 1).abs().max().item()
    require(error < 1e-5, f"probabilities sum to 1 but for {error:.2g}; they must sum to 1 within 1e-5")


def quotes_its_distribution(model: LanguageModel) -> None:
    tokens = example_tokens()
    prediction, _ = model(tokens, model.start(BATCH))
    targets = tokens.roll(-1, 1)
    same = _close(prediction.log_prob(targets), prediction.log_probs().gather(2, targets[..., None])[..., 0], 1e-5)
    require(same, "log_prob(targets) is not what log_probs() says of the targets")


def is_causal(model: LanguageModel) -> None:
    tokens = example_tokens()
    for cut in (1, TIME // 2, TIME - 1):
        changed = tokens.clone()
        changed[:, cut:] = (changed[:, cut:] + 1) % model.vocabulary_size
        before, after = (log_probs(model, t, model.start(BATCH))[0] for t in (tokens, changed))
        require(torch.equal(before[:, :cut], after[:, :cut]), "a prediction depends on tokens after it")
        require(
            not torch.equal(before[:, cut:], after[:, cut:]), "predictions do not depend on the tokens that are read"
        )


def has_an_exact_state(model: LanguageModel) -> None:
    if not model.capabilities.exact_state:  # it does not claim so
        return
    model, tokens = copy.deepcopy(model).double(), example_tokens()
    whole, after = log_probs(model, tokens, model.start(BATCH))
    for sizes in ((1, TIME - 1), (5, 4, 3), (1,) * TIME):
        pieces, state = log_probs(model, tokens, model.start(BATCH), *sizes)
        same = _close(pieces, whole, 1e-12) and _close_states(state, after, 1e-12)
        require(same, f"a text in chunks of {sizes} reads differently than whole; the state loses something")


def keeps_the_batch_apart(model: LanguageModel) -> None:
    tokens, order = example_tokens(), torch.tensor([2, 0, 1])
    _, state = log_probs(model, tokens.flip(1), model.start(BATCH))
    straight, _ = log_probs(model, tokens, state)
    permuted, _ = log_probs(model, tokens[order], map_state(lambda t: t[order], state))
    changed = tokens.clone()
    changed[1:] = (changed[1:] + 1) % model.vocabulary_size
    beside, _ = log_probs(model, changed, state)
    apart = _close(permuted, straight[order], 1e-5) and _close(beside[0], straight[0], 1e-5)
    require(apart, "a text's predictions depend on the other texts of the batch")


def starts_any_batch(model: LanguageModel) -> None:
    for size in (1, 4):
        sizes = {t.shape[0] for t in flatten(model.start(size)).values()}
        require(
            sizes <= {size}, f"start({size}) has tensors whose first dimension is {sorted(sizes - {size})}, not {size}"
        )


def leaves_the_state_alone(model: LanguageModel) -> None:
    tokens = example_tokens()
    _, state = log_probs(model, tokens, model.start(BATCH))
    before = clone(state)
    log_probs(model, tokens, state)
    require(_close_states(state, before, 0.0), "forward changes the state that it is given; return a new one")


def saves_its_state(model: LanguageModel) -> None:
    tokens = example_tokens()
    _, state = log_probs(model, tokens, model.start(BATCH))
    rebuilt = unflatten(model.start(BATCH), flatten(state))
    same = torch.equal(log_probs(model, tokens, rebuilt)[0], log_probs(model, tokens, state)[0])
    require(same, "a state that was saved and loaded predicts something else; all that is carried must be in it")


def detaches(model: LanguageModel) -> None:
    _, state = model(example_tokens(), model.start(BATCH))
    require(not any(t.requires_grad for t in flatten(detach(state)).values()), "a detached state has gradients")


def trains_every_parameter(model: LanguageModel) -> None:
    model, tokens = copy.deepcopy(model).train(), example_tokens()
    prediction, _ = model(tokens, model.start(BATCH))
    prediction.log_prob(tokens.roll(-1, 1)).mean().backward()
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:  # it is meant to stay
            continue
        gradient = torch.zeros(1) if parameter.grad is None else parameter.grad
        require(bool(gradient.abs().max() > 0), f"no gradient reaches the parameter {name}")
        require(bool(gradient.isfinite().all()), f"the gradient of {name} is not finite")


def repeats_itself(model: LanguageModel) -> None:
    tokens = example_tokens()
    first, second = (log_probs(model.eval(), tokens, model.start(BATCH))[0] for _ in range(2))
    require(torch.equal(first, second), "two readings in evaluation mode differ; is a dropout still on?")
    tables = []
    training = copy.deepcopy(model).train()
    for _ in range(2):
        torch.manual_seed(3)
        tables.append(log_probs(training, tokens, training.start(BATCH))[0])
    require(torch.equal(*tables), "the same seed does not repeat a training pass")


MODEL_CHECKS: Mapping[str, Callable[[LanguageModel], None]] = {
    "predictions are distributions": predicts_distributions,
    "log_prob quotes the distribution": quotes_its_distribution,
    "predictions are causal": is_causal,
    "whole, in chunks and by steps is the same": has_an_exact_state,
    "texts of a batch do not know of each other": keeps_the_batch_apart,
    "start makes any batch": starts_any_batch,
    "a state is left as it was": leaves_the_state_alone,
    "a state can be saved": saves_its_state,
    "a state can be detached": detaches,
    "gradients reach every parameter": trains_every_parameter,
    "readings repeat": repeats_itself,
}


def config_with(core: Any) -> ModelConfig:
    """Return the settings of a small model around a core's settings."""
    return ModelConfig(EmbeddingConfig(size=8, dropout=0.1), core, head=SoftmaxConfig(tied=False))


def model_with(core: Any, seed: int = 0) -> ComposedModel:
    """Return a small model around a core's settings, with random weights, in evaluation mode."""
    torch.manual_seed(seed)
    return build_model(config_with(core), TYPES).eval()


def is_what_is_saved(core: Any) -> None:
    """Raise ContractError unless the weights of a model, loaded into another one, make it predict the same."""
    trained, loaded = model_with(core), model_with(core, seed=1)
    with torch.no_grad():
        log_probs(trained.train(), example_tokens(), trained.start(BATCH))
    load_weights(loaded, weights(trained))
    tables = [log_probs(model.eval(), example_tokens(), model.start(BATCH))[0] for model in (trained, loaded)]
    require(
        torch.equal(*tables),
        "a model that was saved and loaded predicts something else; keep its tensors as nn.Parameter or by register_buffer",
    )


def takes_a_step(core: Any) -> None:
    """Check what the training asks of a model beside its gradients: its parts in words, their memory, and groups of weights."""
    model, tokens = model_with(core).train(), example_tokens()
    hidden = sorted(
        name
        for name, method in vars(nn.Module).items()
        if not name.startswith("_") and callable(method) and not callable(getattr(model.core, name))
    )
    require(not hidden, f"its attribute {', '.join(hidden)} hides the method of torch.nn.Module; give it another name")
    groups = model.core.param_groups()
    require(
        isinstance(groups, Sequence) and all(isinstance(group, ParamGroup) for group in groups),
        "param_groups() must return a list of backstory.models.contract.ParamGroup",
    )
    repr(model)
    estimate(RunConfig(model=config_with(core)), Text(TYPES, tokens.numel()), FULL_PRECISION)
    optimizer = build_optimizer(parameter_groups(model), TrainingConfig())
    prediction, _ = model(tokens, model.start(BATCH))
    (-prediction.log_prob(tokens.roll(-1, 1)).mean()).backward()
    optimizer.step()
    finite = all(bool(p.isfinite().all()) for p in model.parameters())
    require(finite, "the first step of training makes weights that are not finite")
