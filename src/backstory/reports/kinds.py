"""What a result file of each kind must hold for a report to show it: schema 1, as docs/results.md describes it."""

from typing import Any

from backstory.reports.shapes import (
    AMOUNT,
    BOOLEAN,
    COUNT,
    LIST,
    NAME,
    NUMBER,
    OBJECT,
    POSITIVE,
    SHARE,
    SOME,
    TEXT,
    Absent,
    Each,
    Leaf,
    Null,
    Some,
    between,
    older,
    one_of,
)

SCHEMA = 1
"""The schema number this version reads and writes."""

_CONFIG = {"text": older({"minimum_count": Absent(COUNT), "maximum_size": older(COUNT)})}
ENVELOPE = {
    "kind": NAME,
    "name": TEXT,
    "figures": OBJECT,
    "provenance": {"config": older(_CONFIG), "command": older(TEXT), "seconds": older(AMOUNT)},
}
POINTS = Some(
    Leaf(
        "pairs of an epoch and a perplexity",
        lambda p: isinstance(p, list) and len(p) == 2 and SOME.fits(p[0]) and POSITIVE.fits(p[1]),
    )
)
"""A learning curve."""

UNKNOWN = {
    **dict.fromkeys(("unknown_tokens", "out_of_vocabulary_tokens"), older(COUNT)),
    **dict.fromkeys(("unknown_share", "out_of_vocabulary_share"), older(SHARE)),
    "out_of_vocabulary_cause": older(NAME),
}
"""What of a text is `<unk>`; older results have some of these fields or none."""
COMPARABLE = {
    **UNKNOWN,
    "unknown": older(Each(UNKNOWN)),
    "overlap": older(Some({"split": NAME, "in": NAME, "window": COUNT, "share": SHARE})),
}
AUDIT = {
    "passed": BOOLEAN,
    "seed": older(TEXT),
    **dict.fromkeys(("cuts", "steps", "places"), older(COUNT)),
}
EPOCH = {"epoch": SOME, "train_nats": NUMBER, "valid_nats": NUMBER, "valid_perplexity": POSITIVE}
STEPS = {"step": COUNT, "epoch": SOME, "nats": NUMBER}
"""Of the training log between epochs."""
TRAINING = {
    "parameters": COUNT,
    "epochs": COUNT,
    "best_epoch": COUNT,
    "valid_perplexity": POSITIVE,
    "valid_nats": NUMBER,
    "unit": NAME,
    "tokens": {"train": COUNT, "valid": SOME},
    "curve": [EPOCH],
    "tokens_per_second": Null(AMOUNT),
    "audit": older(AUDIT),
    **COMPARABLE,
}
_BIN = {"from": COUNT, "to": Null(COUNT), "distance": between(1e-9, 2**53, "a number above 0"), "tokens": COUNT}
_COSTS = dict.fromkeys(("nats", "exact", "excess"), NUMBER)
MEMORY = {
    "exact_nats_per_token": NUMBER,
    "exact_perplexity": POSITIVE,
    "excess_nats_per_token": NUMBER,
    "kinds": [{"kind": NAME, "tokens": COUNT, **_COSTS}],
    "curves": Some({"kind": NAME, "forgotten": NUMBER, "bins": [{**_BIN, **_COSTS}]}),
}
RECENCY = {"new": {"tokens": COUNT, "nats": Null(NUMBER)}, "bins": Some({**_BIN, "nats": NUMBER})}
_ANSWERED = {
    **dict.fromkeys(("documents", "answer_tokens"), COUNT),
    "nats_per_answer_token": NUMBER,
    **dict.fromkeys(("token_accuracy", "bit_accuracy", "document_accuracy"), SHARE),
}
ANSWERS = {"task": NAME, **_ANSWERED, "lengths": [{"length": COUNT, **_ANSWERED}]}
EVALUATION = {
    "split": NAME,
    "reader": NAME,
    "unit": NAME,
    "tokens": SOME,
    "nats_per_token": NUMBER,
    "perplexity": POSITIVE,
    "bits_per_token": NUMBER,
    **dict.fromkeys(("bits_per_character", "bits_per_byte", "perplexity_per_word"), older(NUMBER)),
    **dict.fromkeys(("after", "addressing"), older(NAME)),
    "batch_size": older(SOME),
    "lengths": older([COUNT]),
    "audit": older(AUDIT),
    "memory": older(MEMORY),
    "recency": older(RECENCY),
    "answers": older(ANSWERS),
    **COMPARABLE,
}
_WORD_SCORE = {"word_score": older(one_of("corrected", "sum"))}
_EFFECT = {
    **dict.fromkeys(("nats", "effect", "low", "high"), NUMBER),
    "perplexity": POSITIVE,
    "effect_percent": NUMBER,
    **dict.fromkeys(("deviation", "hurt", "outside_window"), older(AMOUNT)),
}
_FOUND = {"context": Null(COUNT), "low": older(COUNT), "high": older(COUNT), "more_context_hurts": older(BOOLEAN)}
BEST = {
    "best_length": COUNT,
    "best_effect": NUMBER,
    "best_low": NUMBER,
    "best_high": NUMBER,
    "best_effect_percent": NUMBER,
}
"""Of an effective context where more context hurts: the best one and its effect."""
EFFECTIVE = {**_FOUND, "threshold_percent": between(0, 99.9, "a number from 0 to 99.9")}
_BASELINE = {"context": older(COUNT), "nats": NUMBER, "perplexity": POSITIVE}
EXAMINATION = {
    "split": NAME,
    "unit": NAME,
    "targets": SOME,
    "maximum_context": COUNT,
    "baseline": _BASELINE,
    "models": Absent(LIST),
    "batch_size": Absent(SOME),
    "near": Absent(COUNT),
    "seed": older(NUMBER),
    "unknown_tag_share": older(SHARE),
    **dict.fromkeys(("pieces_per_word", "window", "cut_contexts"), older(AMOUNT)),
    **_WORD_SCORE,
    **UNKNOWN,
}
GROUP = {"by": NAME, "group": NAME, "targets": SOME, "share": SHARE, "baseline": _BASELINE}
"""A part of the targets; its conditions are as those of all of them."""
_NAMED = {"name": NAME, "targets": COUNT, **_EFFECT}
_SPANNED = {"span": NAME, "boundary": COUNT, **_NAMED}
CONDITIONS: dict[str, dict[str, Any]] = {
    "truncate": {"context": COUNT, **_EFFECT},
    **dict.fromkeys(("shuffle", "reverse", "replace"), _SPANNED),
    "drop": {"words": NAME, "control": BOOLEAN, "boundary": COUNT, **_NAMED},
    "drop-target": _NAMED,
    "drop-distant": _NAMED,
    "replace-target": {"replacement": NAME, **_NAMED},
    "cache": {"method": NAME, **_NAMED},
}
"""A condition of each experiment."""


def examination(experiment: str) -> dict[str, Any]:
    """The figures of an experiment; of one that this version does not know only its name is asked for."""
    if experiment not in CONDITIONS:
        return {}
    conditions = {"conditions": [CONDITIONS[experiment]]}
    truncated = experiment == "truncate"
    group = {**GROUP, **conditions, **({"effective_context": _FOUND} if truncated else {})}
    whole = {**EXAMINATION, **conditions, **({"effective_context": EFFECTIVE} if truncated else {})}
    return {**whole, "groups": Absent(Some(group))}


_PLACE = {
    **dict.fromkeys(("split", "reader"), NAME),
    "batch_size": Absent(SOME),
    **dict.fromkeys(("after", "addressing"), older(NAME)),
}
POLICY = {
    "utilization": SHARE,
    "mean_lambda": SHARE,
    **dict.fromkeys(("p_perplexity", "q_perplexity", "oracle_perplexity", "best_constant_perplexity"), POSITIVE),
    "temperatures": {"0.1": POSITIVE, "1": POSITIVE},
}
_READING = {
    **_PLACE,
    "tokens": Absent(COUNT),
    "seconds": older(AMOUNT),
    "memory": older(MEMORY),
    "recency": older(RECENCY),
    "policy": older(POLICY),
}
RUN = {
    **dict.fromkeys(("run", "system", "state"), NAME),
    "seed": COUNT,
    "curve": Absent(POINTS),
    "readings": Absent(Some(_READING)),
    "examinations": Some(
        {"experiment": NAME, "maximum_context": Absent(COUNT), "effective_context": Absent(EFFECTIVE)}
    ),
}
TAKEN_OVER = {
    **dict.fromkeys(("run", "system", "settings"), TEXT),
    **dict.fromkeys(("parameters", "epochs", "best_epoch"), Null(COUNT)),
    "valid_perplexity": Null(POSITIVE),
    "tokens_per_second": Null(AMOUNT),
    **dict.fromkeys(("unit", "commit", "device", "precision"), Null(TEXT)),
    "seconds": AMOUNT,
    "readings": Some({**_READING, "batch_size": SOME, "tokens": COUNT, "value": NUMBER, "audited": Null(BOOLEAN)}),
    "effect_sizes": Absent(Each({})),
}
"""A run that records its settings, and that another reproduction may take over."""
_BOUNDS = ("value", "low", "high")
MEASURED: dict[str, Any] = dict.fromkeys(_BOUNDS, NUMBER)
REACHED: dict[str, Any] = dict.fromkeys(_BOUNDS, Null(NUMBER))
"""An effective context among what was measured: null where it was not reached."""
_PROTOCOL = {
    **dict.fromkeys(("corpus", "optimizer"), TEXT),
    **dict.fromkeys(("epochs", "finetune_epochs", "batch_size", "segment"), COUNT),
    "learning_rate": NUMBER,
    "init_from": Null(TEXT),
}
"""How a system was trained; older results do not say."""
_SYSTEM = {
    **_PLACE,
    "system": NAME,
    "note": TEXT,
    "published": Null(NUMBER),
    "published_deviation": older(NUMBER),
    "source": Null(TEXT),
    "mean": Null(NUMBER),
    "deviation": Null(NUMBER),
    "seeds": LIST,
    "planned_seeds": LIST,
    "tokens": Null(COUNT),
    "unknown_share": older(SHARE),
    "audited": Null(BOOLEAN),
    "parameters": Null(COUNT),
    "protocol": Absent(_PROTOCOL),
}
_SIDE = Absent({"system": NAME})
_CLAIM = {
    "sentence": TEXT,
    **dict.fromkeys(("published_gain", "gain", "low", "high"), Null(NUMBER)),
    "seeds": LIST,
    "verdict": TEXT,
    "confounded": Absent(TEXT),
    "better": _SIDE,
    "than": _SIDE,
}
_MEASURE = {
    **dict.fromkeys(("label", "unit"), TEXT),
    **dict.fromkeys((*_BOUNDS, "above", "below"), Null(NUMBER)),
    "best_lengths": older(Some(COUNT)),
}
_FINDING = {
    **dict.fromkeys(("sentence", "published", "source", "system", "verdict"), TEXT),
    "baseline": Null(TEXT),
    "seeds": LIST,
    "planned_seeds": LIST,
    "measures": Some(_MEASURE),
}
REPRODUCTION = {
    "suite": NAME,
    "scale": NAME,
    "title": TEXT,
    "note": older(TEXT),
    "papers": Absent(Some(TEXT)),
    "metric": NAME,
    "unit": Null(NAME),
    **dict.fromkeys(("planned", "finished", "failed"), COUNT),
    "core_hours": AMOUNT,
    "systems": [_SYSTEM],
    "claims": Some(_CLAIM),
    "findings": Absent(Some(_FINDING)),
    "runs": [RUN],
}
SEARCH = {
    "recipe": NAME,
    "space": NAME,
    "title": TEXT,
    "unit": Null(NAME),
    "best": Null(COUNT),
    "valid_perplexity": Null(POSITIVE),
    "parameters": [
        {
            "name": NAME,
            "low": Null(NUMBER),
            "high": Null(NUMBER),
            "log": BOOLEAN,
            "choices": LIST,
            "same": Null(NAME),
            "when": Each(LIST),
            "importance": Null(SHARE),
        }
    ],
    "trials": Some(
        {
            "trial": COUNT,
            "state": NAME,
            "run": TEXT,
            "valid_perplexity": Null(POSITIVE),
            "epochs": COUNT,
            "curve": POINTS,
            "seconds": Null(AMOUNT),
            "settings": OBJECT,
            "problem": TEXT,
        }
    ),
}
SAMPLE = {"prompt": TEXT, "text": TEXT, "settings": OBJECT}
BY_HEAD = ("entropy_bits", "largest_percent", "window_percent", "fall_back_percent")
"""Means of the heads of an external memory: of the one that writes, and of each that reads."""
HEADS = {
    "settings": {"slots": SOME},
    "window": COUNT,
    "windows": older(COUNT),
    "older_percent": NUMBER,
    **{key: {"write": Null(NUMBER), "read": [Null(NUMBER)]} for key in BY_HEAD},
}
"""Of an external memory alone."""
_WEIGHT = between(0, 1e306, "a number of 0 or more")
WEIGHTS = {
    "slots": [COUNT],
    "of": COUNT,
    "heads": COUNT,
    "tokens": [TEXT],
    "write": [[_WEIGHT]],
    "read": [[_WEIGHT]],
}
"""Of an external memory: a list for each slot that is shown, of a weight for each token."""
EXPLANATION = {
    "explanation": NAME,
    "passage": OBJECT,
    "weights": older(WEIGHTS),
    **dict.fromkeys(("tokens", "context"), older(COUNT)),
    **dict.fromkeys(("nats_per_token", "against_nats_per_token"), older(NUMBER)),
    **_WORD_SCORE,
    **UNKNOWN,
}
_GAIN = {"gain": NUMBER, "low": Null(NUMBER), "high": Null(NUMBER)}
COMPARISON = {
    "comparison": NAME,
    "title": TEXT,
    "text": TEXT,
    "at": COUNT,
    "tokens": SOME,
    "unit": NAME,
    "block": SOME,
    "smooth": COUNT,
    "readers": [{"name": NAME, "nats_per_token": NUMBER, "perplexity": POSITIVE}],
    "comparisons": [
        {
            "reader": NAME,
            "over": NAME,
            **_GAIN,
            "perplexity_gain": NUMBER,
            "blocks": [NUMBER],
            "perplexity_blocks": [NUMBER],
        }
    ],
    "documents": [{"title": TEXT, "start": COUNT, "tokens": SOME, "nats": [NUMBER], "gains": [NUMBER]}],
    "positions": [{"from": COUNT, "to": COUNT, "tokens": COUNT, "documents": COUNT, "gains": [_GAIN]}],
    "passages": [{"why": TEXT, "at": COUNT, "tokens": COUNT, "gains": [NUMBER], "passage": OBJECT}],
    **_WORD_SCORE,
    **UNKNOWN,
}
KINDS: dict[str, dict[str, Any]] = {
    "training": TRAINING,
    "evaluation": EVALUATION,
    "examination": {"experiment": NAME},
    "reproduction": REPRODUCTION,
    "search": SEARCH,
    "sample": SAMPLE,
    "explanation": EXPLANATION,
    "comparison": COMPARISON,
}
"""The figures of each kind."""
