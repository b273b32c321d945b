"""Packaged YAML files of one kind, found by name, or files of one's own, found by path."""

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Generic, TypeVar

from backstory.config.errors import check_name
from backstory.config.strict import from_file, from_yaml

T = TypeVar("T")


@dataclass(frozen=True)
class Packaged(Generic[T]):
    """The YAML files in a folder of a package, which `backstory ls FOLDER` lists."""

    kind: type[T]
    """What they are read as."""
    package: str
    folder: str
    what: str
    """One of them, as messages call it."""

    def names(self) -> list[str]:
        """Their names, in order."""
        files = (resources.files(self.package) / self.folder).iterdir()
        return sorted(p.name.removesuffix(".yaml") for p in files if p.name.endswith(".yaml"))

    def text(self, name: str) -> str:
        """The YAML of one. Raises UserError for an unknown name."""
        check_name(name, self.names(), self.what, f"backstory ls {self.folder}")
        return (resources.files(self.package) / self.folder / f"{name}.yaml").read_text(encoding="utf-8")

    def load(self, name_or_path: str) -> T:
        """A packaged one by its name, or one's own by the path of its YAML file. Raises UserError."""
        if name_or_path.endswith((".yaml", ".yml")) or "/" in name_or_path:
            return from_file(self.kind, Path(name_or_path))
        return from_yaml(self.kind, self.text(name_or_path), f"{self.what} {name_or_path}")
