"""The likelihood of each reader of a stack, which gives the gain of each."""

from typing import Any, Self

import numpy as np

from backstory.config.options import EvalOptions
from backstory.evaluation.metrics.metric import SummingMetric
from backstory.evaluation.opening import EvalSetup
from backstory.evaluation.reading_loop import ScoredBlock
from backstory.results.evaluation_record import ReaderScore
from backstory.utils.errors import UserError


class StackLikelihood(SummingMetric):
    """Mean nats of every reader of a stack, the innermost first, which give the gain of each over those inside it."""

    name = "gains"
    takes_lines = True

    def __init__(self, setup: EvalSetup) -> None:
        self.names = [layer.name for layer in setup.layers]
        self.precision = setup.reader.precision
        self.sums, self.tokens = np.zeros(len(self.names)), 0

    @classmethod
    def for_evaluation(cls, setup: EvalSetup, options: EvalOptions) -> Self:
        return cls(setup)

    def update(self, scored: ScoredBlock) -> None:
        block, prediction, log_prob = scored
        self.tokens += int(block.scored.sum())
        for layer in reversed(range(len(self.names))):
            self.sums[layer] -= log_prob.double()[block.scored].sum().item()
            if layer:
                parts = prediction.parts()
                if "p" not in parts:
                    raise UserError(
                        f"the prediction of the reader {self.names[layer]} does not hold that of the reader inside it; its "
                        "parts() must return that one as 'p' (docs/extending.md)"
                    )
                prediction = parts["p"]
                with self.precision.context(log_prob.device):
                    log_prob = prediction.log_prob(block.targets)

    def result(self) -> tuple[ReaderScore, ...]:
        totals = zip(self.names, self.sums.tolist(), strict=True)
        return tuple(ReaderScore.of_nats(name, total / self.tokens) for name, total in totals)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"tokens": self.tokens}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.tokens = int(state["tokens"])
