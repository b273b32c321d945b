"""No pickle anywhere: the sources use neither the module nor torch's functions based on it."""

import ast
from pathlib import Path

import pytest

import backstory

SOURCES = sorted(Path(backstory.__file__).parent.rglob("*.py"))
MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
CALLS = {("torch", "save"), ("torch", "load"), ("np", "load"), ("np", "save"), ("numpy", "load"), ("numpy", "save")}


def uses(source: str) -> list[str]:
    """Imports and calls of a source that read or write pickles."""
    found, plain = [], set[ast.expr]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.split(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom):
            root = (node.module or "").split(".")[0]
            found += [f"{root}.{a.name}" for a in node.names if root in MODULES or (root, a.name) in CALLS]
        elif isinstance(node, ast.Call) and _plain(node):
            plain.add(node.func)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node not in plain:
            found += [f"{node.value.id}.{node.attr}"] if (node.value.id, node.attr) in CALLS else []
    return found


def _plain(call: ast.Call) -> bool:
    """Return True if numpy is told to refuse pickles. A call comes before its parts."""
    return any(k.arg == "allow_pickle" and ast.unparse(k.value) == "False" for k in call.keywords)


@pytest.mark.full
def test_sources_use_no_pickle() -> None:
    assert len(SOURCES) > 30
    assert {path.name: found for path in SOURCES if (found := uses(path.read_text(encoding="utf-8")))} == {}


def test_the_search_finds_what_it_looks_for() -> None:
    planted = "import pickle\nfrom torch import save\nimport torch\ntorch.load('x')\nfrom pickle import dumps\n"
    assert sorted(uses(planted)) == ["pickle", "pickle.dumps", "torch.load", "torch.save"]
    assert uses("np.load('x', allow_pickle=False)") == []
    assert uses("np.load('x')") == uses("np.load('x', allow_pickle=True)") == ["np.load"]
