"""Perturb the colours of each client's images (FedMIM)."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hpcfl.data.base import DataConfig, Transform
from hpcfl.data.images import CropFlipNormalize
from hpcfl.data.partition import Pooled
from hpcfl.seeds import stream
from hpcfl.types import Section, Share


@dataclass(frozen=True, kw_only=True)
class Colour(Section):
    """The ranges of the factors of brightness and saturation of a client's images."""

    brightness: Share = 0.0
    """A client's factor is uniform in 1 - brightness to 1 + brightness."""
    saturation: Share = 0.0
    """A client's factor is uniform in 1 - saturation to 1 + saturation."""


@dataclass(frozen=True, kw_only=True)
class Coloured(DataConfig):
    """Images whose colours may differ from client to client."""

    colour: Colour | None = None
    """Change the colours of each client's images: with ``{brightness: b, saturation: s}`` a client
    has factors that are uniform in 1 - b to 1 + b, and in 1 - s to 1 + s."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.colour is not None and isinstance(self.partition, Pooled):
            raise ValueError(
                "a pooled partition has one client, which would see every image in one colour; "
                "leave colour out"
            )

    def personal(
        self, transform: CropFlipNormalize, seed: int
    ) -> Callable[[int], Transform] | None:
        """Each client's transform: ``transform`` with factors drawn once, from a stream of its own.

        They apply to the client's training and held-out examples, and to tests of its own in its
        scores; the test set is unchanged.
        """
        return None if self.colour is None else PersonalColours(self.colour, transform, seed)


@dataclass(frozen=True)
class PersonalColours:
    """Client -> the transform of its images."""

    colour: Colour
    transform: CropFlipNormalize
    seed: int
    _made: dict[int, Transform] = field(default_factory=dict, init=False, compare=False)

    def __call__(self, client: int) -> Transform:
        """The transform of this client, the same object at every call."""
        if client not in self._made:
            b, s = stream(self.seed, "colour", client=client).uniform(-1, 1, 2).tolist()
            self._made[client] = replace(
                self.transform,
                brightness=1 + self.colour.brightness * b,
                saturation=1 + self.colour.saturation * s,
            )
        return self._made[client]
