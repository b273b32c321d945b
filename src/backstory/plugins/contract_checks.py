"""The contract of a language model and of a reader as functions: the tests run them on ours, `backstory check` on anybody's.

Each check takes what it tests and raises ContractError with a sentence that says what is wrong.
"""

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from backstory.config import EmbeddingConfig, LSTMConfig, ModelConfig, RunConfig, SoftmaxConfig, TrainingConfig
from backstory.config.options import EvalOptions
from backstory.context.examination import Examination
from backstory.context.experiments import Condition, Experiment
from backstory.context.scorer import ReaderScorer
from backstory.data import Dataset, encode_bytes, tokenizer
from backstory.data import build as build_vocabulary
from backstory.evaluation import Audit, AuditReport, read
from backstory.evaluation.metrics import Metric
from backstory.evaluation.metrics.metric import plain_result
from backstory.evaluation.opening import EvalSetup
from backstory.evaluation.reading_loop import Reading, ScoredBlock
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
from backstory.readers import Reader, ReaderKind, StaticReader
from backstory.readers.base import block_count
from backstory.readers.kind import BuildContext
from backstory.readers.registry import configure, parse_stack
from backstory.runs.run import Run, load_weights, weights
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


# --- language models ---


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


# --- readers ---


def small_model() -> ComposedModel:
    """Return a small LSTM with random weights that are large enough for its predictions to differ."""
    torch.manual_seed(0)
    core = LSTMConfig(layers=2, hidden=8, weight_drop=0.0)
    model = build_model(ModelConfig(EmbeddingConfig(size=8), core, head=SoftmaxConfig()), TYPES).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model


def example_ids(count: int, types: int = TYPES) -> np.ndarray:
    """Return token ids (count,) below `types`, the same each time."""
    return np.random.default_rng(5).integers(types, size=count).astype(np.int32)


def audits(reader: Reader, tokens: int, rows: int) -> Iterator[tuple[Reading, AuditReport]]:
    """Yield three audited readings of a text."""
    ids = example_ids(tokens, reader.model.vocabulary_size)
    for seed in range(3):
        audit = Audit(block_count(len(ids), rows, 15), 4, seed)
        yield read(reader, ids, 0, batch_size=rows, block=15, observer=audit), audit.report


def passes_the_audit(reader: Reader) -> None:
    plain = read(reader, example_ids(120, reader.model.vocabulary_size), 0, block=15)
    for audited, report in audits(reader, 120, 1):
        require(report.passed, f"the audit fails: {'; '.join(report.failures)}")
        require(audited.nats == plain.nats, "scores change when the reader is audited; snapshot() must copy everything")


def keeps_rows_apart(reader: Reader) -> None:
    can, rows = reader.capabilities, 4
    if can.adapts_weights or not can.independent_rows:  # it does not claim so
        return
    for _, report in audits(reader, 240, rows):
        failures = "; ".join(report.failures)
        require(report.passed, f"with {rows} rows the audit fails: {failures}; or declare independent_rows=False")


def wraps_a_prediction(reader: Reader) -> None:
    if len(reader.stack()) == 1:
        return
    tokens = torch.from_numpy(example_ids(12, reader.model.vocabulary_size).astype(np.int64))[None]
    reader.start(1)
    parts = reader.predict(tokens).parts()
    require("p" in parts, "its prediction does not hold that of the reader inside it; parts() must return it as 'p'")


def forks(reader: Reader) -> None:
    tokens = torch.from_numpy(example_ids(12, reader.model.vocabulary_size).astype(np.int64))[None]
    reader.start(1)
    before = reader.predict(tokens).log_prob(tokens)
    reader.observe(tokens)
    after = reader.predict(tokens).log_prob(tokens)
    require(
        not torch.equal(before, after), "a second reading of the same block scores as the first; observe() must move on"
    )
    fork = reader.fork()
    fork.observe(tokens.flip(1))
    fork.predict(tokens)
    same = torch.equal(reader.predict(tokens).log_prob(tokens), after)
    require(same, "what a fork reads changes the reader it came from; snapshot() and restore() must copy")


def leaves_the_model_alone(reader: Reader) -> None:
    before = {name: p.detach().clone() for name, p in reader.model.named_parameters()}
    read(reader, example_ids(60, reader.model.vocabulary_size), 0)
    same = all(torch.equal(p, before[name]) for name, p in reader.model.named_parameters())
    require(same, "reading changes the weights of the loaded model; let a copy adapt")


def starts_again(reader: Reader) -> None:
    ids = example_ids(60, reader.model.vocabulary_size)
    require(read(reader, ids, 0).nats == read(reader, ids, 0).nats, "start() does not forget what was read before")


def reads_in_pieces(reader: Reader) -> None:
    can, ids = reader.capabilities, example_ids(60, reader.model.vocabulary_size)
    if not (can.block_invariant or can.collects_blocks):  # it does not claim so
        return
    apart = abs(read(reader, ids, 0).nats - read(reader, ids, 0, block=1).nats)
    require(apart < 1e-4, f"one token at a time scores differ by {apart:.2g} nats; declare block_invariant=False")


READER_CHECKS: Mapping[str, Callable[[Reader], None]] = {
    "the audit passes": passes_the_audit,
    "texts read side by side are independent": keeps_rows_apart,
    "it holds what it wraps": wraps_a_prediction,
    "a fork is independent": forks,
    "the model stays as it was": leaves_the_model_alone,
    "start forgets": starts_again,
    "one token at a time is the same": reads_in_pieces,
}


def reader_of(kind: ReaderKind) -> Reader:
    """Return a reader of the kind with its default settings over a small model, around a static one if it wraps another."""
    model, precision = small_model(), FULL_PRECISION
    vocabulary = build_vocabulary({str(i): TYPES - i for i in range(TYPES - 2)}, tokenizer("words"))
    run = Run(Path("run"), model, vocabulary, RunConfig(), {}, {})
    inner = StaticReader(model, precision) if kind.wraps else None
    return kind.build(BuildContext(run, precision, inner), kind.settings())


# --- experiments ---


def conditions_of(experiment: Experiment) -> Sequence[Condition]:
    """Return the conditions of an experiment on a text of 2,000 tokens."""
    ids = example_ids(2000)
    tags = np.array(["NN", "DT", "VB", "JJ", "IN"])[ids % 5]
    scorer = ReaderScorer(StaticReader(small_model()))
    examination = Examination(
        ids,
        None,
        scorer,
        50,
        400,
        tags=tags,
        training=example_ids(5000),
        counts=np.bincount(ids, minlength=TYPES),
        unknown=0,
    )
    conditions = experiment.conditions(examination)
    require(len(conditions) > 0, "it has no conditions")
    require(len({c.name for c in conditions}) == len(conditions), "two conditions have the same name")
    return conditions


def check_condition(condition: Condition) -> None:
    """Check what a perturbation does to contexts: at least one known token is left, the input is not changed, seeds repeat."""
    if condition.perturb is None:
        return
    tags = np.array(["NN", "DT", "VB", "<unk>"] * 25)
    for seed in range(5):
        context = np.random.default_rng(seed).integers(TYPES, size=100)
        before, results = context.copy(), []
        for _ in range(2):
            results.append(condition.perturb(context, 3, tags, np.random.default_rng(seed)))
        require(bool((context == before).all()), f"{condition.name} changes the context that it is given; copy it")
        require(len(results[0]) > 0, f"{condition.name} leaves no token of a context of 100")
        known = bool(((results[0] >= 0) & (results[0] < TYPES)).all())
        require(known, f"{condition.name} makes tokens outside the vocabulary")
        same = len(results[0]) == len(results[1]) and bool((results[0] == results[1]).all())
        require(same, f"{condition.name} is not repeated by its random generator; draw from that one alone")


def check_conditions(conditions: Sequence[Condition]) -> None:
    """Check every condition of an experiment."""
    for condition in conditions:
        check_condition(condition)


# --- metrics ---


def measures_in_two_halves(kind: type[Metric]) -> None:
    """Check that a metric that is saved between two blocks and restored has the result of one that is not."""
    setup = example_setup()
    blocks: list[ScoredBlock] = []
    read(setup.reader, setup.split.ids, 0, block=15, each=lambda *scored: blocks.append(ScoredBlock(*scored)))
    results: list[Any] = []
    for interrupted in (False, True):
        metric = kind.for_evaluation(setup, EvalOptions())
        if metric is None:  # it does not apply to a model of words
            return
        for number, scored in enumerate(blocks):
            if interrupted and number == 2:
                state = json.loads(json.dumps(metric.state_dict()))
                metric = kind.for_evaluation(setup, EvalOptions())
                assert metric is not None
                metric.load_state_dict(state)
            metric.update(scored)
        results.append(plain_result(metric))
    require(
        results[0] == results[1], "a state_dict that is saved and loaded changes the result; all sums must be in it"
    )


def example_setup() -> EvalSetup:
    """Return a reading of a short text by a small model."""
    model = small_model()
    words = [str(i) for i in example_ids(200, TYPES - 2)]
    vocabulary = build_vocabulary({str(i): TYPES - i for i in range(TYPES - 2)}, tokenizer("words"))
    split, _ = encode_bytes(vocabulary, iter([" ".join(words).encode()]), "text", "the text")
    dataset = Dataset("text", vocabulary, {"text": split}, "0" * 64, "an example")
    run = Run(Path("run"), model, vocabulary, RunConfig(), {}, {})
    reader = StaticReader(model)
    return EvalSetup(run, dataset, split, reader, configure(parse_stack("static"), run), EvalOptions())


METRIC_CHECKS: Mapping[str, Callable[[type[Metric]], None]] = {
    "an interrupted reading measures the same": measures_in_two_halves
}
