"""Dropout with a mask per token, the dropouts of AWD-LSTM (Merity et al. 2018: locked, of words, of weights), and noise."""

import torch
from torch import Tensor


def keep_mask(shape: tuple[int, ...], probability: float, like: Tensor) -> Tensor:
    """Return zeros with this probability, else 1 / (1 - probability), of `like`'s dtype and device.

    On the CPU four decisions are cut from each 64-bit random number, which is faster than `bernoulli_` and rounds the
    probability to a multiple of 2^-16.
    """
    if like.device.type != "cpu":
        return (
            torch.empty(shape, dtype=like.dtype, device=like.device).bernoulli_(1 - probability).div_(1 - probability)
        )
    count = torch.Size(shape).numel()
    words = torch.empty((count + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
    cut = round(probability * 65536) - 32768
    # Compared in place, as turning booleans into other numbers takes several times longer.
    return words.view(torch.int16)[:count].ge_(cut).to(like.dtype).mul_(1 / (1 - probability)).view(shape)


def locked_dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """Drop the same units at every time step of x (batch, time, ...)."""
    if not training or probability == 0:
        return x
    return x * keep_mask((x.shape[0], 1, *x.shape[2:]), probability, x)


def token_dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """Drop units of x (batch, time, ...), independently at every time step."""
    if not training or probability == 0:
        return x
    return x * keep_mask(tuple(x.shape), probability, x)


def recurrent_mask(shape: tuple[int, ...], probability: float, like: Tensor, training: bool) -> Tensor | None:
    """Return the mask of a locked dropout inside a recurrence, (batch, size); None if nothing is dropped."""
    return keep_mask(shape, probability, like) if training and probability else None


def word_dropout(embedded: Tensor, tokens: Tensor, types: int, probability: float, training: bool) -> Tensor:
    """Drop all occurrences of some word types: embedded (batch, time, size), tokens (batch, time).

    The same as masking the embedding matrix, without touching words that the segment does not use.
    """
    if not training or probability == 0:
        return embedded
    return embedded * keep_mask((types, 1), probability, embedded)[tokens]


def gaussian_noise(x: Tensor, deviation: float, training: bool) -> Tensor:
    """Add independent normal noise of this standard deviation to every number of x."""
    if not training or deviation == 0:
        return x
    return x + torch.randn_like(x).mul_(deviation)


def weight_drop(weight: Tensor, probability: float, training: bool) -> Tensor:
    """Return a recurrent weight with entries dropped; the gradient reaches the raw weight through the mask."""
    if not training or probability == 0:
        return weight
    return weight * keep_mask(tuple(weight.shape), probability, weight)
