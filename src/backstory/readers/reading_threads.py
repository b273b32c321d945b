"""Threads inside the operations of a reading on a CPU: as many as its model reads a text fastest with."""

import re
import time
from collections.abc import Callable

import numpy as np
import torch

from backstory.models.thread_timing import fastest_threads, threads_are_fixed
from backstory.readers.base import Reader, StaticReader, blocks

TOKENS = 128
"""Tokens of a timed step, of all rows together. In shorter steps, waking the threads takes as long as they save; longer ones
take too long with several threads beside a busy program."""
STEPS, SHARE, SECONDS = 8, 0.04, 0.25
"""Steps that are timed as a rule, and how long they may take on an idle core: a share of the reading, or so many seconds."""
MORE_WITHIN = 0.1
"""Seconds within which more steps are timed."""


def choose_threads(reader: Reader, ids: np.ndarray, batch_size: int = 1, tokens: int | None = None) -> None:
    """Set the number of threads with which a reader's model reads a text (N,) fastest; `restored_threads` restores it.

    `tokens` are all that are read, by default those of the text. Nothing is timed on a GPU, where the number is fixed, and
    where timing would take long beside the reading. It is a static reader of its own that is timed: this reader, random
    numbers and scores are as if the number had been fixed.
    """
    device = next(reader.model.parameters()).device
    if device.type != "cpu" or threads_are_fixed():
        return
    usual, timed, rows = (
        torch.get_num_threads(),
        StaticReader(reader.model, reader.precision),
        min(batch_size, len(ids)),
    )
    length = min(timed.block, max(1, TOKENS // rows))
    block = next(blocks(ids[: rows * length], int(ids[0]), rows, length, device))
    timed.start(rows)

    def step() -> None:
        prediction = timed.predict(block.tokens)
        with timed.precision.context(device):
            prediction.log_prob(block.targets)

    steps = (len(ids) if tokens is None else tokens) / block.tokens.numel()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        number = _fastest(step, steps, usual)
    torch.set_num_threads(number)


def _fastest(step: Callable[[], None], steps: float, usual: int) -> int:
    """Return the fastest number of threads for so many steps; the usual one if timing takes too long."""
    torch.set_num_threads(1)
    step()  # allocates what the next one uses
    began = time.thread_time()  # which other programs do not count in
    step()
    seconds = time.thread_time() - began
    if STEPS * seconds > max(SECONDS, SHARE * steps * seconds):
        return usual
    return fastest_threads(step, usual, MORE_WITHIN)[0]


def resume_threads(device: object) -> None:
    """Set the number of threads in the device that a checkpoint records: `cpu (AMD EPYC, 2 threads)`.

    It stays as it is where it is fixed, or smaller: the checkpoint is then refused, as last bits may differ.
    """
    recorded = re.search(r"^cpu .*, ([1-9]\d{0,3}) threads?\)$", str(device))
    if recorded is not None and not threads_are_fixed():
        torch.set_num_threads(min(int(recorded[1]), torch.get_num_threads()))
