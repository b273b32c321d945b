"""Programs outside the package as modules: benchmarks, the scripts of docs, and helpers beside other tests."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]


def load(path: str, name: str | None = None) -> ModuleType:
    """Run a file, given from the root of the repository, and return its module, under its stem or another name."""
    spec = importlib.util.spec_from_file_location(name or Path(path).stem, ROOT / path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
