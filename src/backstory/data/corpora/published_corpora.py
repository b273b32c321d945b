"""Published corpora: their files, the public servers that have them, their hashes, and the folders they are kept in.

The SHA-256 of archives, of enwik8 and of text8 are those that many independent projects record for the same addresses;
those of the files of ptb and wikitext-2 are of the canonical files. The unpacked files of wikitext-103 have none on
record: their archive has, and what was unpacked first is what they must stay.
"""

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from backstory.data.corpora import text_files
from backstory.data.corpora.download import ExpectedFile, Limits, download, unpack
from backstory.data.corpora.text_files import Source
from backstory.storage import disk_cache
from backstory.storage.atomic import (
    TEMPORARY,
    fsync_file,
    fsync_folder,
    naming,
    sweep_temporaries,
    within,
    write_atomically,
)
from backstory.storage.documents import parse
from backstory.storage.lock import locked
from backstory.utils.errors import UserError, pasted
from backstory.utils.small_file import read_small, resolved, user_path
from backstory.utils.terminal import ProgressCallback


@dataclass(frozen=True)
class Download:
    """One download: the addresses that serve identical bytes, tried in turn.

    `files` maps the corpus files in it to the members of a zip archive, which `archive` describes; a download that is itself
    the file maps its name to an empty member.
    """

    urls: tuple[str, ...]
    files: dict[str, str]
    archive: ExpectedFile | None = None


@dataclass(frozen=True)
class PublishedCorpus:
    """Files of a corpus, in the folder of its name, and the downloads that contain them, if there are any."""

    files: dict[str, ExpectedFile]
    downloads: tuple[Download, ...] = ()

    @property
    def megabytes(self) -> int:
        """Maximum size of all downloads in MB."""
        most = sum(d.archive.most if d.archive else sum(self.files[f].most for f in d.files) for d in self.downloads)
        return -(-most // 1_000_000)


def _files(*rows: tuple[str, int, str | None]) -> dict[str, ExpectedFile]:
    return {name: ExpectedFile(most, sha256) for name, most, sha256 in rows}


def _ptb(name: str) -> Download:
    homes = ("wojzaremba", "tomsercu")
    return Download(
        tuple(f"https://raw.githubusercontent.com/{home}/lstm/master/data/{name}" for home in homes), {name: ""}
    )


def _wikitext(name: str, most: int, sha256: str) -> Download:
    members = {f"wiki.{split}.tokens": f"{name}/wiki.{split}.tokens" for split in ("train", "valid", "test")}
    return Download((f"https://wikitext.smerity.com/{name}-v1.zip",), members, ExpectedFile(most, sha256))


def _mahoney(name: str, most: int, sha256: str) -> Download:
    homes = ("https://mattmahoney.net/dc", "http://mattmahoney.net/dc", "https://data.deepai.org")
    return Download(tuple(f"{home}/{name}.zip" for home in homes), {name: name}, ExpectedFile(most, sha256))


PUBLISHED: dict[str, PublishedCorpus] = {
    "ptb": PublishedCorpus(
        _files(
            ("ptb.train.txt", 5_101_618, "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf"),
            ("ptb.valid.txt", 399_782, "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2"),
            ("ptb.test.txt", 449_945, "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0"),
        ),
        (_ptb("ptb.train.txt"), _ptb("ptb.valid.txt"), _ptb("ptb.test.txt")),
    ),
    "wikitext-2": PublishedCorpus(
        _files(
            ("wiki.train.tokens", 10_797_148, "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f"),
            ("wiki.valid.tokens", 1_121_681, "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8"),
            ("wiki.test.tokens", 1_256_449, "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0"),
        ),
        (_wikitext("wikitext-2", 5_000_000, "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c"),),
    ),
    "wikitext-103": PublishedCorpus(
        _files(
            ("wiki.train.tokens", 700_000_000, None),
            ("wiki.valid.tokens", 2_000_000, None),
            ("wiki.test.tokens", 2_000_000, None),
        ),
        (_wikitext("wikitext-103", 200_000_000, "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590"),),
    ),
    "enwik8": PublishedCorpus(
        _files(("enwik8", 100_000_000, "2b49720ec4d78c3c9fabaee6e4179a5e997302b3a70029f30f2d582218c024a8")),
        (_mahoney("enwik8", 36_445_475, "547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc"),),
    ),
    "enwik8-prefix": PublishedCorpus(
        _files(("enwik8.prefix", 4_154_399, "d502ac7ecb9dd47a062e7d19b8dcd3c753b07c142e48b13dcd521cb747116bdd")),
    ),
    "text8": PublishedCorpus(
        _files(("text8", 100_000_000, "6e890197040d37d85beb962ae1f041ff1d9a9ca8d20c7d99c85027eebf51dca7")),
        (_mahoney("text8", 31_344_016, "a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232"),),
    ),
}
"""Published corpora by name."""

TAGS: dict[str, dict[str, str]] = {
    "ptb": {split: f"pos/penn/{split}.txt" for split in ("train", "valid", "test")},
    "wikitext-2": {split: f"pos/wt2/{split}.txt" for split in ("valid", "test")},
}
"""Files of part-of-speech tags by corpus and split, in the data folder: one line per line, one tag per word, no `<eos>`."""


RECORD = "download.json"
"""File beside downloaded files with their sizes, hashes and addresses.

It is written before they are moved there, so that files left by a killed process are recognised.
"""

AS_PUBLISHED = "SHA-256 as published"
"""Provenance of files that are the published ones, byte for byte."""

LIMITS = Limits()
"""Limits on slow public servers."""

Hashes = dict[str, str]
"""SHA-256 (hex) by file name."""


def find(name: str, data_dir: Path | None) -> tuple[Path, str]:
    """Return the folder of a published corpus, and a phrase that says how its files were checked.

    It is the folder of that name in `data_dir`, or, without it, in BACKSTORY_DATA, else in the cache's data folder. Raises
    UserError if files are missing, cannot be read, or are no longer those that were downloaded.
    """
    published, folders = PUBLISHED[name], _data_folders(data_dir)
    if (folder := _first_complete(name, folders)) is not None:
        return folder, _checked(folder, published, _command(name, data_dir))
    inside = resolved(folders[0])
    if inside.name == name and not _missing(inside, published):
        raise UserError(
            f"{folders[0]} is the folder of {name} itself; give the folder above it: --data-dir {inside.parent}"
        )
    missing = ", ".join(f"{name}/{file}" for file in _missing(folders[0] / name, published))
    # Only `data prepare` downloads.
    get = f"run `{_command(name, data_dir)}` to download up to {published.megabytes:,} MB, or "
    raise UserError(
        f"the data folder {folders[0]} lacks {missing}; {get if published.downloads else ''}"
        "pass --data-dir or set BACKSTORY_DATA to the folder that holds them"
    )


def beside(path: str, data_dir: Path | None) -> Path | None:
    """Return a file of the first data folder that has it, by its path in the folder, or None."""
    return next((folder / path for folder in _data_folders(data_dir) if os.path.isfile(folder / path)), None)


def fetch(name: str, data_dir: Path | None, progress: ProgressCallback) -> Path | None:
    """Download a published corpus into `data_dir`, else into the cache's data folder, unless it is there.

    Returns its folder, or None if there was nothing to do. A failure leaves nothing behind. `progress` is called for every
    download separately. Raises UserError for downloads that fail, that are not the published files or not those of the first
    download, and if other files are in the way.
    """
    published, folders = PUBLISHED[name], _data_folders(data_dir)
    folder = _first_complete(name, folders)
    if not published.downloads or (folder and _intact(folder, published)):
        return None
    folder = within(*(folder.parent, folder.name) if folder else (folders[-1], name))  # links are read, not written to
    with locked(folder, "download", "--data-dir"):
        sweep_temporaries(folder)
        if _intact(folder, published):  # by a process that held the lock until now
            return None
        recorded = _recorded(folder)
        if recorded is None and len(_missing(folder, published)) < len(published.files):
            raise UserError(f"{folder} holds some files of {name} that were not downloaded; move them out of the way")
        with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=folder) as temporary:
            staging = Path(temporary)
            with naming(folder, staging):
                urls = [_download(d, published, staging, progress) for d in published.downloads]
                hashes = _hashes(staging, published)
                _check_hashes(name, hashes, recorded or {})
                _install(staging, folder, hashes, urls, first=recorded is None)
    return folder


def _data_folders(data_dir: Path | None) -> list[Path]:
    """Return the data folders to search, in this order; downloads go into the last one."""
    named = os.environ.get("BACKSTORY_DATA")
    if data_dir is not None:
        return [user_path(data_dir)]
    return [*([user_path(named)] if named else []), disk_cache.folder() / "data"]


def _first_complete(name: str, folders: list[Path]) -> Path | None:
    """Return the folder of the corpus in the first data folder that has all its files."""
    return next((folder / name for folder in folders if not _missing(folder / name, PUBLISHED[name])), None)


def _missing(folder: Path, published: PublishedCorpus) -> list[str]:
    return [name for name in published.files if not os.path.isfile(folder / name)]


def _recorded(folder: Path) -> Hashes | None:
    """Return the hashes of downloaded files; None for files that were not downloaded, none at all if the record is damaged."""
    try:
        files = parse(read_small(folder / RECORD, inside=folder))["files"]
        return {str(name): str(file["sha256"]) for name, file in files.items()}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _hashes(folder: Path, published: PublishedCorpus) -> Hashes:
    return {name: text_files.digest(Source(folder / name)) for name in published.files}


def _as_published(hashes: Hashes, known: dict[str, ExpectedFile]) -> bool:
    """Return True if every file has its published hash, or none is known."""
    return all(known[name].sha256 in (None, sha) for name, sha in hashes.items())


def _intact(folder: Path, published: PublishedCorpus) -> bool:
    """Return True if all files exist and, if they were downloaded, have not changed."""
    return not _missing(folder, published) and _recorded(folder) in (None, _hashes(folder, published))


def _command(name: str, data_dir: Path | None) -> str:
    return f"backstory data prepare {name}" + (f" --data-dir {pasted(data_dir)}" if data_dir else "")


def _checked(folder: Path, published: PublishedCorpus, command: str) -> str:
    recorded, hashes = _recorded(folder), _hashes(folder, published)
    if recorded not in (None, hashes):
        raise UserError(f"the files in {folder} are not what was downloaded; run `{command}` to repair them")
    if not _as_published(hashes, published.files):
        return "NOT the published files (SHA-256 differs)"
    if all(file.sha256 for file in published.files.values()):
        return AS_PUBLISHED
    return "SHA-256 unchanged since the download" if recorded else "no SHA-256 is known to check these files by"


def _download(source: Download, published: PublishedCorpus, staging: Path, progress: ProgressCallback) -> str:
    """Download files into the staging folder, and return the address they came from."""
    if source.archive is None:
        (name,) = source.files
        return download(source.urls, published.files[name], staging / name, progress, LIMITS)
    archive = staging / f"{TEMPORARY}archive"
    url = download(source.urls, source.archive, archive, progress, LIMITS)
    unpack(archive, url, source.files, published.files, staging)
    archive.unlink()
    return url


def _check_hashes(name: str, hashes: Hashes, recorded: Hashes) -> None:
    """Raise UserError unless files are as published and, where that is not known, as in the first download."""
    known = PUBLISHED[name].files
    if not _as_published(hashes, known):
        raise UserError(f"the download is not {name} as it was published (its SHA-256 differs); try again later")
    changed = [n for n, sha in recorded.items() if n in hashes and hashes[n] != sha and not known[n].sha256]
    if changed:
        raise UserError(
            f"{', '.join(changed)} of {name} differs from the first download (by its SHA-256); "
            f"remove {RECORD} in its folder to accept the new one"
        )


def _install(staging: Path, folder: Path, hashes: Hashes, urls: list[str], first: bool) -> None:
    """Move the files into their folder, all or none. `first` is True if the folder holds nothing of this corpus yet.

    Their record is written before. A file that is there already, undamaged, stays.
    """
    record = {name: {"bytes": text_files.size(staging / name), "sha256": sha} for name, sha in hashes.items()}
    moved = [
        n for n, sha in hashes.items() if not (folder / n).is_file() or text_files.digest(Source(folder / n)) != sha
    ]
    for name in moved:
        fsync_file(staging / name)
    try:
        write_atomically(folder / RECORD, json.dumps({"from": urls, "files": record}, indent=1) + "\n")
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
