"""Continue a prompt: draw a token, let the reader observe it, and repeat; the text is yielded piece by piece."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from backstory.config.options import LoadOptions
from backstory.config.plugin_files import plugin_flags
from backstory.data import Vocabulary, decode_stream, encode_split
from backstory.evaluation.opening import Readers, open_reader, origin_of
from backstory.evaluation.session_state import session_state
from backstory.models import count_parameters
from backstory.models.devices import each_unaffected
from backstory.models.thread_timing import threads_are_fixed
from backstory.readers.base import Reader
from backstory.readers.registry import ConfiguredLayer, Layer, parse_stack, stack_name
from backstory.readers.saved_reading import load_reading, open_saved
from backstory.results.common import ProvenanceRecord
from backstory.results.evaluation_record import SampleFigures
from backstory.results.result_file import write_result
from backstory.runs.run import Run
from backstory.storage.atomic import within
from backstory.storage.provenance import check_place
from backstory.utils.arguments import checked
from backstory.utils.errors import NonFiniteError, UserError, pasted

SAMPLE = "sample"
"""Folder of a run that holds the text it generated."""
LARGE = 1 << 26
"""Parameters from which a token takes so long that several threads are worth their waking."""


@checked()
@dataclass(frozen=True)
class Sampling:
    """Settings of sampling. Raises UserError for settings out of range."""

    temperature: float = 1.0
    """Probabilities are raised to the power 1 / temperature; 0 always takes the most likely token."""
    top_k: int | None = None
    """Sample only from the k most likely types, including ties with the last."""
    top_p: float = 1.0
    """Sample only from the fewest most likely types with a total probability of p or more, after top_k."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise UserError(f"the temperature must be 0 or above and finite, not {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top_k must be at least 1, not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p must be above 0 and at most 1, not {self.top_p}")


def filtered(log_probs: Tensor, sampling: Sampling) -> Tensor:
    """Log-probabilities (V,) -> (V,) float64 that are drawn from: tempered, cut to top_k, then to top_p (nucleus sampling,
    Holtzman et al. 2020), each normalised again; minus infinity for what is left out.

    Of types equally likely at the edge of top_p, those with the lower ids stay. At temperature 0 the likeliest type alone
    is left, the one with the lowest id where several are.
    """
    scores = log_probs.double()
    if sampling.temperature == 0:
        return torch.full_like(scores, -torch.inf).index_fill_(0, scores.argmax(), 0.0)
    # Subtract the largest first, so that no temperature, however small, turns all of them into minus infinity.
    scores = torch.log_softmax((scores - scores.max()) / sampling.temperature, 0)
    if sampling.top_k is not None and sampling.top_k < len(scores):
        last = scores.topk(sampling.top_k).values[-1]
        scores = torch.log_softmax(scores.masked_fill(scores < last, -torch.inf), 0)
    if sampling.top_p < 1:
        ranked, order = scores.sort(descending=True, stable=True)
        mass = ranked.exp()
        left_out = mass.cumsum(0) - mass >= sampling.top_p  # the likelier types are enough without it
        scores = torch.log_softmax(
            scores.masked_fill(torch.zeros_like(left_out).scatter_(0, order, left_out), -torch.inf), 0
        )
    return scores


def draw(log_probs: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """Draw a type from log-probabilities (V,), on the CPU. Raises NonFiniteError if they are not numbers."""
    if not math.isfinite(log_probs.max()):
        raise NonFiniteError(
            "the distribution holds no probability that is a number: the weights or the reader broke down"
        )
    return int(torch.multinomial(filtered(log_probs, sampling).exp(), 1, generator=generator))


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
    **loading: Any,
) -> Iterator[str]:
    """Yield the text with which a run continues a prompt, in pieces, as soon as each is known. Raises UserError at once.

    The same seed gives the same text, on one machine. Drawn tokens are observed, so a reader that adapts learns from its own
    text.

    Args:
        run: A run's folder, or `hf:PATH_OR_NAME`.
        prompt: The text to continue; empty for the beginning of a text.
        tokens: Largest number of tokens to draw.
        temperature: Below 1, likely tokens become more likely; 0 always takes the most likely one.
        top_k: Draw only among this many most likely tokens.
        top_p: Draw only among the most likely tokens with this total probability.
        seed: Seed of the draws.
        stop: Texts at which it ends; they are left out.
        echo: Yield the prompt first, as the vocabulary has it.
        allow_unknown: Draw `<unk>` too.
        save: Write the whole text to RUN/sample/result.json, for reports.
        reader: How the text is read (`backstory ls readers`); by default static.
        session: The folder of a session, whose state and reader it continues from, and which it does not change.
        precision: `float32`, `bfloat16` or `auto`: of matrix products.
        loading: The fields of LoadOptions, such as `device`.

    Example:
        >>> print("".join(bs.generate("runs/demo", "return the", tokens=50, temperature=0.8)))
    """
    if "" in stop:
        raise UserError("a text to stop at must not be empty")
    sampling = Sampling(temperature, top_k, top_p)
    continued = _opened(run, reader, session, precision, LoadOptions.of(**loading))
    loaded, vocabulary = continued.run, continued.run.vocabulary
    context = encode_prompt(vocabulary, prompt)
    banned = [] if allow_unknown or vocabulary.unknown is None else [vocabulary.unknown]
    drawn = generate_ids(continued.reader, [continued.last, *context], sampling, seed, banned, reset=session is None)
    texts = decode_stream(vocabulary, chain(context, islice(drawn, tokens)))
    prompt_text = "".join(islice(texts, len(context)))
    new = until(texts, stop)
    if save:
        if loaded.results is None:
            raise UserError(f"{loaded.name} is not a run folder, and a sample is kept in one; leave --save out")
        check_place(within(loaded.results, SAMPLE), "sample")
        stack = parse_stack(reader or "static") if session is None else tuple(Layer(x.name) for x in continued.layers)
        settings: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
        settings["reader"] = stack_name(stack)
        origin = origin_of(loaded, continued.layers, continued.reader, loaded.corpus)
        new = _saved(new, loaded, prompt_text, settings, origin)
    return each_unaffected(chain([prompt_text] if echo and prompt_text else [], new), _threads(continued.reader))


class _Opened(NamedTuple):
    """A run and its reader, from which a text is continued."""

    run: Run
    reader: Reader
    layers: tuple[ConfiguredLayer, ...]
    last: int
    """The token before the prompt."""


def _opened(
    run: Path | str, reader: Readers | None, session: Path | None, precision: str, options: LoadOptions
) -> _Opened:
    """Open a run at the beginning of a text, or where a session has ended. Raises UserError."""
    if session is None:
        loaded, built, layers = open_reader(run, reader or "static", precision, options)
        return _Opened(loaded, built, layers, loaded.vocabulary.start)
    saved = load_reading(session)
    if saved is None:
        raise UserError(
            f"{session} holds no session; begin one with "
            f"`backstory read {pasted(run)} --session {pasted(session)}{plugin_flags()}`"
        )
    loaded, built, layers = open_saved(run, saved, reader, precision, options)
    return _Opened(loaded, built, layers, session_state(saved, loaded.vocabulary).last)


def _threads(reader: Reader) -> int:
    """Return the number of threads with which tokens are drawn: one if it is not fixed and the model is not large.

    It depends on nothing that is timed, since last bits of the probabilities, and so a token, may depend on it.
    """
    device, usual = next(reader.model.parameters()).device, torch.get_num_threads()
    large = count_parameters(reader.model) >= LARGE
    return usual if device.type != "cpu" or threads_are_fixed() or large else 1


def _saved(
    texts: Iterator[str], run: Run, prompt: str, settings: dict[str, Any], origin: ProvenanceRecord
) -> Iterator[str]:
    """Yield the texts; when they have ended, write their result."""
    began, pieces = time.perf_counter(), []
    for text in texts:
        pieces.append(text)
        yield text
    origin = replace(origin, seconds=round(time.perf_counter() - began, 1))
    figures = SampleFigures(prompt=prompt, text="".join(pieces), settings=settings)
    folder = run.folder / SAMPLE
    run.check_unchanged(folder)
    write_result(folder, run.name, figures, origin)


def encode_prompt(vocabulary: Vocabulary, prompt: str) -> list[int]:
    """Return the ids of a text to continue: its last line or paragraph stays open. Raises UserError."""
    if not prompt:
        return []
    if vocabulary.tokenizer.unit != "word":
        return encode_split(vocabulary, prompt, "prompt").ids.tolist()
    # These tokenizers close their input, so a known word is appended, and removed with that end afterwards.
    known = "x" if vocabulary.unknown is not None else next(word for word in vocabulary.words if word.isalnum())
    return encode_split(vocabulary, f"{prompt} {known}", "prompt").ids[:-2].tolist()


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
    """Yield an endless stream of ids after a context (at least one id), which is read first, without those in `banned`.

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
    """Yield the texts up to the stop that ends first (the longest of several), which is left out.

    Text that may still become a stop is held back; nothing is taken from `texts` after a stop.
    """
    held = ""
    for text in texts:
        for character in text:
            held += character
            if matches := [s for s in stops if held.endswith(s)]:
                if before := held[: -max(map(len, matches))]:
                    yield before
                return
        keep = max((n for s in stops for n in range(1, min(len(s), len(held) + 1)) if held.endswith(s[:n])), default=0)
        if len(held) > keep:
            yield held[: len(held) - keep]
            held = held[len(held) - keep :]
    if held:
        yield held
