"""Corpora in common file formats: compressed, JSON Lines, tables, saved datasets; and unusable or damaged files."""

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tiers import fast_then_full

from backstory.config.schema import SPLITS, TextConfig
from backstory.data import Dataset, find, prepare
from backstory.data.corpora import file_formats, unpacking
from backstory.data.corpora.catalogue import find_text
from backstory.data.corpora.unpacking import TextReader
from backstory.utils.errors import UserError

TEXTS = [f'the cat {i} sat\non the {"red " * (i % 5)}mat, "it" said' for i in range(200)]
PLAIN = "".join(f"{text}\n" for text in TEXTS)
RECORDS = [{"id": i, "text": text, "other": f"dog {text}"} for i, text in enumerate(TEXTS)]
LINES = "".join(json.dumps(record) + "\n" for record in RECORDS)


def zstd(data: bytes) -> bytes:
    return pytest.importorskip("zstandard").ZstdCompressor().compress(data)


def table(delimiter: str) -> bytes:
    written = io.StringIO(newline="")
    rows = csv.DictWriter(written, ["id", "text", "other"], delimiter=delimiter)
    rows.writeheader()
    rows.writerows(RECORDS)
    return written.getvalue().encode()


def parquet(columns: dict[str, list[object]]) -> bytes:
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    file = io.BytesIO()
    pyarrow.parquet.write_table(arrow.table(columns), file)
    return file.getvalue()


def prepared(path: Path, **settings: object) -> Dataset:
    return prepare(TextConfig(corpus=str(path), **settings))  # type: ignore[arg-type]


def text_of(data: Dataset) -> str:
    return "".join(data.vocabulary.decode(data.splits[split].ids) for split in SPLITS)


COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstd,
}


@pytest.mark.parametrize("suffix", fast_then_full(COMPRESSED, [".gz", ".zst"]))
def test_a_compressed_text_is_the_same_corpus_as_the_text(suffix: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(PLAIN)
    packed = tmp_path / f"a.txt{suffix}"
    packed.write_bytes(COMPRESSED[suffix](PLAIN.encode()))
    plain, unpacked = prepared(tmp_path / "a.txt"), prepared(packed)
    assert plain.fingerprint == unpacked.fingerprint
    assert unpacked.provenance == f"the file {packed.name}, cut into 90, 5 and 5 percent"
    for split in SPLITS:
        assert np.array_equal(plain.splits[split].ids, unpacked.splits[split].ids)


@pytest.mark.parametrize("suffix", fast_then_full(COMPRESSED, [".gz", ".zst"]))
def test_several_compressed_parts_in_a_row_are_one_text(suffix: str, tmp_path: Path) -> None:
    pack, half = COMPRESSED[suffix], len(PLAIN) // 2
    path = tmp_path / f"a.txt{suffix}"
    path.write_bytes(pack(PLAIN[:half].encode()) + pack(PLAIN[half:].encode()))
    assert text_of(prepared(path, tokenizer="characters")) == PLAIN


@pytest.mark.skipif(shutil.which("gzip") is None, reason="needs gzip")
def test_a_file_of_the_real_gzip(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(PLAIN)
    subprocess.run(["gzip", "-k", "a.txt"], cwd=tmp_path, check=True)
    assert text_of(prepared(tmp_path / "a.txt.gz", tokenizer="bytes")) == PLAIN


FORMATS: dict[str, Callable[[], bytes]] = {
    ".jsonl": LINES.encode,
    ".jsonl.gz": lambda: gzip.compress(LINES.encode()),
    ".jsonl.zst": lambda: zstd(LINES.encode()),
    ".json": lambda: json.dumps(RECORDS, indent=1).encode(),
    ".csv": lambda: table(","),
    ".tsv": lambda: table("\t"),
    ".csv.gz": lambda: gzip.compress(table(",")),
    ".parquet": lambda: parquet({key: [record[key] for record in RECORDS] for key in RECORDS[0]}),
}


@pytest.mark.parametrize("suffix", fast_then_full(FORMATS, [".jsonl.gz", ".csv", ".parquet"]))
def test_each_record_is_a_document(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(FORMATS[suffix]())
    data = prepared(path, tokenizer="characters")
    documents = [
        data.vocabulary.decode(data.splits[split].ids[first:last])
        for split in SPLITS
        for first, last in data.splits[split].spans()
    ]
    assert documents == [f"{text}\n" for text in TEXTS]
    assert [len(data.splits[split].documents) for split in SPLITS] == [180, 10, 10]
    assert [data.splits[split].titles[0] for split in SPLITS] == ["a 1", "a 181", "a 191"]
    assert data.provenance == f"the 200 texts in the field text of a{suffix}, cut into 90, 5 and 5 percent"
    other = prepared(path, tokenizer="characters", field="other")
    assert other.fingerprint != data.fingerprint and "dog the cat 7 sat" in text_of(other)


def test_a_changed_record_file_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(LINES)
    first = prepared(path)
    path.write_text(LINES.replace("mat", "hat"))
    assert "hat" in text_of(prepared(path)) and prepared(path).fingerprint != first.fingerprint


def test_a_csv_with_a_mark_and_crlf_as_spreadsheets_write_it(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    path = tmp_path / "a.csv"
    pandas.DataFrame(RECORDS).to_csv(path, index=False, encoding="utf-8-sig", lineterminator="\r\n")
    assert text_of(prepared(path, tokenizer="characters")) == PLAIN


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "utf-32"])
def test_a_text_with_a_byte_order_mark(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(PLAIN.replace("\n", "\r\n").encode(encoding))
    assert text_of(prepared(path, tokenizer="characters")) == PLAIN
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(PLAIN.encode(encoding)))
    assert text_of(prepared(tmp_path / "b.txt.gz", tokenizer="characters")) == PLAIN


def test_few_or_uneven_records_are_cut_inside(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("one\n", PLAIN, "mat\n")))
    data = prepared(path, tokenizer="characters")
    assert text_of(data) == f"one\n{PLAIN}mat\n"
    assert len(data.splits["train"].ids) == pytest.approx(0.9 * len(PLAIN), rel=0.02)
    assert data.splits["train"].documents.tolist() == [0, 4]


def test_strange_characters_in_records_keep_to_the_rules_of_texts(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(LINES.replace("cat 9 ", "cat\\u0000 ", 1))
    with pytest.raises(UserError, match=r"document 10 of .*a\.jsonl is binary \(a NUL at byte 7\)"):
        prepared(path)
    assert "cat\0" in text_of(prepared(path, tokenizer="bytes"))
    path.write_text(LINES.replace("cat 9 ", "cat\\ud800 ", 1))
    with pytest.raises(UserError, match=r"record 10 of .* lone surrogate"):
        prepared(path)
    path.write_text(LINES.replace("cat 9 ", "\\ufeffcat\\r\\n9\\u2028", 1))
    assert "the \ufeffcat\n9\u2028sat" in text_of(prepared(path, tokenizer="characters"))


# --- folders ---


def test_a_saved_dataset_with_its_splits(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    names = {"train": TEXTS[:100], "validation": TEXTS[100:150], "test": TEXTS[150:]}
    saved = {name: datasets.Dataset.from_dict({"text": part, "n": [1] * len(part)}) for name, part in names.items()}
    datasets.DatasetDict(saved).save_to_disk(tmp_path / "set", num_shards={name: 2 for name in names})
    data = prepared(tmp_path / "set", tokenizer="characters")
    assert [len(data.splits[split].documents) for split in SPLITS] == [100, 50, 50]
    assert text_of(data) == PLAIN
    assert data.provenance == "the field text of the dataset set, with its own splits"
    with pytest.raises(UserError, match=r"the field 'n' of .* holds int64, not text"):
        prepared(tmp_path / "set", field="n")
    saved["train"].save_to_disk(tmp_path / "one")
    assert text_of(prepared(tmp_path / "one", tokenizer="characters")) == "".join(f"{t}\n" for t in TEXTS[:100])
    datasets.DatasetDict({"train": saved["train"], "test": saved["test"]}).save_to_disk(tmp_path / "two")
    with pytest.raises(UserError, match="has the splits train, test, and needs one for train, validation and test"):
        prepared(tmp_path / "two")
    # Read as one text, it is the whole of it, like a file of the same records.
    (whole,) = find_text(tmp_path / "one", TextReader()).sources["text"]
    assert whole.documents is not None and len(whole.documents) == 100


@pytest.mark.full
@pytest.mark.parametrize("suffix", COMPRESSED)
def test_what_is_compressed_may_be_utf_16_or_any_bytes(suffix: str, tmp_path: Path) -> None:
    wide = (PLAIN * 400).encode("utf-16")  # more than a block of any of them
    (tmp_path / f"a.txt{suffix}").write_bytes(COMPRESSED[suffix](wide))
    assert text_of(prepared(tmp_path / f"a.txt{suffix}", tokenizer="characters")) == PLAIN * 400
    odd = tmp_path / f"odd{suffix}"
    odd.write_bytes(COMPRESSED[suffix](b"\xff\xfe\x00odd" * 900))
    data = prepared(odd, tokenizer="bytes")
    assert sum(len(data.splits[split].ids) for split in SPLITS) == 6 * 900


def test_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    twice = arrow.Table.from_arrays([arrow.array(["a"]), arrow.array(["b"])], names=["text", "text"])
    pyarrow.parquet.write_table(twice, tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"a.parquet has several columns named 'text'; rename them"):
        prepared(tmp_path / "a.parquet")


def test_empty_files_of_a_folder_are_left_out(tmp_path: Path) -> None:
    """As in a package of Python: the first file is often empty, and would be all of the validation text."""
    (tmp_path / "__init__.py").write_text("\n")
    for name in "abcde":
        (tmp_path / f"{name}.py").write_text("the cat sat on the mat\n" * 20)
    data = prepared(tmp_path)
    assert "left out 1 file without text (an empty file: 1)" in data.provenance
    assert all(len(data.splits[split].ids) > 20 for split in SPLITS)


def test_a_folder_with_splits_in_parts(tmp_path: Path) -> None:
    for i, name in enumerate(("train-00000-of-00002", "train-00001-of-00002", "validation-00000-of-00001", "test")):
        (tmp_path / f"{name}.jsonl.gz").write_bytes(gzip.compress(LINES.replace("cat", f"cat{i}").encode()))
    data = prepared(tmp_path)
    assert [len(data.splits[split].documents) for split in SPLITS] == [400, 200, 200]
    assert data.vocabulary.tokenizer.name == "regex" and "cat0" in data.vocabulary.index


def test_a_folder_leaves_out_what_is_no_text_and_says_so(tmp_path: Path) -> None:
    for i in range(30):
        (tmp_path / f"{i:02}.txt").write_text(f"document number {i}\n")
    for name in ("a.png", "b.jpg", "c.zip", "d.html", "e.pdf", "f"):
        (tmp_path / name).write_bytes(b"<html>\x00")
    data = prepared(tmp_path)
    assert data.left_out == (
        f"left out 6 files of {tmp_path} without text: a.png (a picture), b.jpg (a picture), c.zip (an archive) and 3 more"
    )
    assert data.provenance.endswith(
        "; left out 6 files without text (a picture: 2, an archive: 1, a web page: 1, a PDF: 1, binary data: 1)"
    )
    assert sum(len(split.documents) for split in data.splits.values()) == 30 and "html" not in data.vocabulary.index
    assert sum(len(s.documents) for s in prepared(tmp_path, tokenizer="bytes").splits.values()) == 36
    (tmp_path / "g.txt").write_bytes(b"a\0b")  # what calls itself a text is not left out
    with pytest.raises(UserError, match=r"g\.txt is binary"):
        prepared(tmp_path)


@pytest.mark.parametrize(
    ("kind", "files"),
    [
        ("a run", ("config.yaml", "checkpoints/best-1/manifest.json")),
        ("a run", ("config.yaml", "run.json")),  # of a sweep, which removes the weights
        ("a sweep", ("sweep.yaml", "trials/0000/config.yaml", "recipes/0000.yaml", "logs/0000.log")),
        ("a reproduction", ("suite.yaml", "runs/a/config.yaml", "recipes/a.yaml", "logs/a.log")),
    ],
)
@pytest.mark.parametrize("tokenizer", ["words", "bytes"])
def test_a_folder_leaves_out_the_runs_in_it(tmp_path: Path, kind: str, files: tuple[str, ...], tokenizer: str) -> None:
    """As `--corpus .` beside `runs`, or a run within its corpus: its files are no text, and grow."""
    for i in range(3):
        (tmp_path / f"{i}.txt").write_text("the cat sat on the mat\n" * 20)
    before = prepared(tmp_path, tokenizer=tokenizer)
    assert not before.left_out
    for name in files:
        path = tmp_path / "runs" / "mine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{\n}\n")
    (tmp_path / "runs" / "notes.md").write_text("a cat\n")
    (tmp_path / "notes.md").write_text("a cat\n")
    after = prepared(tmp_path, tokenizer=tokenizer)
    assert after.left_out == f"left out 1 folder of {tmp_path}: runs/mine ({kind})"
    assert after.provenance.endswith("; left out the folders of runs")
    (tmp_path / "runs" / "mine").rename(tmp_path.parent / f"{tmp_path.name}-elsewhere")
    assert after.fingerprint == prepared(tmp_path, tokenizer=tokenizer).fingerprint != before.fingerprint


def test_a_folder_with_a_suite_and_its_runs_is_a_corpus(tmp_path: Path) -> None:
    """A reproduction has folders for recipes and logs, too; this is where a user works."""
    for i in range(3):
        (tmp_path / f"{i}.txt").write_text("the cat sat on the mat\n" * 20)
    (tmp_path / "suite.yaml").write_text("title: mine\n")
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    assert sum(len(split.documents) for split in prepared(tmp_path).splits.values()) == 4


def test_records_among_the_texts_of_a_folder_are_cut_and_the_texts_dealt(tmp_path: Path) -> None:
    for i in range(30):
        (tmp_path / f"{i:02}.txt").write_text(f"document number {i}\n")
    alone = prepared(tmp_path)
    lines = "".join(json.dumps({"text": f"record {i:03}"}) + "\n" for i in range(200))
    (tmp_path / "15b.jsonl").write_text(lines)  # in the middle: the texts after it are dealt as before
    data = prepared(tmp_path)
    for split, records in zip(SPLITS, (180, 10, 10), strict=True):
        assert len(data.splits[split].documents) == len(alone.splits[split].documents) + records
    assert "to test, the files of records cut into 90, 5 and 5 percent" in data.provenance


def test_a_folder_as_one_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    (tmp_path / "b.jsonl").write_text(LINES)
    (tmp_path / "c.png").write_bytes(b"\0")
    corpus = find_text(tmp_path, TextReader())
    assert [source.title for source in corpus.sources["text"]] == ["a", "b"]
    assert corpus.provenance.endswith("2 files; left out 1 file without text (a picture: 1)")
    assert corpus.left_out == f"left out 1 file of {tmp_path} without text: c.png (a picture)"
    for name in SPLITS:
        (tmp_path / f"{name}.txt").write_text(name)
    assert [source.path.name for source in find_text(tmp_path, TextReader()).sources["text"]] == ["test.txt"]


def test_one_json_object_is_a_document(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"text": PLAIN, "title": "cats"}, indent=2))
    (tmp_path / "lines.json").write_text("\n" + LINES)
    (tmp_path / "a.txt").write_text(PLAIN)
    assert text_of(prepared(tmp_path / "a.json")) == text_of(prepared(tmp_path / "a.txt"))
    assert len(prepared(tmp_path / "lines.json").splits["train"].documents) > 100


@pytest.mark.parametrize("settings", [{}, {"tokenizer": "bytes"}])
def test_json_that_is_no_text_is_left_out_of_a_folder(settings: dict[str, str], tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.txt").write_text(PLAIN)
    (tmp_path / "package.json").write_text(json.dumps({"name": "a", "private": True}, indent=2))
    (tmp_path / "small.json").write_text('{"name": "a"}')
    data = prepared(tmp_path, **settings)
    assert data.left_out == (
        f"left out 2 files of {tmp_path} without text: package.json (JSON without the field text), "
        "small.json (JSON without the field text)"
    )


@pytest.mark.parametrize("content", [LINES, json.dumps(RECORDS), json.dumps(RECORDS, indent=2)])
def test_records_without_the_field_are_not_left_out_of_a_folder(content: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(PLAIN)
    (tmp_path / "b.json").write_text(content)
    with pytest.raises(
        UserError, match=r"1 of .*b\.json has no field 'body'; name the one .*--text.field: id, text, other"
    ):
        prepared(tmp_path, field="body")


def test_a_folder_of_nothing_but_json_without_the_field_names_the_fields(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"id": 1, "body": PLAIN}, indent=2))
    with pytest.raises(UserError, match=r"a\.json has no field 'text'; name the one .*--text.field: id, body"):
        find(str(tmp_path))


def test_links_to_no_file_and_pipes_are_named(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "a.txt").write_text(PLAIN)
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").symlink_to(other / "a.txt")
    (texts / "gone.txt").symlink_to(other / "gone.txt")
    (texts / "more").symlink_to(other)
    os.mkfifo(texts / "pipe")
    corpus = find_text(texts, TextReader())
    assert [source.title for source in corpus.sources["text"]] == ["a"]
    assert corpus.left_out == (
        f"left out 3 files of {texts} without text: gone.txt (a broken link), more (a link to a folder), "
        "pipe (no regular file)"
    )


# --- what is refused ---


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt.gz", PLAIN.encode(), r"a\.txt\.gz is not compressed with gzip; correct the end of its name"),
        ("a.txt.gz", gzip.compress(PLAIN.encode(), mtime=0)[:-20], r"is cut off or damaged .*; get it again"),
        ("a.txt.xz", lzma.compress(PLAIN.encode())[:-20], r"is cut off or damaged"),
        ("a.txt.bz2", bz2.compress(PLAIN.encode())[:-20], r"is cut off or damaged"),
        ("a.txt.bz2", b"BZh9" + bytes(99), r"is cut off or damaged"),
        ("a.txt.gz", gzip.compress(b"", mtime=0), r"is empty"),
        ("a.txt.gz", b"", r"is empty"),
        ("a.txt.gz", gzip.compress(b"the cat\xff\n" * 99, mtime=0), r"a\.txt\.gz is not UTF-8 text \(byte 7\)"),
        ("a.jsonl", b"", "is empty"),
        ("a.jsonl", b"\n\n", "is empty"),
        ("a.jsonl", b'{"text": "a"}\n{"text": 1}\n', "the field 'text' in line 2 of .* is a number, not text"),
        ("a.jsonl", b'{"text": "a"}\n\n{"text": null}\n', "the field 'text' in line 3 of .* is null, not text"),
        ("a.jsonl", b'{"texts": "a"}\n', "line 1 .* no field 'text' .did you mean 'texts'.*--text.field: texts"),
        ("a.jsonl", b"[1]\n", "line 1 .* is not a JSON object"),
        ("a.jsonl", b'{"text": "a"\n', "line 1 of .* is not JSON .*; write one whole record per line"),
        ("a.jsonl", b"[" * 100_000, "is not JSON"),
        ("a.json", b'{\n "text": "a"\n', "a.json is not JSON .*; correct it, or write one whole record per line"),
        ("a.json", b'{\n "name": "a"\n}\n', "a.json has no field 'text'; name the one .*--text.field: name"),
        ("a.json", b"{\n // a comment\n}\n", "a.json is not JSON .*"),
        ("a.json", b'[{"text": 1}]', "the field 'text' in record 1 of .* is a number"),
        ("a.csv", b"a,b\n1,2\n", "has no field 'text'; .*--text.field: a, b"),
        ("a.csv", b"a,text\n1,2\n1,2,3\n", "row 2 of .* has 3 cells, and the header 2"),
        ("a.csv", b'a,text\n1,"2\n1,2\n', r"line 3 of .* is not a row of a table \(unexpected end of data\)"),
        (
            "a.csv",
            b"text,b,text\n1,2,3\n",
            "a.csv has several columns 'text'; rename all but the one that holds the text",
        ),
        ("a.csv", b"", "has no field 'text'; .*there is none"),
        ("a.parquet", b"PAR1 or not", "is not a Parquet file, or is damaged"),
        ("a.html", b"<p>text", "is a web page; convert it to text, as with `pandoc -t plain`"),
        ("a.pdf", b"%PDF", "is a PDF; convert it"),
        ("a.zip", b"PK", "is an archive; unpack it and give the folder"),
        ("a.tar.gz", gzip.compress(b"a", mtime=0), "is an archive; unpack it and give the folder"),
        ("a.ipynb", b"{}", "is a notebook; convert it"),
    ],
)
def test_what_is_refused_in_one_line(name: str, data: bytes, message: str, tmp_path: Path, cache_folder: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=message) as caught:
        find(str(tmp_path / name))
        prepared(tmp_path / name)
    assert "\n" not in str(caught.value)
    assert not list(cache_folder.rglob("*.ids"))


def test_a_zstd_file_that_is_cut_off_or_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.zst"
    for data, message in (
        (zstd(PLAIN.encode())[:-20], r"cut off or damaged \(the file ends inside a frame\)"),
        (zstd(PLAIN.encode()) + b"\x28\xb5\x2f\xfd" + bytes(50), "cut off or damaged"),
        (PLAIN.encode(), "is not compressed with zstd"),
    ):
        path.write_bytes(data)
        with pytest.raises(UserError, match=message):
            prepared(path)


def test_nulls_and_numbers_in_a_column_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(parquet({"text": ["a", None], "n": [1, 2], "list": [["a"], ["b"]]}))
    for field, message in (
        ("text", "row 2 of .* no text"),
        ("n", "holds int64"),
        ("list", "holds list"),
        ("x", "no field 'x'"),
    ):
        with pytest.raises(UserError, match=message):
            prepared(path, field=field)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(UserError, match="is not a Parquet file, or is damaged"):
        prepared(path)


@pytest.mark.full
def test_what_unpacks_to_far_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_folder: Path
) -> None:
    monkeypatch.setattr(unpacking, "LARGEST_SMALL", 1 << 22)
    for suffix, pack in COMPRESSED.items():
        path = tmp_path / f"a.txt{suffix}"
        path.write_bytes(pack(b"word " * (1 << 22)))
        with pytest.raises(UserError, match="unpacks to more than 200 times its size"):
            prepared(path)
    assert not [path for path in cache_folder.rglob("*") if path.is_file()]


def test_a_line_that_is_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_formats, "LONGEST_RECORD", 1 << 20)
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "word " * (1 << 20)}) + "\n")
    with pytest.raises(UserError, match=r"a line of .* is longer than 1,048,576 characters"):
        prepared(path)
    path = tmp_path / "a.csv"
    path.write_text("text\n" + "a " * (1 << 20))
    with pytest.raises(UserError, match=r"longer than 1,048,576|field larger than"):
        prepared(path)


@pytest.mark.parametrize(("package", "name"), [("zstandard", "a.txt.zst"), ("pyarrow", "a.parquet")])
def test_a_missing_package_is_named(package: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / name).write_bytes(zstd(PLAIN.encode()) if package == "zstandard" else parquet({"text": ["a"]}))
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(UserError, match=rf"the package {package}; run `pip install -e '\.\[formats\]'`"):
        prepared(tmp_path / name)
