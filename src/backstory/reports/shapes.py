"""What a result file must hold for a report to show it: the fields of schema 1, kind by kind."""

import math
from typing import Any

from backstory.config import UserError
from backstory.reports.passage import AGAIN, from_json

SCHEMA = 1
"""The schema number this version reads and writes."""

_NUMBER = "a number"
_NUMBER_OR_NULL = "a number or null"
_TEXT = "text"
_BOOLEAN = "true or false"
_BOOLEAN_OR_NULL = "true, false or null"
_OBJECT = "an object"
_LIST = "a list"
_TEXT_OR_NULL = "text or null"

ENVELOPE = {"kind": _TEXT, "name": _TEXT, "figures": _OBJECT, "provenance": _OBJECT}
_EPOCH = {key: _NUMBER for key in ("epoch", "train_nats", "valid_nats", "valid_perplexity")}
TRAINING = {
    "parameters": _NUMBER,
    "epochs": _NUMBER,
    "best_epoch": _NUMBER,
    "valid_perplexity": _NUMBER,
    "valid_nats": _NUMBER,
    "unit": _TEXT,
    "tokens": {"train": _NUMBER, "valid": _NUMBER},
    "curve": [_EPOCH],
    "tokens_per_second": _NUMBER_OR_NULL,
}
EVALUATION = {
    "split": _TEXT,
    "reader": _TEXT,
    "unit": _TEXT,
    "tokens": _NUMBER,
    "nats_per_token": _NUMBER,
    "perplexity": _NUMBER,
    "bits_per_token": _NUMBER,
}
_COSTS = {"tokens": _NUMBER, "nats": _NUMBER, "exact": _NUMBER, "excess": _NUMBER}
MEMORY = {
    "exact_nats_per_token": _NUMBER,
    "exact_perplexity": _NUMBER,
    "excess_nats_per_token": _NUMBER,
    "kinds": [{"kind": _TEXT, **_COSTS}],
    "curves": _LIST,
}
_ANSWERED = {
    **dict.fromkeys(("documents", "asked", "nats_per_asked"), _NUMBER),
    **dict.fromkeys(("token_accuracy", "bit_accuracy", "document_accuracy"), _NUMBER),
}
ANSWERS = {"task": _TEXT, **_ANSWERED, "lengths": [{"length": _NUMBER, **_ANSWERED}]}
_BIN = {"from": _NUMBER, "to": _NUMBER_OR_NULL, "distance": _NUMBER}
CURVE = {"kind": _TEXT, "forgotten": _NUMBER, "bins": [{**_BIN, **_COSTS}]}
RECENCY = {"new": {"tokens": _NUMBER, "nats": _NUMBER_OR_NULL}, "bins": _LIST}
REPEATED = {**_BIN, "tokens": _NUMBER, "nats": _NUMBER}
_EFFECT = {key: _NUMBER for key in ("nats", "perplexity", "effect", "low", "high", "effect_percent")}
_EFFECTIVE = {
    "context": _NUMBER_OR_NULL,
    "low": _NUMBER_OR_NULL,
    "high": _NUMBER_OR_NULL,
}
_CONDITION = {"context": _NUMBER, **_EFFECT}
TRUNCATE = {
    "split": _TEXT,
    "unit": _TEXT,
    "targets": _NUMBER,
    "maximum_context": _NUMBER,
    "baseline": {"nats": _NUMBER, "perplexity": _NUMBER},
    "conditions": [_CONDITION],
    "effective_context": {**_EFFECTIVE, "threshold_percent": _NUMBER},
}
GROUP = {
    "by": _TEXT,
    "group": _TEXT,
    "targets": _NUMBER,
    "share": _NUMBER,
    "baseline": {"nats": _NUMBER, "perplexity": _NUMBER},
}
"""A part of the targets; its conditions are as those of all of them."""
EXAMINATION = {key: TRUNCATE[key] for key in ("split", "unit", "targets", "maximum_context", "baseline")}
_NAMED = {"name": _TEXT, "targets": _NUMBER, **_EFFECT}
_SPANNED = {"span": _TEXT, "boundary": _NUMBER, **_NAMED}
CONDITIONS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("shuffle", "reverse", "replace"), _SPANNED),
    "drop": {"words": _TEXT, "control": _BOOLEAN, "boundary": _NUMBER, **_NAMED},
    "drop-target": _NAMED,
    "drop-distant": _NAMED,
    "replace-target": {"replacement": _TEXT, **_NAMED},
    "cache": {"method": _TEXT, **_NAMED},
}
"""A condition of each experiment but `truncate`."""
REPRODUCTION = {
    "grid": _TEXT,
    "scale": _TEXT,
    "title": _TEXT,
    "metric": _TEXT,
    "unit": _TEXT_OR_NULL,
    "planned": _NUMBER,
    "finished": _NUMBER,
    "failed": _NUMBER,
    "core_hours": _NUMBER,
    "rows": [
        {
            "row": _TEXT,
            "note": _TEXT,
            "split": _TEXT,
            "reader": _TEXT,
            "published": _NUMBER_OR_NULL,
            "source": _TEXT_OR_NULL,
            "mean": _NUMBER_OR_NULL,
            "deviation": _NUMBER_OR_NULL,
            "seeds": _LIST,
            "planned_seeds": _LIST,
            "tokens": _NUMBER_OR_NULL,
            "audited": _BOOLEAN_OR_NULL,
            "parameters": _NUMBER_OR_NULL,
        }
    ],
    "claims": _LIST,
    "runs": [{"run": _TEXT, "row": _TEXT, "seed": _NUMBER, "state": _TEXT, "examinations": _LIST}],
}
SEARCH = {
    "recipe": _TEXT,
    "space": _TEXT,
    "title": _TEXT,
    "unit": _TEXT_OR_NULL,
    "best": _NUMBER_OR_NULL,
    "valid_perplexity": _NUMBER_OR_NULL,
    "parameters": [
        {
            "name": _TEXT,
            "low": _NUMBER_OR_NULL,
            "high": _NUMBER_OR_NULL,
            "log": _BOOLEAN,
            "choices": _LIST,
            "same": _TEXT_OR_NULL,
            "when": _OBJECT,
            "importance": _NUMBER_OR_NULL,
        }
    ],
    "trials": _LIST,
}
TRIAL = {
    "trial": _NUMBER,
    "state": _TEXT,
    "run": _TEXT,
    "valid_perplexity": _NUMBER_OR_NULL,
    "epochs": _NUMBER,
    "curve": _LIST,
    "seconds": _NUMBER_OR_NULL,
    "settings": _OBJECT,
    "problem": _TEXT,
}
READING = {"split": _TEXT, "reader": _TEXT}
RUN = {
    **dict.fromkeys(("run", "row", "settings"), _TEXT),
    **dict.fromkeys(("parameters", "epochs", "best_epoch", "valid_perplexity", "tokens_per_second"), _NUMBER_OR_NULL),
    **dict.fromkeys(("unit", "commit", "device", "precision"), _TEXT_OR_NULL),
    "seconds": _NUMBER,
    "readings": _LIST,
}
"""Of a reproduction that records the runs' settings, and whose runs another may take over."""
TAKEN_OVER = {**READING, "rows": _NUMBER, "tokens": _NUMBER, "value": _NUMBER, "audited": _BOOLEAN_OR_NULL}
POLICY = {
    "utilization": _NUMBER,
    "mean_lambda": _NUMBER,
    "p_perplexity": _NUMBER,
    "q_perplexity": _NUMBER,
    "oracle_perplexity": _NUMBER,
    "best_constant_perplexity": _NUMBER,
    "temperatures": _OBJECT,
}
CLAIM = {
    "sentence": _TEXT,
    "published_gain": _NUMBER_OR_NULL,
    "gain": _NUMBER_OR_NULL,
    "low": _NUMBER_OR_NULL,
    "high": _NUMBER_OR_NULL,
    "seeds": _LIST,
    "verdict": _TEXT,
}
FINDING = {
    **dict.fromkeys(("sentence", "published", "source", "row", "verdict"), _TEXT),
    "beside": _TEXT_OR_NULL,
    "seeds": _LIST,
    "planned_seeds": _LIST,
    "measures": _LIST,
}
MEASURE = {
    **dict.fromkeys(("told", "unit"), _TEXT),
    **dict.fromkeys(("value", "low", "high", "above", "below"), _NUMBER_OR_NULL),
}
_BOOLEANS = (_BOOLEAN, _BOOLEAN_OR_NULL)
SAMPLE = {"prompt": _TEXT, "text": _TEXT, "settings": _OBJECT}
BY_HEAD = ("entropy_bits", "largest_percent", "window_percent", "fall_back_percent")
"""Means of the heads of an external memory: of the one that writes, and of each that reads."""
_BY_HEAD = {"write": _NUMBER_OR_NULL, "read": [_NUMBER_OR_NULL]}
HEADS = {
    "settings": {"rows": _NUMBER},
    "window": _NUMBER,
    "windows": _NUMBER_OR_NULL,
    "older_percent": _NUMBER,
    **dict.fromkeys(BY_HEAD, _BY_HEAD),
}
EXPLANATION = {"explanation": _TEXT, "passage": _OBJECT}
WEIGHTS = {
    "rows": [_NUMBER],
    "of": _NUMBER,
    "heads": _NUMBER,
    "tokens": [_TEXT],
    "write": [[_NUMBER]],
    "read": [[_NUMBER]],
}
"""Of an external memory: a list for each row that is shown, of a weight for each token."""
_GAIN = {"gain": _NUMBER, "low": _NUMBER_OR_NULL, "high": _NUMBER_OR_NULL}
COMPARISON = {
    "comparison": _TEXT,
    "title": _TEXT,
    "text": _TEXT,
    "at": _NUMBER,
    "tokens": _NUMBER,
    "unit": _TEXT,
    "block": _NUMBER,
    "smooth": _NUMBER,
    "readers": [{"name": _TEXT, "nats_per_token": _NUMBER, "perplexity": _NUMBER}],
    "comparisons": [
        {
            "reader": _TEXT,
            "over": _TEXT,
            **_GAIN,
            "perplexity_gain": _NUMBER,
            "blocks": [_NUMBER],
            "perplexity_blocks": [_NUMBER],
        }
    ],
    "documents": [{"title": _TEXT, "start": _NUMBER, "tokens": _NUMBER, "nats": [_NUMBER], "gains": [_NUMBER]}],
    "positions": [{"from": _NUMBER, "to": _NUMBER, "tokens": _NUMBER, "documents": _NUMBER, "gains": [_GAIN]}],
    "passages": [{"why": _TEXT, "at": _NUMBER, "tokens": _NUMBER, "gains": [_NUMBER], "passage": _OBJECT}],
}
_TYPES: dict[str, tuple[type, ...]] = {
    _NUMBER: (int, float),
    _NUMBER_OR_NULL: (int, float, type(None)),
    _TEXT: (str,),
    _BOOLEAN: (bool,),
    _BOOLEAN_OR_NULL: (bool, type(None)),
    _OBJECT: (dict,),
    _LIST: (list,),
    _TEXT_OR_NULL: (str, type(None)),
}


def check(data: dict[str, Any], source: str) -> None:
    """Check that a result holds what its kind must hold; figures beyond that, and other kinds, are let through.

    Raises UserError that names the first field that is absent or of the wrong type.
    """
    _match(ENVELOPE, data, "", source)
    figures = data["figures"]
    if data["kind"] == "training":
        _match(TRAINING, figures, "figures", source)
    if data["kind"] == "evaluation":
        _match(EVALUATION, figures, "figures", source)
        for name in ("after", "addressing"):
            _match(_TEXT_OR_NULL, figures.get(name), f"figures.{name}", source)
        if figures.get("lengths") is not None:
            _match([_NUMBER], figures["lengths"], "figures.lengths", source)
        if figures.get("audit") is not None:
            _match({"passed": _BOOLEAN}, figures["audit"], "figures.audit", source)
        _check_memory(figures.get("memory"), "figures.memory", source)
        _check_recency(figures.get("recency"), "figures.recency", source)
        if figures.get("answers") is not None:
            _match(ANSWERS, figures["answers"], "figures.answers", source)
    if data["kind"] == "sample":
        _match(SAMPLE, figures, "figures", source)
    if data["kind"] == "explanation":
        _match(EXPLANATION, figures, "figures", source)
        _check_weights(figures.get("weights"), source)
        _check_heads(figures, source)
        from_json(figures["passage"], source)
    if data["kind"] == "comparison":
        _match(COMPARISON, figures, "figures", source)
        _check_comparison(figures, source)
    if data["kind"] == "examination":
        _match({"experiment": _TEXT}, figures, "figures", source)
        _check_examination(figures, source)
    if data["kind"] == "search":
        _match(SEARCH, figures, "figures", source)
        _check_search(figures, source)
    if data["kind"] == "reproduction":
        _match(REPRODUCTION, figures, "figures", source)
        for index, claim in enumerate(figures["claims"]):
            _match(CLAIM, claim, f"figures.claims[{index}]", source)
        _match(_LIST, figures.get("findings", []), "figures.findings", source)
        for index, finding in enumerate(figures.get("findings", [])):
            _match(FINDING, finding, f"figures.findings[{index}]", source)
            for measure in finding["measures"]:
                _match(MEASURE, measure, f"figures.findings[{index}].measures", source)
        for row in figures["rows"]:
            _match(_NUMBER, row.get("rows", 1), "figures.rows: rows", source)
            _match(_NUMBER_OR_NULL, row.get("published_deviation"), "figures.rows: published_deviation", source)
            for key in ("after", "addressing"):
                _match(_TEXT_OR_NULL, row.get(key), f"figures.rows: {key}", source)
        _check_gates(figures["runs"], source)
        for index, run in enumerate(figures["runs"]):
            _check_epochs(run.get("curve", []), f"figures.runs[{index}].curve", source)
        for index, run in enumerate(run for run in figures["runs"] if "settings" in run):
            _match(RUN, run, f"figures.runs[{index}]", source)
            for reading in run["readings"]:
                _match(TAKEN_OVER, reading, f"figures.runs[{index}].readings", source)
            _check_measured(run.get("measured", {}), f"figures.runs[{index}].measured", source)
            for examined in run["examinations"]:
                _match({"experiment": _TEXT}, examined, f"figures.runs[{index}].examinations", source)
        for index, examined in enumerate(e for run in figures["runs"] for e in run["examinations"]):
            if isinstance(examined, dict) and "effective_context" in examined:
                shape = {key: TRUNCATE[key] for key in ("maximum_context", "effective_context")}
                _match(shape, examined, f"figures.runs: examination {index}", source)


def _check_heads(figures: dict[str, Any], source: str) -> None:
    if BY_HEAD[0] not in figures:
        return
    _match(HEADS, figures, "figures", source)
    if not figures["settings"]["rows"] >= 1:
        _wrong("figures.settings.rows", "1 or more", source)
    for key in BY_HEAD:
        if len(figures[key]["read"]) != len(figures[BY_HEAD[0]]["read"]):
            _wrong(f"figures.{key}.read", "a number or null for each head that reads", source)


def _check_weights(weights: Any, source: str) -> None:
    if weights is None:
        return
    _match(WEIGHTS, weights, "figures.weights", source)
    for key in ("write", "read"):
        sizes = [len(row) for row in weights[key]]
        if sizes != [len(weights["tokens"])] * len(weights["rows"]):
            _wrong(f"figures.weights.{key}", "a list for each row, of a number for each token", source)
        if not all(0 <= weight < math.inf for row in weights[key] for weight in row):
            _wrong(f"figures.weights.{key}", "weights of 0 or more", source)


def _check_examination(figures: dict[str, Any], source: str) -> None:
    """Check the conditions of a known experiment, of all targets and of each group of them."""
    experiment = figures["experiment"]
    if experiment == "truncate":
        condition: dict[str, Any] = _CONDITION
        _match(TRUNCATE, figures, "figures", source)
    elif experiment in CONDITIONS:
        condition = CONDITIONS[experiment]
        _match({**EXAMINATION, "conditions": [condition]}, figures, "figures", source)
    else:
        return
    for part in ("groups", "models"):
        _match(_LIST, figures.get(part, []), f"figures.{part}", source)
    _match(_NUMBER_OR_NULL, figures["baseline"].get("context"), "figures.baseline.context", source)
    _match(_NUMBER, figures.get("rows", 1), "figures.rows", source)
    for optional in ("pieces_per_word", "window", "cut_contexts"):
        _match(_NUMBER_OR_NULL, figures.get(optional), f"figures.{optional}", source)
    grouped = {**GROUP, "conditions": [condition]}
    if experiment == "truncate":
        grouped["effective_context"] = _EFFECTIVE
    for index, group in enumerate(figures.get("groups", [])):
        _match(grouped, group, f"figures.groups[{index}]", source)
    # One condition of the cache says how many words it harms.
    for index, found in enumerate(figures["conditions"]):
        for optional in ("deviation", "hurt"):
            _match(_NUMBER_OR_NULL, found.get(optional), f"figures.conditions[{index}].{optional}", source)


def _check_measured(measured: Any, path: str, source: str) -> None:
    """Check what a run's findings are judged by: a null is a context that was not reached."""
    _match(_OBJECT, measured, path, source)
    for name, found in measured.items():
        shape = _NUMBER_OR_NULL if name.startswith("effective-context") else _NUMBER
        _match(dict.fromkeys(("value", "low", "high"), shape), found, f"{path}.{name}", source)


def _check_search(figures: dict[str, Any], source: str) -> None:
    """Check the trials of a search, and that there is one that is said to be the best."""
    for index, trial in enumerate(figures["trials"]):
        where = f"figures.trials[{index}]"
        _match(TRIAL, trial, where, source)
        _check_epochs(trial["curve"], f"{where}.curve", source)
        if trial["state"] == "complete":
            _match(_NUMBER, trial["valid_perplexity"], f"{where}.valid_perplexity", source)
    for index, parameter in enumerate(figures["parameters"]):
        for values in parameter["when"].values():
            _match(_LIST, values, f"figures.parameters[{index}].when", source)
        if not parameter["same"] and not parameter["choices"]:
            for end in ("low", "high"):
                _match(_NUMBER, parameter[end], f"figures.parameters[{index}].{end}", source)
    complete = [t["trial"] for t in figures["trials"] if t["state"] == "complete"]
    if figures["best"] not in (complete or [None]):
        _wrong("figures.best", "a trial that is complete", source)


def _check_epochs(curve: Any, path: str, source: str) -> None:
    """Check a learning curve."""
    _match(_LIST, curve, path, source)
    for point in curve:
        if not isinstance(point, list) or len(point) != 2:
            _wrong(path, "pairs of an epoch and a perplexity", source)
        for number in point:
            _match(_NUMBER, number, path, source)


def _check_memory(memory: Any, path: str, source: str) -> None:
    """Check the memory of a reading, if it has one."""
    if memory is not None:
        _match(MEMORY, memory, path, source)
        for index, curve in enumerate(memory["curves"]):
            _match(CURVE, curve, f"{path}.curves[{index}]", source)


def _check_recency(recency: Any, path: str, source: str) -> None:
    """Check the recency of a reading, if it has one."""
    if recency is not None:
        _match(RECENCY, recency, path, source)
        for index, one in enumerate(recency["bins"]):
            _match(REPEATED, one, f"{path}.bins[{index}]", source)


def _check_gates(runs: list[dict[str, Any]], source: str) -> None:
    """Check the readings of a reproduction's runs, and the figures of the gates of those that have some."""
    for run in runs:
        readings = run.get("readings", [])
        _match(_LIST, readings, "figures.runs: readings", source)
        for reading in readings:
            _match(READING, reading, "figures.runs: reading", source)
            _match(_NUMBER, reading.get("rows", 1), "figures.runs: reading.rows", source)
            _match(_NUMBER_OR_NULL, reading.get("seconds"), "figures.runs: reading.seconds", source)
            for key in ("after", "addressing"):
                _match(_TEXT_OR_NULL, reading.get(key), f"figures.runs: reading.{key}", source)
            _check_memory(reading.get("memory"), "figures.runs: reading.memory", source)
            _check_recency(reading.get("recency"), "figures.runs: reading.recency", source)
            if reading.get("policy") is not None:
                _match(POLICY, reading["policy"], "figures.runs: reading.policy", source)
                shown = {"0.1": _NUMBER, "1": _NUMBER}
                _match(shown, reading["policy"]["temperatures"], "figures.runs: reading.policy.temperatures", source)


def _check_comparison(figures: dict[str, Any], source: str) -> None:
    """Check that its lists are as long as each other, and that its passages can be read."""
    if figures["block"] < 1 or figures["smooth"] < 0:
        _wrong("figures.block", "1 or more, and figures.smooth 0 or more", source)
    blocks, pairs = math.ceil(figures["tokens"] / figures["block"]), len(figures["comparisons"])
    lengths = [(f"comparisons[{i}].{key}", c[key], blocks) for i, c in enumerate(figures["comparisons"])
               for key in ("blocks", "perplexity_blocks")]  # fmt: skip
    for part in ("documents", "positions", "passages"):
        lengths += [(f"{part}[{i}].gains", one["gains"], pairs) for i, one in enumerate(figures[part])]
    lengths += [
        (f"documents[{i}].nats", d["nats"], len(figures["readers"])) for i, d in enumerate(figures["documents"])
    ]
    for path, values, length in lengths:
        if len(values) != length:
            _wrong(f"figures.{path}", f"a list of {length}", source)
    end = figures["at"]
    for i, document in enumerate(figures["documents"]):
        if document["start"] != end or document["tokens"] <= 0:
            _wrong(f"figures.documents[{i}].start", "where the document before it ends", source)
        end += document["tokens"]
    if end != figures["at"] + figures["tokens"]:
        _wrong("figures.documents", "all of the stretch", source)
    for one in figures["passages"]:
        from_json(one["passage"], source)


def _match(shape: Any, value: Any, path: str, source: str) -> None:
    if isinstance(shape, str):
        # To Python, true and false are numbers.
        if not isinstance(value, _TYPES[shape]) or (isinstance(value, bool) and shape not in _BOOLEANS):
            _wrong(path, shape, source)
    elif isinstance(shape, list):
        if not isinstance(value, list) or not value:
            _wrong(path, "a list that is not empty", source)
        for index, item in enumerate(value):
            _match(shape[0], item, f"{path}[{index}]", source)
    else:
        if not isinstance(value, dict):
            _wrong(path, _OBJECT, source)
        for key, inner in shape.items():
            _match(inner, value.get(key), f"{path}.{key}" if path else key, source)


def _wrong(path: str, expected: str, source: str) -> None:
    raise UserError(f"{source} is damaged: {path} must be {expected}; {AGAIN}")
