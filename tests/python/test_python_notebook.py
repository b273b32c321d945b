"""The notebook of the docs: committed small, with the outputs of a run from top to bottom, and it runs again."""

import os
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "tour.ipynb"


@pytest.fixture
def notebook() -> Any:
    return pytest.importorskip("nbformat", reason="needs the extra dev").read(NOTEBOOK, as_version=4)


def code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_it_is_small_and_has_the_outputs_of_one_run(notebook: Any) -> None:
    assert NOTEBOOK.stat().st_size < 200_000
    assert [cell.execution_count for cell in code(notebook)] == list(range(1, len(code(notebook)) + 1))
    outputs = [output for cell in code(notebook) for output in cell.outputs]
    assert all(output.output_type != "error" for output in outputs)
    kinds = {kind for output in outputs for kind in output.get("data", {})}
    assert {"text/html", "image/png", "text/plain"} <= kinds
    assert any("<caption>train</caption>" in output.get("data", {}).get("text/html", "") for output in outputs)


@pytest.mark.full
def test_it_runs(notebook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbclient = pytest.importorskip("nbclient", reason="needs the extra dev")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join(filter(None, [str(Path("src").resolve()), os.environ.get("PYTHONPATH")]))
    )
    before = [[output.output_type for output in cell.outputs] for cell in code(notebook)]
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=500, coalesce_streams=True, resources=resources).execute()
    assert [[output.output_type for output in cell.outputs] for cell in code(notebook)] == before
