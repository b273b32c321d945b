"""Ranks: processes that share one piece of work, such as the rows of a batch, and exchange their results."""

import gc
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from backstory.utils.errors import UserError, first_line, out_of_memory
from backstory.utils.process import Launched, Stopped, launched

HERE = "rank {} is here"
"""Key that a rank sets when it is ready."""
RENDEZVOUS_TIMEOUT = timedelta(minutes=10)
"""Longest wait of the ranks for each other at the start."""
POLL_SECONDS = 0.02
"""Seconds between two checks of the other ranks while this one waits for them."""
END_SECONDS = 1.0
"""Longest wait for the error of this rank after another has ended."""


@dataclass(frozen=True)
class Ranks:
    """This process among those of a run; by default the only one."""

    rank: int = 0
    world: int = 1
    here: int = 1
    """Number of them on this machine."""

    @property
    def first(self) -> bool:
        """True for the one that prints and writes."""
        return self.rank == 0

    def share(self, batch_size: int) -> slice:
        """Return this rank's rows of a batch: as many as the others', but for one more of the first ranks if some are left."""
        size, left = divmod(batch_size, self.world)
        start = self.rank * size + min(self.rank, left)
        return slice(start, start + size + (self.rank < left))

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean over all ranks."""
        if self.world > 1:
            dist.all_reduce(values)
            values /= self.world
        return values

    def largest(self, *values: float) -> list[float]:
        """Return the maximum of each value over the ranks, so that all of them do the same."""
        if self.world == 1:
            return list(values)
        maxima = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(maxima, dist.ReduceOp.MAX)
        return maxima.tolist()

    def of_first(self, value: float) -> float:
        """Return the first rank's value."""
        if self.world == 1:
            return value
        shared = torch.tensor(value, dtype=torch.float64)
        dist.broadcast(shared, 0)
        return shared.item()

    def exchange(self, values: Any) -> list[Any]:
        """Return the values of every rank, in the order of the ranks, to each of them."""
        if self.world == 1:
            return [values]
        gathered: list[Any] = [None] * self.world
        dist.all_gather_object(gathered, values)
        return gathered

    def wait(self) -> None:
        """Wait until every rank has come here."""
        if self.world > 1:
            dist.barrier()

    def gather(self, tensors: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        """Return the CPU copies of every rank's tensors, of the same names and shapes, to the first; nothing to the others."""
        own = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
        if self.world == 1:
            return [own]
        by_rank: list[dict[str, Tensor]] = [{} for _ in range(self.world)] if self.first else []
        for name, tensor in own.items():
            pieces = [torch.empty_like(tensor) for _ in by_rank] or None
            dist.gather(tensor, pieces)
            for piece, tensors_of_rank in zip(pieces or (), by_rank, strict=True):
                tensors_of_rank[name] = piece
        return by_rank

    def parallel(self, model: nn.Module) -> nn.Module:
        """Return the model, its gradients averaged over all ranks."""
        return DistributedDataParallel(model) if self.world > 1 else model


WITH_ANOTHER = "another rank has ended, and this one with it"
"""Message of a rank that ended because of another."""


class RankEnded(UserError):
    """Another rank has ended, so that this one cannot continue."""


@dataclass(frozen=True)
class Meeting:
    """This process among the ranks, and the store in which they meet; None for the one that the environment names."""

    started: Launched
    store: dist.Store | None = None
    lost: Callable[[], bool] | None = None
    """Returns True if another rank has ended; None where nobody knows."""


@contextmanager
def joined(meeting: Meeting | None = None) -> Iterator[Ranks]:
    """Join the other ranks for the block, by default those of `torchrun`: gloo between CPUs, NCCL between GPUs.

    Each rank has a GPU of its own. Raises UserError when there are fewer GPUs here than ranks, RankEnded when another rank
    has ended.
    """
    meeting = meeting or Meeting(launched())
    started = meeting.started
    if started.world == 1:
        yield Ranks()
        return
    if torch.cuda.is_available():
        if started.local >= torch.cuda.device_count():
            raise UserError(
                f"there are {torch.cuda.device_count()} GPUs here, fewer than ranks; "
                "lower --workers, or torchrun's --nproc-per-node"
            )
        torch.cuda.set_device(started.local)
    # The others wait while the first saves or runs a callback, however long that takes.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    _rendezvous(meeting, backend, timedelta(days=7))
    try:
        yield Ranks(started.rank, started.world, started.here)
        dist.barrier()  # a rank that ends while others still talk to it breaks them, or itself
    except Stopped:  # all of them are
        dist.barrier()
        raise
    except (dist.DistError, RuntimeError) as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error):
            raise RankEnded(WITH_ANOTHER) from error
        raise
    finally:
        gc.collect()  # DistributedDataParallel refers to itself, and keeps the group alive
        dist.destroy_process_group()


def _rendezvous(meeting: Meeting, backend: str, timeout: timedelta) -> None:
    """Wait for the other ranks, at most RENDEZVOUS_TIMEOUT. Raises UserError if they do not come."""
    started, store = meeting.started, meeting.store
    address = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    try:
        if store is None:
            socket.getaddrinfo(*address)  # torch would retry an unknown name until the timeout
            store, _, _ = next(dist.rendezvous("env://", timeout=RENDEZVOUS_TIMEOUT))
        store.set(HERE.format(started.rank), "")
        store.set_timeout(timeout)
        _unless_lost(
            lambda: dist.init_process_group(
                backend, store=store, rank=started.rank, world_size=started.world, timeout=timeout
            ),
            meeting.lost,
        )
    except (dist.DistError, RuntimeError, OSError, UnicodeError) as error:
        if meeting.store is not None:
            raise cannot_meet(error, started.world) from error
        if (no_memory := out_of_memory(error)) is not None:
            raise no_memory from error
        reason = error.strerror if isinstance(error, OSError) else None
        raise UserError(
            f"cannot meet the other ranks at {':'.join(address)}{f' ({reason})' if reason else ''}; start them with torchrun"
        ) from error


def cannot_meet(error: BaseException, count: int) -> UserError:
    """Return the error for so many workers of this machine that cannot connect to each other."""
    if (no_memory := out_of_memory(error)) is not None:
        return no_memory
    return UserError(
        f"{count} workers cannot meet on this machine ({first_line(error)}); allow it ports and open files (ulimit -n), or "
        "take 1 worker"
    )


def _unless_lost(meet: Callable[[], None], lost: Callable[[], bool] | None) -> None:
    """Call `meet`, which waits for all ranks. Raises RankEnded if one of them is lost meanwhile.

    It waits in a thread, as nothing ends that wait: torch notices neither a rank that has ended nor Ctrl-C.
    """
    if lost is None:
        meet()
        return
    errors: list[BaseException] = []

    def called() -> None:
        try:
            meet()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=called, daemon=True)
    thread.start()
    try:
        while thread.is_alive() and not lost():
            thread.join(POLL_SECONDS)
        thread.join(END_SECONDS)
        if errors:
            raise errors[0]
        if thread.is_alive():
            raise RankEnded(WITH_ANOTHER)
    except BaseException:
        # torch names groups by a count, and the ranks of the next one, new processes, begin theirs at 0.
        dist.distributed_c10d._world.group_count = 0
        raise
