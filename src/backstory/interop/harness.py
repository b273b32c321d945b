"""Our runs in the lm-evaluation-harness, as its model `backstory`; `python -m backstory.interop.lm_eval` is its command.

Every request is read from the start of a text, whatever was read before: a reader with a cache begins with an empty one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from backstory.config.options import LoadOptions
from backstory.data import Vocabulary, decode_stream, encode_split
from backstory.evaluation import Sampling, generate_ids
from backstory.evaluation.generation import encode_prompt, until
from backstory.evaluation.opening import open_reader
from backstory.interop.fitting_pieces import FittingPieces
from backstory.interop.folders import need
from backstory.models import Prediction
from backstory.utils.errors import UserError, nearest

need("lm_eval", "eval", "the evaluation harness")

from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.api.model import LM  # noqa: E402
from lm_eval.api.registry import register_model  # noqa: E402
from lm_eval.models.utils import normalize_gen_kwargs  # noqa: E402
from tqdm import tqdm  # noqa: E402

ROWS = 16
"""Default number of requests that are read side by side."""
MOST_TOKENS = 256
"""Default maximum of generated tokens."""


NEUTRAL: dict[str, tuple[Any, ...]] = {
    "num_beams": (1,),
    "num_beam_groups": (1,),
    "num_return_sequences": (1,),
    "repetition_penalty": (1, 1.0),
    "length_penalty": (1, 1.0),
    "no_repeat_ngram_size": (0,),
    "early_stopping": (False,),
    "min_p": (0, 0.0, None),
    "typical_p": (1, 1.0, None),
    "use_cache": (True, False),
}
"""Settings of generation that other models know, with the values that change nothing."""
SUPPORTED = ("until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p")


@dataclass(frozen=True)
class ScoreRequest:
    """A text to read from the start, and its tokens to score; the first token is never scored."""

    ids: list[int]
    first: int = 1
    """First token that is scored."""


@dataclass
class Score:
    """Score of a text."""

    log_prob: float = 0.0
    """Sum over the scored tokens, nats."""
    greedy: bool = True
    """True if each of them was the likeliest."""


def _rows(batch_size: int | str) -> int:
    """Return the number of requests that are read side by side. Raises UserError."""
    if not str(batch_size).isdecimal() or int(batch_size) < 1:
        raise UserError(f"batch_size must be a whole number from 1 on, or auto, not {batch_size}")
    return int(batch_size)


def _check_arguments(run: Path | str | None, add_bos_token: Any, unknown: dict[str, Any]) -> None:
    """Raise UserError for unknown arguments of the model, or if no run is named."""
    known = ("run", "reader", "precision", "device", "batch_size", "add_bos_token")
    for name in unknown:
        raise UserError(f"the model backstory has no argument {name!r}{nearest(name, known)}; use {', '.join(known)}")
    if run is None:
        raise UserError("name the run that is evaluated: --model_args run=FOLDER")
    if add_bos_token not in (None, True, False):
        raise UserError(f"add_bos_token must be True or False, not {add_bos_token!r}")


def _prefix(vocabulary: Vocabulary) -> list[int]:
    """Return the tokens before a text: those that a model's tokenizer adds; for a run, its start token."""
    tokenizer = vocabulary.tokenizer
    if not isinstance(tokenizer, FittingPieces):
        return [vocabulary.start]
    bare, whole = (tokenizer.model.encode("a", add_special_tokens=more).ids for more in (False, True))
    return whole[: next((i for i in range(len(whole)) if whole[i : i + len(bare)] == bare), 0)]


def _sampling(settings: dict[str, Any]) -> Sampling:
    """Return the settings of sampling. Raises UserError for a setting that has an effect and is not supported."""
    for name, value in settings.items():
        if name in SUPPORTED or value in NEUTRAL.get(name, ()):
            continue
        raise UserError(
            f"the model backstory does not generate with {name}={value}; remove it from the task's generation_kwargs, or use "
            f"{', '.join(SUPPORTED)}"
        )
    temperature = settings.get("temperature")
    if not settings.get("do_sample"):
        temperature = 0.0
    elif temperature is None:
        temperature = 1.0
    elif not temperature:
        raise UserError("do_sample=True needs a temperature above 0; set do_sample=False to generate greedily")
    top_p = settings.get("top_p")
    return Sampling(temperature, settings.get("top_k") or None, 1.0 if top_p is None else top_p)


@register_model("backstory")
class BackstoryLM(LM):
    """A run with a reader whose weights stay as they are.

    Ids are those of the run's vocabulary: words that it lacks are scored as `<unk>`.
    """

    def __init__(
        self,
        run: Path | str | None = None,
        reader: str = "static",
        precision: str = "float32",
        device: str = "auto",
        batch_size: int | str = ROWS,
        max_batch_size: int | None = None,
        add_bos_token: bool | None = None,
        **unknown: Any,
    ) -> None:
        """`reader`, `precision` and `device` as `backstory evaluate` has them.

        `add_bos_token`: whether the token that begins a text is read before a context. By default, as for the harness's own
        model, it is where the model's tokenizer puts it there: so for every run, and for no GPT-2. Before an empty context it
        always is. Raises UserError.
        """
        super().__init__()
        _check_arguments(run, add_bos_token, unknown)
        # The harness's own default; if it is unavailable, whatever is used for other models.
        device = "auto" if device.startswith("cuda") and not torch.cuda.is_available() else device
        self.run, self.reader, _ = open_reader(str(run), reader, precision, LoadOptions(device=device))
        able = self.reader.capabilities
        if able.adapts_weights or not able.independent_rows:
            why = "learns from what it read before" if able.adapts_weights else "needs other texts beside it"
            raise UserError(
                f"the harness sends independent requests in any order, and the reader {self.reader.name} {why}; "
                "use static or cache"
            )
        self.vocabulary = self.run.vocabulary
        self._prefix = _prefix(self.vocabulary) if add_bos_token is None else [self.vocabulary.start] * add_bos_token
        self._device = next(self.run.model.parameters()).device
        self.rows = ROWS if str(batch_size).startswith("auto") else _rows(batch_size)

    @property
    def tokenizer_name(self) -> str:
        """Return the name under which requests are cached."""
        return f"backstory-{self.run.corpus['fingerprint']}"

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Return log p of every continuation after its context, and True if greedy decoding gives it."""
        pairs = [self._pair(*request.args) for request in requests]
        return [(score.log_prob, score.greedy) for score in self._read_all(pairs, True, disable_tqdm)]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return log p of every text, from its first token to the end of its last line, as `backstory evaluate` reads it."""
        texts = [request.args[0] for request in requests]
        start = self.vocabulary.start
        whole = [
            ScoreRequest([start, *(encode_split(self.vocabulary, t, "document").ids.tolist() if t else [])])
            for t in texts
        ]
        return [score.log_prob for score in self._read_all(whole, False, disable_tqdm)]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Continue every context up to a stop of its own, greedily unless the task asks for samples.

        Raises UserError for settings of generation that are not supported.
        """
        return [
            self._continue(*request.args)
            for request in tqdm(requests, disable=disable_tqdm, desc="Going on with texts")
        ]

    def _pair(self, context: str, continuation: str) -> ScoreRequest:
        whole = self._begun(encode_prompt(self.vocabulary, context + continuation), context)
        # White space at the end of a context belongs to what comes after it, as for the harness's own models.
        first = max(1, len(self._begun(encode_prompt(self.vocabulary, context.rstrip()), context)))
        if len(whole) <= first:
            raise UserError(
                f"{continuation!r} after {context[-30:]!r} adds no {self.vocabulary.tokenizer.unit} that could be scored; "
                "give the task a target_delimiter, such as a space, and continuations that are not empty"
            )
        return ScoreRequest(whole, first)

    def _begun(self, ids: list[int], context: str) -> list[int]:
        """Return the ids of a text that begins with this context, after the tokens that are read before it."""
        start = self.vocabulary.start
        if ids[:1] == [start]:  # it is there already
            return ids
        return [*(self._prefix if context.rstrip() else [start]), *ids]

    def _continue(self, context: str, settings: dict[str, Any]) -> str:
        options: Any = normalize_gen_kwargs(settings, MOST_TOKENS)
        sampling = _sampling(options)
        before = encode_prompt(self.vocabulary, context)
        begun = self._begun(before, context)
        banned = [] if self.vocabulary.unknown is None else [self.vocabulary.unknown]
        seed = int(torch.randint(2**31, ()))  # the harness seeds the generator that this one is drawn from
        drawn = generate_ids(self.reader, begun, sampling, seed, banned)
        texts = decode_stream(self.vocabulary, chain(before, islice(drawn, options["max_gen_toks"])))
        for _ in range(len(before)):
            next(texts)
        return "".join(until(texts, [stop for stop in options["until"] if stop]))

    def _read_all(self, requests: Sequence[ScoreRequest], greedy: bool, quiet: bool) -> list[Score]:
        """Return the scores in the order of the requests; texts of similar length are read side by side."""
        order = sorted(range(len(requests)), key=lambda index: -len(requests[index].ids))
        scores: dict[int, Score] = {}
        with tqdm(total=len(requests), disable=quiet, desc="Reading texts") as progress:
            for first in range(0, len(order), self.rows):
                batch = order[first : first + self.rows]
                scores |= zip(batch, self._read([requests[index] for index in batch], greedy), strict=True)
                progress.update(len(batch))
        return [scores[index] for index in range(len(requests))]

    @torch.no_grad()
    def _read(self, requests: Sequence[ScoreRequest], greedy: bool) -> list[Score]:
        """Return the scores of texts that are read side by side. Padding comes after everything that is scored in a row."""
        longest, start = max(2, *(len(request.ids) for request in requests)), self.vocabulary.start
        texts = torch.tensor(
            [[*request.ids, *[start] * (longest - len(request.ids))] for request in requests], device=self._device
        )
        inputs, targets = texts[:, :-1], texts[:, 1:]
        steps = torch.arange(1, longest, device=self._device)
        ends = torch.tensor([[request.first, len(request.ids)] for request in requests], device=self._device)
        scored = (steps >= ends[:, :1]) & (steps < ends[:, 1:])
        total, likeliest = torch.zeros(len(requests), dtype=torch.float64), torch.ones(len(requests), dtype=torch.bool)
        self.reader.start(len(requests))
        for tokens, block_targets, here in zip(
            *(t.split(self.reader.block, 1) for t in (inputs, targets, scored)), strict=True
        ):
            prediction = self.reader.predict(tokens)
            with self.reader.precision.context(self._device):
                log_prob = prediction.log_prob(block_targets).double()
                total += log_prob.masked_fill(~here, 0).sum(1).cpu()
                if greedy and here.any():
                    self._check_greedy(prediction, block_targets, here, likeliest)
            self.reader.observe(block_targets)
        return [Score(*pair) for pair in zip(total.tolist(), likeliest.tolist(), strict=True)]

    def _check_greedy(self, prediction: Prediction, targets: Tensor, scored: Tensor, likeliest: Tensor) -> None:
        """Clear `likeliest` for the rows (B,) with a scored target that is not the most likely token."""
        rows, times = scored.nonzero(as_tuple=True)
        for r, t, table in prediction.tables(rows, times):
            likeliest[r[table.argmax(1) != targets[r, t]].cpu()] = False
