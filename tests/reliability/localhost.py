"""A real HTTP server on localhost with a function per path, and small published corpora that it serves."""

import contextlib
import hashlib
import io
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from unittest import mock

from backstory.cli.main import main
from backstory.data.corpora import published_corpora
from backstory.data.corpora.download import ExpectedFile, Limits
from backstory.data.corpora.published_corpora import PUBLISHED, Download, PublishedCorpus

Answer = Callable[[BaseHTTPRequestHandler], None]

TEXTS = {
    f"wiki.{split}.tokens": f" \n = {split} = \n \n the cat saw the {split} dog . \n".encode() * 40
    for split in ("train", "valid", "test")
}
"""A corpus of three files, as it should arrive."""


def sends(body: bytes, length: int | None = -1, status: int = 200, **headers: str) -> Answer:
    """The body; `length` is what is announced (None: nothing, -1: the truth)."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        if length is not None:
            request.send_header("Content-Length", str(len(body) if length < 0 else length))
        for name, value in headers.items():
            request.send_header(name.replace("_", "-"), value)
        request.end_headers()
        request.wfile.write(body)

    return answer


def zipped(members: Mapping[str | zipfile.ZipInfo, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip archive of those members."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, body in members.items():
            archive.writestr(name, body, method)
    return buffer.getvalue()


ARCHIVE = {f"wikitext-2/{name}": text for name, text in TEXTS.items()}
"""The members of the corpus's archive, as they should be."""

GOOD = zipped(ARCHIVE)
"""The archive."""


@dataclass
class Server:
    """The running server: `answers` by path, and the paths that were asked for."""

    port: int
    answers: dict[str, Answer]
    asked: list[str] = field(default_factory=list)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"

    def corpus(self, *paths: str, most: int = 10_000, known: str = "", packed: bool = True) -> PublishedCorpus:
        """A published corpus whose archive (or else each file) is at those paths.

        `known` says whose SHA-256 is published: that of the "files", of the "archive", or none.
        """
        files = {n: ExpectedFile(most, _sha256(text) if known == "files" else None) for n, text in TEXTS.items()}
        if packed:
            archive = ExpectedFile(most, _sha256(GOOD) if known == "archive" else None)
            urls = tuple(self.url(path) for path in paths)
            return PublishedCorpus(files, (Download(urls, {n: f"wikitext-2/{n}" for n in TEXTS}, archive),))
        return PublishedCorpus(
            files, tuple(Download(tuple(self.url(f"{p}/{n}") for p in paths), {n: ""}) for n in TEXTS)
        )


def _sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    """A server for the block."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.asked.append(self.path[1:])
            with contextlib.suppress(OSError):  # a client that had enough
                server.answers.get(self.path[1:], sends(b"", status=404))(self)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server = Server(http.server_address[1], {})
    thread = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def prepare(corpus: PublishedCorpus, cache: Path, *more: str, limits: Limits | None = None) -> tuple[int, str, str]:
    """Exit code, output and errors of `backstory data prepare wikitext-2`, which is published so, with that cache."""
    out, err = io.StringIO(), io.StringIO()
    environment = {k: v for k, v in os.environ.items() if k != "BACKSTORY_DATA"} | {"BACKSTORY_CACHE": str(cache)}
    with (
        mock.patch.dict(os.environ, environment, clear=True),
        mock.patch.dict(PUBLISHED, {"wikitext-2": corpus}),
        mock.patch.object(published_corpora, "LIMITS", limits or Limits()),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = main(["data", "prepare", "wikitext-2", *more])
    return code, out.getvalue(), err.getvalue()
