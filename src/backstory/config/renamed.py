"""Names that have changed, in one table: settings, flags, readers, and the keys of suites and results.

A name that a person writes (a recipe, a flag, a reader) is refused with its present name. Files that Backstory wrote itself
(a run's settings, checkpoints, results) are translated as they are read, so that earlier ones still open.
"""

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from backstory.utils.errors import UserError

T = TypeVar("T")
Table = Mapping[str, str]
"""Old dotted path -> new last name, or old value -> new value; `*` in a path stands for every entry of a list or mapping."""


def _under(path: str, table: Table) -> Table:
    return {f"{path}.{old}": new for old, new in table.items()}


SETTINGS: Table = {
    "text.recall.fresh": "new_each_epoch",
    "text.algorithm.fresh": "new_each_epoch",
    "model.core.rows": "slots",
    "model.core.begin": "reset_token",
    "model.core.fresh": "chunked",
    "model.buffer.slots": "alignment",
    "training.asked_only": "answer_loss_only",
    "training.validation_rows": "validation_batch_size",
}
"""Settings of a run (`RunConfig`)."""
_WITH_LAYERS = ("lstm", "mogrifier", "ntm", "dnc", "mdm", "trellis")
MOVED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "training.embedding_l2": ("model.embedding.l2", ()),
    "training.input_l2": ("model.core.input_l2", _WITH_LAYERS),
    "training.recurrent_l2": ("model.core.recurrent_l2", _WITH_LAYERS),
    "training.mogrifier_l2": ("model.core.round_l2", ("mogrifier",)),
    "training.dual_l2": ("model.dual.l2", ("dual",)),
    "training.auxiliary": ("model.core.auxiliary_weight", ("trellis",)),
    "training.reward": ("model.buffer.gate.reward", ("span-buffer", "auxiliary-softmax")),
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
_PREFIXES = {"RunConfig": "", "ModelConfig": "model.", "TextConfig": "text.", "TrainingConfig": "training."}
"""Place of a dataclass of settings in those of a run."""

_CHECKS: Table = {
    "claims.*.*.row": "system",
    "claims.*.*.rows": "batch_size",
    "findings.*.row": "system",
    "findings.*.beside": "baseline",
}
SUITE: Table = {
    "rows": "systems",
    "systems.*.readings.*.rows": "batch_size",
    "systems.*.*.begin": "init_from",
    **_CHECKS,
}
"""Keys of a suite's YAML file."""
SUITE_READERS = ("systems.*.readings.*.reader", "claims.*.*.reader")
"""Paths of the readers in a suite."""

FLAGS: Mapping[str, Table] = {
    "train": {"--begin": "--init-from"},
    "evaluate": {"--rows": "--batch-size"},
    "examine": {"--rows": "--batch-size"},
    "reader audit": {"--rows": "--batch-size"},
}
"""Flags by command; those of settings follow from SETTINGS and MOVED."""
STATES: Table = {"second": "auxiliary"}
"""First parts of the names of tensors in a model's saved state."""
STATE_CLASSES: Mapping[tuple[str, tuple[str, ...]], tuple[str, tuple[str, ...]]] = {
    ("GatedState", ("core", "second")): ("GatedState", ("core", "auxiliary")),
    ("GridState", ("spans", "tail", "read")): ("FixedState", ("spans", "tail", "read")),
}
"""Named tuples in the saved state of a reader: a class and its fields."""
READERS: Table = {"foreign": "shuffled-buffer"}
LISTINGS: Table = {"grids": "suites"}
"""Kinds that `backstory ls` lists."""

_ANSWER: Table = {"asked": "answer_tokens", "nats_per_asked": "nats_per_answer_token"}
_ANSWERS: Table = {**_under("answers", _ANSWER), **_under("answers.lengths.*", _ANSWER)}
LOG_RECORD: Table = {"asked": "answer_share", **_ANSWERS}
"""Keys of a line in a training log."""
PROVENANCE: Table = {"begun_with": "init_from"}
RESULTS: Mapping[str, Table] = {
    "training": _under("figures.curve.*", LOG_RECORD),
    "evaluation": {"figures.rows": "batch_size", **_under("figures", _ANSWERS)},
    "examination": {"figures.rows": "batch_size"},
    "explanation": {"figures.settings.rows": "slots", "figures.weights.rows": "slots"},
    "reproduction": {
        "figures.grid": "suite",
        "figures.rows": "systems",
        "figures.systems.*.row": "system",
        "figures.systems.*.rows": "batch_size",
        "figures.systems.*.protocol.begin": "init_from",
        **_under("figures", _CHECKS),
        "figures.findings.*.measures.*.told": "label",
        "figures.runs.*.row": "system",
        "figures.runs.*.measured": "effect_sizes",
        "figures.runs.*.readings.*.rows": "batch_size",
    },
}
"""Keys of result files, by kind of result."""
_RECALLED: Table = {"told value": "stated value", "asked value": "queried value"}
RESULT_VALUES: Mapping[str, Table] = {
    "provenance.precision_reason": {"it was asked for": "requested", "as asked": "requested"},
    "figures.unit": {f"asked {unit}": f"answer {unit}" for unit in ("symbol", "word", "token", "character", "byte")},
    "figures.memory.kinds.*.kind": _RECALLED,
    "figures.memory.curves.*.kind": _RECALLED,
    "figures.runs.*.readings.*.memory.kinds.*.kind": _RECALLED,
    "figures.runs.*.readings.*.memory.curves.*.kind": _RECALLED,
}
"""Values in result files, by path."""
RESULT_READERS = (
    "figures.reader",
    "figures.readers.*.name",
    "figures.gains.*.name",
    "figures.systems.*.reader",
    "figures.runs.*.readings.*.reader",
    "figures.claims.*.*.reader",
)
"""Paths of the readers in result files."""
SYSTEMS: Table = {"second-softmax": "auxiliary-softmax", "awd-lstm-second-softmax": "awd-lstm-auxiliary-softmax"}
"""Systems of the packaged suites in RENAMED_IN."""
RENAMED_IN = ("span-buffer", "recall", "recall-continued")


def refuse_old_settings(kind: str, data: Any, source: str) -> None:
    """Raise UserError for the first old name in settings of the dataclass called `kind`, with the present one."""

    def refuse(old: str, new: str) -> None:
        raise UserError(f"{source}: {old} is now called {new}; use that name")

    for old, (new, _) in _settings_of(kind, MOVED).items():
        for path, _, _ in _entries(data, old):
            refuse(_dotted(path), new)
    for old, new in _renamed_keys(kind).items():
        for path, _, _ in _entries(data, old):
            refuse(_dotted(path), _dotted((*path[:-1], new)))
    for setting, values in _settings_of(kind, SETTING_VALUES).items():
        for path, parent, key in _entries(data, setting):
            if isinstance(value := parent[key], str) and value in values:
                refuse(f"{_dotted(path)}: {value}", values[value])
    for overrides in _overrides(data) if kind == "Suite" else ():
        refuse_old_settings("RunConfig", overrides, f"{source}, overrides")


def refuse_old_setting(name: str, source: str) -> None:
    """Raise UserError for the old dotted name of a setting, as a search space has it."""
    if (new := _present_setting(name)) is not None:
        raise UserError(f"{source}: {name} is now called {new}; use that name")


def refuse_old_reader(name: str) -> None:
    """Raise UserError for the old name of a reader."""
    if name in READERS:
        raise UserError(f"the reader {name} is now called {READERS[name]}; use that name")


def refuse_old_listing(kind: str) -> None:
    """Raise UserError for the old name of something that `backstory ls` lists."""
    if kind in LISTINGS:
        raise UserError(f"{kind} are now called {LISTINGS[kind]}: `backstory ls {LISTINGS[kind]}` lists them")


def present_flag(verb: str, flag: str) -> str | None:
    """Return the present name of an old flag of a command; None for a flag that never had another name."""
    if new := FLAGS.get(verb.removesuffix(" RECIPE"), {}).get(flag):
        return new
    group, _, last = flag.removeprefix("--").replace("-", "_").rpartition(".")
    off = "no_" if last.startswith("no_") else ""
    for prefix in ("", "text."):  # `data show` has the settings of the text alone
        if new := _present_setting(f"{prefix}{group}.{last.removeprefix(off)}"):
            group, _, last = new.removeprefix(prefix).rpartition(".")
            return f"--{group}.{off}{last}".replace("_", "-")
    return None


def current_settings(kind: str, data: Any) -> Any:
    """Return saved settings of the dataclass called `kind` under their present names; `data` stays as it is."""
    data = copy.deepcopy(data)
    _rename(data, _renamed_keys(kind))
    _replace(data, _settings_of(kind, SETTING_VALUES))
    if kind == "RunConfig":
        for old, (new, kinds) in MOVED.items():
            _move(data, old, new, kinds)
    if kind == "Suite":
        _rename_readers(data, SUITE_READERS)
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
    _replace(data, {name: {new: old for old, new in values.items()} for name, values in SETTING_VALUES.items()})
    for old, new in reversed(list(SETTINGS.items())):
        group, _, name = old.rpartition(".")
        _rename(data, {f"{group}.{new}": name})
    return data


def current_reader(text: str) -> str:
    """Return the name of a stack of readers with present names: `foreign` -> `shuffled-buffer`."""
    return "".join(READERS.get(part, part) for part in re.split(r"([:+])", text))


def current_result(data: Any) -> Any:
    """Return the content of a result file under its present names. What is damaged is left as it is."""
    if not isinstance(data, dict):
        return data
    data = copy.deepcopy(data)
    kind, figures, provenance = data.get("kind"), data.get("figures"), data.get("provenance")
    _rename(provenance, PROVENANCE)
    _rename(data, RESULTS.get(kind, {}) if isinstance(kind, str) else {})
    _replace(data, RESULT_VALUES)
    _rename_readers(data, RESULT_READERS)
    if kind == "reproduction" and isinstance(figures, dict) and figures.get("suite") in RENAMED_IN:
        data = _with_current_systems(data)
        provenance = data.get("provenance")
    if isinstance(provenance, dict):
        if isinstance(command := provenance.get("command"), str):
            provenance["command"] = _current_command(command)
        if isinstance(settings := provenance.get("config"), dict):
            provenance["config"] = current_settings("Suite" if kind == "reproduction" else "RunConfig", settings)
    return data


def current_log_record(record: Any) -> Any:
    """Return a line of a training log under its present names."""
    return _rename(copy.deepcopy(record), LOG_RECORD)


def current_provenance(record: Any) -> Any:
    """Return the record of how a run was made under its present names."""
    return _rename(copy.deepcopy(record), PROVENANCE)


def _current_command(command: str) -> str:
    """Return the command that made a result with its present flags and readers."""
    verb = command.split()[1:3]
    flags = FLAGS.get(" ".join(verb), FLAGS.get(verb[0] if verb else "", {}))
    return " ".join(
        current_reader(flags.get(word, word)) if word in (*flags, *READERS) else word for word in command.split(" ")
    )


def _with_current_systems(data: Any) -> Any:
    """Return a suite's result with the present names of its systems, and of the runs of these."""
    if isinstance(data, dict):
        return {key: _with_current_systems(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_with_current_systems(value) for value in data]
    if not isinstance(data, str):
        return data
    system, seed, number = data.partition("-seed")
    return SYSTEMS.get(system, system) + seed + number


def _settings_of(kind: str, table: Mapping[str, T]) -> dict[str, T]:
    """Return the entries of a table of a run's settings that lie in a dataclass, relative to it."""
    prefix = _PREFIXES.get(kind)
    return {} if prefix is None else {k.removeprefix(prefix): v for k, v in table.items() if k.startswith(prefix)}


def _renamed_keys(kind: str) -> Table:
    return SUITE if kind == "Suite" else _settings_of(kind, SETTINGS)


def _present_setting(name: str) -> str | None:
    """Return the present dotted name of a setting, or of one inside it; None if it never had another."""
    for old, (new, _) in MOVED.items():
        if name == old or name.startswith(f"{old}."):
            return new + name.removeprefix(old)
    return f"{name.rpartition('.')[0]}.{SETTINGS[name]}" if name in SETTINGS else None


Keys = tuple[str | int, ...]


def _entries(data: Any, pattern: str, path: Keys = ()) -> Iterator[tuple[Keys, Any, Any]]:
    """Yield path, container and key of each entry of nested dictionaries and lists that a pattern matches."""
    first, _, rest = pattern.partition(".")
    if isinstance(data, dict):
        keys: list[Any] = list(data) if first == "*" else [first] if first in data else []
    else:
        keys = list(range(len(data))) if first == "*" and isinstance(data, list) else []
    for key in keys:
        if rest:
            yield from _entries(data[key], rest, (*path, key))
        else:
            yield (*path, key), data, key


def _rename(data: Any, table: Table) -> Any:
    """Rename keys in place, one entry of the table after the other; the order of keys stays. Return the data."""
    for old, new in table.items():
        for _, parent, name in list(_entries(data, old)):
            if new not in parent:
                entries = [(new if key == name else key, value) for key, value in parent.items()]
                parent.clear()
                parent.update(entries)
    return data


def _replace(data: Any, values: Mapping[str, Table]) -> None:
    for pattern, table in values.items():
        _translate(data, pattern, lambda value, table=table: table.get(value, value))


def _rename_readers(data: Any, patterns: tuple[str, ...]) -> None:
    for pattern in patterns:
        _translate(data, pattern, current_reader)


def _translate(data: Any, pattern: str, translation: Callable[[str], str]) -> None:
    """Translate the texts that a pattern matches, in place."""
    for _, parent, key in _entries(data, pattern):
        if isinstance(parent[key], str):
            parent[key] = translation(parent[key])


def _move(data: Any, old: str, new: str, kinds: tuple[str, ...]) -> None:
    """Move a value to another path in place, and drop it if the part there is of a kind without such a setting."""
    for _, parent, key in list(_entries(data, old)):
        value = parent.pop(key)
        group = old.rpartition(".")[0]
        while group and (emptied := next(_entries(data, group))) and not emptied[1][emptied[2]]:
            del emptied[1][emptied[2]]  # what held nothing else was not there before
            group = group.rpartition(".")[0]
        *groups, last = new.split(".")
        for depth, name in enumerate(groups):
            part = data.get(name)
            part_kind = part.get("kind") if isinstance(part, dict) else None
            if (
                depth == 1
                and kinds
                and (part_kind not in (None, *kinds) or (part_kind is None and value in (None, 0.0)))
            ):
                return
            data = data.setdefault(name, {})
            if not isinstance(data, dict):
                return
        data.setdefault(last, value)


def _overrides(suite: Any) -> Iterator[dict[str, Any]]:
    """Yield the overrides of each system of a suite at each scale."""
    for scale in ("small", "full"):
        for _, parent, key in _entries(suite, f"systems.*.{scale}.overrides"):
            if isinstance(parent[key], dict):
                yield parent[key]


def _dotted(path: Keys) -> str:
    """Return a path as messages write it: `systems[0].small.init_from`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
