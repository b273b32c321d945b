"""Ranks of a distributed run, as `torchrun` starts them: each owns rows of the batch and carries their state; one model."""

import gc
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from backstory.config import UserError
from backstory.config.process import Launched, Stopped, launched

MEETING = timedelta(minutes=10)
"""How long the ranks wait for each other at the beginning."""


@dataclass(frozen=True)
class Ranks:
    """Which of how many processes this is; alone where `torchrun` did not start it."""

    rank: int = 0
    world: int = 1
    here: int = 1
    """How many of them are on this machine."""

    @property
    def first(self) -> bool:
        """Whether this is the one that speaks and writes."""
        return self.rank == 0

    def share(self, batch_size: int) -> slice:
        """This rank's rows of a batch."""
        size = batch_size // self.world
        return slice(self.rank * size, (self.rank + 1) * size)

    def mean(self, values: Tensor) -> Tensor:
        """The mean over all ranks."""
        if self.world > 1:
            dist.all_reduce(values)
            values /= self.world
        return values

    def largest(self, *values: float) -> list[float]:
        """The largest that any rank has of each, so that all of them do the same."""
        if self.world == 1:
            return list(values)
        found = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return found.tolist()

    def of_first(self, value: float) -> float:
        """The first rank's value."""
        if self.world == 1:
            return value
        shared = torch.tensor(value, dtype=torch.float64)
        dist.broadcast(shared, 0)
        return shared.item()

    def wait(self) -> None:
        """Go on when every rank has come here."""
        if self.world > 1:
            dist.barrier()

    def gather(self, tensors: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        """Tensors of every rank, on the CPU, by rank, at the first; nothing at the others. Names and shapes are alike."""
        own = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
        if self.world == 1:
            return [own]
        found: list[dict[str, Tensor]] = [{} for _ in range(self.world)] if self.first else []
        for name, tensor in own.items():
            pieces = [torch.empty_like(tensor) for _ in found] or None
            dist.gather(tensor, pieces)
            for piece, of_rank in zip(pieces or (), found, strict=True):
                of_rank[name] = piece
        return found

    def parallel(self, model: nn.Module) -> nn.Module:
        """The model with gradients that are means over all ranks."""
        return DistributedDataParallel(model) if self.world > 1 else model


@contextmanager
def joined() -> Iterator[Ranks]:
    """Join the other ranks for the block: gloo between processors, NCCL between GPUs, of which each rank takes its own.

    Raises UserError when there are fewer GPUs here than ranks, and when another rank has ended.
    """
    started = launched()
    if started.world == 1:
        yield Ranks()
        return
    if torch.cuda.is_available():
        if started.local >= torch.cuda.device_count():
            raise UserError(
                f"there are {torch.cuda.device_count()} GPUs here, fewer than ranks; lower torchrun's --nproc-per-node"
            )
        torch.cuda.set_device(started.local)
    # The others wait while the first reads the validation text, however long that takes.
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    _meet(started, backend, timedelta(days=7))
    try:
        yield Ranks(started.rank, started.world, started.here)
        dist.barrier()  # a rank that ends while others still talk to it breaks them, or itself
    except Stopped:  # all of them are
        dist.barrier()
        raise
    except (dist.DistError, RuntimeError) as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error):
            raise UserError("another rank has ended, and this one with it") from error
        raise
    finally:
        gc.collect()  # what averages gradients refers to itself, and holds on to the group
        dist.destroy_process_group()


def _meet(started: Launched, backend: str, timeout: timedelta) -> None:
    """Wait for the other ranks, and no longer than MEETING. Raises UserError where they do not come."""
    place = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    try:
        socket.getaddrinfo(*place)  # torch would ask for an unknown name until its time is up
        store, _, _ = next(dist.rendezvous("env://", timeout=MEETING))
        store.set_timeout(timeout)
        dist.init_process_group(backend, store=store, rank=started.rank, world_size=started.world, timeout=timeout)
    except (dist.DistError, RuntimeError, OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise UserError(
            f"cannot meet the other ranks at {':'.join(place)}{f' ({reason})' if reason else ''}; start them with torchrun"
        ) from error


def check_batch(batch_size: int, ranks: Ranks) -> None:
    """Raise UserError unless every rank gets equally many rows."""
    if batch_size % ranks.world:
        raise UserError(
            f"{ranks.world} ranks cannot share {batch_size} rows equally; "
            f"make training.batch_size a multiple of {ranks.world}"
        )
