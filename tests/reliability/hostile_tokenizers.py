"""Hostile tokenizers, as a file and in a run's vocabulary, are refused in one line, whatever they do."""

import base64
import io
import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

from calling import call
from rich.console import Console
from runs import tiny_config, tiny_corpus
from stopped_runs import newest, sign
from subwords import byte_level

from backstory.training import train

FORK = multiprocessing.get_context("fork")
SECONDS = 60
"""Seconds that both readings of a trial may take on a machine that others use too."""


def run(trials: Sequence[int], folder: Path) -> Iterator[str]:
    """Each trial prepares a corpus with a tokenizer, and reads with a run that has it in its vocabulary."""
    good = byte_level("ann saw the jam and bob took more ink\n" * 20).to_str()
    (folder / "good.json").write_text(good)
    with patch.dict(os.environ, {"BACKSTORY_CACHE": str(folder / "cache")}):
        config = tiny_config(tiny_corpus(folder / "corpus", lines=20))
        original = folder / "original"
        text = replace(config.text, tokenizer=str(folder / "good.json"))
        train(replace(config, text=text), original, console=Console(file=io.StringIO()))
        used = _used(folder / "good.json", folder / "corpus", original)
        if used[0] != [0, 0]:
            yield f"a good tokenizer is not taken: {used}"
        for number in trials:
            name = list(HOSTILE)[number]
            path, copy = folder / "tokenizer.json", folder / "copy"
            path.write_text(HOSTILE[name]())
            shutil.copytree(original, copy)
            try:
                _put(path.read_text(), newest(copy, "best"))
                codes, told = _used(path, folder / "corpus", copy)
            finally:
                shutil.rmtree(copy)
            if codes != [2, 2] or len(told.splitlines()) != 2 or "tokenizer.json" not in told.splitlines()[0]:
                yield f"hostile tokenizers {name}: exit codes {codes}: {told[-500:]!r}"


def _put(text: str, checkpoint: Path) -> None:
    """Give a checkpoint this tokenizer."""
    vocabulary = json.loads((checkpoint / "vocabulary.json").read_bytes())
    vocabulary["tokenizer"]["json"] = text
    (checkpoint / "vocabulary.json").write_text(json.dumps(vocabulary))
    sign(checkpoint)


def _used(tokenizer: Path, corpus: Path, run: Path) -> tuple[list[int | None], str]:
    """Return the exit codes of both, from a process of its own, and the output; no codes if it did not finish."""
    here, there = FORK.Pipe(duplex=False)
    child = FORK.Process(target=_child, args=(tokenizer, corpus, run, there))
    child.start()
    there.close()
    try:
        return here.recv() if here.poll(SECONDS) else ([], f"not done after {SECONDS} s")
    except EOFError:
        return [], "the process died"
    finally:
        child.kill()
        child.join()


def _child(tokenizer: Path, corpus: Path, run: Path, pipe: Connection) -> None:
    calls = [["data", "show", str(corpus), "--tokenizer", str(tokenizer)], ["evaluate", str(run), "--batch-size", "3"]]
    ended = [call(line, SECONDS) for line in calls]
    pipe.send(([e.code for e in ended], "".join(e.err + e.raised for e in ended)))


# --- tokenizers ---


def _saved(model: dict[str, Any] | None = None, **parts: Any) -> str:
    model = model or {"type": "WordLevel", "vocab": {"<unk>": 0, "ann": 1, "b": 2}, "unk_token": "<unk>"}
    empty = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
    words = {"pre_tokenizer": {"type": "Whitespace"}}
    return json.dumps({"version": "1.0", "added_tokens": [], **empty, **words, **parts, "model": model})


def _of(model: str, **parts: Any) -> Callable[[], str]:
    return lambda: _saved({"type": model, **parts})


def _with(**parts: Any) -> Callable[[], str]:
    return lambda: _saved(**parts)


def _charsmap(data: bytes) -> Callable[[], str]:
    return _with(normalizer={"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()})


def _added(*tokens: tuple[str, int]) -> Callable[[], str]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    return _with(added_tokens=[{"id": number, "content": content, **flags} for content, number in tokens])


def _split(pattern: str) -> Callable[[], str]:
    return _with(
        pre_tokenizer={"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    )


def _doubling(step: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": step}, "content": step * 2}


HOSTILE: dict[str, Callable[[], str]] = {
    "an empty charsmap": _charsmap(b""),
    "a short charsmap": _charsmap(b"ab"),
    "a charsmap that asks for 4 GiB": _charsmap((2**31).to_bytes(4, "little") + b"abcd" * 10),
    "a charsmap that leads out of itself": _charsmap((64).to_bytes(4, "little") + b"\xff\x13\x00\x01" * 16 + b"ab\x00"),
    "a charsmap of no base64": _with(normalizer={"type": "Precompiled", "precompiled_charsmap": "%%%"}),
    "replacements that double 60 times": _with(normalizer={"type": "Sequence", "normalizers": [_doubling("a")] * 60}),
    "replacements that double ten times": _with(normalizer={"type": "Sequence", "normalizers": [_doubling("a")] * 10}),
    "a decoder that doubles 60 times": _with(decoder={"type": "Sequence", "decoders": [_doubling("a")] * 60}),
    "thousands of prefixes": _with(
        normalizer={"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "x" * 1000}] * 3000}
    ),
    "an id of 10^8": _of("WordLevel", vocab={"<unk>": 0, "ann": 10**8}, unk_token="<unk>"),
    "an id of 4 10^9": _of("WordLevel", vocab={"<unk>": 0, "ann": 4 * 10**9}, unk_token="<unk>"),
    "an added id of 10^9": _added(("<x>", 10**9)),
    "an added token of nothing": _added(("", 3)),
    "an added token twice": _added(("<x>", 3), ("<x>", 4)),
    "added tokens of one id": _added(("<x>", 3), ("<y>", 3)),
    "pieces of one id": _of("WordLevel", vocab={"<unk>": 0, "ann": 1, "bob": 1}, unk_token="<unk>"),
    "no unknown word": _of("WordLevel", vocab={"ann": 0}, unk_token="<unk>"),
    "no unknown piece": _of(
        "WordPiece", vocab={"a": 0}, unk_token="[UNK]", continuing_subword_prefix="##", max_input_chars_per_word=100
    ),
    "no unknown in a unigram": _of("Unigram", vocab=[["a", -1.0]], unk_id=None, byte_fallback=False),
    "an unknown outside a unigram": _of("Unigram", vocab=[["a", -1.0]], unk_id=7, byte_fallback=False),
    "an empty unigram": _of("Unigram", vocab=[], unk_id=None, byte_fallback=False),
    "no unknown in a BPE": _of("BPE", vocab={"a": 0}, merges=[], unk_token="<unk>"),
    "a merge into nothing": _of("BPE", vocab={"a": 0, "b": 1}, merges=["a b"]),
    "a dropout": _of("BPE", vocab={"a": 0, "aa": 1}, merges=["a a"], dropout=0.5),
    "a pattern that goes back over letters": _split("(\\w+\\s?)+$"),
    "a pattern that goes back over an x": _split("(x+x+)+y"),
    "a replaced pattern that goes back": _with(
        normalizer={"type": "Replace", "pattern": {"Regex": "(q+q+)+y"}, "content": ""}
    ),
    "pieces of no length": _with(pre_tokenizer={"type": "FixedLength", "length": 0}),
    "a decoder that strips too much": _with(decoder={"type": "Strip", "content": "b", "start": 10**9, "stop": 10**9}),
    "lists in lists": lambda: '{"normalizer": ' + '{"type":"Sequence","normalizers":[' * 5000 + "]}" * 5000 + "}",
    "a list": lambda: "[]",
    "nothing": lambda: "",
    "a lone surrogate": lambda: '{"version": "\\ud800"}',
    "2,100,000 types": lambda: _saved(
        {"type": "WordLevel", "vocab": {"<unk>": 0} | {f"w{i}": i for i in range(1, 2_100_000)}, "unk_token": "<unk>"}
    ),
}
"""A tokenizer.json by what is wrong with it."""
