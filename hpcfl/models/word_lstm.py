"""Word LSTM: predicts the next word of a sentence, as in Reddi et al. (2021) and FedHBM's paper."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from hpcfl.errors import JobError
from hpcfl.models.base import ModelConfig
from hpcfl.types import PAD, Count, Section


@dataclass(frozen=True, kw_only=True)
class WordLstm(ModelConfig):
    """Embedding of 96, one LSTM layer of 670, dense layers of 96 and of all words.

    4 053 428 parameters for 10 000 words and 4 special tokens.
    """

    predict: Literal["every", "last"] = "every"
    """The word after each word, or only the one after the last."""
    embedded: Count = 96
    """Size of a word's embedding."""
    hidden: Count = 670
    """Size of the LSTM's state."""
    projected: Count = 96
    """Size of the layer between the LSTM and the outputs."""

    def check(self, data: Section) -> None:
        """Refuse a model and data that predict different words, and texts without padding.

        Raises:
            ValueError: ``predict`` differs; or it is last, and class 0 of the data's texts is a
                character, which would be taken for padding.
        """
        if self.predict == "last" and getattr(data, "padded_text", None) is False:
            raise ValueError(
                "predict: last reads the state before the padding, which is class 0; in these "
                "texts class 0 is a character; use model.name: char_lstm"
            )
        labelled = getattr(data, "predict", self.predict)
        if labelled != self.predict:
            raise ValueError(
                f"predict: the model's is {self.predict}, but data.predict is {labelled}; say the "
                "same in both"
            )

    def build(self, input_shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Build the network for sentences [T] of word classes, padded at their ends."""
        if len(input_shape) != 1:
            raise JobError(
                f"model.name: word_lstm takes sentences of shape (T,), not examples of "
                f"{input_shape}"
            )
        return WordLstmNetwork(self, outputs)


class WordLstmNetwork(nn.Module):
    """Predicts the next word after each word, or only after the last one before the padding."""

    def __init__(self, sizes: WordLstm, words: int) -> None:
        super().__init__()
        self.last_only = sizes.predict == "last"
        self.embedding = nn.Embedding(words, sizes.embedded)
        self.lstm = nn.LSTM(sizes.embedded, sizes.hidden, batch_first=True)
        self.projection = nn.Linear(sizes.hidden, sizes.projected)
        self.fc = nn.Linear(sizes.projected, words)

    def forward(self, text: Tensor) -> Tensor:
        """Logits [B, T, n] of sentences [B, T] (int64), or [B, n]."""
        states, _ = self.lstm(self.embedding(text))
        if self.last_only:  # padding follows the sentence, so it has not changed this state
            end = (text != PAD).sum(1).clamp(min=1) - 1
            states = states[torch.arange(len(text), device=text.device), end]
        return self.fc(self.projection(states))  # type: ignore[no-any-return]
