"""The cache on disk: used when whole, made again when damaged, replaced when it cannot be written."""

import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from backstory.data import Dataset, encoding
from backstory.storage import disk_cache
from backstory.storage.atomic import write_atomically
from backstory.utils.errors import UserError

Make = Callable[..., Dataset]
TEXT = b"the cat saw the dog\nthe dog saw the cat\n"


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that were built, in order."""
    done, build = [], encoding._build

    def counted(folder: Path, *rest: object) -> None:
        done.append(folder)
        build(folder, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(encoding, "_build", counted)
    return done


def test_a_second_time_nothing_is_made(corpus: Make, builds: list[Path], cache_folder: Path) -> None:
    first, second = corpus(TEXT), corpus(TEXT)
    assert len(builds) == 1
    assert isinstance(second.splits["train"].ids, np.memmap)
    assert not second.splits["train"].ids.flags.writeable
    assert np.array_equal(first.splits["train"].ids, second.splits["train"].ids)
    assert sorted(p.name for p in builds[0].iterdir()) == [
        *("dataset.json", "index.json", "test.ids", "train.ids", "valid.ids"),
    ]
    assert builds[0].parent == cache_folder


def test_changed_content_is_made_anew(corpus: Make, builds: list[Path]) -> None:
    corpus(TEXT)
    data = corpus(TEXT.replace(b"cat", b"cow"))
    assert len(set(builds)) == 2
    assert "cow" in data.vocabulary.index


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        middle = len(data) // 2
        flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        path.write_bytes({"flipped": flipped, "truncated": data[:-1], "appended": data + b" ", "empty": b""}[how])


@pytest.mark.parametrize("how", ["missing", "flipped", "truncated", "empty", "appended"])
@pytest.mark.parametrize("name", ["train.ids", "dataset.json", "index.json"])
def test_damage_is_noticed_and_repaired(name: str, how: str, corpus: Make, builds: list[Path]) -> None:
    corpus(TEXT)
    damage(builds[0] / name, how)
    data = corpus(TEXT)
    # White space after the index's closing brace is no damage: JSON ends with the brace.
    assert len(builds) == (1 if (name, how) == ("index.json", "appended") else 2)
    assert data.vocabulary.decode(data.splits["train"].ids) == TEXT.decode()
    assert disk_cache.intact(builds[0])


def test_an_unfinished_entry_is_made_again(corpus: Make, builds: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    write = encoding.write_atomically

    def killed(path: Path, blocks: object) -> None:
        if path.name == "test.ids":
            raise KeyboardInterrupt
        write(path, blocks)  # type: ignore[arg-type]

    monkeypatch.setattr(encoding, "write_atomically", killed)
    with pytest.raises(KeyboardInterrupt):
        corpus(TEXT)
    monkeypatch.setattr(encoding, "write_atomically", write)
    assert not disk_cache.intact(builds[0])
    assert len(corpus(TEXT).splits["test"].ids) == 3
    assert len(builds) == 2


def test_a_write_that_fails_leaves_the_old_file_and_no_temporary(tmp_path: Path) -> None:
    def failing() -> Iterator[bytes]:
        yield b"new"
        raise OSError(28, "No space left on device")

    write_atomically(tmp_path / "a", [b"old"])
    with pytest.raises(OSError, match="No space"):
        write_atomically(tmp_path / "a", failing())
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"


def test_a_refused_corpus_leaves_nothing(corpus: Make, cache_folder: Path) -> None:
    with pytest.raises(UserError):
        corpus(TEXT, test=b"\x00")
    assert list(cache_folder.iterdir()) == []


def test_old_temporaries_are_swept_and_young_ones_left(corpus: Make, builds: list[Path]) -> None:
    corpus(TEXT)
    old, young = builds[0] / ".tmp-1-train.ids", builds[0] / ".tmp-2-train.ids"
    for path in (old, young):
        path.write_bytes(b"half")
    hours_ago = time.time() - 7200
    os.utime(old, (hours_ago, hours_ago))
    damage(builds[0] / "train.ids", "flipped")
    corpus(TEXT)
    assert (old.exists(), young.exists()) == (False, True)


def test_no_clock_makes_the_file_of_a_living_writer_old(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()

    def write(folder: Path) -> None:
        write_atomically(folder / "a", b"whole")

    def write_slowly(folder: Path) -> None:
        def blocks() -> Iterator[bytes]:
            yield b"who"
            monkeypatch.setattr(time, "time", lambda: now + 86_400)
            assert disk_cache.fetch("entry", write) == folder  # another writer meanwhile
            yield b"le"

        write_atomically(folder / "a", blocks())

    entry = disk_cache.fetch("entry", write_slowly)
    assert entry == cache_folder / "entry" and disk_cache.intact(entry)
    assert sorted(path.name for path in entry.iterdir()) == ["a", "index.json"]


def test_a_cache_that_cannot_be_written_is_replaced(
    corpus: Make, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = tmp_path_factory.mktemp("blocked") / "file"
    blocked.write_text("a file where the folder should be")
    monkeypatch.setenv("BACKSTORY_CACHE", str(blocked))
    with pytest.warns(UserWarning, match="cannot write the cache .* set BACKSTORY_CACHE") as caught:
        data = corpus(TEXT)
    assert "\n" not in str(caught[0].message)
    assert data.vocabulary.decode(data.splits["train"].ids) == TEXT.decode()
    monkeypatch.setattr(disk_cache, "_temporary", lambda: blocked)
    with pytest.warns(UserWarning), pytest.raises(UserError, match="cannot write a temporary folder either"):
        corpus(TEXT)


def test_a_full_disk_keeps_nothing_unfinished(cache_folder: Path) -> None:
    """It would stay full."""

    def make(folder: Path) -> None:
        write_atomically(folder / "a", b"whole")
        if folder.parent == cache_folder:
            raise OSError(28, "No space left on device")

    with pytest.warns(UserWarning, match="No space left on device"):
        elsewhere = disk_cache.fetch("entry", make)
    assert disk_cache.intact(elsewhere) and list(cache_folder.iterdir()) == []


def test_it_is_said_once_that_the_cache_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BACKSTORY_CACHE", str(tmp_path / "file"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        disk_cache.fetch("one", lambda folder: write_atomically(folder / "a", b"whole"))
        disk_cache.fetch("two", lambda folder: write_atomically(folder / "a", b"whole"))
    assert len(caught) == 1


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKSTORY_CACHE", "~/somewhere")
    assert disk_cache.folder() == Path.home() / "somewhere"
    monkeypatch.delenv("BACKSTORY_CACHE")
    assert disk_cache.folder() == Path.home() / ".cache" / "backstory"


def test_without_a_home_folder_the_cache_is_to_be_named(corpus: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKSTORY_CACHE", "~nobody-is-called-so/cache")
    with pytest.raises(UserError, match="no home folder for the cache ~nobody-is-called-so/cache; set BACKSTORY_CACHE"):
        corpus(TEXT)
    monkeypatch.delenv("BACKSTORY_CACHE")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # of a user without a name, as in a container
    with pytest.raises(UserError, match=r"no home folder for the cache ~/\.cache/backstory; set BACKSTORY_CACHE"):
        corpus(TEXT)
