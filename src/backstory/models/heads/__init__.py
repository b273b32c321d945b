"""Heads: hidden vectors to a prediction over the vocabulary."""

from backstory.models.heads.heads import Head, MixtureHead, SoftmaxHead

__all__ = ["Head", "MixtureHead", "SoftmaxHead"]
