"""Go on with a text: draw a token, let the reader take it as read, and again; the text comes piece by piece."""

import time
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch

from backstory.config import UserError, pasted
from backstory.config.arguments import checked
from backstory.data import Vocabulary, decode_stream, encode_split
from backstory.evaluation.opening import Readers, open_reader, origin_of
from backstory.evaluation.sampling import Sampling, draw
from backstory.evaluation.saved_reader import load, open_saved
from backstory.evaluation.session import standing
from backstory.readers.base import Reader
from backstory.readers.registry import Layer, parse_stack, stack_name
from backstory.runs.run import Run
from backstory.storage.atomic import within
from backstory.storage.provenance import check_place, write_result

SAMPLE = "sample"
"""Folder of a run that holds the text it wrote."""


@checked(seed=(-(2**63), 2**64 - 1), tokens=1)
def generate(
    run: Path | str,
    prompt: str = "",
    *,
    tokens: int = 100,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    seed: int = 0,
    stop: Sequence[str] = (),
    echo: bool = False,
    allow_unknown: bool = False,
    save: bool = False,
    reader: Readers | None = None,
    session: Path | None = None,
    precision: str = "float32",
    device: str = "auto",
) -> Iterator[str]:
    """The text with which a run goes on after `prompt`, in pieces, as soon as each is known. Raises UserError at once.

    At most so many `tokens`, fewer where a text of `stop` comes up, which is left out. They are drawn as `Sampling` says; the
    same seed gives the same text. `echo` begins with the prompt, as the vocabulary has it. `<unk>` is not drawn unless
    allowed. What is drawn is observed, so a reader that adapts learns from its own text. `session`, the folder of one, goes on
    from where that stands, with its reader, and leaves it there. `save` keeps the whole text, once it is there, in
    RUN/sample/result.json, where reports find it.
    """
    if tokens < 1:
        raise UserError(f"the number of tokens must be at least 1, not {tokens}")
    if "" in stop:
        raise UserError("a text to stop at must not be empty")
    sampling = Sampling(temperature, top_k, top_p)
    how = (precision, device)
    if session is None:
        loaded, made, layers = open_reader(run, reader or "static", *how)
        last = loaded.vocabulary.start
    else:
        saved = load(session)
        if saved is None:
            raise UserError(
                f"{session} holds no session; begin one with `backstory read {pasted(run)} --session {pasted(session)}`"
            )
        loaded, made, layers = open_saved(run, saved, reader, *how)
        last = standing(saved, loaded.vocabulary).last
    vocabulary = loaded.vocabulary
    context = encode_prompt(vocabulary, prompt)
    banned = [] if allow_unknown or vocabulary.unknown is None else [vocabulary.unknown]
    drawn = generate_ids(made, [last, *context], sampling, seed, banned, reset=session is None)
    texts = decode_stream(vocabulary, chain(context, islice(drawn, tokens)))
    known = "".join(islice(texts, len(context)))
    new = until(texts, stop)
    if save:
        settings: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
        stack = parse_stack(reader or "static") if session is None else tuple(Layer(layer.name) for layer in layers)
        settings["reader"] = stack_name(stack)
        if loaded.results is None:
            raise UserError(f"{loaded.name} is no run folder, and a sample is kept in one; leave --save out")
        check_place(within(loaded.results, SAMPLE), "sample")
        new = _kept(new, loaded, known, settings, origin_of(loaded, layers, made, loaded.corpus))
    return chain([known] if echo and known else [], new)


def _kept(
    texts: Iterator[str], run: Run, prompt: str, settings: dict[str, Any], origin: dict[str, Any]
) -> Iterator[str]:
    """The same texts; when they have ended, the result of them is written."""
    began, pieces = time.perf_counter(), []
    for text in texts:
        pieces.append(text)
        yield text
    origin["seconds"] = round(time.perf_counter() - began, 1)
    figures = {"prompt": prompt, "text": "".join(pieces), "settings": settings}
    place = run.folder / SAMPLE
    run.check_unchanged(place)
    write_result(place, "sample", run.name, figures, origin)


def encode_prompt(vocabulary: Vocabulary, prompt: str) -> list[int]:
    """The ids of a text that is to go on: a line or paragraph it does not end is not ended. Raises UserError."""
    if not prompt:
        return []
    if vocabulary.tokenizer.unit != "word":
        return encode_split(vocabulary, prompt, "prompt").ids.tolist()
    # These tokenizers end what they are given, so they are given a word more, which is taken off with its end.
    return encode_split(vocabulary, f"{prompt} x", "prompt").ids[:-2].tolist()


@checked(seed=(-(2**63), 2**64 - 1), context=0, banned=0)
@torch.no_grad()
def generate_ids(
    reader: Reader,
    context: Sequence[int],
    sampling: Sampling,
    seed: int = 0,
    banned: Sequence[int] = (),
    reset: bool = True,
) -> Iterator[int]:
    """Ids drawn one by one, without end, after a context (at least one id), which is read first; never one of `banned`.

    Whatever the reader, a token is drawn from `predict`, and then observed. Without `reset` the reader goes on from what it has
    read, and the context begins with the token it read last. Raises UserError at once for a reader that does not read one row
    alone, and NonFiniteError for a broken model.
    """
    if not len(context):
        raise UserError("context must hold one id at least, not none")
    if reset:
        reader.start(1)
    return _drawn(reader, context, sampling, seed, banned)


@torch.no_grad()
def _drawn(
    reader: Reader, context: Sequence[int], sampling: Sampling, seed: int, banned: Sequence[int]
) -> Iterator[int]:
    generator = torch.Generator().manual_seed(seed)
    device = next(reader.model.parameters()).device
    read = torch.tensor([context], device=device)
    for tokens, targets in zip(read[:, :-1].split(reader.block, 1), read[:, 1:].split(reader.block, 1), strict=True):
        if tokens.numel():
            reader.predict(tokens)
            reader.observe(targets)
    last = context[-1]
    while True:
        prediction = reader.predict(torch.tensor([[last]], device=device))
        with reader.precision.context(device):
            log_probs = prediction.log_probs()[0, 0].cpu()
        log_probs = log_probs.index_fill(0, torch.tensor(banned, dtype=torch.long), -torch.inf)
        last = draw(log_probs, sampling, generator)
        reader.observe(torch.tensor([[last]], device=device))
        yield last


def until(texts: Iterator[str], stops: Sequence[str]) -> Iterator[str]:
    """The texts up to the stop that ends first (the longest, where several do), which is left out; all without one.

    What may yet become a stop is held back; nothing is taken from `texts` after one.
    """
    held = ""
    for text in texts:
        for character in text:
            held += character
            if found := [s for s in stops if held.endswith(s)]:
                if before := held[: -max(map(len, found))]:
                    yield before
                return
        keep = max((n for s in stops for n in range(1, min(len(s), len(held) + 1)) if held.endswith(s[:n])), default=0)
        if len(held) > keep:
            yield held[: len(held) - keep]
            held = held[len(held) - keep :]
    if held:
        yield held
