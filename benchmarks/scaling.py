"""Training steps on one core and on all: threads inside operations compared with workers that split the batch.

    python benchmarks/scaling.py [--cores 2 4] [--steps 15] [--sizes S P] [--out results/benchmark-scaling.json]

The ways take turns step by step, each in processes of its own, so that other load on the machine affects all equally;
processes sleep between their turns. Workers have one thread each and average their gradients with gloo; there are none
where they cannot share the rows of a batch evenly. The table gives median times, and the speed relative to one thread as
median and quartiles over turns. The load average shows how many programs wanted a core. The weights after the steps show
whether a way computes the same bits as one thread.
"""

import argparse
import hashlib
import multiprocessing
import os
import socket
import statistics
import time
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path

from figures import write
from training import SIZES, Size, ours

WARM_UP = 3


@dataclass(frozen=True)
class Way:
    """A way to use cores: processes, and threads in each."""

    workers: int
    threads: int

    @property
    def name(self) -> str:
        count, noun = (self.workers, "worker") if self.workers > 1 else (self.threads, "thread")
        return f"{count} {noun}{'s' * (count > 1)}"


def serve(size: Size, way: Way, precision: str, rank: int, port: int, pipe: Connection) -> None:
    """Take a step of one rank on request, and reply with its seconds."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(way.threads)
    torch.manual_seed(1)
    if way.workers > 1:
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=way.workers)
    share = replace(size, batch=size.batch // way.workers)
    models = []

    def parallel(model: nn.Module) -> nn.Module:
        models.append(model)
        return DistributedDataParallel(model) if way.workers > 1 else model

    step = ours(share, "cpu", precision, parallel=parallel)
    while pipe.recv():
        began = time.perf_counter()
        step()
        pipe.send(time.perf_counter() - began)
    pipe.send(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in models[0].parameters())).hexdigest())
    if way.workers > 1:
        dist.destroy_process_group()


def timed(size: Size, ways: list[Way], precision: str, steps: int) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Return the seconds of each way's steps, turn by turn, and the hash of its weights after them.

    A step is as slow as its slowest rank.
    """
    context = multiprocessing.get_context("spawn")
    groups: dict[str, list[Connection]] = {}
    processes = []
    for way in ways:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        groups[way.name] = []
        for rank in range(way.workers):
            pipe, theirs = context.Pipe()
            processes.append(
                context.Process(target=serve, args=(size, way, precision, rank, port, theirs), daemon=True)
            )
            processes[-1].start()
            groups[way.name].append(pipe)
    times: dict[str, list[float]] = {way.name: [] for way in ways}
    for turn in range(WARM_UP + steps):
        for name, pipes in groups.items():
            for pipe in pipes:
                pipe.send(True)
            seconds = max(pipe.recv() for pipe in pipes)
            if turn >= WARM_UP:
                times[name].append(seconds)
    for pipe in (pipe for pipes in groups.values() for pipe in pipes):
        pipe.send(False)
    hashes = {name: pipes[0].recv() for name, pipes in groups.items()}
    for process in processes:
        process.join()
    return times, hashes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", type=int, nargs="+", default=[len(os.sched_getaffinity(0))])
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["S", "P"])
    parser.add_argument("--precision", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # as the command line does
    if min(options.cores) < 2 or options.steps < 2:
        parser.error("a comparison takes 2 cores and 2 steps or more")
    rows, load = {}, [os.getloadavg()[0]]
    for name in options.sizes:
        size = SIZES[name]
        workers = [Way(cores, 1) for cores in options.cores if size.batch % cores == 0]
        ways = [Way(1, 1), *(Way(1, cores) for cores in options.cores), *workers]
        times, hashes = timed(size, ways, options.precision, options.steps)
        base, rows[name] = times[ways[0].name], {}
        for way, seconds in times.items():
            ratios = [one / own for one, own in zip(base, seconds, strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            speed = size.batch * size.segment / statistics.median(seconds)
            same_bits = hashes[way] == hashes[ways[0].name]
            rows[name][way] = {
                "tokens_per_second": speed,
                "speed_up": middle,
                "quartiles": [low, high],
                "same_bits": same_bits,
            }
            print(f"{name:<4} {way:<10} {speed:>9,.0f}/s {middle:>6.2f} ({low:.2f} to {high:.2f})", flush=True)
        load.append(os.getloadavg()[0])
    if options.out:
        write(options.out, "scaling", cores=max(options.cores), steps=options.steps, load_average=load, rows=rows)


if __name__ == "__main__":
    main()
