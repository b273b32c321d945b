"""Downloads from an honest server: complete, once, from the first working address, one at a time, despite kills."""

import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest
from localhost import GOOD, TEXTS, Answer, Server, prepare, sends, serving, zipped
from tiers import fast_then_full

from backstory.data.corpora.download import ExpectedFile, Limits
from backstory.data.corpora.published_corpora import Download, PublishedCorpus

PROCESS = """
import sys
from pathlib import Path
from localhost import Server, prepare
code, out, errors = prepare(Server(int(sys.argv[1]), {}).corpus("slow"), Path(sys.argv[2]))
sys.exit(code if code != 2 else errors)
"""

KILLED = """
import os, signal, sys
from pathlib import Path
from localhost import Server, prepare
replace, left = os.replace, [int(sys.argv[3])]
def dies(source, target):
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    replace(source, target)
os.replace = dies
prepare(Server(int(sys.argv[1]), {}).corpus("good"), Path(sys.argv[2]))
"""


def started(program: str, *arguments: object) -> subprocess.Popen:
    """The program in a process of its own that finds the modules beside this one."""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path}, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        running.answers["good"] = sends(GOOD)
        yield running


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "download.json"}


def test_a_corpus_is_downloaded_once(server: Server, tmp_path: Path) -> None:
    first = prepare(server.corpus("good"), tmp_path)
    folder = tmp_path / "data" / "wikitext-2"
    assert first[0] == 0 and f"downloaded wikitext-2 into {folder}\n" in first[1]
    assert "SHA-256 unchanged since the download" in first[1]
    assert files(folder) == TEXTS
    record = json.loads((folder / "download.json").read_text())
    assert record["from"] == [server.url("good")] and set(record["files"]) == set(TEXTS)
    second = prepare(server.corpus("good"), tmp_path)
    assert second[0] == 0 and "downloaded" not in second[1].splitlines()[0]
    assert second[1].splitlines() == first[1].splitlines()[1:]
    assert server.asked == ["good"]


def test_it_goes_into_the_data_folder_that_is_named(server: Server, tmp_path: Path) -> None:
    assert prepare(server.corpus("good"), tmp_path / "cache", "--data-dir", str(tmp_path / "mine"))[0] == 0
    assert files(tmp_path / "mine" / "wikitext-2") == TEXTS
    assert not (tmp_path / "cache" / "data").exists()


@pytest.mark.parametrize("packed", [True, False])
def test_published_hashes_and_further_addresses(packed: bool, server: Server, tmp_path: Path) -> None:
    server.answers |= {f"good/{name}": sends(text, length=None) for name, text in TEXTS.items()}
    server.answers["moved"] = sends(b"", status=301, Location="/good")
    corpus = server.corpus("gone", "moved" if packed else "good", known="files", packed=packed)
    code, out, errors = prepare(corpus, tmp_path)
    assert (code, errors) == (0, "") and "SHA-256 as published" in out
    assert [path.split("/")[0] for path in server.asked[:2]] == ["gone", "moved" if packed else "good"]


def test_what_was_damaged_is_downloaded_again(server: Server, tmp_path: Path) -> None:
    prepare(server.corpus("good"), tmp_path)
    damaged = tmp_path / "data" / "wikitext-2" / "wiki.test.tokens"
    damaged.write_bytes(b"something else\n")
    assert prepare(server.corpus("good"), tmp_path)[0] == 0
    assert files(damaged.parent) == TEXTS
    (damaged.parent / "download.json").write_text("{")
    assert prepare(server.corpus("good"), tmp_path)[0] == 0
    assert server.asked == ["good"] * 3


def test_files_of_ones_own_are_left_alone(server: Server, tmp_path: Path) -> None:
    mine = tmp_path / "data" / "wikitext-2" / "wiki.test.tokens"
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"mine\n")
    code, _, errors = prepare(server.corpus("good"), tmp_path)
    assert code == 2 and "holds some files of wikitext-2 that were not downloaded" in errors
    assert files(mine.parent) == {mine.name: b"mine\n"} and server.asked == []


def held(asked: Event, go: Event) -> Answer:
    """Half of the archive, and the rest when told to."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        sends(GOOD[:200], length=len(GOOD))(request)
        request.wfile.flush()
        asked.set()
        go.wait(20)
        request.wfile.write(GOOD[200:])

    return answer


@pytest.fixture
def half_way(server: Server, tmp_path: Path) -> Iterator[tuple[subprocess.Popen, Event]]:
    """Another process that is half way through a download, and the event that lets it go on."""
    asked, go = Event(), Event()
    server.answers["slow"] = held(asked, go)
    process = started(PROCESS, server.port, tmp_path)
    assert asked.wait(20)
    yield process, go
    go.set()
    process.kill()
    process.communicate()


@pytest.mark.full
def test_two_at_the_same_time(server: Server, half_way: tuple, tmp_path: Path) -> None:
    process, go = half_way
    code, _, errors = prepare(server.corpus("good"), tmp_path)
    assert code == 2 and "another download is running in" in errors and "--data-dir" in errors
    go.set()
    assert process.wait(20) == 0
    assert files(tmp_path / "data" / "wikitext-2") == TEXTS
    assert prepare(server.corpus("good"), tmp_path)[0] == 0
    assert server.asked == ["slow"]


@pytest.mark.full
def test_one_that_is_interrupted_leaves_nothing(half_way: tuple, tmp_path: Path) -> None:
    process, _ = half_way
    process.send_signal(signal.SIGINT)
    # One that comes between two instructions, just before the wait for the server, is seen when that ends, after 30 seconds.
    assert process.wait(20 + Limits().answer) == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_what_a_killed_one_leaves_is_swept_by_the_next(server: Server, half_way: tuple, tmp_path: Path) -> None:
    process, _ = half_way
    process.send_signal(signal.SIGKILL)
    process.wait(20)
    folder = tmp_path / "data" / "wikitext-2"
    assert [path.name[:5] for path in sorted(folder.iterdir())] == [".lock", ".tmp-"]
    assert prepare(server.corpus("good"), tmp_path)[0] == 0
    assert files(folder) == TEXTS


@pytest.mark.parametrize("renames", fast_then_full(range(4), [1]))
def test_one_that_is_killed_between_renames_is_taken_up_again(renames: int, server: Server, tmp_path: Path) -> None:
    process = started(KILLED, server.port, tmp_path, renames)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    folder = tmp_path / "data" / "wikitext-2"
    assert len(set(os.listdir(folder)) & {*TEXTS, "download.json"}) == renames
    if renames:  # its partial content is known, so nothing else replaces it
        server.answers["bad"] = sends(zipped({f"wikitext-2/{n}": t.replace(b"cat", b"cow") for n, t in TEXTS.items()}))
        code, _, errors = prepare(server.corpus("bad"), tmp_path)
        assert code == 2 and "differs from the first download" in errors
    code, out, errors = prepare(server.corpus("good"), tmp_path)
    assert (code, errors) == (0, "") and "SHA-256 unchanged since the download" in out
    assert files(folder) == TEXTS


def test_a_repair_that_fails_keeps_what_is_sound(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(server.corpus("good"), tmp_path)
    folder, (first, second, sound) = tmp_path / "data" / "wikitext-2", TEXTS
    (folder / first).write_bytes(b"damaged\n")
    (folder / second).write_bytes(b"damaged\n")
    replace = os.replace

    def fails(source: Path, target: Path) -> None:
        if target.name == second:
            raise OSError(5, "Input/output error")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", fails)
        code, _, errors = prepare(server.corpus("good"), tmp_path)
    assert (code, errors) == (
        2,
        f"backstory: cannot write to {folder}: Input/output error; check the disk, and give the same command again\n",
    )
    assert files(folder) == {second: b"damaged\n", sound: TEXTS[sound]}
    assert (folder / "download.json").exists()
    assert prepare(server.corpus("good"), tmp_path)[0] == 0
    assert files(folder) == TEXTS


def test_a_full_disk_leaves_nothing(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("backstory.data.corpora.published_corpora.write_atomically", full)
    code, _, errors = prepare(server.corpus("good"), tmp_path)
    problem = f"cannot write to {tmp_path / 'data' / 'wikitext-2'}: No space left on device"
    assert (code, errors) == (2, f"backstory: {problem}; make room on that disk, and give the same command again\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_a_certificate_that_nobody_vouches_for_is_refused(tmp_path: Path) -> None:
    key, certificate = str(tmp_path / "key.pem"), str(tmp_path / "certificate.pem")
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2"]
    subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as http:
        http.socket = context.wrap_socket(http.socket, server_side=True)
        thread = Thread(target=http.handle_request)
        thread.start()
        url = f"https://localhost:{http.server_address[1]}/good"
        corpus = PublishedCorpus({"a": ExpectedFile(9)}, (Download((url,), {"a": ""}),))
        code, _, errors = prepare(corpus, tmp_path / "cache")
        thread.join(20)
    assert code == 2 and "has a certificate that does not hold (self" in errors
    assert not (tmp_path / "cache").exists()
