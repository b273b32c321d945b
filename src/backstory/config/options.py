"""Base of the options of a verb: dataclasses that the command line parses and Python callers fill by keyword."""

import dataclasses
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from backstory.config.arguments import check_argument
from backstory.config.errors import UserError, check_name, shown


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a verb. A tuple of names may be given as one name, or as a list."""

    @classmethod
    def of(cls, **values: Any) -> Self:
        """Return the options with these values, the others as usual.

        Raises UserError for an unknown option and a value out of range, TypeError for one of another type.
        """
        hints, known = typing.get_type_hints(cls), [field.name for field in dataclasses.fields(cls)]
        for name, value in values.items():
            check_name(name, known, "option")
            if typing.get_origin(hints[name]) is tuple and isinstance(value, str | list):
                values[name] = (value,) if isinstance(value, str) else tuple(value)
            elif isinstance(value, str) and hints[name] == Path | None:
                values[name] = Path(value)
        return cls(**values).checked()

    def checked(self) -> Self:
        """Return the options with every value checked against its type and its range (`fields.between`).

        Numbers of numpy come back as those of Python. Raises TypeError, and UserError for a value out of range.
        """
        hints, plain = typing.get_type_hints(type(self)), {}
        for field in dataclasses.fields(self):
            value, bounds = getattr(self, field.name), field.metadata.get("range")
            check_argument(field.name, value, hints[field.name], None if bounds is None else bounds[:2])
            if bounds is not None and bounds[2] and value == bounds[0]:
                raise UserError(f"{field.name} must be above {shown(bounds[0])}, not {shown(value)}")
            if type(value).__module__ == "numpy":
                plain[field.name] = value.item()
        return dataclasses.replace(self, **plain)
