"""Sub-word tokenizers of the package `tokenizers`: of a file, tried in a child process first, or trained on a corpus."""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from string import ascii_letters
from typing import TYPE_CHECKING, Any, Literal, cast

from backstory.utils.errors import UserError, install_hint
from backstory.utils.process import signals
from backstory.utils.small_file import read_small_text
from backstory.utils.terminal import one_line

if TYPE_CHECKING:
    import tokenizers


STARTS = ("<|begin_of_text|>", "<bos>", "<s>", "[BOS]", "<|endoftext|>", "<|end_of_text|>", "<eos>", "</s>", "[EOS]")
"""Names of the token at the start of a text, or else at its end, in the order of preference."""
_LONGEST = 1_000_000
"""Characters encoded at once; part of the definition, since how a piece is cut may depend on its neighbours."""


def _byte_characters() -> dict[str, int]:
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTES = _byte_characters()
"""The byte that each character of a byte-level piece stands for, as in GPT-2: `Ġ` is a space."""


def bytes_of(piece: str) -> bytes | None:
    """Return the bytes that a byte-level piece stands for; None for a special token, which no bytes make up."""
    return bytes(map(BYTES.__getitem__, piece)) if all(letter in BYTES for letter in piece) else None


@dataclass(frozen=True)
class Pieces:
    """A Hugging Face tokenizer: the path it came from, and the text of its tokenizer.json.

    Special tokens are not added around a text, but those written out in it are recognised. A text longer than a million
    characters is encoded in parts that end at the last line end (else the last space) of every million.
    """

    name: str
    json: str = field(repr=False)
    unit: Literal["piece"] = "piece"
    sample: str = field(default="", repr=False, compare=False)
    """Beginning of the text to be read, on which the tokenizer is tried."""

    @cached_property
    def model(self) -> "tokenizers.Tokenizer":
        """Return the tokenizer itself. Raises UserError if it fails the trial or the package `tokenizers` is missing."""
        try:
            import tokenizers
        except ImportError:
            raise UserError(f"{self.name} needs the package tokenizers; {install_hint('hf')}") from None
        check(self.name, self.json, self.sample)
        model = tokenizers.Tokenizer.from_str(self.json)
        model.no_truncation()
        model.no_padding()
        return model

    def encode(self, text: str) -> "tokenizers.Encoding":
        """Encode a part of a text. Raises UserError if the tokenizer has no pieces for it, or breaks down."""
        return self._called(self.model.encode, text, add_special_tokens=False)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids. Raises UserError if the tokenizer breaks down."""
        return self._called(self.model.decode, ids, skip_special_tokens=False)

    def _called(self, function: Callable[..., Any], *arguments: Any, **options: bool) -> Any:
        try:
            return function(*arguments, **options)
        except BaseException as error:
            if type(error) is not Exception and not is_panic(error):  # the package raises plain Exception
                raise
            why = reason(error)
        name = one_line(self.name)
        raise UserError(f"the tokenizer {name} cannot read this text ({why}); choose another, or change the text")

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Return the tokenizer.json as a dictionary."""
        return json.loads(self.json)

    @property
    def lossless(self) -> bool:
        """Return True if pieces hold all of a text: every byte has a piece, and the normaliser loses nothing.

        Marking spaces (`▁`), putting one in front and composing accents (NFC) count as losing nothing.
        """
        harmless = (
            s.get("type") in ("NFC", "Prepend") or s.get("content") == "▁"
            for s in _steps(self.settings.get("normalizer"))
        )
        return (self._byte_level or bool(self.settings["model"].get("byte_fallback"))) and all(harmless)

    def split(self, text: str) -> list[str]:
        """Return the pieces of a text."""
        return [piece for pieces in self.stream([text]) for piece in pieces]

    def stream(self, blocks: Iterable[str]) -> Iterator[list[str]]:
        """Yield the pieces of a text in blocks, cut anywhere: the same pieces as `split` of the whole."""
        for part in parts(blocks):
            yield self.encode(part).tokens

    def stream_with_text(self, blocks: Iterable[str]) -> Iterator[tuple[list[str], list[str]]]:
        """Yield pieces as `stream` does, with the text that each stands for."""
        for part in parts(blocks):
            encoded = self.encode(part)
            yield encoded.tokens, [part[start:end] for start, end in encoded.offsets]

    def join(self, tokens: list[str]) -> str:
        """Return the text of pieces."""
        ids = [self.model.token_to_id(token) for token in tokens]
        return self.decode([i for i in ids if i is not None])

    def shown(self, piece: str) -> str:
        """Return the text that a piece stands for inside a text, ` the` for `Ġthe`; half a character as bytes, `\\xc3`."""
        base = "" if self._letter is None else self.join([self._letter])
        text = self.join([piece] if self._letter is None else [self._letter, piece])
        if text.startswith(base) and text != base and "\ufffd" not in text:
            return text.removeprefix(base)
        own = bytes_of(piece) if self._byte_level else None
        return piece if own is None else own.decode(errors="backslashreplace")

    @cached_property
    def _byte_level(self) -> bool:
        """True if each character of a piece stands for a byte of the text (`BYTES`)."""
        return any(s.get("type") == "ByteLevel" for s in _steps(self.settings.get("pre_tokenizer")))

    @cached_property
    def _letter(self) -> str | None:
        """Return a letter that is a piece; None if no letter is."""
        return next((letter for letter in ascii_letters if self.model.token_to_id(letter) is not None), None)

    def vocabulary(self) -> tuple[list[str], int | None, int]:
        """Return the pieces by id (a skipped id is `<unused N>`), and the ids of the unknown and the start token."""
        ids: dict[str, int] = self.model.get_vocab(with_added_tokens=True)
        words = [f"<unused {i}>" for i in range(max(ids.values(), default=-1) + 1)]
        for piece, i in ids.items():
            words[i] = piece
        if len(words) < 2:
            size = "no vocabulary" if not words else "a vocabulary of one type, so that there is nothing to predict"
            raise UserError(f"the tokenizer {self.name} has {size}; give one that was trained")
        model = self.settings.get("model", {})
        unknown = ids.get(model.get("unk_token")) if model.get("unk_id") is None else int(model["unk_id"])
        return words, unknown, next((ids[s] for s in STARTS if s in ids), 0)


def _steps(part: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return the steps of a normaliser or pre-tokenizer, which may be none, one or a sequence."""
    if part is None:
        return []
    return [s for p in part.get("normalizers", part.get("pretokenizers", [])) for s in _steps(p)] or [part]


def parts(blocks: Iterable[str]) -> Iterator[str]:
    """Yield the parts in which a text in blocks is encoded."""
    rest = ""
    for block in blocks:
        rest += block
        while len(rest) > _LONGEST:
            cut = next((c for c in (rest.rfind(s, 0, _LONGEST) + 1 for s in ("\n", " ")) if c), _LONGEST)
            yield rest[:cut]
            rest = rest[cut:]
    if rest:
        yield rest


def from_file(path: Path, sample: str = "") -> Pieces:
    """Load the tokenizer in a file, tried on a sample of the text.

    Raises UserError if it cannot be read, is not to be used (`check`), or `tokenizers` is missing.
    """
    try:
        text = read_small_text(path)
    except OSError as error:
        raise UserError(
            f"cannot read the tokenizer {path}: {error.strerror}; give the path of a tokenizer.json"
        ) from None
    pieces = Pieces(str(path), text, sample=sample)
    _ = pieces.model  # an unusable file is reported here, not in the middle of a corpus
    return pieces


LARGEST = 2_000_000
"""Largest number of types: an embedding of more fits no machine, and the corpus is most likely not text."""
GROWTH = 64
"""Largest length of a tokenized or decoded text, in pieces or characters, relative to the original."""
SECONDS, MEMORY = 2, 1 << 30
"""Processor time and bytes that a small tokenizer may take for a few kB of text; large ones may take more."""

_TRIED: set[str] = set()
"""SHA-256 (hex) of the tokenizers that were tried in this process."""


def check(name: str, text: str, sample: str = "") -> None:
    """Try a tokenizer with the tokenizer.json `text` in a child process, also on a sample; once for each tokenizer.

    Raises UserError for what is no tokenizer, and for one that breaks down, takes too long or too much memory, has too many
    types, or does not keep to its own ids.
    """
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
    if digest in _TRIED:
        return
    megabytes = len(text) >> 20
    seconds, memory = SECONDS + megabytes // 2, MEMORY + megabytes * (64 << 20)
    request = {"tokenizer": text, "sample": sample, "types": LARGEST, "seconds": seconds, "bytes": memory}
    output, code = _child(json.dumps(request).encode(), 8 * seconds)
    findings: dict[str, Any] = {"step": "loading it"}
    for line in output.splitlines():
        findings |= json.loads(line)
        if fault := _fault(findings):
            break
    else:
        fault = "" if findings["step"] == "done" else _ending(code, seconds, findings["step"])
    if fault:
        raise UserError(f"{one_line(name)} {fault}; give one saved by Hugging Face")
    _TRIED.add(digest)


def reason(error: object) -> str:
    """Return a short message of an error of the package."""
    return one_line(str(error).split("\n")[0])[:200] or "unknown format"


def is_panic(error: BaseException) -> bool:
    """Return True for a panic of the package, which is no Exception."""
    return type(error).__name__ == "PanicException"


def _child(request: bytes, seconds: float) -> tuple[bytes, int | None]:
    """Run the trial, and return its output and exit code, or None if it was stopped after so many seconds."""
    # -P: the modules beside the script have names of packages.
    command = [sys.executable, "-P", str(Path(__file__).with_name("tokenizer_trial.py"))]
    try:
        ended = subprocess.run(
            command,
            input=request,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false", "RUST_BACKTRACE": "0"},
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return error.stdout or b"", None
    return ended.stdout, ended.returncode


def _fault(findings: dict[str, Any]) -> str:
    """Return what is wrong with a tokenizer, from the findings of its trial; empty if nothing is."""
    if "error" in findings:
        why, step = reason(findings["error"]), findings["step"]
        return f"is not a tokenizer.json ({why})" if step == "loading it" else f"breaks down: {step}, {why}"
    if findings.get("types", 0) > LARGEST:
        return f"has the id {findings['types'] - 1:,}, more than {LARGEST:,} types have"
    if findings.get("doubled"):
        return "has several pieces of one id"
    if findings.get("moved"):
        return f"lists the piece {one_line(findings['moved'][0])!r:.60} with an id that is not its own"
    if findings.get("random"):
        return "cuts a text otherwise each time (it has a dropout)"
    if findings.get("grown", 0) > GROWTH:
        return f"makes a text more than {GROWTH} times as long"
    return ""


def _ending(code: int | None, seconds: float, step: str) -> str:
    """Return why a trial did not end; `code` is its exit code, or None if it was stopped."""
    if code is None or -code in signals("SIGKILL", "SIGXCPU"):
        return f"takes too long: {step}, more than {seconds} s"
    return f"breaks down: {step}, probably for lack of memory"


Kind = Literal["bpe", "unigram"]

TRAINED_FORMAT = 1
"""Version of the rules by which a tokenizer is trained."""
START = "<|endoftext|>"
"""The piece that is fed before the first of a text."""
SMALLEST = 257
"""The 256 bytes, and the start."""
_NAME = re.compile(r"(bpe|unigram):(\d{1,9})")
_LONG_WORD = 1_000
_LONG_RUN = re.compile(rf"(?<!\S)\S{{{_LONG_WORD + 1},}}|(?<!\s)\s{{{_LONG_WORD + 1},}}")
"""Characters without or of white space that a trained tokenizer learns in parts."""


def trained_kind(name: str) -> tuple[Kind, int] | None:
    """Return the kind and the number of pieces of `bpe:8000`; None for another name. Raises UserError for a bad size."""
    if (match := _NAME.fullmatch(name)) is None:
        if name.partition(":")[0] in ("bpe", "unigram"):
            raise UserError(f"the tokenizer {name!r} must be written KIND:SIZE, as in {name.partition(':')[0]}:8000")
        return None
    size = int(match[2])
    if not SMALLEST <= size <= LARGEST:
        raise UserError(f"the tokenizer {name} must have {SMALLEST} to {LARGEST:,} pieces; choose another size")
    return cast(Kind, match[1]), size


def train_tokenizer(kind: Kind, size: int, blocks: Iterable[str]) -> Pieces:
    """Train a tokenizer of at most `size` pieces on a text in blocks.

    Equal texts give equal `bpe` pieces; `unigram` adds in another order each time, so that its scores may differ a little.
    Words of more than a thousand characters are learned in parts.

    Raises UserError for a text that no pieces can be learned from, and if the package `tokenizers` is missing.
    """
    name = f"{kind}:{size}"
    try:
        import tokenizers as hf
    except ImportError:
        raise UserError(f"{name} needs the package tokenizers; {install_hint('hf')}") from None
    options: dict[str, Any] = {
        "vocab_size": size,
        "special_tokens": [START],
        "initial_alphabet": sorted(hf.pre_tokenizers.ByteLevel.alphabet()),
        "show_progress": False,
    }
    is_bpe = kind == "bpe"
    model = hf.Tokenizer(hf.models.BPE() if is_bpe else hf.models.Unigram())
    model.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    model.decoder = hf.decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = hf.trainers.BpeTrainer(**options) if is_bpe else hf.trainers.UnigramTrainer(**options)
    try:
        model.train_from_iterator(_without_long_words(parts(blocks)), trainer)
    except BaseException as error:
        if isinstance(error, UserError) or (type(error) is not Exception and not is_panic(error)):
            raise
        raise UserError(f"{name} cannot be learned from this text ({reason(error)}); give more text") from None
    return Pieces(name, model.to_str())


def _without_long_words(texts: Iterable[str]) -> Iterator[str]:
    """Yield texts with long words cut, since learning from a word takes time that grows with the square of its length."""
    for text in texts:
        start = 0
        for run in _LONG_RUN.finditer(text):
            for cut in range(run.start() + _LONG_WORD, run.end(), _LONG_WORD):
                yield text[start:cut]
                start = cut
        yield text[start:]
