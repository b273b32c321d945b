"""Where published corpora lie on this machine: looked up in data folders, or downloaded into one."""

import json
import os
import tempfile
from pathlib import Path

from backstory.config.errors import UserError, pasted
from backstory.config.small_file import read_small
from backstory.data import disk_cache as cache
from backstory.data import files
from backstory.data.archive import unpack
from backstory.data.download import Patience, Told, download
from backstory.data.files import Source
from backstory.data.published_corpora import PUBLISHED, Download, File, Published
from backstory.storage.atomic import TEMPORARY, fsync_file, fsync_folder, sweep_temporaries, within, write_atomically
from backstory.storage.documents import parse
from backstory.storage.lock import locked

RECORD = "download.json"
"""Beside downloaded files: their sizes and hashes and where they came from.

Written before the first of them is in its place, so what a killed process leaves is known to be a download, and of what.
"""

AS_PUBLISHED = "SHA-256 as published"
"""What is said of files that are those published, byte for byte."""

PATIENCE = Patience()
"""How long the public homes are waited for."""

Hashes = dict[str, str]
"""SHA-256 (hex) by file name."""


def find(name: str, data_dir: Path | None) -> tuple[Path, str]:
    """The folder with the files of a published corpus, and a phrase that says how far they were checked.

    It is the folder of that name in `data_dir`, or, where none is given, in BACKSTORY_DATA, else in the cache's data
    folder. Raises UserError where files are missing, cannot be read, or are no longer what was downloaded.
    """
    published, places = PUBLISHED[name], _places(data_dir)
    if (folder := _first(name, places)) is not None:
        return folder, _checked(folder, published, _command(name, data_dir))
    lacked = ", ".join(f"{name}/{file}" for file in _missing(places[0] / name, published))
    # Never the first step of something else: a download is asked for by its own command.
    get = f"run `{_command(name, data_dir)}` to download up to {published.megabytes:,} MB, or "
    raise UserError(
        f"the data folder {places[0]} lacks {lacked}; {get if published.downloads else ''}"
        "pass --data-dir or set BACKSTORY_DATA to the folder that holds them"
    )


def beside(path: str, data_dir: Path | None) -> Path | None:
    """A file that may lie beside the corpora, by its path in a data folder: the first data folder's that has it, or None."""
    return next((place / path for place in _places(data_dir) if os.path.isfile(place / path)), None)


def fetch(name: str, data_dir: Path | None, told: Told) -> Path | None:
    """Download a published corpus into `data_dir`, else the cache's data folder, unless `find` finds it whole.

    Returns the folder that it went into, None where nothing was needed. Whatever fails leaves nothing behind. Raises
    UserError for downloads that fail, are not what is published or not what was downloaded before, and for files of
    someone else's in the way. `told` hears of every download on its own.
    """
    published, places = PUBLISHED[name], _places(data_dir)
    folder = _first(name, places)
    if not published.downloads or (folder and _whole(folder, published)):
        return None
    folder = within(*(folder.parent, folder.name) if folder else (places[-1], name))  # a link is read, not written to
    with locked(folder, "download", "--data-dir"):
        sweep_temporaries(folder)
        if _whole(folder, published):  # by a process that held the lock until now
            return None
        record = _record(folder)
        if record is None and len(_missing(folder, published)) < len(published.files):
            raise UserError(f"{folder} holds some files of {name} that were not downloaded; move them out of the way")
        with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=folder) as staging:
            urls = [_one(d, published, Path(staging), told) for d in published.downloads]
            hashes = _compare(name, Path(staging), published, (record or {}).get("files", {}))
            _place(Path(staging), folder, hashes, urls, first=record is None)
    return folder


def _places(data_dir: Path | None) -> list[Path]:
    """The data folders to look in, in their order; a download goes into the last one."""
    named = os.environ.get("BACKSTORY_DATA")
    if data_dir is not None:
        return [Path(os.path.expanduser(data_dir))]
    return [*([Path(os.path.expanduser(named))] if named else []), cache.folder() / "data"]


def _first(name: str, places: list[Path]) -> Path | None:
    """The corpus's folder in the first data folder that has all its files."""
    return next((place / name for place in places if not _missing(place / name, PUBLISHED[name])), None)


def _missing(folder: Path, published: Published) -> list[str]:
    return [name for name in published.files if not os.path.isfile(folder / name)]


def _record(folder: Path) -> dict | None:
    """What was written of the files that are downloaded; None for files that are not, an empty one if it is damaged."""
    try:
        record = parse(read_small(folder / RECORD, inside=folder))
        return {"files": {str(n): str(f["sha256"]) for n, f in record["files"].items()}}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _hashes(folder: Path, published: Published) -> Hashes:
    return {name: files.digest(Source(folder / name)) for name in published.files}


def _as_published(hashes: Hashes, known: dict[str, File]) -> bool:
    """Whether no file differs from its published hash, where it has one."""
    return all(known[name].sha256 in (None, sha) for name, sha in hashes.items())


def _whole(folder: Path, published: Published) -> bool:
    """Whether all files are there and, if they were downloaded, as they were then."""
    if _missing(folder, published):
        return False
    record = _record(folder)
    return record is None or record.get("files") == _hashes(folder, published)


def _command(name: str, data_dir: Path | None) -> str:
    return f"backstory data prepare {name}" + (f" --data-dir {pasted(data_dir)}" if data_dir else "")


def _checked(folder: Path, published: Published, command: str) -> str:
    record, hashes = _record(folder), _hashes(folder, published)
    if record is not None and record.get("files") != hashes:
        raise UserError(f"the files in {folder} are not what was downloaded; run `{command}` to repair them")
    if not _as_published(hashes, published.files):
        return "NOT the published files (SHA-256 differs)"
    if all(file.sha256 for file in published.files.values()):
        return AS_PUBLISHED
    return "SHA-256 unchanged since the download" if record else "no SHA-256 is known to check these files by"


def _one(wanted: Download, published: Published, staging: Path, told: Told) -> str:
    """Bring the files of one download into the staging folder; returns the address they came from."""
    if wanted.archive is None:
        (name,) = wanted.files
        return download(wanted.urls, published.files[name], staging / name, told, PATIENCE)
    archive = staging / f"{TEMPORARY}archive"
    url = download(wanted.urls, wanted.archive, archive, told, PATIENCE)
    unpack(archive, url, wanted.files, published.files, staging)
    archive.unlink()
    return url


def _compare(name: str, staging: Path, published: Published, before: Hashes) -> Hashes:
    """The hashes of what came. Raises UserError unless it is what is published, and what came the first time."""
    hashes = _hashes(staging, published)
    if not _as_published(hashes, published.files):
        raise UserError(f"what was downloaded is not {name} as it was published (its SHA-256 differs); try again later")
    changed = [n for n, sha in before.items() if n in hashes and hashes[n] != sha and not published.files[n].sha256]
    if changed:
        raise UserError(
            f"{', '.join(changed)} of {name} is not what the first download brought (its SHA-256 differs); "
            f"remove {RECORD} beside it to take the new one"
        )
    return hashes


def _place(staging: Path, folder: Path, hashes: Hashes, urls: list[str], first: bool) -> None:
    """Move the files where they belong, all or none; `first`: the folder holds nothing of this corpus yet.

    Their record is written before, and a file that is there already, as it should be, stays.
    """
    listed = {name: {"bytes": files.size(staging / name), "sha256": sha} for name, sha in hashes.items()}
    moved = [name for name, sha in hashes.items() if not _holds(folder / name, sha)]
    for name in moved:
        fsync_file(staging / name)
    try:
        write_atomically(folder / RECORD, json.dumps({"from": urls, "files": listed}, indent=1) + "\n")
        for name in moved:
            os.replace(staging / name, folder / name)
        fsync_folder(folder)
    except BaseException:
        for name in moved:
            if not (staging / name).exists():
                (folder / name).unlink(missing_ok=True)
        if first:
            (folder / RECORD).unlink(missing_ok=True)
        raise


def _holds(path: Path, sha: str) -> bool:
    return path.is_file() and files.digest(Source(path)) == sha
