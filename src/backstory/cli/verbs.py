"""Verbs that have verbs of their own: `backstory reader audit`, `backstory recipe copy`."""

from collections.abc import Callable, Mapping, Sequence

from backstory.config import UserError, nearest


def dispatch(verb: str, actions: Mapping[str, Callable[[Sequence[str]], int]], arguments: Sequence[str]) -> int:
    """Run the action that the first argument names. Raises UserError for none or an unknown one."""
    listed = ", ".join(actions)
    if not arguments or arguments[0] in ("-h", "--help"):
        if arguments:
            print(f"usage: backstory {verb} {{{listed}}} ...      (backstory {verb} ACTION --help explains one)")
            return 0
        raise UserError(f"say what to do: `backstory {verb} {{{listed}}} ...`")
    if arguments[0] not in actions:
        raise UserError(
            f"there is no `backstory {verb} {arguments[0]}`{nearest(arguments[0], actions)}; there is {listed}"
        )
    return actions[arguments[0]](arguments[1:])
