"""Ensembles of Hugging Face models: what is tuned belongs to the weights of every member, wherever they lie."""

import shutil
from pathlib import Path

import foreign
import pytest

from backstory.cli.main import main
from backstory.config.options import LoadOptions
from backstory.interop.hugging_face import files_digest
from backstory.readers.registry import configure, open_reader, parse_stack, settings_name
from backstory.runs.run import open_run
from backstory.tuning.preparation import tune_reader
from backstory.utils.errors import UserError

TEXT = "the cat sat on the mat .\nthe dog ran after the cat .\n" * 60


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="needs the extra hf")
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)


def two_of_one_name(folder: Path) -> tuple[Path, Path]:
    """Two folders called `tiny` with models of other weights."""
    for parent, spread in (("one", 0.3), ("two", 0.5)):
        foreign.saved(folder / parent / "tiny", text=TEXT, spread=spread, n_positions=64)
    return folder / "one" / "tiny", folder / "two" / "tiny"


def test_weights_are_tuned_for_members_of_these_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = two_of_one_name(tmp_path)
    (text := tmp_path / "cats.txt").write_text(TEXT)
    monkeypatch.chdir(one.parent)
    typed = "ensemble:runs=hf:./tiny"
    tune_reader(f"hf:{two}", parse_stack(typed), "valid", 100, corpus=str(text))
    run = open_run(f"hf:{two}", LoadOptions())
    tuned = configure(parse_stack(typed), run)[-1]
    assert tuned.settings.weight is not None
    absolute = configure(parse_stack(f"ensemble:runs=hf:{one}"), run)[-1]
    assert absolute.settings.weight == tuned.settings.weight
    monkeypatch.chdir(two.parent)
    assert configure(parse_stack(typed), run)[-1].settings.weight is None
    monkeypatch.chdir(one.parent)
    shutil.copy(two / "model.safetensors", one)  # as if it had been trained again
    assert configure(parse_stack(typed), run)[-1].settings.weight is None


def test_a_member_from_the_hub_is_known_by_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = two_of_one_name(tmp_path)
    cache = tmp_path / "models--some--tiny"  # as the hub's own cache lies on the disk
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text("a" * 40)
    shutil.copytree(folder, cache / "snapshots" / ("a" * 40))
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path))
    local, named, absent = (
        settings_name(parse_stack(f"ensemble:runs=hf:{name}")) for name in (folder, "some/tiny", "some/other")
    )
    assert local == named != absent
    assert files_digest("hf:some/other") is None and files_digest("hf:./absent") is None


def test_a_model_without_statistics_is_told_what_fits_its_reader(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = two_of_one_name(tmp_path)
    with pytest.raises(UserError) as refused:
        open_reader(f"hf:{one}", f"ensemble:runs=hf:{two},reader=dynamic")
    said = str(refused.value)
    assert said.endswith(
        f"`backstory reader statistics hf:{two} --corpus NAME`, or read it as it is, with reader=static"
    )
    with pytest.raises(UserError, match=r"or do without them: --reader dynamic:rule=sgd,rate=0\.0001$"):
        open_reader(f"hf:{one}", "dynamic")
    (text := tmp_path / "cats.txt").write_text(TEXT)
    assert main(["reader", "train", f"hf:{one}", "--corpus", str(text), "--skip", "0"]) == 2
    assert capsys.readouterr().err.endswith(f"`backstory reader statistics hf:{one} --corpus NAME`\n")
