"""Count the file system calls below a folder, or make one of them fail or kill the process.

What the package calls is caught: `os`, `open`, methods of the files that `open` returns, and `save_file`, whose writing is
done in another language; a short write writes half of what it was given and then fails as a full disk does, or is killed.
"""

import builtins
import errno
import io
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KINDS = ("kill", "ENOSPC", "EIO", "short write", "short write, killed")
CALLS = (
    *("open", "mkdir", "rename", "replace", "unlink", "rmdir", "stat", "lstat", "scandir", "listdir"),
    *("fsync", "fstat", "truncate", "ftruncate", "chmod", "utime", "access"),
)
METHODS = ("write", "writelines", "flush", "truncate", "read", "readinto", "close")


@dataclass
class Fault:
    """Fault at the call of a number; no call has the number -1."""

    folder: str
    number: int
    kind: str
    calls: list[str]
    """The calls so far."""

    def strike(self, name: str, path: str, half: Callable[[], object] | None = None) -> None:
        """Count a call; fail, or end the process, if it is the one."""
        self.calls.append(f"{name} {path}")
        if len(self.calls) - 1 != self.number:
            return
        if self.kind.startswith("short write") and half is not None:
            half()
        if self.kind in ("kill", "short write, killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        number = errno.EIO if self.kind == "EIO" else errno.ENOSPC
        raise OSError(number, os.strerror(number), path)

    def concerns(self, place: Any, options: dict[str, Any]) -> str:
        """The path of a call if it is below the folder, else an empty string."""
        if isinstance(place, int):
            path = _opened(place)
        else:
            path = os.fspath(place)
            path = path.decode() if isinstance(path, bytes) else path
            beside = options.get("dir_fd")
            path = os.path.join(_opened(beside), path) if beside is not None else os.path.abspath(path)
        inside = path == self.folder or path.startswith(self.folder + os.sep)
        return os.path.relpath(path, self.folder) if inside else ""


def _opened(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")


class File:
    """An open file whose methods are calls, too."""

    def __init__(self, file: Any, fault: Fault, path: str) -> None:
        self._file, self._fault, self._path = file, fault, path

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._file, name)
        if name not in METHODS:
            return method

        def called(*arguments: Any) -> Any:
            half = None
            if name == "write":
                half = lambda: (self._file.write(arguments[0][: len(arguments[0]) // 2]), self._file.flush())  # noqa: E731
            self._fault.strike(f"file.{name}", self._path, half)
            return method(*arguments)

        return called

    def __enter__(self) -> "File":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __iter__(self) -> Any:
        return iter(self._file)


def arrange(folder: str, number: int, kind: str, record: str | None = None) -> None:
    """From the opening of the run folder on, make call `number` below it fail so; `record` takes the calls, a line each."""
    from backstory.training import fit

    fault = Fault(folder, number, kind, [])
    begin = fit.open_folder

    def opening(*arguments: Any) -> Any:
        fit.open_folder = begin
        _intercept(fault)
        return begin(*arguments)

    fit.open_folder = opening
    if record is not None:
        finish = os._exit

        def finished(code: int) -> None:
            Path(record).write_text("\n".join(fault.calls))
            finish(code)

        os._exit = finished  # type: ignore[assignment]


def _intercept(fault: Fault) -> None:
    def through(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def called(*arguments: Any, **options: Any) -> Any:
            if arguments and (path := fault.concerns(arguments[0], options)):
                fault.strike(f"os.{name}", path)
            return original(*arguments, **options)

        setattr(owner, name, called)

    for name in CALLS:
        through(os, name)
    _intercept_open(fault)
    _intercept_save_file(fault)


def _intercept_open(fault: Fault) -> None:
    original = io.open

    def opened(place: Any, *arguments: Any, **options: Any) -> Any:
        path = fault.concerns(place, {})
        if not path:
            return original(place, *arguments, **options)
        fault.strike("open", path)
        return File(original(place, *arguments, **options), fault, path)

    io.open = builtins.open = opened  # type: ignore[assignment]


def _intercept_save_file(fault: Fault) -> None:
    from safetensors import SafetensorError

    from backstory.storage import checkpoint

    original = checkpoint.save_file

    def saved(tensors: Any, path: Path) -> None:
        def half() -> None:
            original(tensors, path)
            os.truncate(path, path.stat().st_size // 2)

        try:
            fault.strike("save_file", str(path), half)
        except OSError as error:  # in the words of the library
            told = f"Error while serializing: I/O error: {error.strerror} (os error {error.errno})"
            raise SafetensorError(told) from None
        original(tensors, path)

    checkpoint.save_file = saved


def limit_size(largest: int) -> None:
    """Let the system refuse to write beyond this many bytes of any file."""
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))


def stop_at(step: int) -> None:
    """Send this process a SIGTERM right after that step."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    left = iter(range(step, 0, -1))
    register_optimizer_step_post_hook(lambda *_: next(left, 0) == 1 and signal.raise_signal(signal.SIGTERM))
