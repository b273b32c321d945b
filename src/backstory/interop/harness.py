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

from backstory.config import UserError, nearest
from backstory.data import Vocabulary, decode_stream, encode_split
from backstory.evaluation import Sampling, generate_ids
from backstory.evaluation.generation import encode_prompt, until
from backstory.evaluation.opening import open_reader
from backstory.interop.folders import need
from backstory.interop.hugging_face import FittingPieces
from backstory.models import Prediction
from backstory.models.kernels.linear_log_prob import CHUNK

need("lm_eval", "eval", "the evaluation harness")

from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.api.model import LM  # noqa: E402
from lm_eval.api.registry import register_model  # noqa: E402
from lm_eval.models.utils import normalize_gen_kwargs  # noqa: E402
from tqdm import tqdm  # noqa: E402

ROWS = 16
"""Requests that are read side by side unless the harness says how many."""
MOST_TOKENS = 256
"""Tokens that a task lets be generated unless it says how many."""


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
HONOURED = ("until", "max_gen_toks", "do_sample", "temperature", "top_k", "top_p")


@dataclass(frozen=True)
class Asked:
    """A text to be read from the start, and its tokens that are scored: the first is read, and never scored."""

    ids: list[int]
    first: int = 1
    """The tokens from here on."""


@dataclass
class Score:
    """What came of reading one."""

    log_prob: float = 0.0
    """Of the scored tokens together, in nats."""
    greedy: bool = True
    """Whether each of them was the likeliest."""


def _rows(batch_size: int | str) -> int:
    """Requests side by side. Raises UserError."""
    if not str(batch_size).isdecimal() or int(batch_size) < 1:
        raise UserError(f"batch_size must be a whole number from 1 on, or auto, not {batch_size}")
    return int(batch_size)


def _check_arguments(run: Path | str | None, add_bos_token: Any, unknown: dict[str, Any]) -> None:
    """Raise UserError for arguments of the model that there are none of, or a run that is not named."""
    known = ("run", "reader", "precision", "device", "batch_size", "add_bos_token")
    for name in unknown:
        raise UserError(f"the model backstory has no argument {name!r}{nearest(name, known)}; use {', '.join(known)}")
    if run is None:
        raise UserError("name the run that is evaluated: --model_args run=FOLDER")
    if add_bos_token not in (None, True, False):
        raise UserError(f"add_bos_token must be True or False, not {add_bos_token!r}")


def _prefix(vocabulary: Vocabulary) -> list[int]:
    """What a model's tokenizer puts before a text; before one of a run, the token that begins it."""
    tokenizer = vocabulary.tokenizer
    if not isinstance(tokenizer, FittingPieces):
        return [vocabulary.start]
    bare, whole = (tokenizer.model.encode("a", add_special_tokens=more).ids for more in (False, True))
    return whole[: next((i for i in range(len(whole)) if whole[i : i + len(bare)] == bare), 0)]


def _sampling(given: dict[str, Any]) -> Sampling:
    """How tokens are drawn. Raises UserError for what is neither honoured here nor without effect."""
    for name, value in given.items():
        if name in HONOURED or value in NEUTRAL.get(name, ()):
            continue
        raise UserError(
            f"the model backstory does not generate with {name}={value}; remove it from the task's generation_kwargs, or use "
            f"{', '.join(HONOURED)}"
        )
    temperature = given.get("temperature")
    if not given.get("do_sample"):
        temperature = 0.0
    elif temperature is None:
        temperature = 1.0
    elif not temperature:
        raise UserError("do_sample=True needs a temperature above 0; set do_sample=False to generate greedily")
    return Sampling(temperature, given.get("top_k") or None, 1.0 if given.get("top_p") is None else given["top_p"])


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
        # The harness's own default; where it is not to be had, it takes what there is for other models too.
        device = "auto" if device.startswith("cuda") and not torch.cuda.is_available() else device
        self.run, self.reader, _ = open_reader(str(run), reader, precision, device)
        able = self.reader.capabilities
        if able.adapts_weights or not able.independent_rows:
            why = "learns from what it read before" if able.adapts_weights else "needs other texts beside it"
            raise UserError(
                f"the harness asks in no order and reads every request by itself, and the reader {self.reader.name} {why}; "
                "use static or cache"
            )
        self.vocabulary = self.run.vocabulary
        self._prefix = _prefix(self.vocabulary) if add_bos_token is None else [self.vocabulary.start] * add_bos_token
        self._device = next(self.run.model.parameters()).device
        self.rows = ROWS if str(batch_size).startswith("auto") else _rows(batch_size)

    @property
    def tokenizer_name(self) -> str:
        """What requests are cached under."""
        return f"backstory-{self.run.corpus['fingerprint']}"

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """log p of every continuation after its context, and whether it is what greedy decoding goes on with."""
        asked = [self._pair(*request.args) for request in requests]
        return [(score.log_prob, score.greedy) for score in self._read_all(asked, True, disable_tqdm)]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """log p of every whole text, from its first token to the end of its last line, as `backstory evaluate` reads it."""
        texts = [request.args[0] for request in requests]
        start = self.vocabulary.start
        asked = [
            Asked([start, *(encode_split(self.vocabulary, t, "document").ids.tolist() if t else [])]) for t in texts
        ]
        return [score.log_prob for score in self._read_all(asked, False, disable_tqdm)]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """How every context is gone on with, up to a stop of its own, greedily unless the task asks for samples.

        Raises UserError for a way to generate that is not known here.
        """
        return [
            self._go_on(*request.args) for request in tqdm(requests, disable=disable_tqdm, desc="Going on with texts")
        ]

    def _pair(self, context: str, continuation: str) -> Asked:
        whole = self._begun(encode_prompt(self.vocabulary, context + continuation), context)
        # White space at the end of a context belongs to what comes after it, as for the harness's own models.
        first = max(1, len(self._begun(encode_prompt(self.vocabulary, context.rstrip()), context)))
        if len(whole) <= first:
            raise UserError(
                f"{continuation!r} after {context[-30:]!r} adds no {self.vocabulary.tokenizer.unit} that could be scored; "
                "give the task a target_delimiter, such as a space, and continuations that are not empty"
            )
        return Asked(whole, first)

    def _begun(self, ids: list[int], context: str) -> list[int]:
        """The ids of a text that begins with this context, with what is read before them."""
        start = self.vocabulary.start
        if ids[:1] == [start]:  # it is there already
            return ids
        return [*(self._prefix if context.rstrip() else [start]), *ids]

    def _go_on(self, context: str, settings: dict[str, Any]) -> str:
        given: Any = normalize_gen_kwargs(settings, MOST_TOKENS)
        sampling = _sampling(given)
        before = encode_prompt(self.vocabulary, context)
        begun = self._begun(before, context)
        banned = [] if self.vocabulary.unknown is None else [self.vocabulary.unknown]
        seed = int(torch.randint(2**31, ()))  # the harness seeds the generator that this one is drawn from
        drawn = generate_ids(self.reader, begun, sampling, seed, banned)
        texts = decode_stream(self.vocabulary, chain(before, islice(drawn, given["max_gen_toks"])))
        for _ in range(len(before)):
            next(texts)
        return "".join(until(texts, [stop for stop in given["until"] if stop]))

    def _read_all(self, asked: Sequence[Asked], greedy: bool, quiet: bool) -> list[Score]:
        """Scores in the order of what was asked; texts of like length are read side by side."""
        order = sorted(range(len(asked)), key=lambda place: -len(asked[place].ids))
        found = [Score() for _ in asked]
        with tqdm(total=len(asked), disable=quiet, desc="Reading texts") as progress:
            for first in range(0, len(order), self.rows):
                places = order[first : first + self.rows]
                for place, score in zip(places, self._read([asked[p] for p in places], greedy), strict=True):
                    found[place] = score
                progress.update(len(places))
        return found

    @torch.no_grad()
    def _read(self, asked: Sequence[Asked], greedy: bool) -> list[Score]:
        """Scores of texts that are read side by side. What fills shorter rows up comes after all that is scored in them."""
        longest, start = max(2, *(len(a.ids) for a in asked)), self.vocabulary.start
        texts = torch.tensor([[*a.ids, *[start] * (longest - len(a.ids))] for a in asked], device=self._device)
        inputs, targets = texts[:, :-1], texts[:, 1:]
        places = torch.arange(1, longest, device=self._device)
        ends = torch.tensor([[a.first, len(a.ids)] for a in asked], device=self._device)
        scored = (places >= ends[:, :1]) & (places < ends[:, 1:])
        total, likeliest = torch.zeros(len(asked), dtype=torch.float64), torch.ones(len(asked), dtype=torch.bool)
        self.reader.start(len(asked))
        for tokens, wanted, here in zip(
            *(t.split(self.reader.block, 1) for t in (inputs, targets, scored)), strict=True
        ):
            prediction = self.reader.predict(tokens)
            with self.reader.precision.context(self._device):
                log_prob = prediction.log_prob(wanted).double()
                total += log_prob.masked_fill(~here, 0).sum(1).cpu()
                if greedy and here.any():
                    self._check_greedy(prediction, wanted, here, likeliest)
            self.reader.observe(wanted)
        return [Score(*pair) for pair in zip(total.tolist(), likeliest.tolist(), strict=True)]

    def _check_greedy(self, prediction: Prediction, targets: Tensor, scored: Tensor, likeliest: Tensor) -> None:
        """Take the rows (B,) out of `likeliest` of which a scored target is not the likeliest token."""
        rows, times = scored.nonzero(as_tuple=True)
        size = max(1, CHUNK // len(self.vocabulary))
        for r, t in zip(rows.split(size), times.split(size), strict=True):
            best = prediction.select(r, t).log_probs()[:, 0].argmax(1)
            likeliest[r[best != targets[r, t]].cpu()] = False
