"""Downloads over HTTP and unpacking of zip archives: bounded in size and time, checked by SHA-256, never outside the folder."""

import contextlib
import hashlib
import http.client
import socket
import ssl
import stat
import threading
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any
from urllib.parse import urlsplit

from backstory.config.errors import UserError

ProgressCallback = Callable[[int, int], None]
"""Called with (bytes read, bytes to be read at most)."""

BLOCK = 1 << 16
"""Bytes read, or unpacked, at once."""


@dataclass(frozen=True)
class File:
    """What is known of a file: the most bytes it may have, and its SHA-256 (hex) where that is known."""

    most: int
    sha256: str | None = None


@dataclass(frozen=True)
class Patience:
    """How long a server is waited for: seconds for an answer, and bytes a second that it must keep up over a span."""

    answer: float = 30.0
    slowest: float = 1_000.0
    span: float = 30.0


class Failed(Exception):
    """A download that did not work; the message says why, in our words only."""


def download(urls: tuple[str, ...], known: File, target: Path, progress: ProgressCallback, patience: Patience) -> str:
    """Write what the first address that works serves into the file `target`; returns that address.

    Raises UserError, with the reason of every address, where none works; nothing is left at `target` then.
    """
    reasons: list[str] = []
    for url in urls:
        try:
            with target.open("xb") as file, _opened(url, patience) as response:
                _receive(response, known, file.write, progress, patience)
            return url
        except Failed as reason:
            reasons.append(f"{url} {reason}")
            target.unlink()
    raise UserError(f"no download: {'; '.join(reasons)}. Try again later, or put the files into a data folder")


def _receive(
    response: http.client.HTTPResponse,
    known: File,
    write: Callable[[bytes], Any],
    progress: ProgressCallback,
    patience: Patience,
) -> None:
    declared = _declared(response, known)
    sha, size = hashlib.sha256(), 0
    for block in _blocks(response, patience):
        size += len(block)
        if size > known.most:
            raise Failed(f"sends more than the {known.most:,} bytes there should be")
        sha.update(block)
        write(block)
        progress(size, declared or known.most)
    if declared is not None and size != declared:
        raise Failed(f"broke off after {size:,} of {declared:,} bytes")
    if known.sha256 not in (None, sha.hexdigest()):
        raise Failed("serves something else than the published file (its SHA-256 differs)")


def _declared(response: http.client.HTTPResponse, known: File) -> int | None:
    """The bytes that the answer says will come, if it says so."""
    if response.status != 200:
        raise Failed(f"answers with status {response.status}")
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise Failed("sends the file in an encoding that was not asked for")
    if response.headers.get_content_type() == "text/html":
        raise Failed("answers with a web page instead of the file")
    if response.length is not None and response.length > known.most:
        raise Failed(f"announces {response.length:,} bytes where there should be at most {known.most:,}")
    return response.length


def _blocks(response: http.client.HTTPResponse, patience: Patience) -> Iterator[bytes]:
    began, size = time.monotonic(), 0
    with _explained():
        while block := response.read1(BLOCK):
            yield block
            size += len(block)
            if time.monotonic() - began > patience.span:
                if size < patience.slowest * patience.span:
                    raise Failed(f"sends fewer than {patience.slowest:,.0f} bytes a second")
                began, size = time.monotonic(), 0


@contextlib.contextmanager
def _opened(url: str, patience: Patience) -> Iterator[http.client.HTTPResponse]:
    """The answer of a server, without any of the schemes but http and https that urllib would follow."""
    opener = urllib.request.OpenerDirector()
    handlers = (
        urllib.request.ProxyHandler,
        urllib.request.UnknownHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
    )
    for handler in (*(kind() for kind in handlers), _Redirects(), _Plain(), _Secure()):
        opener.add_handler(handler)
    # Some homes refuse the default name of urllib.
    headers = {"User-Agent": "backstory", "Accept-Encoding": "identity"}
    with _explained():
        response = opener.open(urllib.request.Request(url, headers=headers), timeout=patience.answer)
    with contextlib.closing(response):
        yield response


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Whatever can go wrong on the way, in one line without a word of the server's."""
    try:
        yield
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in (301, 302, 303, 307, 308):
            raise Failed("redirects in a loop, or to where it must not") from None
        raise Failed(f"answers with status {error.code}") from None
    except urllib.error.URLError as error:
        raise Failed(_why(error.reason)) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Failed(_why(error)) from None


def _why(error: object) -> str:
    match error:
        case ssl.SSLCertVerificationError():
            return f"has a certificate that does not hold ({error.verify_message})"
        case TimeoutError():
            return "does not answer in time"
        case socket.gaierror():
            return "cannot be found; is there a network?"
        case OSError(strerror=str(reason)):
            return f"cannot be read: {reason}"
        case _:
            return f"breaks the rules of HTTP ({type(error).__name__})"


class _Redirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req, fp, code, msg, headers, newurl):
        to = urlsplit(newurl).scheme
        if to != "https" and (to != "http" or req.type == "https"):
            raise urllib.error.HTTPError(newurl, code, msg, headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Punctual(http.client.HTTPConnection):
    """A connection whose answer must begin in time as a whole: a timeout alone counts from byte to byte."""

    def getresponse(self) -> http.client.HTTPResponse:
        late, sock = threading.Event(), self.sock

        def give_up() -> None:
            late.set()
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

        timer = threading.Timer(self.timeout or 0, give_up)
        timer.start()
        try:
            response = super().getresponse()
        except (OSError, http.client.HTTPException):
            if late.is_set():
                raise TimeoutError from None
            raise
        finally:
            timer.cancel()
        if late.is_set():
            response.close()
            raise TimeoutError
        return response


class _PunctualSecure(_Punctual, http.client.HTTPSConnection):
    pass


class _Plain(urllib.request.HTTPHandler):
    def http_open(self, req):
        return self.do_open(_Punctual, req)


class _Secure(urllib.request.HTTPSHandler):
    def https_open(self, req):
        return self.do_open(_PunctualSecure, req, context=ssl.create_default_context())


def unpack(archive: Path, url: str, members: Mapping[str, str], known: Mapping[str, File], folder: Path) -> None:
    """Write members into a folder, each under the name that `members` maps to it; `url` says where the archive is from.

    Raises UserError for what is not a zip archive or a damaged one; for members that lead outside a folder, are links,
    or hold more than they may; and where one is missing. What was written by then is the caller's to remove.
    """
    try:
        with zipfile.ZipFile(archive) as zipped:
            for info in zipped.infolist():
                _check(info, url)
            for name, member in members.items():
                _extract(zipped, _only(zipped, member, url), known[name].most, folder / name, url)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError):
        raise UserError(f"{url} serves no zip archive, or a damaged one; try again later") from None


def _check(info: zipfile.ZipInfo, url: str) -> None:
    """Refuse the archive for any member that a careless program would write elsewhere, wanted or not."""
    path = PureWindowsPath(info.filename)  # takes both kinds of slash, and drives
    if path.anchor or ".." in path.parts:
        raise UserError(f"the archive {url} holds a file whose name leads out of its folder, so it is not unpacked")
    mode = info.external_attr >> 16
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise UserError(f"the archive {url} holds a link or a device, so it is not unpacked")


def _only(zipped: zipfile.ZipFile, member: str, url: str) -> zipfile.ZipInfo:
    found = [info for info in zipped.infolist() if info.filename == member and not info.is_dir()]
    if len(found) != 1:
        raise UserError(
            f"the archive {url} holds {len(found) or 'no'} {member}, not one, so it is not the one expected"
        )
    # The other methods unpack all they are given at once, however much that comes to.
    if found[0].compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise UserError(f"the archive {url} is packed by an unusual method, so it is not unpacked")
    return found[0]


def _extract(zipped: zipfile.ZipFile, info: zipfile.ZipInfo, most: int, target: Path, url: str) -> None:
    """Write one member, block by block, up to `most` bytes whatever the archive says of its size."""
    size = 0
    with zipped.open(info) as source, target.open("xb") as file:
        while block := source.read(BLOCK):
            size += len(block)
            if size > most:
                raise UserError(f"{info.filename} in {url} unpacks to more than the {most:,} bytes there should be")
            file.write(block)
