"""Sampled softmax: a normaliser from the frequent words, the targets, and a sample of all others (Jean et al. 2015)."""

from dataclasses import replace
from math import log
from typing import TypeVar

import torch
from torch import Tensor

from backstory.models.prediction import MixtureOfSoftmaxes, Softmax

Softmaxes = TypeVar("Softmaxes", bound=Softmax | MixtureOfSoftmaxes)


def sampled_softmax(prediction: Softmaxes, targets: Tensor, frequent: int, sampled: int) -> tuple[Softmaxes, Tensor]:
    """Return the prediction over C words alone, and the targets (B, T) among them.

    The C words are the `frequent` first of the vocabulary, every target, and `sampled` of the n others, drawn at each call.
    A drawn word counts for n / `sampled` words: the normaliser is unbiased over the draws, and exact if all words are drawn.
    The cost is that of a vocabulary of C words; log p is an estimate, to train on and not to score with.
    """
    words, drawn = _draw(targets, len(prediction.weight), frequent, sampled)
    count = len(words) - drawn
    others = len(prediction.weight) - count
    correction = prediction.weight.new_zeros(len(words))
    correction[count:] = log(others / drawn) if drawn else 0.0
    bias = correction if prediction.bias is None else prediction.bias.index_select(0, words) + correction
    positions = torch.empty(len(prediction.weight), dtype=torch.long, device=words.device)
    positions[words] = torch.arange(len(words), device=words.device)
    among = positions.index_select(0, targets.flatten()).view(targets.shape)
    return replace(prediction, weight=prediction.weight.index_select(0, words), bias=bias), among


def word_count(targets: Tensor, types: int, frequent: int, sampled: int) -> int:
    """Return C, the words that take part in the normaliser for these targets."""
    count = int(_certain(targets, types, frequent).sum())
    return count + min(sampled, types - count)


def _certain(targets: Tensor, types: int, frequent: int) -> Tensor:
    """Return the mask (V,) of the words that always take part."""
    certain = torch.zeros(types, dtype=torch.bool, device=targets.device)
    certain[:frequent] = True
    certain[targets.flatten()] = True
    return certain


def _draw(targets: Tensor, types: int, frequent: int, sampled: int) -> tuple[Tensor, int]:
    """Return the words (C,) that take part, those drawn last, and the number of these."""
    certain = _certain(targets, types, frequent)
    others = torch.where(~certain)[0]
    drawn = others[torch.randperm(len(others), device=others.device)[:sampled]]
    return torch.cat([torch.where(certain)[0], drawn]), len(drawn)
