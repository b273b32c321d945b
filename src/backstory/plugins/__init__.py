"""Plugins: cores, readers, experiments and metrics of a user's own, registered from outside and tested against the contract."""

from backstory.plugins.registration import Registered, register, registered_by

__all__ = ["Registered", "register", "registered_by"]
