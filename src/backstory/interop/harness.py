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

from backstory.config import UserError
from backstory.interop.extras import need
from backstory.models import Prediction
from backstory.models.linear_log_prob import CHUNK
from backstory.reading import Sampling, generate_ids
from backstory.reading.generation import encode_prompt, until
from backstory.reading.opening import open_reader
from backstory.text import decode_stream, encode_split

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


@dataclass(frozen=True)
class Asked:
    """A text to be read from the start, and its tokens that are scored."""

    ids: list[int]
    first: int = 0
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


@register_model("backstory")
class BackstoryLM(LM):
    """A run with a reader whose weights stay as they are.

    Ids are those of the run's vocabulary: words that it lacks are scored as `<unk>`.
    """

    def __init__(
        self,
        run: Path | str,
        reader: str = "static",
        precision: str = "float32",
        device: str = "auto",
        batch_size: int | str = ROWS,
        max_batch_size: int | None = None,
    ) -> None:
        """`reader`, `precision` and `device` as `backstory evaluate` has them. Raises UserError."""
        super().__init__()
        # The harness's own default; where it is not to be had, it takes what there is for other models too.
        device = "auto" if device.startswith("cuda") and not torch.cuda.is_available() else device
        self.run, self.reader, _ = open_reader(Path(run), reader, precision, device)
        able = self.reader.capabilities
        if able.adapts_weights or not able.independent_rows:
            why = "learns from what it read before" if able.adapts_weights else "needs other texts beside it"
            raise UserError(
                f"the harness asks in no order and reads every request by itself, and the reader {self.reader.name} {why}; "
                "use static or cache"
            )
        self.vocabulary = self.run.vocabulary
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
        asked = [Asked(encode_split(self.vocabulary, t, "document").ids.tolist() if t else []) for t in texts]
        return [score.log_prob for score in self._read_all(asked, False, disable_tqdm)]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """How every context is gone on with, up to a stop of its own, greedily unless the task asks for samples."""
        return [
            self._go_on(*request.args) for request in tqdm(requests, disable=disable_tqdm, desc="Going on with texts")
        ]

    def _pair(self, context: str, continuation: str) -> Asked:
        whole = encode_prompt(self.vocabulary, context + continuation)
        # White space at the end of a context is part of the piece after it.
        known = context.rstrip() if self.vocabulary.tokenizer.unit == "piece" else context
        first = len(encode_prompt(self.vocabulary, known))
        if len(whole) <= first:
            raise UserError(
                f"{continuation!r} after {context[-30:]!r} adds no {self.vocabulary.tokenizer.unit} that could be scored; "
                "give the task a target_delimiter, such as a space, and continuations that are not empty"
            )
        return Asked(whole, first)

    def _go_on(self, context: str, settings: dict[str, Any]) -> str:
        given: Any = normalize_gen_kwargs(settings, MOST_TOKENS)
        sampling = Sampling(given.get("temperature", 0.0), given.get("top_k") or None, given.get("top_p", 1.0))
        before = encode_prompt(self.vocabulary, context)
        banned = [] if self.vocabulary.unknown is None else [self.vocabulary.unknown]
        seed = int(torch.randint(2**31, ()))  # the harness seeds the generator that this one is drawn from
        drawn = generate_ids(self.reader, [self.vocabulary.start, *before], sampling, seed, banned)
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
        longest, start = max(1, *(len(a.ids) for a in asked)), self.vocabulary.start
        targets = torch.tensor([[*a.ids, *[start] * (longest - len(a.ids))] for a in asked], device=self._device)
        inputs = torch.cat([targets.new_full((len(asked), 1), start), targets[:, :-1]], 1)
        places = torch.arange(longest, device=self._device)
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
