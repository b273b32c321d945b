"""Packages that only an extra installs: asked for before they are needed, with one line for those who lack them."""

from importlib.util import find_spec

from backstory.config import UserError


def need(package: str, extra: str, what: str) -> None:
    """Raise UserError, with the command that installs it, unless a package is there that `what` needs."""
    if find_spec(package) is None:
        raise UserError(f"{what} needs the package {package}; pip install 'backstory[{extra}]'")
