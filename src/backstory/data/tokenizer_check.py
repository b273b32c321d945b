"""A tokenizer.json that is not ours is tried in a process of its own first, since it may kill the one that loads it."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from backstory.config.errors import UserError
from backstory.config.printable import one_line

LARGEST = 2_000_000
"""More types than this are refused: an embedding of them fits no machine, and the corpus is most likely not text."""
GROWTH = 64
"""What is made of a text, in pieces or characters, may be this many times its characters."""
SECONDS, MEMORY = 2, 1 << 30
"""Processor time and bytes in which a small tokenizer must have read a few kB of text; large ones have more."""

_TRIED: set[str] = set()
"""SHA-256 (hex) of the tokenizers that were tried in this process."""


def check(name: str, text: str, sample: str = "") -> None:
    """Try the tokenizer of that name whose tokenizer.json is `text`, on a sample as well; once in this process.

    Raises UserError for what is no tokenizer, and for one that breaks down, takes too long or too much memory, has too many
    types, or does not keep to its own ids.
    """
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    if digest in _TRIED:
        return
    megabytes = len(text) >> 20
    seconds, memory = SECONDS + megabytes // 2, MEMORY + megabytes * (64 << 20)
    asked = {"tokenizer": text, "sample": sample, "types": LARGEST, "seconds": seconds, "bytes": memory}
    said, code = _child(json.dumps(asked).encode(), 8 * seconds)
    told: dict[str, Any] = {"step": "loading it"}
    for line in said.splitlines():
        told |= json.loads(line)
        if fault := _fault(told):
            break
    else:
        fault = "" if told["step"] == "done" else _ending(code, seconds, told["step"])
    if fault:
        raise UserError(f"{one_line(name)} {fault}; give one saved by Hugging Face")
    _TRIED.add(digest)


def reason(error: object) -> str:
    """What an error of the package says, in short."""
    return one_line(str(error).split("\n")[0])[:200] or "unknown format"


def is_panic(error: BaseException) -> bool:
    """Whether an error is a panic of the package, which is no Exception."""
    return type(error).__name__ == "PanicException"


def _child(asked: bytes, seconds: float) -> tuple[bytes, int]:
    """What the trial says, and its exit code."""
    # -P: the modules beside the script have names of packages.
    command = [sys.executable, "-P", str(Path(__file__).with_name("tokenizer_trial.py"))]
    try:
        ended = subprocess.run(
            command,
            input=asked,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false", "RUST_BACKTRACE": "0"},
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return error.stdout or b"", -signal.SIGKILL
    return ended.stdout, ended.returncode


def _fault(told: dict[str, Any]) -> str:
    """What is wrong with a tokenizer of which this is known."""
    if "error" in told:
        why = reason(told["error"])
        return (
            f"is not a tokenizer.json ({why})"
            if told["step"] == "loading it"
            else f"breaks down: {told['step']}, {why}"
        )
    if told.get("types", 0) > LARGEST:
        return f"has the id {told['types'] - 1:,}, more than {LARGEST:,} types have"
    if told.get("doubled"):
        return "has several pieces of one id"
    if told.get("moved"):
        return f"lists the piece {one_line(told['moved'][0])!r:.60} with an id that is not its own"
    if told.get("random"):
        return "cuts a text otherwise each time (it has a dropout)"
    if told.get("grown", 0) > GROWTH:
        return f"makes a text more than {GROWTH} times as long"
    return ""


def _ending(code: int, seconds: float, step: str) -> str:
    """Why a trial came to no end."""
    if -code in (signal.SIGKILL, getattr(signal, "SIGXCPU", None)):
        return f"takes too long: {step}, more than {seconds} s"
    return f"breaks down: {step}, probably for lack of memory"
