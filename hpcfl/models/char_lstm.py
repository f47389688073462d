"""Char LSTM: the next character of a text, as the FedHBM paper models it.

By that paper it is the model of FedProx (Li et al., 2020) and of FedDyn (Acar et al., 2021).
"""

from dataclasses import dataclass

from torch import Tensor, nn

from hpcfl.errors import JobError
from hpcfl.models.base import ModelConfig
from hpcfl.types import Section

_EMBEDDED = 8
_HIDDEN = 100


@dataclass(frozen=True, kw_only=True)
class CharLstm(ModelConfig):
    """Embedding of 8, two LSTM layers of 100, one dense layer: 133 520 parameters for 80 classes.

    Characters in and characters out share one alphabet, so ``outputs`` is its size.
    """

    def check(self, data: Section) -> None:
        """Refuse sentences that are padded at their ends.

        Raises:
            ValueError: the data's sentences are.
        """
        if getattr(data, "padded_text", None):
            raise ValueError(
                "name: char_lstm answers after the last token of a text, which may be padding in "
                "these texts; use word_lstm"
            )

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Takes texts [T] of character classes."""
        if len(input_shape) != 1:
            raise JobError(
                f"model.name: char_lstm takes texts of shape (T,), not examples of {input_shape}"
            )
        return CharLstmNetwork(outputs)


class CharLstmNetwork(nn.Module):
    """Embedding, LSTM and a dense layer after the last character of a text."""

    def __init__(self, alphabet: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(alphabet, _EMBEDDED)
        self.lstm = nn.LSTM(_EMBEDDED, _HIDDEN, num_layers=2, batch_first=True)
        self.fc = nn.Linear(_HIDDEN, alphabet)

    def forward(self, text: Tensor) -> Tensor:
        """Logits [B, n] of the character after each text [B, T] (int64)."""
        states, _ = self.lstm(self.embedding(text))
        return self.fc(states[:, -1])  # type: ignore[no-any-return]
