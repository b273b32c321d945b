"""Misuses of the Python API: wrong values for each argument of every public function, one or two at a time."""

import contextlib
import inspect
import io
import linecache
import math
import os
import random
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest.mock import patch

import numpy as np
import runs
import torch
from calling import Hung, within
from rich.console import Console

import backstory as bs
from backstory import reports, results
from backstory.config import (
    DNCConfig,
    MixtureConfig,
    ModelConfig,
    MogrifierConfig,
    RunConfig,
    SpanBufferConfig,
    TextConfig,
    TransformerConfig,
    TrellisConfig,
    from_dict,
    from_yaml,
    to_yaml,
)
from backstory.config.examination_options import ExamineOptions
from backstory.config.explanation_options import CompareOptions, ExplainOptions
from backstory.config.readers import CacheSettings, DynamicSettings, TemperedSettings
from backstory.context import (
    Drop,
    Examination,
    Permute,
    ReaderScorer,
    ReplaceFar,
    ReplaceTarget,
    Similar,
    Truncate,
    combine,
    drop_target,
    effective_context,
    examine,
    examine_model,
    examine_run,
    examine_runs,
    figures,
    fold,
    measure,
    paired_interval,
    paired_intervals,
    read_examination,
    regroup,
    reversed_order,
    shuffled,
)
from backstory.data import encode_split, prepare, rows, tokenizer
from backstory.data.tokenizers.vocabulary import build
from backstory.evaluation import Audit, Sampling, block_count, generate_ids, read, token_scores
from backstory.evaluation.audit import usual_places
from backstory.evaluation.session import session
from backstory.explanations import compare_readers, explain_passage
from backstory.models import build_model, choose_device, choose_precision, clone, detach, flatten, map_state, unflatten
from backstory.readers import StaticReader
from backstory.readers.dynamic import DynamicEvaluation
from backstory.readers.neural_cache import NeuralCache
from backstory.readers.registry import parse_stack
from backstory.readers.tempered import TemperedReader
from backstory.training import train
from backstory.training.objectives import Likelihood
from backstory.utils.errors import NonFiniteError, UserError

RAISED = (UserError, NonFiniteError, TypeError, ValueError)
"""Errors that a misuse may raise, each with a message of our own."""
FUNCTIONS = ("function", "progress", "on_line", "order", "kind", "choices", "console", "baseline")
"""Arguments that are called: what a user's own function raises is theirs."""
SAID = {"template": "state"}
"""Names of arguments where they are part of something."""
FOREIGN = re.compile(r"mat1|object (has no|is not|of type)|NoneType|unsupported operand|not supported between")
"""Words of Python and torch that do not help a user, even when quoted in our own messages."""


@dataclass(frozen=True)
class Use:
    """A public function and a call of it that works."""

    function: Callable[..., Any]
    given: dict[str, Any]
    finish: Callable[[Any], Any] = lambda result: result
    """Use the return value: read iterators, enter contexts."""

    def arguments(self) -> list[str]:
        """Return what can be given by name."""
        kinds = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY
        return [name for name, p in inspect.signature(self.function).parameters.items() if p.kind not in kinds]


class Desk:
    """A trained run and what can be made of it, in a folder."""

    def __init__(self, folder: Path) -> None:
        config = runs.tiny_config(runs.tiny_corpus(folder / "corpus", lines=20))
        quiet = Console(file=io.StringIO())
        self.config, self.run, self.other = config, folder / "run", folder / "other"
        train(config, self.run, console=quiet)
        train(replace(config, seed=2), self.other, console=quiet)
        self.dataset = prepare(config.text)
        self.ids = np.asarray(self.dataset.splits["valid"].ids)
        self.model, self.vocabulary = bs.load(self.run)
        self.types = len(self.vocabulary)
        self.tokens = torch.arange(6).view(2, 3)
        self.state = self.model.start(2)
        self.prediction = self.model(self.tokens, self.state)[0]
        self.reader = StaticReader(self.model)
        self.small = {"targets": 10, "maximum_context": 20, "context": 5}
        self.examined = bs.examine(self.run, out=folder / "examined", **self.small)
        self.again = bs.examine(self.other, **self.small)
        bs.evaluate(self.run, split="valid", audit_places=1)
        self.folder = folder

    def cores(self) -> Iterator[Any]:
        """A model with each kind of core, head and auxiliary prediction."""
        small = {"layers": 1, "hidden": 8}
        tiny = replace(self.config.model, head=MixtureConfig(experts=2))
        yield build_model(tiny, self.types).eval()
        for core in (
            MogrifierConfig(**small),
            TransformerConfig(**small, heads=2, window=4),
            TrellisConfig(levels=3, hidden=9),
            DNCConfig(layers=(6,), slots=5, width=4),
        ):
            yield build_model(replace(self.config.model, core=core), self.types).eval()
        yield build_model(replace(self.config.model, buffer=SpanBufferConfig()), self.types).eval()


def uses(desk: Desk) -> Iterator[Use]:
    """A working call of every public function."""
    run, ids, reader, vocabulary = desk.run, desk.ids, desk.reader, desk.vocabulary
    tokens, state, small = desk.tokens, desk.state, desk.small
    model: Any = desk.model
    prediction: Any = desk.prediction
    yield Use(bs.load, {"run": run})
    yield Use(bs.recipe, {"name_or_path": "demo"})
    yield Use(bs.evaluate, {"model": run, "split": "valid", "audit_places": 1, "out": "evaluated"})
    yield Use(bs.examine, {"model": run, "out": "examined", **small})
    yield Use(bs.examine, {"model": model, "corpus": ids, **small})
    yield Use(bs.explain, {"run": run, "words": 4, "out": "explained"})
    yield Use(bs.generate, {"run": run, "prompt": "ann", "tokens": 3}, list)
    yield Use(bs.report, {"runs": [run], "out": "page.html"})
    yield Use(bs.train, {"recipe": desk.config, "out": "trained", "mode": "overwrite"})
    yield Use(from_yaml, {"kind": RunConfig, "text": to_yaml(desk.config), "source": "it"})
    yield Use(from_dict, {"kind": TextConfig, "data": {"corpus": "x"}, "source": "it"})
    yield Use(build_model, {"config": desk.config.model, "vocabulary_size": 9})
    yield Use(choose_device, {"name": "cpu"})
    yield Use(choose_precision, {"precision": "float32", "device": torch.device("cpu")})
    for one in (model, *desk.cores()):
        yield Use(one.start, {"batch_size": 2})
        yield Use(_call(one, one.forward), {"tokens": tokens, "state": one.start(2)}, _told)
    core = model.core
    yield Use(_call(core, core.forward), {"embedded": model.embedding(tokens).detach(), "state": core.start(2)})
    hidden = prediction.activations.head_input
    yield Use(_call(model.head, model.head.forward), {"hidden": hidden}, lambda made: made.log_probs())
    yield Use(prediction.log_prob, {"targets": tokens})
    yield Use(prediction.tempered, {"temperature": 2.0}, lambda made: made.log_probs())
    yield Use(prediction.select, {"rows": torch.tensor([0]), "times": torch.tensor([1])}, lambda made: made.log_probs())
    yield Use(Likelihood, {"activation_l2": 1.0, "temporal_l2": 1.0}, lambda made: made(prediction, tokens))
    yield Use(
        _call(Likelihood(), Likelihood.__call__),
        {"prediction": prediction, "targets": tokens, "answer_mask": tokens > 2},
    )
    for function in (detach, clone, flatten):
        yield Use(function, {"state": state})
    yield Use(map_state, {"function": torch.Tensor.detach, "state": state})
    yield Use(unflatten, {"template": state, "tensors": flatten(state)})
    yield Use(StaticReader, {"model": model}, lambda made: _read(made, ids))
    yield Use(reader.start, {"batch_size": 2})
    yield Use(NeuralCache, {"inner": reader, "settings": CacheSettings(window=5)}, lambda made: _read(made, ids))
    yield Use(CacheSettings, {}, lambda made: _read(NeuralCache(reader, made), ids))
    yield Use(TemperedReader, {"inner": reader, "settings": TemperedSettings()}, lambda made: _read(made, ids))
    yield Use(TemperedSettings, {}, lambda made: _read(TemperedReader(reader, made), ids))
    sgd = {"rule": "sgd", "rate": 1e-3, "decay": 0.0}
    yield Use(DynamicEvaluation, {"model": model, "settings": DynamicSettings(**sgd)}, lambda made: _read(made, ids))
    yield Use(DynamicSettings, sgd, lambda made: _read(DynamicEvaluation(model, made), ids))
    yield Use(parse_stack, {"names": "cache:theta=0.5"})
    yield Use(read, {"reader": reader, "ids": ids, "first": 0, "batch_size": 2, "block": 7})
    yield Use(block_count, {"tokens": 100, "batch_size": 2, "block": 7})
    yield Use(usual_places, {"block": 7})
    yield Use(Audit, {"total_blocks": 4}, lambda made: read(reader, ids[:12], 0, block=3, observer=made))
    yield Use(token_scores, {"prediction": prediction, "targets": tokens, "top": 2})
    yield Use(Sampling, {}, lambda made: _drawn(generate_ids(reader, [0], made)))
    yield Use(generate_ids, {"reader": reader, "context": [0], "sampling": Sampling()}, lambda made: _drawn(made))
    yield Use(session, {"run": run, "on_line": lambda line: None}, _entered)
    options = ExamineOptions.of(**small)
    yield Use(ExamineOptions, small, lambda made: examine_run(run, made))
    yield Use(examine_run, {"run": run, "options": replace(options, experiment="shuffle", out=Path("examined-2"))})
    yield Use(examine_runs, {"runs": [run, desk.other], "options": options})
    yield Use(examine_model, {"model": model, "corpus": desk.dataset, "options": options})
    on = Examination(ids, None, ReaderScorer(reader), 10, 20, context=5)
    yield Use(
        Examination, {k: v for k, v in vars(on).items() if k != "beginnings"}, lambda made: examine("truncate", made)
    )
    yield Use(examine, {"experiment": "truncate", "on": on})
    yield Use(measure, {"experiment": "truncate", "on": on})
    yield Use(ReaderScorer, {"reader": reader}, lambda made: made.score([ids[:5]], ids[5:6]))
    yield Use(ReaderScorer(reader).score, {"contexts": [ids[:5]], "targets": ids[5:6]})
    yield Use(read_examination, {"folder": desk.folder / "examined"})
    yield Use(regroup, {"folder": desk.folder / "examined", "by": ("class",)})
    yield Use(combine, {"models": [desk.examined, desk.again]})
    yield Use(figures, {"models": desk.examined.losses})
    yield Use(desk.examined.plot, {"path": "plot.svg"})
    yield Use(desk.examined.save, {"folder": "saved"})
    values = np.arange(20.0).reshape(10, 2)
    yield Use(paired_intervals, {"differences": values})
    yield Use(paired_interval, {"differences": values[:, 0]})
    yield Use(effective_context, {"contexts": [1, 2], "baseline": values[:, 0], "conditions": values})
    yield Use(fold, {"vocabulary": vocabulary, "split": desk.dataset.splits["valid"]})
    around = {
        "context": ids[:8],
        "target": int(ids[8]),
        "tags": np.array(["NN"] * 8),
        "random": np.random.default_rng(0),
    }
    changes = [
        (Truncate, {"keep": 3}),
        (Permute, {"order": shuffled, "boundary": 2}),
        (ReplaceFar, {"boundary": 2, "text": ids}),
        (Drop, {"boundary": 2, "kind": str.islower}),
        (ReplaceTarget, {"choices": lambda target: ids[:3]}),
    ]
    for kind, given in changes:
        yield Use(kind, given, lambda made: made(*around.values()))
        yield Use(_call(kind(**given), kind.__call__), around)
    yield Use(drop_target, around)
    yield Use(shuffled, {"count": 3, "random": around["random"]})
    yield Use(reversed_order, {"count": 3, "random": around["random"]})
    counts = vocabulary.counts
    yield Use(Similar, {"ids": ids[:8], "tags": around["tags"], "counts": counts}, lambda made: made(int(ids[0])))
    yield Use(ExplainOptions, {"words": 4, "out": Path("explained-2")}, lambda made: explain_passage(run, options=made))
    yield Use(explain_passage, {"run": run, "options": ExplainOptions(words=4, out=Path("explained-3"))})
    some = {"tokens": 20, "block": 5, "words": 4, "against": ("cache",), "out": Path("compared")}
    yield Use(compare_readers, {"run": run, "options": CompareOptions.of(**some)})
    yield Use(CompareOptions, some, lambda made: compare_readers(run, made))
    yield Use(results.read, {"folder": run})
    yield Use(reports.write, {"folders": [run], "out": Path("page-2.html")})
    yield Use(reports.render, {"folders": [run]})
    text = (run / "result.json").read_text()
    yield Use(results.result_from, {"text": text, "source": "it"})
    yield Use(results.result_at, {"path": run / "result.json"})
    yield Use(reports.figures_table, {"runs": [results.read(run)]})
    table = reports.figures_table([results.read(run)])
    for function in (reports.to_text, reports.to_markdown):
        yield Use(function, {"table": table})
    yield Use(reports.fill, {"text": "<!-- table: x -->\n<!-- end -->", "name": "x", "table": table})
    yield Use(prepare, {"config": desk.config.text})
    yield Use(encode_split, {"vocabulary": vocabulary, "text": "ann saw"})
    yield Use(vocabulary.encode, {"text": "ann saw"})
    yield Use(vocabulary.decode, {"ids": [0, 1]})
    yield Use(vocabulary.tokens, {"ids": [0, 1]})
    yield Use(rows, {"ids": ids, "batch_size": 3})
    yield Use(tokenizer, {"name": "words"})
    yield Use(build, {"counts": {"a": 3, "b": 1}, "tokenizer": tokenizer("words")})


def _call(thing: Callable[..., Any], like: Callable[..., Any]) -> Callable[..., Any]:
    """Callable as a whole, with the arguments of its method."""
    given = [p for name, p in inspect.signature(like).parameters.items() if name != "self"]

    def called(**named: Any) -> Any:
        return thing(*(named[p.name] for p in given if p.name in named))

    called.__signature__ = inspect.Signature([p.replace(kind=p.POSITIONAL_OR_KEYWORD) for p in given])  # type: ignore[attr-defined]
    called.__qualname__ = f"{type(thing).__name__}()"
    return called


def _told(made: Any) -> Any:
    prediction, state = made
    whole = prediction.log_probs()
    assert math.isclose(float(whole.exp().sum(-1).mean()), 1, abs_tol=1e-3), "no distribution"
    return state


def _read(reader: Any, ids: np.ndarray) -> Any:
    return read(reader, ids[:20], 0, block=min(reader.block, 5))


def _drawn(made: Iterator[int]) -> list[int]:
    return [next(made) for _ in range(2)]


def _entered(made: Any) -> None:
    with made:
        pass


def wrong(desk: Desk) -> dict[str, Callable[[], Any]]:
    """Values that fit no argument, or only other ones."""
    closed = open(os.devnull, "rb")  # noqa: SIM115
    closed.close()
    other = build_model(ModelConfig(), 5)
    values: list[Any] = [0, -1, 1, 2, 10**12, 10**30, 0.5, -0.5, 1e-300, math.nan, math.inf, True, False, None]
    values += [
        "",
        "x",
        "valid",
        "static",
        "cache",
        "no\0where",
        "x" * 5000,
        b"x",
        desk.run,
        str(desk.run),
        Path("nowhere"),
    ]
    values += [
        Path("/dev/zero"),
        desk.folder,
        [],
        (),
        {},
        [None],
        ["x"],
        [desk.run],
        (1, -1),
        {"a": 1},
        set(),
        int,
        object,
    ]
    values += [np.zeros(0), np.zeros(0, np.int64), np.array([1.5, math.nan]), np.zeros((2, 2)), np.arange(-3, 3)]
    values += [np.array([10**9] * 40), np.array(["x"]), np.float64(0.5), np.int32(1), desk.ids, closed]
    values += [
        torch.zeros(2, 3),
        torch.zeros(2, 3, dtype=torch.long),
        torch.full((2, 3), 10**6),
        torch.full((2, 3), -1),
    ]
    values += [
        torch.zeros(0, dtype=torch.long),
        torch.zeros(3, dtype=torch.long),
        torch.tensor(1),
        torch.full((2, 3), math.nan),
    ]
    values += [torch.zeros(2, 3, dtype=torch.long, device="meta"), torch.zeros(2, 3, 7), torch.zeros(3, 2, 7)]
    values += [
        desk.model,
        desk.vocabulary,
        desk.dataset,
        desk.prediction,
        desk.reader,
        other,
        other.start(2),
        desk.model.start(3),
    ]
    values += [
        desk.config,
        desk.config.model,
        TextConfig(),
        Sampling(),
        CacheSettings(weight=5.0),
        desk.examined,
        len,
        object(),
    ]
    found: dict[str, Callable[[], Any]] = {}
    for value in values:
        found[f"{len(found)} {type(value).__name__} {str(value)[:30]!r}"] = lambda value=value: value
    return found | {"a generator": lambda: (i for i in range(3)), "an open file": lambda: io.BytesIO(b"ann saw")}


def run(trials: Sequence[int], folder: Path) -> Iterator[str]:
    """Even trials give one argument something wrong, odd ones two of them; both in an order drawn once."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, {"BACKSTORY_CACHE": str(folder / "cache")}))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        desk = Desk(folder)
        (folder / "desk").mkdir()
        stack.enter_context(contextlib.chdir(folder / "desk"))
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        known, values = list(uses(desk)), wrong(desk)
        for use in known if trials.start == 0 else ():
            if problem := misused(use, {}):
                yield f"{_name(use)} does not work: {problem}"
        singles = [(u, (a,), (v,)) for u in range(len(known)) for a in known[u].arguments() for v in values]
        random.Random("misuses").shuffle(singles)
        for number in trials:
            chosen = random.Random(f"misuses {number}")
            place, names, called = singles[number % len(singles)]
            if number % 2 and len(known[place].arguments()) > 1:
                names = tuple(chosen.sample(known[place].arguments(), 2))
                called = tuple(chosen.choices(list(values), k=2))
            changed = {name: values[value]() for name, value in zip(names, called, strict=True)}
            if problem := misused(known[place], changed):
                told = ", ".join(f"{name}={value}" for name, value in zip(names, called, strict=True))
                yield f"misuses {number}: {_name(known[place])}({told}): {problem}"


def _name(use: Use) -> str:
    return getattr(use.function, "__qualname__", str(use.function))


def misused(use: Use, changed: dict[str, Any]) -> str:
    """Return a fault; empty if the call works without NaN, or raises an error with a message of ours."""
    try:
        with within(20), patch("sys.stdin", io.StringIO("")):
            found = _unwell(use.finish(use.function(**{**use.given, **changed})))
            return "" if _unwell(list(changed.values())) else found
    except Hung:
        return "not done after 20 s"
    except RAISED as error:
        if any(callable(value) for name, value in changed.items() if name in FUNCTIONS):
            return ""
        text = f"{type(error).__name__}: {str(error)[:200]!r}"
        if not _deliberate(error.__traceback__):
            return f"not said by us: {text}"
        if FOREIGN.search(str(error)) or " " not in str(error) or "\n" in str(error):
            return f"no sentence: {text}"
        if not isinstance(error, UserError | NonFiniteError) and not any(
            SAID.get(name, name) in str(error) for name in changed
        ):
            return f"names no argument: {text}"
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]!r}, {_place(error.__traceback__)}"


def _frames(trace: TracebackType | None) -> Iterator[tuple[str, int]]:
    while trace is not None:
        yield trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next


def _place(trace: TracebackType | None) -> str:
    ours = [f"{Path(name).name}:{line}" for name, line in _frames(trace) if "/backstory/" in name]
    return ours[-1] if ours else ""


def _deliberate(trace: TracebackType | None) -> bool:
    """Return True if the innermost line is a `raise` of the package."""
    name, line = list(_frames(trace))[-1]
    return "/backstory/" in name and linecache.getline(name, line).strip().startswith("raise")


def _unwell(value: Any, depth: int = 0) -> str:
    """Return what is wrong with a result: a number in it that is none."""
    if isinstance(value, float | np.floating):
        return "NaN in the result" if math.isnan(value) else ""
    if isinstance(value, torch.Tensor):
        return (
            "NaN in the result"
            if value.device.type == "cpu" and value.is_floating_point() and value.isnan().any()
            else ""
        )
    if isinstance(value, dict):
        value = list(value.values())
    elif is_dataclass(value) and not isinstance(value, type):
        return ""
    if isinstance(value, list | tuple) and depth < 8:
        return next((found for one in value if (found := _unwell(one, depth + 1))), "")
    return ""
