"""Register a core, reader, experiment or metric from outside the package: `bs.register("core", GRUConfig, GRU)`."""

import dataclasses
import functools
import inspect
import operator
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from backstory.config import ModelConfig
from backstory.config.plugin_files import record_part
from backstory.context.experiments import EXPERIMENTS, Experiment
from backstory.evaluation.metrics import METRICS, Metric
from backstory.models.cores import CORES, Core
from backstory.readers import READERS, ReaderKind
from backstory.utils.arguments import with_article
from backstory.utils.errors import UserError, nearest, plural
from backstory.utils.small_file import resolved

Kind = Literal["core", "reader", "experiment", "metric"]


@dataclass(frozen=True)
class Origin:
    """The call that registered a part."""

    file: str
    line: int
    module: str

    @property
    def where(self) -> str:
        """`my_core.py, line 12`."""
        return f"{Path(self.file).name}, line {self.line}"

    def same_source(self, other: "Origin") -> bool:
        """Return True for two calls of one file, or of the program itself, such as two cells of a notebook."""
        return self.module == other.module == "__main__" or resolved(self.file) == resolved(other.file)


@dataclass(frozen=True)
class Registered:
    """A part that was registered: its kind and name, the object, and where."""

    kind: str
    name: str
    part: Any
    """The class of a core or metric; the ReaderKind or Experiment of the others."""
    settings: type | None
    """The dataclass of its settings."""
    origin: Origin


_REGISTERED: list[Registered] = []


def registered_by(files: Collection[Path]) -> list[Registered]:
    """Return what these files registered, in order."""
    return [part for part in _REGISTERED if resolved(part.origin.file) in files]


def register(kind: Kind, *part: Any) -> None:
    """Add a part to the registry of its kind, so that commands, recipes and `backstory ls` know it.

    - `register("core", MyConfig, MyCore)`: a frozen dataclass of settings whose field `kind` has the name as its default, and
      a `Core` that is built from (settings, size of the embedded words, output size or None).
    - `register("reader", ReaderKind("name", ...))`
    - `register("experiment", "name", Experiment(...))`
    - `register("metric", MyMetric)`: a subclass of `Metric` with a `name`, under which its figures stand in results

    The same part of the same file replaces the one before: a module is loaded again, or a cell of a notebook is run again.

    Raises UserError, with the line of the call, for any other name that exists and for parts of the wrong type.
    """
    adders: dict[str, Callable[..., tuple[str, type | None]]] = {
        "core": _add_core,
        "reader": _add_reader,
        "experiment": _add_experiment,
        "metric": _add_metric,
    }
    if kind not in adders:
        raise UserError(f"register takes {', '.join(adders)}, not {kind!r}{nearest(str(kind), adders)}")
    expected = {"core": 2, "experiment": 2}.get(kind, 1)
    if len(part) != expected:
        count = f"{expected} more {plural('argument', expected)}"
        raise UserError(f"register('{kind}', ...) takes {count}, not {len(part)}; docs/extending.md has an example")
    frame = sys._getframe(1)
    origin = Origin(frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__name__", ""))
    name, settings = adders[kind](*part, origin)
    _REGISTERED[:] = [one for one in _REGISTERED if (one.kind, one.name) != (kind, name)]
    _REGISTERED.append(Registered(kind, name, part[-1], settings, origin))
    record_part(origin.file, origin.module, f"{kind} {name}")


def _add_core(config: Any, core: Any, origin: Origin) -> tuple[str, type]:
    if not (dataclasses.is_dataclass(config) and isinstance(config, type)):
        raise UserError("a core is registered with a dataclass of settings: register('core', MyConfig, MyCore)")
    if not (isinstance(core, type) and issubclass(core, Core)):
        raise UserError(f"a core must be a subclass of backstory.models.cores.Core, not {core!r}")
    if hasattr(core, "l2_groups"):
        raise UserError(f"{core.__name__} defines l2_groups, which is now called param_groups; rename it")
    name = _core_name(config)
    known = get_args(get_type_hints(ModelConfig)["core"])
    earlier = _replaced("core", name, [one.__dataclass_fields__["kind"].default for one in known], core, origin)
    others = [one for one in known if earlier is None or one is not earlier.settings]
    # Settings, flags and lists of models are read off the type of this field.
    union = functools.reduce(operator.or_, [*others, config])
    ModelConfig.__annotations__["core"] = ModelConfig.__dataclass_fields__["core"].type = union
    CORES[config] = core
    return name, config


def _core_name(config: type) -> str:
    """Return the name of a core in the dataclass of its settings. Raises UserError for one that is no such dataclass."""
    fields = {field.name: field for field in dataclasses.fields(config)}
    name = fields["kind"].default if "kind" in fields else None
    hints = get_type_hints(config)
    if not isinstance(name, str) or get_args(hints["kind"]) != (name,):
        raise UserError(f'{config.__name__} needs a field that names it: kind: Literal["my-core"] = "my-core"')
    without = [f.name for f in fields.values() if f.default is f.default_factory is dataclasses.MISSING]
    if without:
        raise UserError(f"{config.__name__}.{without[0]} needs a default, as every setting of a part has one")
    for needed, kinds in {"output_dropout": (float,), "output": (int, type(None))}.items():
        if needed not in fields or not set(get_args(hints[needed]) or [hints[needed]]) <= set(kinds):
            raise UserError(
                f"{config.__name__} needs the setting {needed}, as every core has: "
                "output_dropout: float = probability(0.1), output: int | None = None"
            )
    return name


def _add_reader(kind: Any, origin: Origin) -> tuple[str, type]:
    if not isinstance(kind, ReaderKind):
        raise UserError("a reader is registered with a ReaderKind: register('reader', ReaderKind('name', ...))")
    _replaced("reader", kind.name, READERS, kind, origin)
    READERS[kind.name] = kind
    return kind.name, kind.settings


def _add_experiment(name: Any, experiment: Any, origin: Origin) -> tuple[str, None]:
    if not isinstance(experiment, Experiment):
        raise UserError(
            "an experiment is registered with an Experiment: register('experiment', 'name', Experiment(...))"
        )
    _replaced("experiment", name, EXPERIMENTS, experiment, origin)
    EXPERIMENTS[name] = experiment
    return name, None


def _add_metric(metric: Any, origin: Origin) -> tuple[str, None]:
    if not (isinstance(metric, type) and issubclass(metric, Metric)):
        raise UserError("a metric is registered with a subclass of Metric: register('metric', MyMetric)")
    earlier = _replaced("metric", getattr(metric, "name", None), [known.name for known in METRICS], metric, origin)
    if earlier is None:
        METRICS.append(metric)
    else:
        METRICS[METRICS.index(earlier.part)] = metric
    return metric.name, None


def _replaced(kind: str, name: Any, known: Any, part: Any, origin: Origin) -> Registered | None:
    """Return the part that another one replaces, if any. Raises UserError for a name that is wrong, or of another part."""
    if not isinstance(name, str) or not name or not name.replace("-", "").isalnum() or not name.isascii():
        raise UserError(f"the name of {with_article(kind)} is made of letters, digits and hyphens, not {name!r}")
    if name not in known:
        return None
    earlier = next((one for one in _REGISTERED if (one.kind, one.name) == (kind, name)), None)
    if earlier is not None and earlier.origin.same_source(origin) and _defined(earlier.part) == _defined(part):
        return earlier
    where = "in backstory" if earlier is None else f"in {earlier.origin.where}"
    raise UserError(f"there is {with_article(kind)} named {name} already, {where}; choose another name")


def _defined(part: Any) -> str:
    """Return the name of the class or function that defines a part."""
    if isinstance(part, ReaderKind | Experiment):
        part = part.build if isinstance(part, ReaderKind) else part.conditions
    return getattr(part, "__qualname__", type(part).__qualname__)


def source_line(part: Any) -> str | None:
    """Return the place where a class is defined: `my_core.py, line 12`."""
    try:
        return f"{Path(inspect.getfile(part)).name}, line {inspect.getsourcelines(part)[1]}"
    except (OSError, TypeError):
        return None
