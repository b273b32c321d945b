"""The wanted members of a zip archive, unpacked within bounds; an archive with anything suspicious in it is refused."""

import stat
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PureWindowsPath

from backstory.config.errors import UserError
from backstory.data.published_corpora import File

BLOCK = 1 << 20
"""Bytes unpacked at once."""


def unpack(archive: Path, url: str, members: Mapping[str, str], known: Mapping[str, File], folder: Path) -> None:
    """Write members into a folder, each under the name that `members` maps to it; `url` says where the archive is from.

    Raises UserError for what is not a zip archive or a damaged one; for members that lead outside a folder, are links,
    or hold more than they may; and where one is missing. What was written by then is the caller's to remove.
    """
    try:
        with zipfile.ZipFile(archive) as zipped:
            for info in zipped.infolist():
                _check(info, url)
            for name, member in members.items():
                _extract(zipped, _only(zipped, member, url), known[name].most, folder / name, url)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError):
        raise UserError(f"{url} serves no zip archive, or a damaged one; try again later") from None


def _check(info: zipfile.ZipInfo, url: str) -> None:
    """Refuse the archive for any member that a careless program would write elsewhere, wanted or not."""
    path = PureWindowsPath(info.filename)  # takes both kinds of slash, and drives
    if path.anchor or ".." in path.parts:
        raise UserError(f"the archive {url} holds a file whose name leads out of its folder, so it is not unpacked")
    mode = info.external_attr >> 16
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise UserError(f"the archive {url} holds a link or a device, so it is not unpacked")


def _only(zipped: zipfile.ZipFile, member: str, url: str) -> zipfile.ZipInfo:
    found = [info for info in zipped.infolist() if info.filename == member and not info.is_dir()]
    if len(found) != 1:
        raise UserError(
            f"the archive {url} holds {len(found) or 'no'} {member}, not one, so it is not the one expected"
        )
    # The other methods unpack all they are given at once, however much that comes to.
    if found[0].compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise UserError(f"the archive {url} is packed by an unusual method, so it is not unpacked")
    return found[0]


def _extract(zipped: zipfile.ZipFile, info: zipfile.ZipInfo, most: int, target: Path, url: str) -> None:
    """Write one member, block by block, up to `most` bytes whatever the archive says of its size."""
    size = 0
    with zipped.open(info) as source, target.open("xb") as file:
        while block := source.read(BLOCK):
            size += len(block)
            if size > most:
                raise UserError(f"{info.filename} in {url} unpacks to more than the {most:,} bytes there should be")
            file.write(block)
