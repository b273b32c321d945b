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

from backstory.utils.errors import UserError
from backstory.utils.terminal import ProgressCallback

BLOCK = 1 << 16
"""Bytes read, or unpacked, at once."""


@dataclass(frozen=True)
class ExpectedFile:
    """Properties of a published file: its maximum size in bytes, and its SHA-256 (hex) if known."""

    most: int
    sha256: str | None = None


@dataclass(frozen=True)
class Limits:
    """Limits on a slow server: seconds until it answers, and bytes a second over a window of seconds."""

    answer: float = 30.0
    minimum_rate: float = 1_000.0
    window: float = 30.0


class DownloadFailed(Exception):
    """A download failed; the message gives the reason, without any text of the server."""


def download(
    urls: tuple[str, ...], expected: ExpectedFile, target: Path, progress: ProgressCallback, limits: Limits
) -> str:
    """Download from the first address that works into the file `target`, and return that address.

    Raises UserError, with the reason for every address and nothing left at `target`, if none works.
    """
    reasons: list[str] = []
    for url in urls:
        try:
            with target.open("xb") as file, _open(url, limits) as response:
                _receive(response, expected, file.write, progress, limits)
            return url
        except DownloadFailed as reason:
            reasons.append(f"{url} {reason}")
            target.unlink()
    raise UserError(f"no download: {'; '.join(reasons)}. Try again later, or put the files into a data folder")


def _receive(
    response: http.client.HTTPResponse,
    expected: ExpectedFile,
    write: Callable[[bytes], Any],
    progress: ProgressCallback,
    limits: Limits,
) -> None:
    declared = _check_headers(response, expected)
    sha, size = hashlib.sha256(), 0
    for block in _blocks(response, limits):
        size += len(block)
        if size > expected.most:
            raise DownloadFailed(f"sends more than the {expected.most:,} bytes there should be")
        sha.update(block)
        write(block)
        progress(size, declared or expected.most)
    if declared is not None and size != declared:
        raise DownloadFailed(f"broke off after {size:,} of {declared:,} bytes")
    if expected.sha256 not in (None, sha.hexdigest()):
        raise DownloadFailed("serves something else than the published file (its SHA-256 differs)")


def _check_headers(response: http.client.HTTPResponse, expected: ExpectedFile) -> int | None:
    """Check the headers of a response, and return the number of bytes that they announce, if any."""
    if response.status != 200:
        raise DownloadFailed(f"answers with status {response.status}")
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise DownloadFailed("sends the file in an encoding that was not asked for")
    if response.headers.get_content_type() == "text/html":
        raise DownloadFailed("answers with a web page instead of the file")
    if response.length is not None and response.length > expected.most:
        raise DownloadFailed(f"announces {response.length:,} bytes where there should be at most {expected.most:,}")
    return response.length


def _blocks(response: http.client.HTTPResponse, limits: Limits) -> Iterator[bytes]:
    start, size = time.monotonic(), 0
    with _transfer_errors():
        while block := response.read1(BLOCK):
            yield block
            size += len(block)
            if time.monotonic() - start > limits.window:
                if size < limits.minimum_rate * limits.window:
                    raise DownloadFailed(f"sends fewer than {limits.minimum_rate:,.0f} bytes a second")
                start, size = time.monotonic(), 0


@contextlib.contextmanager
def _open(url: str, limits: Limits) -> Iterator[http.client.HTTPResponse]:
    """Open an address over http or https, and none of the other schemes that urllib would follow."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.UnknownHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
        _Redirects,
        _HTTPHandler,
        _HTTPSHandler,
    ):
        opener.add_handler(handler())
    # Some servers refuse the default name of urllib.
    headers = {"User-Agent": "backstory", "Accept-Encoding": "identity"}
    with _transfer_errors():
        response = opener.open(urllib.request.Request(url, headers=headers), timeout=limits.answer)
    with contextlib.closing(response):
        yield response


@contextlib.contextmanager
def _transfer_errors() -> Iterator[None]:
    """Turn every error of a transfer into one line without any text of the server."""
    try:
        yield
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in (301, 302, 303, 307, 308):
            raise DownloadFailed("redirects in a loop, or to where it must not") from None
        raise DownloadFailed(f"answers with status {error.code}") from None
    except urllib.error.URLError as error:
        raise DownloadFailed(_reason(error.reason)) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise DownloadFailed(_reason(error)) from None


def _reason(error: object) -> str:
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


class _TimedConnection(http.client.HTTPConnection):
    """Connection that must receive all headers in time: a timeout alone starts anew with every byte."""

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


class _TimedSecureConnection(_TimedConnection, http.client.HTTPSConnection):
    pass


class _HTTPHandler(urllib.request.HTTPHandler):
    def http_open(self, req):
        return self.do_open(_TimedConnection, req)


class _HTTPSHandler(urllib.request.HTTPSHandler):
    def https_open(self, req):
        return self.do_open(_TimedSecureConnection, req, context=ssl.create_default_context())


def unpack(
    archive: Path, url: str, members: Mapping[str, str], expected: Mapping[str, ExpectedFile], folder: Path
) -> None:
    """Unpack members of a zip archive, each under the name that `members` maps to it; `url` names the archive in messages.

    Raises UserError for a damaged archive, for members that lead outside a folder, are links or too large, and for a
    missing one. The caller removes what was written by then.
    """
    try:
        with zipfile.ZipFile(archive) as zipped:
            for info in zipped.infolist():
                _check_member(info, url)
            for name, member in members.items():
                _extract_member(zipped, _find_member(zipped, member, url), expected[name].most, folder / name, url)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError):
        raise UserError(f"{url} serves no zip archive, or a damaged one; try again later") from None


def _check_member(info: zipfile.ZipInfo, url: str) -> None:
    """Refuse the archive for any member, wanted or not, that could be written outside its folder."""
    path = PureWindowsPath(info.filename)  # takes both kinds of slash, and drives
    if path.anchor or ".." in path.parts:
        raise UserError(f"the archive {url} holds a file whose name leads out of its folder, so it is not unpacked")
    mode = info.external_attr >> 16
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise UserError(f"the archive {url} holds a link or a device, so it is not unpacked")


def _find_member(zipped: zipfile.ZipFile, member: str, url: str) -> zipfile.ZipInfo:
    infos = [info for info in zipped.infolist() if info.filename == member and not info.is_dir()]
    if len(infos) != 1:
        raise UserError(
            f"the archive {url} holds {len(infos) or 'no'} {member}, not one, so it is not the one expected"
        )
    # The other methods unpack everything at once, whatever its size.
    if infos[0].compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise UserError(f"the archive {url} is packed by an unusual method, so it is not unpacked")
    return infos[0]


def _extract_member(zipped: zipfile.ZipFile, info: zipfile.ZipInfo, most: int, target: Path, url: str) -> None:
    """Write one member, block by block, up to `most` bytes, whatever size the archive declares."""
    size = 0
    with zipped.open(info) as source, target.open("xb") as file:
        while block := source.read(BLOCK):
            size += len(block)
            if size > most:
                raise UserError(f"{info.filename} in {url} unpacks to more than the {most:,} bytes there should be")
            file.write(block)
