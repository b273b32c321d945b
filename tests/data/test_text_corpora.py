"""Corpora: names, paths, splits of files and folders, articles, and errors for missing parts."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backstory.config.schema import SPLITS, TextConfig
from backstory.data import CORPORA, find, prepare
from backstory.data.corpora.catalogue import articles
from backstory.data.corpora.corpus_folder import Corpus
from backstory.data.corpora.text_files import text_blocks
from backstory.utils.errors import UserError


def texts(corpus: Corpus) -> dict[str, str]:
    return {split: "".join(b for s in corpus.sources[split] for b in text_blocks(s)) for split in SPLITS}


def test_a_file_is_cut_at_line_ends(tmp_path: Path) -> None:
    lines = [f"line {i} {'x' * (i % 17)}\n" for i in range(1000)]
    (tmp_path / "a.txt").write_text("".join(lines))
    made = texts(find(str(tmp_path / "a.txt")))
    assert "".join(made.values()) == "".join(lines)
    assert all(t.endswith("\n") for t in made.values())
    assert len(made["train"]) / len("".join(lines)) == pytest.approx(0.9, abs=0.005)
    assert len(made["valid"]) / len("".join(lines)) == pytest.approx(0.05, abs=0.005)


@pytest.mark.parametrize(("lines", "shares"), [(3, [1, 1, 1]), (10, [8, 1, 1]), (20, [18, 1, 1]), (40, [36, 2, 2])])
def test_a_file_of_few_lines_leaves_some_for_each_split(lines: int, shares: list[int], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one two\n" * lines)
    assert [t.count("\n") for t in texts(find(str(tmp_path / "a.txt"))).values()] == shares


def test_crlf_is_not_cut_in_two(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one two\r\n" * 100)
    sources = find(str(tmp_path / "a.txt")).sources
    assert [sources[s][0].start % 9 for s in SPLITS] == [0, 0, 0]
    (tmp_path / "a.txt").write_bytes(b"one two\r" * 100)
    assert [t.count("\n") for t in texts(find(str(tmp_path / "a.txt"))).values()] == [90, 5, 5]


def test_one_giant_line_is_cut_at_spaces_and_else_between_characters(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("word " * 1000)
    assert all(t.endswith(" ") for t in texts(find(str(path))).values())
    path.write_text("é" * 1000, encoding="utf-8")
    assert [len(t) for t in texts(find(str(path))).values()] == [900, 50, 50]
    path.write_text("é" * 1000 + "\nx\n", encoding="utf-8")  # a line end that is of no use
    assert next(len(t) for t in texts(find(str(path))).values()) == pytest.approx(900, abs=3)


@settings(deadline=None)
@given(st.text(min_size=40, max_size=400))
def test_no_cut_loses_or_breaks_a_character(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.txt")
        path.write_bytes(text.encode())
        sources = find(str(path)).sources
        stretches = [s for split in SPLITS for s in sources[split]]
        made = ["".join(text_blocks(s, as_is=True)) for s in stretches]
    assert "".join(made) == text
    assert all(made)


def test_a_folder_with_split_files(tmp_path: Path) -> None:
    for name in ("wiki.train.tokens", "wiki.valid.tokens", "wiki.test.tokens", "README.md"):
        (tmp_path / name).write_text(name)
    corpus = find(str(tmp_path))
    assert corpus.tokenizer == "words"
    assert texts(corpus) == {s: f"wiki.{s}.tokens" for s in SPLITS}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["train.txt", "test.txt"], r"needs one for valid too; add or rename"),
        (
            ["train.txt", "valid.txt", "val.txt", "test.txt"],
            r"several files for valid \(val.txt, valid.txt\); keep one, or number all as parts of it: valid-00000-of-00002.txt",
        ),
        (
            ["train.txt", "train-00001-of-00002.txt", "valid.txt", "test.txt"],
            r"has several files for train \(train-00001-of-00002.txt, train.txt\); keep one",
        ),
    ],
)
def test_a_folder_with_unclear_splits_is_refused(names: list[str], message: str, tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).write_text("a b c\n")
    with pytest.raises(UserError, match=message):
        find(str(tmp_path))


def test_a_folder_of_documents(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for i in range(44):
        (tmp_path / ("sub" if i % 2 else "") / f"{i:02}.txt").write_text(f"document number {i}\n")
    (tmp_path / ".hidden").write_bytes(b"\x00")
    data = prepare(TextConfig(corpus=str(tmp_path)))
    titles = sorted([f"{i:02}" for i in range(0, 44, 2)]) + sorted([f"sub/{i:02}" for i in range(1, 44, 2)])
    assert data.splits["valid"].titles == titles[::20]
    assert data.splits["test"].titles == titles[1::20]
    train = data.splits["train"]
    assert len(train.titles) == 38
    assert train.documents.tolist() == [4 * i for i in range(38)]  # document, number, i, <eos>
    assert data.vocabulary.decode(train.ids[4:8]) == f"document number {int(train.titles[1])}\n\n"


def test_a_folder_of_few_documents_is_cut_inside_them(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(f"{name}\n" * 20)
    corpus = find(str(tmp_path))
    assert texts(corpus)["valid"] == "a.txt\nb.txt\n"
    assert [s.title for s in corpus.sources["valid"]] == ["a", "b"]


def test_articles() -> None:
    first = " \n = First = \n \n text \n = not a title = \n text \n \n = = Section = = \n \n text \n \n"
    text = first + " = Second one = \n \n x \n"
    found = [(title, "".join(blocks)) for title, blocks in articles("", [text[:30], text[30:]])]
    assert [title for title, _ in found] == ["First", "Second one"]
    assert "".join(t for _, t in found) == text
    assert found[1][1].startswith(" = Second one = \n")


def test_a_text_without_titles_is_one_document() -> None:
    assert [(t, "".join(b)) for t, b in articles("t", ["a\nb"])] == [("t", "a\nb")]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wikitext2", r"unknown corpus 'wikitext2' \(did you mean 'wikitext-2'\?\)"),
        ("", "unknown corpus ''"),
        ("./nowhere", "there is no file or folder './nowhere'"),
        ("nowhere.txt", "there is no file or folder 'nowhere.txt'"),
        ("~/no-such-folder-here/", "there is no file or folder"),
        ("a\0b\nc", "unknown corpus"),
        ("x" * 5000, "unknown corpus"),
    ],
)
def test_what_is_not_there_is_refused(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        find(name)
    assert "\n" not in str(caught.value)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no files"):
        find(str(tmp_path))


def test_every_named_corpus_has_a_line() -> None:
    assert list(CORPORA) == [
        "stdlib",
        "recall",
        "copy",
        "repeat-copy",
        "associative-recall",
        "priority-sort",
        "ptb",
        "ptb-char",
        "ptb-char-50",
        "wikitext-2",
        "wikitext-103",
        "enwik8",
        "enwik8-prefix",
        "text8",
    ]
    assert all("\n" not in c.description and c.description for c in CORPORA.values())
