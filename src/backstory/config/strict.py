"""Strict conversion between dataclasses and YAML: unknown keys, wrong types and values out of range are one-line errors."""

import dataclasses
import math
import re
import types
import typing
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, Union

import yaml

from backstory.config.renamed import current_settings, refuse_old_settings
from backstory.utils.arguments import checked
from backstory.utils.errors import OF_PLUGIN, UserError, nearest, shown, written_out
from backstory.utils.small_file import read_small_text

T = TypeVar("T")
Expand = Callable[[Any, str], Any]

LARGEST = 1 << 20
"""Bytes of a settings file; more is refused unread."""
LARGEST_NUMBER = 2**53
"""A whole number above this is refused: no float holds it exactly."""


MOST_NAMED = 12
"""Most names that a message on an unknown one lists."""


class UnknownKind(UserError):
    """A part is of a kind that nothing registers."""


def between(default: float | None, low: float, high: float = float("inf"), *, above: bool = False) -> Any:
    """Return a number field with the range [low, high], or (low, high] if `above`, that `validate` checks."""
    return dataclasses.field(default=default, metadata={"range": (low, high, above)})


def probability(default: float | None) -> Any:
    """Return a field for a dropout probability, in [0, 1)."""
    return dataclasses.field(default=default, metadata={"range": (0.0, 0.999, False)})


_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"


class _Loader(yaml.SafeLoader):
    """YAML loader that refuses unknown tags, a key given twice in one mapping, and references; numbers are decimal.

    Plain YAML would take the last of two keys, a few lines of nested references would fill the memory, 010 would be 8, and
    1:30 would be 90.
    """

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in (_INT, _FLOAT)]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.MarkedYAMLError(None, None, f"*{event.anchor} is a reference", event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key.value} appears twice", key.start_mark)
            if isinstance(key, yaml.ScalarNode):
                seen.add(key.value)
        return super().construct_mapping(node, deep)

    def refuse_tag(self, node: yaml.Node) -> None:
        raise yaml.constructor.ConstructorError(None, None, f"{node.tag} is a tag", node.start_mark)


_Loader.yaml_constructors = {**yaml.SafeLoader.yaml_constructors, None: _Loader.refuse_tag}  # None: any other tag
_Loader.add_implicit_resolver(_INT, re.compile(r"[-+]?(0|[1-9][0-9_]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    _FLOAT,
    re.compile(r"([-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+][0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"),
    list("-+0123456789."),
)


def to_dict(config: Any) -> dict[str, Any]:
    """Return a config as plain dictionaries, lists and numbers."""
    return {f.name: _plain(getattr(config, f.name)) for f in dataclasses.fields(config)}


def changes(config: Any) -> dict[str, Any]:
    """Return the settings that differ from their defaults, in plain dictionaries, and always the `kind` of a part."""
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value, default = getattr(config, field.name), field.default
        if default is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        if field.name == "kind" or value != default:
            changed[field.name] = changes(value) if dataclasses.is_dataclass(value) else _plain(value)
    return changed


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    return [_plain(v) for v in value] if isinstance(value, tuple) else value


def to_yaml(config: Any) -> str:
    """Return a config as YAML with the fields in the order of the dataclass."""
    return yaml.safe_dump(to_dict(config), sort_keys=False)


@checked()
def from_yaml(kind: type[T], text: str, source: str, expand: Expand | None = None) -> T:
    """Read a config of the given kind; `source` names the file in error messages.

    `expand` turns the content of the YAML into the settings that it stands for.

    Raises UserError for text that is not YAML, unknown keys, wrong types and values out of range.
    """
    data = plain_yaml(text, source)
    if expand is not None:
        data = expand(data, source)
    return _built(kind, {} if data is None else data, source)


def plain_yaml(text: str, source: str) -> Any:
    """Return YAML as plain values. Raises UserError for invalid YAML, an unknown tag, a repeated key and a reference."""
    remedy = "indent with spaces, not tabs" if re.search(r"^ *\t", text, re.MULTILINE) else "correct it and run again"
    return parsed(text, lambda where: f"{source} is not valid YAML{where}; {remedy}")


def parsed(text: str, wrong: Callable[[str], str]) -> Any:
    """Return YAML as plain values. `wrong` makes the message of the UserError from ` at line 3 (...)`, or from empty text."""
    try:
        return yaml.load(text, _Loader)
    except Exception as error:  # impossible dates, numbers and depths come as errors of many kinds
        mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        problem = getattr(error, "problem", None) or ""
        why = f" ({problem})" if problem.endswith(("appears twice", "is a reference", "is a tag")) else ""
        raise UserError(wrong(f"{f' at line {mark.line + 1}' if mark else ''}{why}")) from None


def from_file(kind: type[T], path: Path, inside: Path | None = None, expand: Expand | None = None) -> T:
    """Read a config from a YAML file; `expand` as for `from_yaml`.

    With `inside`, the folder is one that Backstory wrote: no link may lead out of it (`read_small`), and settings of earlier
    versions are read under their present names.

    Raises UserError also when the file cannot be read, is too large for settings, or holds nothing.
    """
    try:
        text = read_small_text(path, LARGEST, inside)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    if not any(line.split("#")[0].strip() for line in text.splitlines()):
        raise UserError(f"{path} is empty; give it some settings")
    if inside is None:
        return from_yaml(kind, text, str(path), expand)
    data = plain_yaml(text, str(path))
    return from_saved(kind, {} if data is None else data, str(path))


@checked()
def from_dict(kind: type[T], data: Any, source: str) -> T:
    """Build a config of a kind from plain dictionaries, with every value checked. Raises UserError."""
    return _built(kind, data, source)


def _built(kind: type[T], data: Any, source: str) -> T:
    """Build a config from data that may be anything, also a NaN, which arguments may not be."""
    if not dataclasses.is_dataclass(kind):
        raise TypeError(f"kind must be a dataclass, not {shown(kind)}")
    refuse_old_settings(kind.__name__, data, source)
    config = _convert(kind, data, "", source)
    validate(config, source)
    return config


def from_saved(kind: type[T], data: Any, source: str) -> T:
    """Build a config from settings that Backstory saved, under the names they had then. Raises UserError."""
    return _built(kind, current_settings(kind.__name__, data), source)


def conforming(config: T, source: str) -> T:
    """Return a config built in Python, checked like one read from a file. Raises UserError."""
    return from_dict(type(config), to_dict(config), source)


def _convert(kind: Any, value: Any, path: str, source: str) -> Any:
    def wrong(expected: str) -> UserError:
        hint = written_out(value, kind is int) if isinstance(value, str) and kind in (int, float) else ""
        return UserError(f"{source}: {path or 'the file'} must be {expected}, not {shown(value)}{hint}")

    if kind is Any:
        return value
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _convert_dataclass(typing.cast(type, kind), value, path, source)
    if origin in (Union, types.UnionType):
        return _convert_union(arguments, value, path, source)
    if origin is Literal:
        if not any(type(value) is type(known) and value == known for known in arguments):
            words = [known for known in arguments if isinstance(known, str)]
            hint = nearest(value, words) if isinstance(value, str) else ""
            raise wrong("one of " + ", ".join(map(str, arguments)) + hint)
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise wrong("a list")
        return tuple(_convert(arguments[0], v, f"{path}[{i}]", source) for i, v in enumerate(value))
    if kind is float and isinstance(value, str):
        # YAML 1.1 reads 1e-3 (no dot) as text; people who write it mean the number.
        try:
            return float(value)
        except ValueError:
            raise wrong("a number") from None
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise wrong("a smaller number") from None
    if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    words = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "text",
        dict: "a mapping",
        list: "a list",
    }
    raise wrong(words.get(kind, kind.__name__))


def _convert_dataclass(kind: type, value: Any, path: str, source: str) -> Any:
    if not isinstance(value, dict):
        raise UserError(f"{source}: {path or 'the file'} must be a mapping of settings, not {shown(value)}")
    hints = typing.get_type_hints(kind)
    for key in value:
        if key not in hints:
            name = key if isinstance(key, str) else shown(key)
            before = f"{path}." if path else ""
            raise UserError(f"{source}: unknown key '{before}{name}'{nearest(name, hints, before) or _known(hints)}")
    for f in dataclasses.fields(kind):
        if f.default is f.default_factory is dataclasses.MISSING and f.name not in value:
            raise UserError(f"{source}: {f'{path}.{f.name}' if path else f.name} is missing; add it")
    return kind(**{k: _convert(hints[k], v, f"{path}.{k}" if path else k, source) for k, v in value.items()})


def _known(names: Collection[str]) -> str:
    """Return `; there are a, b` for a few names that may be given, an empty string for many."""
    if len(names) > MOST_NAMED:
        return ""
    return f"; {'there are' if names else 'there are none'} {', '.join(names)}".rstrip()


def _convert_union(kinds: tuple[Any, ...], value: Any, path: str, source: str) -> Any:
    """Convert to `X | None`, or to one of several dataclasses, chosen by their field `kind`."""
    if value is None and type(None) in kinds:
        return None
    rest = [k for k in kinds if k is not type(None)]
    if len(rest) == 1:
        return _convert(rest[0], value, path, source)
    names = {k.__dataclass_fields__["kind"].default: k for k in rest}
    if not isinstance(value, dict):
        raise UserError(f"{source}: {path} must be a mapping of settings, not {shown(value)}")
    name = value.get("kind", next(iter(names)))
    if name not in list(names):  # a list, as the name may be anything, also what cannot be a key
        hint = ""
        if isinstance(name, str):
            hint = nearest(name, names) or f"; a kind {OF_PLUGIN}"
        raise UnknownKind(f"{source}: {path}.kind must be one of {', '.join(names)}, not {shown(name)}{hint}")
    return _convert_dataclass(names[name], value, path, source)


def validate(config: Any, source: str, path: str = "") -> None:
    """Check every number against its field's range. Raises UserError for values out of range, nan and infinity."""
    for f in dataclasses.fields(config):
        value, dotted = getattr(config, f.name), f"{path}.{f.name}" if path else f.name
        if dataclasses.is_dataclass(value):
            validate(value, source, dotted)
        elif isinstance(value, tuple):
            for i, inner in enumerate(value):
                if dataclasses.is_dataclass(inner):
                    validate(inner, source, f"{dotted}[{i}]")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            low, high, above = f.metadata.get("range", (-math.inf, math.inf, False))
            if isinstance(value, int) and value > LARGEST_NUMBER:
                high = min(high, LARGEST_NUMBER)
            if abs(value) == math.inf or not low <= value <= high or (above and value == low):
                bounds = f"{'above' if above else 'at least'} {low:.10g}"
                bounds += (
                    f" and at most {high:.16g}" if high < math.inf else " and finite" if abs(value) == math.inf else ""
                )
                raise UserError(f"{source}: {dotted} must be {bounds}, not {shown(value)}")
