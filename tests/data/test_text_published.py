"""Published corpora: search order, errors for missing ones, and extent of the checks."""

import io
import stat
import tempfile
import zipfile
from email.message import Message
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstory.config.schema import SPLITS, TextConfig
from backstory.data import CORPORA, PUBLISHED, fetch, find, prepare
from backstory.data.corpora.download import ExpectedFile, _Redirects, unpack
from backstory.data.corpora.text_files import raw_blocks
from backstory.utils.errors import UserError


def ignore(done: int, total: int) -> None:
    pass


def put(place: Path, name: str, content: bytes = b" \n = A = \n \n a b . \n") -> Path:
    """Files in the places of a corpus's own."""
    (place / name).mkdir(parents=True)
    for file in PUBLISHED[name].files:
        (place / name / file).write_bytes(content)
    return place / name


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_corpus_that_is_not_there_is_not_downloaded_on_the_way(
    name: str, tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BACKSTORY_DATA", raising=False)
    with pytest.raises(UserError, match="--data-dir or set BACKSTORY_DATA") as caught:
        prepare(TextConfig(corpus=name))
    message = str(caught.value)
    assert f"the data folder {cache_folder / 'data'} lacks {name}/" in message and "\n" not in message
    assert (f"run `backstory data prepare {name}` to download" in message) == (name != "enwik8-prefix")
    monkeypatch.setenv("BACKSTORY_DATA", str(tmp_path))
    with pytest.raises(UserError, match=f"the data folder {tmp_path} lacks"):
        find(name)
    assert list(cache_folder.iterdir()) == []


def test_the_folder_above_a_corpus_is_the_data_folder(tmp_path: Path) -> None:
    folder = put(tmp_path, "ptb")
    with pytest.raises(UserError, match=f"ptb is the folder of ptb itself; .*: --data-dir {tmp_path}$"):
        find("ptb", folder)


def test_the_order_of_the_data_folders(tmp_path: Path, cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(data_dir: Path | None = None) -> Path:
        return find("ptb", data_dir).sources["train"][0].path.parent

    monkeypatch.setenv("BACKSTORY_DATA", str(tmp_path / "named"))
    assert put(cache_folder / "data", "ptb") == found()
    assert put(tmp_path / "named", "ptb") == found()
    with pytest.raises(UserError, match=r"given lacks .* run `backstory data prepare ptb --data-dir .*given` to"):
        found(tmp_path / "given")
    assert put(tmp_path / "given", "ptb") == found(tmp_path / "given")


@pytest.mark.parametrize("name", ["ptb", "wikitext-2", "enwik8-prefix"])
def test_the_real_files_are_those_published(name: str, data_folder: Path) -> None:
    assert find(name, data_folder).provenance.endswith("; SHA-256 as published")
    fetch(name, data_folder, ignore)  # finds nothing to do


@pytest.mark.parametrize(
    ("name", "says"), [("ptb", "NOT the published files"), ("wikitext-103", "no SHA-256 is known to check these files")]
)
def test_other_files_are_used_and_called_so(name: str, says: str, tmp_path: Path) -> None:
    put(tmp_path, name)
    assert says in prepare(TextConfig(corpus=name), tmp_path).provenance
    fetch(name, tmp_path, ignore)


def test_wikitext_103_is_cut_into_articles(tmp_path: Path) -> None:
    put(tmp_path, "wikitext-103", b" \n = First = \n \n a b \n \n = Second = \n \n c d \n")
    assert prepare(TextConfig(corpus="wikitext-103"), tmp_path).splits["train"].titles == ["First", "Second"]


def test_files_that_changed_since_their_download_are_refused(tmp_path: Path) -> None:
    (put(tmp_path, "wikitext-103") / "download.json").write_text('{"files": {"wiki.train.tokens": {"sha256": "0"}}}')
    with pytest.raises(UserError, match=r"not what was downloaded; run `.* wikitext-103 --data-dir .*` to repair"):
        find("wikitext-103", tmp_path)


@pytest.mark.parametrize("name", ["enwik8", "text8"])
def test_a_hundred_million_bytes_are_cut_at_90_and_95(name: str, tmp_path: Path) -> None:
    file = put(tmp_path, name) / name
    with pytest.raises(UserError, match=f"has .* bytes, not 100,000,000, so it is not {name}"):
        find(name, tmp_path)
    with file.open("wb") as sparse:
        sparse.truncate(100_000_000)
    stretches = [find(name, tmp_path).sources[split][0] for split in SPLITS]
    assert [(s.start, s.end) for s in stretches] == [
        (0, 90_000_000),
        (90_000_000, 95_000_000),
        (95_000_000, 100_000_000),
    ]


def test_the_prefix_of_enwik8_is_called_a_prefix(data_folder: Path) -> None:
    corpus = find("enwik8-prefix", data_folder)
    assert "prefix" in corpus.name and "prefix" in corpus.provenance and "not comparable" in corpus.provenance
    parts = [b"".join(raw_blocks(source)) for split in SPLITS for source in corpus.sources[split]]
    assert b"".join(parts) == (data_folder / "enwik8-prefix" / "enwik8.prefix").read_bytes()
    assert [len(part) for part in parts] == [3_738_959, 207_720, 207_720]


def test_what_is_published_fits_together() -> None:
    assert set(PUBLISHED) < set(CORPORA)
    for name, published in PUBLISHED.items():
        brought = [file for wanted in published.downloads for file in wanted.files]
        assert brought == (list(published.files) if published.downloads else []), name
        assert all(url.startswith("http") for wanted in published.downloads for url in wanted.urls)
        for wanted in published.downloads:  # over the open network, nothing is believed without a hash
            assert (wanted.archive or published.files[next(iter(wanted.files))]).sha256 is not None, name


@pytest.mark.parametrize(
    ("before", "after", "allowed"),
    [
        ("http", "https", True),
        ("https", "https", True),
        ("http", "http", True),
        ("https", "http", False),
        ("https", "ftp", False),
        ("http", "ftp", False),
        ("http", "file", False),
        ("http", "data", False),
    ],
)
def test_where_a_redirect_may_lead(before: str, after: str, allowed: bool) -> None:
    handler, request = _Redirects(), Request(f"{before}://a.example/x")
    given = (request, io.BytesIO(), 302, "Found", Message(), f"{after}://b.example/y")
    if allowed:
        redirected = handler.redirect_request(*given)
        assert redirected is not None and redirected.full_url == f"{after}://b.example/y"
    else:
        with pytest.raises(HTTPError) as caught:
            handler.redirect_request(*given)
        caught.value.close()


PARTS = st.sampled_from(["a", "b", "..", ".", "", "C:", "a\\..", "\\", "~", "wanted"])


@given(
    st.lists(
        st.tuples(st.lists(PARTS, min_size=1, max_size=4).map("/".join), st.booleans()),
        max_size=4,
        unique_by=lambda m: m[0],
    )
)
def test_an_archive_is_refused_or_gives_only_what_is_wanted(members: list[tuple[str, bool]]) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("in/wanted", b"text")
        for name, link in members:
            if name.strip("/") and name != "in/wanted":
                info = zipfile.ZipInfo(name)
                info.external_attr = ((stat.S_IFLNK | 0o777) if link else 0) << 16
                archive.writestr(info, b"../../outside")
    with tempfile.TemporaryDirectory() as outer:
        folder, packed = Path(outer, "x", "y"), Path(outer, "archive")
        folder.mkdir(parents=True)
        packed.write_bytes(buffer.getvalue())
        careless = any(
            link or ".." in name.replace("\\", "/").split("/") or name.startswith(("/", "\\")) or name.startswith("C:")
            for name, link in members
            if name.strip("/")
        )
        try:
            unpack(packed, "http://a.example", {"kept": "in/wanted"}, {"kept": ExpectedFile(4)}, folder)
            assert not careless
        except UserError:
            assert careless
        files = {str(path.relative_to(outer)) for path in Path(outer).rglob("*") if not path.is_dir()}
        assert files == {"archive"} | (set() if careless else {"x/y/kept"})
