"""Threads inside the operations of a reading on a CPU: as many as its model reads a text fastest with."""

import re
import time
from collections.abc import Callable

import numpy as np
import torch

from backstory.models.devices import restored_threads
from backstory.models.thread_timing import fastest_threads, threads_are_fixed
from backstory.readers.base import Reader, StaticReader, blocks

TOKENS = 128
"""Tokens of a timed step, of all rows together. In shorter steps, waking the threads takes as long as they save; longer ones
take too long with several threads beside a busy program."""
STEPS, SHARE, SECONDS = 8, 0.04, 0.25
"""Steps that are timed as a rule, and how long they may take on an idle core: a share of the reading, or so many seconds."""
MORE_WITHIN = 0.1
"""Seconds within which more steps are timed."""
COLUMNS = 8
"""Tokens of each row in a timed step of a reading token by token: the first token that is drawn waits for the timing."""
SHORT = 50
"""Tokens of a row below which a reading token by token is too short for timing. A longer one is at least so many timed steps
long: it may be a fraction of a second."""
SOON, LONG = STEPS * TOKENS, round(STEPS * TOKENS / SHARE)
"""Tokens that take about as long as timing, and tokens of a reading beside which timing is short, however slow the model."""


def choose_threads(
    reader: Reader, ids: np.ndarray, batch_size: int = 1, tokens: int | None = None, *, by_token: bool = False
) -> bool:
    """Set the number of threads with which a reader's model reads a text (N,) fastest; `restored_threads` restores it.

    `tokens` are all that are read, by default those of the text; with `by_token` one of each row at a time, each with its
    whole distribution. Nothing is timed on a GPU, where the number is fixed, and where timing would take long beside the
    reading; False is returned for the last reason only. It is a static reader of its own that is timed: this reader, random
    numbers and scores are as if the number had been fixed.
    """
    device = next(reader.model.parameters()).device
    if device.type != "cpu" or threads_are_fixed():
        return True
    timed, rows = StaticReader(reader.model, reader.precision), min(batch_size, len(ids))
    total = len(ids) if tokens is None else tokens
    length = min(COLUMNS, total // (SHORT * rows)) if by_token else min(timed.block, max(1, TOKENS // rows))
    if length == 0:
        return False
    block = next(blocks(ids[: rows * length], int(ids[0]), rows, length, device))
    pieces = list(block.tokens.split(1, 1)) if by_token else [block.tokens]

    def step() -> None:
        timed.start(rows)
        for tokens in pieces:
            prediction = timed.predict(tokens)
            with timed.precision.context(device):
                _ = prediction.log_probs() if by_token else prediction.log_prob(block.targets)
            timed.observe(tokens)

    with torch.no_grad(), torch.random.fork_rng(devices=[]), restored_threads():
        number = _fastest(step, total / block.tokens.numel(), torch.get_num_threads())
    if number is not None:
        torch.set_num_threads(number)
    return number is not None


def _fastest(step: Callable[[], None], steps: float, most: int) -> int | None:
    """Return the fastest number of threads, at most so many, for so many steps; None if timing takes too long."""
    torch.set_num_threads(1)
    step()  # allocates what the next one uses
    began = time.thread_time()  # which other programs do not count in
    step()
    seconds = time.thread_time() - began
    if STEPS * seconds > max(SECONDS, SHARE * steps * seconds):
        return None
    return fastest_threads(step, most, MORE_WITHIN)[0]


def resume_threads(device: object) -> None:
    """Set the number of threads in the device that a checkpoint records: `cpu (AMD EPYC, 2 threads)`.

    It stays as it is where it is fixed, or smaller: the checkpoint is then refused, as last bits may differ.
    """
    recorded = re.search(r"^cpu .*, ([1-9]\d{0,3}) threads?\)$", str(device))
    if recorded is not None:
        set_threads(int(recorded[1]))


def set_threads(number: int) -> None:
    """Set the number of threads, unless it is fixed, or smaller."""
    if not threads_are_fixed():
        torch.set_num_threads(min(number, torch.get_num_threads()))
