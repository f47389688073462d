"""How training examples are dealt to clients."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Discriminator

from hpcfl.types import NonNegative, Section, Seed

Rows = NDArray[np.int64]  # indices into a data set's training examples


@dataclass(frozen=True, kw_only=True)
class Iid(Section):
    """Shuffle, then deal equal shares (sizes differ by one at most)."""

    kind: Literal["iid"] = "iid"
    seed: Seed | None = None
    """The seed of the split; the job's when absent."""


@dataclass(frozen=True, kw_only=True)
class Dirichlet(Section):
    """Each client draws its class proportions q ~ Dir(alpha p), equal sizes (Hsu et al., 2019)."""

    kind: Literal["dirichlet"] = "dirichlet"
    alpha: NonNegative
    """Concentration; 0 sorts by label and cuts N equal shards, one each."""
    seed: Seed | None = None


Partition = Annotated[Iid | Dirichlet, Discriminator("kind")]
