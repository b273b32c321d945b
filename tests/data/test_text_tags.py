"""Part-of-speech tags: aligned with the tokens, from files of tags, by PatternTagger and by a user's own tagger."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from backstory.cli import data
from backstory.config.schema import TextConfig
from backstory.data import (
    Dataset,
    is_content,
    is_function,
    prepare,
    tagged_by,
    tags_of,
    word_classes,
)
from backstory.data.corpora import published_corpora as published
from backstory.data.corpora.download import ExpectedFile
from backstory.data.corpora.published_corpora import TAGS
from backstory.data.tags import NOT_ENGLISH, _pattern_tagger, _unknown_share
from backstory.utils.errors import UserError

MADE = {"the": "DT", "cat": "NN", "dog": "NN", "saw": "VBD", "on": "IN", "<unk>": "NN", ",": ","}


def by_hand(words: list[str]) -> list[str]:
    return [MADE[word] for word in words]


def test_content_and_function_words() -> None:
    assert all(map(is_content, ("NN", "NNPS", "VBZ", "JJR", "RB", "RP")))
    assert all(map(is_function, ("DT", "IN", "MD", "PRP$", "CC", "TO", "CD", "POS", "WDT", "EX", "UH", "FW")))
    neither = ("<unk>", "<eos>", ",", ".", ":", "``", "''", "-LRB-", "(", "$", "#", "SYM", "LS")
    assert not any(is_content(tag) or is_function(tag) for tag in neither)
    assert not any(is_content(tag) for tag in ("DT", "MD")) and not any(is_function(tag) for tag in ("NN", "VB"))
    classes = word_classes(np.array(["NN", "DT", "<unk>", "NN"]))
    assert classes.tolist() == ["content", "function", "neither", "content"]


def test_a_tagger_of_ones_own_is_asked_line_by_line(corpus: Callable[..., Dataset]) -> None:
    asked = []

    def tagger(words: list[str]) -> list[str]:
        asked.append(words)
        return by_hand(words)

    dataset = corpus(b"the cat saw\n", b"the cat\n\nthe new dog saw ,\n")
    assert tags_of(dataset, "valid", tagger).tolist() == [
        *("DT", "NN", "<eos>", "<eos>"),
        *("DT", "<unk>", "<unk>", "VBD", "<unk>", "<eos>"),
    ]
    assert asked == [["the", "cat"], ["the", "<unk>", "<unk>", "saw", "<unk>"]]
    assert tagged_by(dataset, "valid", tagger) == "tagger"
    assert tags_of(dataset, "train", tagger).tolist() == ["DT", "NN", "VBD", "<eos>"]


def test_a_last_line_without_an_end(tmp_path: Path) -> None:
    for name in ("train", "valid", "test"):
        (tmp_path / f"{name}.txt").write_text("the cat saw , the dog")
    dataset = prepare(TextConfig(corpus=str(tmp_path), tokenizer="regex"))
    assert tags_of(dataset, "valid", by_hand).tolist() == ["DT", "NN", "VBD", ",", "DT", "NN", "<eos>"]


def test_a_tag_too_few_is_named_by_its_line(corpus: Callable[..., Dataset]) -> None:
    dataset = corpus(b"the cat saw the dog\n", b"the cat\nthe dog saw\n")
    with pytest.raises(
        UserError, match=r"^line 2 of the valid text has 3 words and, by short, 1 tags; give each"
    ) as told:

        def short(words: list[str]) -> list[str]:
            return ["NN"] * (2 if words == ["the", "cat"] else 1)

        tags_of(dataset, "valid", short)
    assert "\n" not in str(told.value)
    with pytest.raises(UserError, match=r"line 1 .* tags that are not text"):
        tags_of(dataset, "valid", lambda words: [(word, "NN") for word in words])  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("unit", ["characters", "bytes"])
def test_tokens_that_are_no_words_have_no_tags(unit: str, corpus: Callable[..., Dataset]) -> None:
    dataset = corpus(b"the cat\n", tokenizer=unit)
    with pytest.raises(
        UserError, match=f"only words have parts of speech, and the tokens of .* are {unit}; use the token"
    ):
        tags_of(dataset, "valid", by_hand)


def test_unknown_taggers_and_missing_files_of_tags(
    corpus: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = corpus(b"the cat\n")
    with pytest.raises(
        UserError, match=r"unknown tagger 'golden' \(did you mean 'gold'\?\); use auto, gold, pattern or"
    ):
        tags_of(dataset, "valid", "golden")
    with pytest.raises(UserError, match=r"there is no file of tags for the valid text of .* use the tagger pattern"):
        tags_of(dataset, "valid", "gold")


@pytest.fixture
def small_ptb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with a small text that passes for the published ptb, and a file of tags for its valid split."""
    texts = {"train": "the cat saw the dog\n", "valid": "the cat\n\nthe <unk> saw\n", "test": "the dog\n"}
    (tmp_path / "ptb").mkdir()
    for split, text in texts.items():
        (tmp_path / "ptb" / f"ptb.{split}.txt").write_text(text)
    known = published.PublishedCorpus({f"ptb.{split}.txt": ExpectedFile(1000, None) for split in texts})
    monkeypatch.setitem(published.PUBLISHED, "ptb", known)
    monkeypatch.setattr("backstory.data.corpora.published_corpora._checked", lambda *_: "SHA-256 as published")
    (tmp_path / "pos" / "penn").mkdir(parents=True)
    (tmp_path / "pos" / "penn" / "valid.txt").write_text("XX NN \n\nDT JJ VBD \n")
    return tmp_path


def test_files_of_tags_are_found_beside_a_published_text(small_ptb: Path) -> None:
    dataset = prepare(TextConfig(corpus="ptb"), small_ptb)
    wanted = ["XX", "NN", "<eos>", "<eos>", "DT", "<unk>", "VBD", "<eos>"]
    assert tags_of(dataset, "valid", data_dir=small_ptb).tolist() == wanted
    assert tagged_by(dataset, "valid", data_dir=small_ptb) == "gold (pos/penn/valid.txt)"
    assert tags_of(dataset, "valid", by_hand, small_ptb)[0] == "DT"
    path = prepare(TextConfig(corpus=str(small_ptb / "ptb")), small_ptb)  # of the same name, but whatever text it is
    assert path.corpus == "ptb" and "gold" not in tagged_by(path, "valid", data_dir=small_ptb)


def test_data_show_says_which_splits_have_files_of_tags(small_ptb: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert data.main(["show", "ptb", "--data-dir", str(small_ptb)]) == 0
    assert "  files of part-of-speech tags for valid\n" in capsys.readouterr().out
    assert data.main(["show", str(small_ptb / "ptb")]) == 0
    assert "tags" not in capsys.readouterr().out


def test_files_of_tags_that_do_not_fit(small_ptb: Path) -> None:
    dataset, path = prepare(TextConfig(corpus="ptb"), small_ptb), small_ptb / "pos" / "penn" / "valid.txt"
    path.write_text("XX NN \n\nDT VBD \n")
    with pytest.raises(
        UserError, match=r"line 3 of the valid text has 3 words and, by gold \(pos/penn/valid.txt\), 2 tags"
    ):
        tags_of(dataset, "valid", data_dir=small_ptb)
    path.write_text("XX NN \nDT JJ VBD \n")
    with pytest.raises(UserError, match=r"valid.txt has 2 lines, and the valid text 3; replace the file of tags"):
        tags_of(dataset, "valid", data_dir=small_ptb)


@pytest.mark.full
def test_pattern_tags_words_as_they_are(corpus: Callable[..., Dataset], cache_folder: Path) -> None:
    pytest.importorskip("textblob")
    line = "she don't and/or </s> ( the & \\/ U.K. &slash; can't ... \" @-@ dogs )"
    dataset = corpus(f"{line}\n".encode(), f"the dogs\n\n{line}\n".encode())
    tags = tags_of(dataset, "valid").tolist()
    assert tags[:4] == ["DT", "NNS", "<eos>", "<eos>"]
    assert len(tags) == 4 + len(line.split()) + 1 and tags[-3:] == ["NNS", ")", "<eos>"]
    (entry,) = cache_folder.glob("tags-*")
    (entry / "tags.codes").write_bytes(b"")  # a damaged entry is made again
    assert tags_of(dataset, "valid", "pattern").tolist() == tags


def test_pattern_is_loaded_once_for_a_text(corpus: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("textblob")
    dataset = corpus(b"the cat\n")
    first = tags_of(dataset, "valid")
    monkeypatch.setitem(sys.modules, "textblob.taggers", None)
    assert tags_of(dataset, "valid").tolist() == first.tolist()
    with pytest.raises(ImportError):
        tags_of(dataset, "train")


GERMAN = """der kleine Hund läuft durch den Garten , weil er eine Katze gesehen hat .
die Kinder spielen seit gestern im Wald und wollen noch nicht nach Hause gehen .
"""
ENGLISH = """the small dog runs through the garden , because it has seen a cat .
Xaver and Zdenka play in the forest 12 times , and do not want to go home yet .
"""


def test_a_text_that_is_not_english_is_warned_of(
    corpus: Callable[..., Dataset], recwarn: pytest.WarningsRecorder
) -> None:
    pytest.importorskip("textblob")
    german = corpus(GERMAN.encode())
    assert tagged_by(german, "train").startswith("PatternTagger for English (textblob ")
    for _ in range(2):  # made, and from the cache
        with pytest.warns(
            UserWarning, match=r"^\d\d% of the words of the train text are unknown to the part-of-speech tagger"
        ):
            tags_of(german, "train")
    tags_of(corpus(ENGLISH.encode()), "train")
    assert not recwarn.list


@pytest.mark.full
@pytest.mark.usefixtures("shared_cache")
@pytest.mark.parametrize("name", ["ptb", "wikitext-2"])
def test_the_corpora_of_the_field_are_english(name: str, data_folder: Path) -> None:
    pytest.importorskip("textblob")
    dataset = prepare(TextConfig(corpus=name), data_folder)
    assert _unknown_share(dataset, "valid", _pattern_tagger()[1]) < NOT_ENGLISH / 3


def test_without_textblob(corpus: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise tags_of.__globals__["importlib"].metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    with pytest.raises(
        UserError,
        match=r"^part-of-speech tags need the package textblob; run `pip install -e '\.\[pos\]'` in the clone of backstory$",
    ):
        tags_of(corpus(b"the cat\n"), "valid")


@pytest.mark.usefixtures("shared_cache")
@pytest.mark.parametrize("name", TAGS)
def test_the_real_files_fit_their_texts(name: str, data_folder: Path) -> None:
    dataset = prepare(TextConfig(corpus=name), data_folder)
    for split in TAGS[name]:
        if not (data_folder / TAGS[name][split]).is_file():
            pytest.skip(f"needs {TAGS[name][split]} in the data folder")
        if split == "train":
            continue  # a million words, as the others are
        tags, ids = tags_of(dataset, split, "gold", data_folder), dataset.splits[split].ids
        assert len(tags) == len(ids) and "" not in tags
        assert ((tags == "<unk>") == (ids == dataset.vocabulary.unknown)).all()
        assert ((tags == "<eos>") == (ids == dataset.vocabulary.index["<eos>"])).all()
        the = dataset.vocabulary.index["the"]
        assert (tags[ids == the] == "DT").mean() > 0.99
