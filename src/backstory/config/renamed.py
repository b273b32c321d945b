"""Names that have changed, in one table: settings, flags, readers, and the keys of suites and results.

A name that a person writes (a recipe, a flag, a reader) is refused with its present name. Files that Backstory wrote itself
(a run's settings, checkpoints, results) are translated as they are read, so that earlier ones still open.
"""

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any

from backstory.config.errors import UserError

Table = Mapping[str, str]
"""Old dotted path -> new dotted path; `*` stands for every entry of a list."""

SETTINGS: Table = {
    "text.recall.fresh": "text.recall.new_each_epoch",
    "text.algorithm.fresh": "text.algorithm.new_each_epoch",
    "model.core.rows": "model.core.slots",
    "model.core.begin": "model.core.reset_token",
    "model.core.fresh": "model.core.chunked",
    "model.buffer.slots": "model.buffer.alignment",
    "training.asked_only": "training.answer_loss_only",
    "training.validation_rows": "training.validation_batch_size",
}
"""Settings of a run (`RunConfig`)."""
_WITH_LAYERS = ("lstm", "mogrifier", "ntm", "dnc", "mdm", "trellis")
_WITH_GATE = ("span-buffer", "auxiliary-softmax")
MOVED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "training.embedding_l2": ("model.embedding.l2", ()),
    "training.input_l2": ("model.core.input_l2", _WITH_LAYERS),
    "training.recurrent_l2": ("model.core.recurrent_l2", _WITH_LAYERS),
    "training.mogrifier_l2": ("model.core.round_l2", ("mogrifier",)),
    "training.dual_l2": ("model.dual.l2", ("dual",)),
    "training.auxiliary": ("model.core.auxiliary_weight", ("trellis",)),
    "training.reward": ("model.buffer.gate.reward", _WITH_GATE),
    "training.adversarial": ("model.head.adversarial", ()),
    "training.finetune_adversarial": ("model.head.finetune_adversarial", ()),
    "training.embedding_noise": ("model.embedding.noise", ()),
    "training.finetune_embedding_noise": ("model.embedding.finetune_noise", ()),
}
"""Settings that moved to the part of the model they belong to, and the kinds of that part that have them; (): all kinds."""
SETTING_VALUES: Mapping[str, Table] = {
    "model.buffer.kind": {"second-softmax": "auxiliary-softmax"},
    "model.buffer.alignment": {"grid": "fixed"},
}
"""Values of settings, by the present name of the setting."""
SUITE: Table = {
    "rows": "systems",
    "systems.*.readings.*.rows": "systems.*.readings.*.batch_size",
    "systems.*.small.begin": "systems.*.small.init_from",
    "systems.*.full.begin": "systems.*.full.init_from",
    "claims.*.better.row": "claims.*.better.system",
    "claims.*.better.rows": "claims.*.better.batch_size",
    "claims.*.than.row": "claims.*.than.system",
    "claims.*.than.rows": "claims.*.than.batch_size",
    "findings.*.row": "findings.*.system",
    "findings.*.beside": "findings.*.baseline",
}
"""Keys of a suite's YAML file."""
FLAGS: Mapping[str, Table] = {
    "train": {"--begin": "--init-from"},
    "evaluate": {"--rows": "--batch-size"},
    "examine": {"--rows": "--batch-size"},
    "reader audit": {"--rows": "--batch-size"},
}
"""Flags by command; those of settings follow from SETTINGS."""
STATES: Table = {"second": "auxiliary"}
"""First parts of the names of tensors in a model's saved state."""
READERS: Table = {"foreign": "shuffled-buffer"}
LISTINGS: Table = {"grids": "suites"}
"""Kinds that `backstory ls` lists."""
_ANSWERS: Table = {"asked": "answer_tokens", "nats_per_asked": "nats_per_answer_token"}
_CURVE: Table = {
    "curve.*.asked": "curve.*.answer_share",
    **{f"curve.*.answers.{old}": f"curve.*.answers.{new}" for old, new in _ANSWERS.items()},
    **{f"curve.*.answers.lengths.*.{old}": f"curve.*.answers.lengths.*.{new}" for old, new in _ANSWERS.items()},
}
RESULTS: Mapping[str, Table] = {
    "any": {"provenance.begun_with": "provenance.init_from"},
    "training": {f"figures.{old}": f"figures.{new}" for old, new in _CURVE.items()},
    "evaluation": {
        "figures.rows": "figures.batch_size",
        **{f"figures.answers.{old}": f"figures.answers.{new}" for old, new in _ANSWERS.items()},
        **{f"figures.answers.lengths.*.{old}": f"figures.answers.lengths.*.{new}" for old, new in _ANSWERS.items()},
    },
    "examination": {"figures.rows": "figures.batch_size"},
    "explanation": {
        "figures.settings.rows": "figures.settings.slots",
        "figures.weights.rows": "figures.weights.slots",
    },
    "reproduction": {
        "figures.grid": "figures.suite",
        "figures.rows": "figures.systems",
        "figures.systems.*.row": "figures.systems.*.system",
        "figures.systems.*.rows": "figures.systems.*.batch_size",
        "figures.systems.*.protocol.begin": "figures.systems.*.protocol.init_from",
        **{f"figures.{old}": f"figures.{new}" for old, new in SUITE.items() if old.startswith(("claims", "findings"))},
        "figures.findings.*.measures.*.told": "figures.findings.*.measures.*.label",
        "figures.runs.*.row": "figures.runs.*.system",
        "figures.runs.*.measured": "figures.runs.*.effect_sizes",
        "figures.runs.*.readings.*.rows": "figures.runs.*.readings.*.batch_size",
    },
}
"""Paths in result files, by kind; `any` is for every kind."""
_RECALLED: Table = {"told value": "stated value", "asked value": "queried value"}
_MEMORIES = ("figures.memory", "figures.runs.*.readings.*.memory")
RESULT_VALUES: Mapping[str, Table] = {
    "provenance.precision_reason": {"it was asked for": "requested", "as asked": "requested"},
    "figures.unit": {f"asked {unit}": f"answer {unit}" for unit in ("symbol", "word", "token", "character", "byte")},
    **{f"{memory}.{part}.*.kind": _RECALLED for memory in _MEMORIES for part in ("kinds", "curves")},
}
"""Values in result files, by path."""
RENAMED_IN = ("span-buffer", "recall", "recall-continued")
SYSTEMS: Table = {"second-softmax": "auxiliary-softmax", "awd-lstm-second-softmax": "awd-lstm-auxiliary-softmax"}
"""Systems of these packaged suites."""
RESULT_READERS = (
    "figures.reader",
    "figures.readers.*.name",
    "figures.gains.*.name",
    "figures.systems.*.reader",
    "figures.runs.*.readings.*.reader",
    "figures.claims.*.better.reader",
    "figures.claims.*.than.reader",
)
"""Where result files name a reader."""
SUITE_READERS = ("systems.*.readings.*.reader", "claims.*.better.reader", "claims.*.than.reader")
"""Where suites name a reader."""


def refuse_old_settings(kind: str, data: Any, source: str) -> None:
    """Raise UserError for the first old name in settings of the dataclass called `kind`, with the present one."""
    for old, (new, _) in _moved(kind).items():
        for path in _paths(data, old.split("."), ()):
            raise UserError(f"{source}: {_dotted(path)} is now called {new}; use that name")
    for old, new in _table(kind).items():
        for path in _paths(data, old.split("."), ()):
            present = new.split(".")[-1] if new.count(".") == old.count(".") else new
            dotted = _dotted((*path[:-1], present)) if present != new else new
            raise UserError(f"{source}: {_dotted(path)} is now called {dotted}; use that name")
    for setting, values in _value_table(kind).items():
        for path in _paths(data, setting.split("."), ()):
            value = _at(data, path)
            if isinstance(value, str) and value in values:
                raise UserError(f"{source}: {_dotted(path)}: {value} is now called {values[value]}; use that name")
    for suite in _overrides(data) if kind == "Suite" else ():
        refuse_old_settings("RunConfig", suite, f"{source}, overrides")


def current_settings(kind: str, data: Any) -> Any:
    """Return saved settings of the dataclass called `kind` under their present names; `data` stays as it is."""
    data = copy.deepcopy(data)
    _rename(data, _table(kind))
    for setting, values in _value_table(kind).items():
        for path in _paths(data, setting.split("."), ()):
            _replace_value(data, path, values)
    for old, (new, kinds) in MOVED.items() if kind == "RunConfig" else ():
        _move(data, old, new, kinds)
    if kind == "Suite":
        for pattern in SUITE_READERS:
            _rename_readers(data, pattern)
        for overrides in _overrides(data):
            renewed = current_settings("RunConfig", overrides)
            overrides.clear()
            overrides.update(renewed)
    return data


def first_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Return a run's settings under the names they had first, which fingerprints of earlier versions are made from."""
    data = copy.deepcopy(settings)
    for old, (new, _) in MOVED.items():
        _move(data, new, old, ())
    for setting, values in SETTING_VALUES.items():
        for path in _paths(data, setting.split("."), ()):
            _replace_value(data, path, {new: old for old, new in values.items()})
    _rename(data, {new: old for old, new in reversed(list(SETTINGS.items()))})
    return data


def refuse_old_setting(name: str, source: str) -> None:
    """Raise UserError for the old dotted name of a setting, as a search space has it."""
    for old, (new, _) in MOVED.items():
        if name == old or name.startswith(f"{old}."):
            raise UserError(f"{source}: {name} is now called {new}{name.removeprefix(old)}; use that name")
    if name in SETTINGS:
        raise UserError(f"{source}: {name} is now called {SETTINGS[name]}; use that name")


def current_reader(text: str) -> str:
    """Return the name of a stack of readers with present names: `foreign` -> `shuffled-buffer`."""
    parts = re.split(r"([:+])", text)
    return "".join(READERS.get(part, part) for part in parts)


def refuse_old_reader(name: str) -> None:
    """Raise UserError for the old name of a reader."""
    if name in READERS:
        raise UserError(f"the reader {name} is now called {READERS[name]}; use that name")


def refuse_old_listing(kind: str) -> None:
    """Raise UserError for the old name of something that `backstory ls` lists."""
    if kind in LISTINGS:
        raise UserError(f"{kind} are now called {LISTINGS[kind]}: `backstory ls {LISTINGS[kind]}` lists them")


def present_flag(verb: str, flag: str) -> str | None:
    """Return what an old flag of a command is called now; None for a flag that never had another name."""
    if new := FLAGS.get(verb.removesuffix(" RECIPE"), {}).get(flag):
        return new
    group, _, last = flag.removeprefix("--").replace("-", "_").rpartition(".")
    off = "no_" if last.startswith("no_") else ""
    dotted = f"{group}.{last}"
    for old, (new, _) in MOVED.items():
        if dotted == old or dotted.startswith(f"{old}."):
            return f"--{new}{dotted.removeprefix(old)}".replace("_", "-")
    for prefix in ("", "text."):  # `data show` has the settings of the text alone
        new = SETTINGS.get(f"{prefix}{group}.{last.removeprefix(off)}")
        if new is not None:
            group, _, last = new.removeprefix(prefix).rpartition(".")
            return f"--{group}.{off}{last}".replace("_", "-")
    return None


def current_result(data: Any) -> Any:
    """Return the content of a result file under its present names. What is damaged is left as it is."""
    if not isinstance(data, dict):
        return data
    data = copy.deepcopy(data)
    kind = data.get("kind")
    _rename(data, {**RESULTS["any"], **(RESULTS.get(kind, {}) if isinstance(kind, str) else {})})
    for pattern, values in RESULT_VALUES.items():
        for path in _paths(data, pattern.split("."), ()):
            _replace_value(data, path, values)
    for pattern in RESULT_READERS:
        _rename_readers(data, pattern)
    if kind == "reproduction" and _at_or_none(data, "figures", "suite") in RENAMED_IN:
        data = _systems_renamed(data)
    provenance = data.get("provenance")
    if isinstance(provenance, dict) and isinstance(command := provenance.get("command"), str):
        provenance["command"] = _current_command(command)
    if isinstance(provenance, dict) and isinstance(provenance.get("config"), dict):
        settings = "Suite" if kind == "reproduction" else "RunConfig"
        provenance["config"] = current_settings(settings, provenance["config"])
    return data


def _current_command(command: str) -> str:
    """Return the command that made a result with its present flags and readers."""
    verb = command.split()[1:3]
    flags = FLAGS.get(" ".join(verb), FLAGS.get(verb[0] if verb else "", {}))
    words = [
        current_reader(flags.get(word, word)) if word in flags or word in READERS else word
        for word in command.split(" ")
    ]
    return " ".join(words)


def _systems_renamed(data: Any) -> Any:
    """Return a suite's result with the present names of its systems, and of the runs of these."""
    if isinstance(data, dict):
        return {key: _systems_renamed(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_systems_renamed(value) for value in data]
    if not isinstance(data, str):
        return data
    system, seed, number = data.partition("-seed")
    return SYSTEMS.get(system, system) + seed + number


def current_log_record(record: Any) -> Any:
    """Return a line of a training log under its present names."""
    data = {"curve": [copy.deepcopy(record)]}
    _rename(data, _CURVE)
    return data["curve"][0]


def current_provenance(record: Any) -> Any:
    """Return what a run's folder says of how it was made, under its present names."""
    data = {"provenance": copy.deepcopy(record)}
    _rename(data, RESULTS["any"])
    return data["provenance"]


def _table(kind: str) -> Table:
    """Return the renamed settings of a dataclass, relative to it."""
    if kind == "Suite":
        return SUITE
    prefix = _PREFIXES.get(kind)
    if prefix is None:
        return {}
    return {old[len(prefix) :]: new[len(prefix) :] for old, new in SETTINGS.items() if old.startswith(prefix)}


def _value_table(kind: str) -> Mapping[str, Table]:
    prefix = _PREFIXES.get(kind)
    if prefix is None:
        return {}
    return {name[len(prefix) :]: values for name, values in SETTING_VALUES.items() if name.startswith(prefix)}


_PREFIXES = {"RunConfig": "", "ModelConfig": "model.", "TextConfig": "text.", "TrainingConfig": "training."}
"""Where a dataclass of settings stands in those of a run."""


def _paths(data: Any, pattern: list[str], path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    """Yield the paths in nested dictionaries and lists that match a pattern; `*` matches every entry of a list."""
    if not pattern:
        yield path
    elif pattern[0] == "*" and isinstance(data, list):
        for i, entry in enumerate(data):
            yield from _paths(entry, pattern[1:], (*path, i))
    elif isinstance(data, dict) and pattern[0] in data:
        yield from _paths(data[pattern[0]], pattern[1:], (*path, pattern[0]))


def _at(data: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        data = data[key]
    return data


def _at_or_none(data: Any, *path: str) -> Any:
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def _rename(data: Any, table: Table) -> None:
    """Rename keys in place, one entry of the table after the other; the order of keys stays."""
    for old, new in table.items():
        present = new.split(".")[-1]
        for path in list(_paths(data, old.split("."), ())):
            parent = _at(data, path[:-1])
            if present not in parent:
                entries = [(present if key == path[-1] else key, value) for key, value in parent.items()]
                parent.clear()
                parent.update(entries)


def _moved(kind: str) -> Mapping[str, tuple[str, tuple[str, ...]]]:
    """Return the moved settings of a dataclass, relative to it."""
    prefix = _PREFIXES.get(kind)
    if prefix is None:
        return {}
    return {old[len(prefix) :]: moved for old, moved in MOVED.items() if old.startswith(prefix)}


def _move(data: Any, old: str, new: str, kinds: tuple[str, ...]) -> None:
    """Move a value to another path in place, and drop it if the part there is of a kind without such a setting."""
    *parts, name = old.split(".")
    if not (found := list(_paths(data, old.split("."), ()))):
        return
    value = _at(data, found[0][:-1]).pop(name)
    while parts and not _at(data, tuple(parts)):  # what held nothing else was not there before
        *parts, name = parts
        _at(data, tuple(parts)).pop(name)
    *parents, last = new.split(".")
    for depth, parent in enumerate(parents):
        inner = data.get(parent)
        part_kind = inner.get("kind") if isinstance(inner, dict) else None
        if depth == 1 and kinds and part_kind not in (None, *kinds):
            return
        if depth == 1 and kinds and part_kind is None and value in (None, 0.0):
            return
        data = data.setdefault(parent, {})
        if not isinstance(data, dict):
            return
    data.setdefault(last, value)


def _replace_value(data: Any, path: tuple[str | int, ...], values: Table) -> None:
    value = _at(data, path)
    if isinstance(value, str) and value in values:
        _at(data, path[:-1])[path[-1]] = values[value]


def _rename_readers(data: Any, pattern: str) -> None:
    for path in _paths(data, pattern.split("."), ()):
        if isinstance(value := _at(data, path), str):
            _at(data, path[:-1])[path[-1]] = current_reader(value)


def _overrides(suite: Any) -> Iterator[dict[str, Any]]:
    """Yield the overrides of each system of a suite at each scale."""
    for scale in ("small", "full"):
        for path in _paths(suite, ["systems", "*", scale, "overrides"], ()):
            if isinstance(overrides := _at(suite, path), dict):
                yield overrides


def _dotted(path: tuple[str | int, ...]) -> str:
    """Return a path as messages write it: `systems[0].small.init_from`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
