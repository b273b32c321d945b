"""A model with a known memory: it expects each token to repeat the one `distance` positions before."""

import torch
from torch import Tensor, nn

from backstory.models import Activations, Capabilities, LanguageModel, Softmax

SURE = 12.0
"""The logit of the repeated token; the others have 0."""


class Copying(LanguageModel):
    """Predicts the token `distance` positions back; uniform before it has read that many."""

    def __init__(self, types: int, distance: int, exact_state: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(SURE * torch.eye(types, dtype=torch.float64))
        self.distance = distance
        self.capabilities = Capabilities(exact_state=exact_state)
        self.pieces: list[int] = []
        """Lengths of the pieces of text that it read."""

    @property
    def vocabulary_size(self) -> int:
        return len(self.weight)

    def start(self, batch_size: int) -> Tensor:
        """The last tokens (B, distance - 1), -1 where there is none yet."""
        return torch.full((batch_size, self.distance - 1), -1)

    def forward(self, tokens: Tensor, state: Tensor) -> tuple[Softmax, Tensor]:
        self.pieces.append(tokens.shape[1])
        history = torch.cat([state, tokens], 1)
        repeated = history[:, : tokens.shape[1]]
        hidden = (repeated[..., None] == torch.arange(self.vocabulary_size)).double()
        activations = Activations(hidden, (hidden,), hidden, hidden, hidden)
        return Softmax(activations, hidden, self.weight, None), history[:, history.shape[1] - self.distance + 1 :]
