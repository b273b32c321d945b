"""Folders that `save_to_disk` of the Hugging Face datasets writes: the Arrow files of each split, in their order."""

from pathlib import Path
from typing import Any

from backstory.storage.documents import parse
from backstory.utils.errors import UserError
from backstory.utils.small_file import read_small

SPLITS, STATE = "dataset_dict.json", "state.json"


def is_saved(folder: Path) -> bool:
    """Return True for the folder of a saved dataset, or of one with splits."""
    return (folder / SPLITS).is_file() or ((folder / STATE).is_file() and (folder / "dataset_info.json").is_file())


def parts(folder: Path) -> dict[str, list[Path]]:
    """Return the files of each split; those of a dataset without splits under the empty name. Raises UserError."""
    if not (folder / SPLITS).is_file():
        return {"": _files(folder)}
    names = _document(folder / SPLITS, folder).get("splits")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or not names:
        raise _damaged(folder / SPLITS)
    return {name: _files(folder / name) for name in names}


def _files(folder: Path) -> list[Path]:
    listed = _document(folder / STATE, folder).get("_data_files")
    if not isinstance(listed, list) or not all(isinstance(one, dict) and "filename" in one for one in listed):
        raise _damaged(folder / STATE)
    if not listed:
        raise UserError(f"the dataset {folder} is empty; give one that holds texts")
    paths = [folder / Path(str(one["filename"])).name for one in listed]
    if missing := [path for path in paths if not path.is_file()]:
        raise UserError(f"{missing[0]} is missing from the dataset; save it again with `save_to_disk`")
    return paths


def _document(path: Path, folder: Path) -> dict[str, Any]:
    try:
        document = parse(read_small(path, inside=folder))
    except (OSError, ValueError):
        raise _damaged(path) from None
    if not isinstance(document, dict):
        raise _damaged(path)
    return document


def _damaged(path: Path) -> UserError:
    return UserError(f"{path} is damaged or missing; save the dataset again with `save_to_disk`")
