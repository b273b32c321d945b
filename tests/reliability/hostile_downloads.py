"""Downloads from servers that lie, stall, flood or trap are refused in one line, and nothing is kept."""

import functools
import gzip
import itertools
import re
import socket
import stat
import struct
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from localhost import ARCHIVE, GOOD, TEXTS, Answer, Server, prepare, sends, serving, zipped

from backstory.data.corpora.download import Limits
from backstory.data.corpora.published_corpora import PublishedCorpus

FIRST = next(iter(TEXTS))


def endless(block: bytes, pause: float = 0.0) -> Answer:
    """The block again and again, with no length announced."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        sends(b"", length=None)(request)
        while True:
            request.wfile.write(block)
            time.sleep(pause)

    return answer


def dripping_headers(request: BaseHTTPRequestHandler) -> None:
    for byte in itertools.cycle(b"HTTP/1.1 200 OK\r\nX-Filler: "):
        request.wfile.write(bytes([byte]))
        time.sleep(0.05)


def silent(request: BaseHTTPRequestHandler) -> None:
    time.sleep(1.0)


def reset(request: BaseHTTPRequestHandler) -> None:
    """Half of the file, then a TCP reset."""
    sends(GOOD[: len(GOOD) // 2], length=len(GOOD))(request)
    request.wfile.flush()
    time.sleep(0.1)
    request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    request.connection.close()


def to(place: str) -> Answer:
    return sends(b"", status=302, Location=place)


def special(name: str, mode: int) -> bytes:
    """The good archive with one more member, of that file mode."""
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return zipped({info: b"../../../canary", **ARCHIVE})


def broken(archive: bytes) -> bytes:
    """The archive with some bytes of its first member's data changed."""
    return archive[:80] + bytes(255 - b for b in archive[80:90]) + archive[90:]


def without(name: str) -> bytes:
    return zipped({member: text for member, text in ARCHIVE.items() if not member.endswith(name)})


def bomb(method: int = zipfile.ZIP_DEFLATED) -> bytes:
    return zipped({**ARCHIVE, f"wikitext-2/{FIRST}": bytes(5_000_000)}, method)


def encrypted() -> bytes:
    """The good archive, with the flag of encryption set in every header."""
    marked = bytearray(GOOD)
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        for match in re.finditer(re.escape(signature), GOOD):
            marked[match.start() + offset] |= 1
    return bytes(marked)


ATTACKS: dict[str, tuple[Answer, str]] = {
    "truncated": (sends(GOOD[:-100], length=len(GOOD)), "broke off after"),
    "truncated, no length": (sends(GOOD[:-100], length=None), "no zip archive, or a damaged one"),
    "longer than announced": (sends(GOOD + b"more", length=len(GOOD) - 9), "no zip archive, or a damaged one"),
    "announces too much": (sends(GOOD, length=10**12), "announces 1,000,000,000,000 bytes"),
    "a length that is no number": (sends(bytes(20_000), length=None, Content_Length="-5"), "sends more than"),
    "endless": (endless(bytes(1 << 16)), "sends more than the 10,000 bytes"),
    "endless chunks": (sends(b"FFFFFFF\r\n" + bytes(20_000), None, Transfer_Encoding="chunked"), "sends more than"),
    "broken chunks": (sends(b"zz\r\nx", None, Transfer_Encoding="chunked"), "breaks the rules of HTTP"),
    "slow drip": (endless(b"x", 0.02), "fewer than 1,000 bytes a second"),
    "stalls midway": (lambda r: (sends(GOOD[:50], length=len(GOOD))(r), silent(r)), "does not answer in time"),
    "never answers": (silent, "does not answer in time"),
    "headers that drip": (dripping_headers, "does not answer in time"),
    "not HTTP": (lambda r: r.wfile.write(b"220 ftp ready\r\n"), "breaks the rules of HTTP"),
    "404": (sends(b"no", status=404), "answers with status 404"),
    "500": (sends(b"no", status=500), "answers with status 500"),
    "206": (sends(GOOD, status=206), "answers with status 206"),
    "an error page": (sends(b"<html>sorry", Content_Type="text/html; charset=utf-8"), "a web page instead"),
    "an error page as data": (sends(b"<html>sorry</html>" * 9), "no zip archive"),
    "a redirect loop": (to("/attack"), "redirects in a loop"),
    "a redirect to a file": (to("file:///etc/passwd"), "redirects in a loop, or to where it must not"),
    "a redirect to FTP": (to("ftp://127.0.0.1/x"), "redirects in a loop, or to where it must not"),
    "a gzip bomb": (sends(gzip.compress(bytes(9_000_000)), Content_Encoding="gzip"), "not asked for"),
    "reset midway": (reset, "cannot be read: Connection reset"),
    "zip-slip": (sends(zipped({"../../../canary": b"x", **ARCHIVE})), "leads out of its folder"),
    "an absolute path": (sends(zipped({"/tmp/backstory-canary": b"x", **ARCHIVE})), "leads out of its folder"),
    "a Windows path": (sends(zipped({"C:\\canary": b"x", **ARCHIVE})), "leads out of its folder"),
    "a symlink": (sends(special("wikitext-2/link", stat.S_IFLNK | 0o777)), "a link or a device"),
    "a device": (sends(special("wikitext-2/null", stat.S_IFCHR | 0o666)), "a link or a device"),
    "a zip bomb": (sends(bomb()), "unpacks to more than the 10,000 bytes"),
    "a bzip2 bomb": (sends(bomb(zipfile.ZIP_BZIP2)), "unusual method"),
    "a corrupt zip": (sends(broken(GOOD)), "no zip archive, or a damaged one"),
    "an encrypted zip": (sends(encrypted()), "no zip archive, or a damaged one"),
    "a missing member": (sends(without(FIRST)), "holds no wikitext-2/wiki.train.tokens"),
}
"""Behaviour of the server towards a client that asks for the archive, and the client's message."""

SLOW = ("slow drip", "stalls midway", "never answers", "headers that drip")
STRICT = Limits(answer=0.4, minimum_rate=1_000, window=0.4)
"""Limits for the slow attacks. Others have none, so that a busy machine is not mistaken for a slow server."""


def run(trials: Sequence[int], folder: Path) -> Iterator[str]:
    """One attack a trial, those on hashes last; after each, an honest server in its place makes all well."""
    checks: list[tuple[str, Callable[[Server, Path], str]]] = [
        *((name, functools.partial(_archive, name)) for name in ATTACKS),
        ("other files", functools.partial(_other, "files", False)),
        ("other files in the archive", functools.partial(_other, "files", True)),
        ("another archive", functools.partial(_other, "archive", True)),
        ("another file than the first time", _changed),
    ]
    with serving() as server:
        for trial in trials:
            name, check = checks[trial % len(checks)]
            place = folder / str(trial)
            place.mkdir()
            if problem := check(server, place):
                yield f"{name}: {problem}"


COUNT = len(ATTACKS) + 4


def _archive(name: str, server: Server, place: Path) -> str:
    answer, says = ATTACKS[name]
    limits = STRICT if name in SLOW else None
    server.answers.update({"attack": answer, "good": sends(GOOD)})
    return _refused(server.corpus("attack"), place, says, limits) or _served(server.corpus("good"), place)


def _other(known: str, packed: bool, server: Server, place: Path) -> str:
    other = {name: text.replace(b"cat", b"cow") for name, text in TEXTS.items()}
    server.answers.update({f"bad/{name}": sends(text) for name, text in other.items()})
    server.answers.update({f"good/{name}": sends(text) for name, text in TEXTS.items()})
    server.answers["bad"] = sends(zipped({f"wikitext-2/{name}": text for name, text in other.items()}))
    server.answers["good"] = sends(GOOD)
    bad, good = (server.corpus(path, known=known, packed=packed) for path in ("bad", "good"))
    return _refused(bad, place, "its SHA-256 differs") or _served(good, place)


def _changed(server: Server, place: Path) -> str:
    server.answers["good"] = sends(GOOD)
    server.answers["bad"] = sends(zipped({m: t.replace(b"cat", b"cow") for m, t in ARCHIVE.items()}))
    if problem := _served(server.corpus("good"), place):
        return problem
    (place / "cache" / "data" / "wikitext-2" / FIRST).unlink()
    return _refused(server.corpus("bad"), place, "differs from the first download") or _served(
        server.corpus("good"), place
    )


def _refused(corpus: PublishedCorpus, place: Path, says: str, limits: Limits | None = None) -> str:
    """Return what is wrong with the way a download is refused; empty where nothing is."""
    (place / "canary").write_text("alive")
    before, began = _contents(place), time.monotonic()
    code, _, errors = prepare(corpus, place / "cache", limits=limits)
    if code != 2 or errors.count("\n") != 1 or not errors.startswith("backstory: "):
        return f"exit code {code}, said {errors!r}"
    if says not in errors:
        return f"said {errors!r} instead of {says!r}"
    if _contents(place) != before or Path("/tmp/backstory-canary").exists():
        return f"left {sorted(_contents(place) - before)} behind"
    if time.monotonic() - began > 20:
        return f"took {time.monotonic() - began:.1f} s"
    return ""


def _served(corpus: PublishedCorpus, place: Path) -> str:
    """Return what is wrong after an honest download; empty where nothing is."""
    code, out, errors = prepare(corpus, place / "cache")
    data = place / "cache" / "data" / "wikitext-2"
    if code or errors or "wikitext-2: " not in out:
        return f"an honest download failed with {code}: {errors!r}"
    found = {path.name: path.read_bytes() for path in data.iterdir() if path.name != "download.json"}
    return "" if found == TEXTS else f"an honest download left {sorted(found)}"


def _contents(folder: Path) -> set[tuple[str, bytes]]:
    return {(str(p.relative_to(folder)), p.read_bytes() if p.is_file() else b"") for p in folder.rglob("*")}
