"""State of a session of reading, and its folder: what is saved, and what may be resumed."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from backstory.data import Vocabulary
from backstory.readers.saved_reading import ReadingCheckpoint, load_reading, sweep
from backstory.storage.atomic import TEMPORARY
from backstory.storage.documents import has_fields
from backstory.storage.lock import LOCK
from backstory.utils.errors import UserError


@dataclass
class SessionState:
    """Progress of a session: whole lines, and the part of the next line that is read already."""

    last: int
    """The last token that was read."""
    lines: int = 0
    tokens: int = 0
    unknown: int = 0
    """Tokens that are `<unk>`."""
    nats: float = 0.0
    """Sum over the tokens."""
    lost: int | None = 0
    """Tokens outside the vocabulary; None if they were not counted from the beginning."""
    begun_ids: list[int] = field(default_factory=list)
    """Tokens of the next line that are read already, as blocks end within lines; they are not read again."""
    begun_nats: list[float] = field(default_factory=list)
    threads: int | None = None
    """The number of threads that was chosen, which it keeps when it is resumed; None before it has read enough."""


def saved_session(folder: Path, resume: bool) -> ReadingCheckpoint | None:
    """Return the session in the folder. Raises UserError if there is one without `resume`, or none with it."""
    sweep(folder)
    saved = load_reading(folder)
    if saved is None and resume:
        raise UserError(f"{folder} holds no session to resume; leave --resume out to begin one")
    if saved is not None and not resume:
        raise UserError(f"{folder} holds a session; use --resume to go on with it, or another --session")
    if saved is None and any(p.name != LOCK and not p.name.startswith(TEMPORARY) for p in folder.iterdir()):
        raise UserError(f"{folder} holds something other than a session; choose another folder with --session")
    return saved


def session_state(saved: ReadingCheckpoint, vocabulary: Vocabulary) -> SessionState:
    """Return the state of a saved session. Raises UserError if it is no session of this vocabulary."""
    values: dict[str, Any] = {"lost": None, "begun_ids": [], "begun_nats": [], "threads": None, **saved.progress}
    if not has_fields(values, get_type_hints(SessionState)):
        raise UserError(f"{saved.path} is not a saved session; choose another folder with --session")
    state = SessionState(**values)
    ids, nats = [state.last, *state.begun_ids], state.begun_nats
    counts = [state.lines, state.tokens, state.unknown, state.nats, state.lost or 0, (state.threads or 1) - 1, *ids]
    if min(counts) < 0 or max(ids) >= len(vocabulary) or not len(nats) == len(ids) - 1 <= state.tokens:
        raise UserError(f"{saved.path} is damaged: its counts contradict each other; remove it and start again")
    return state
