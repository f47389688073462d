"""Texts in the TCP store of the ranks, which any process can reach that reaches its port.

The store is rank 0's or torchrun's.  It asks nobody who he is, so each text carries a code
(HMAC-SHA256) of its key and its content by a secret of the ranks (``hpcfl.comm.secret``), and one
with another code is an error.  No key is used twice with one secret, so an old text is not believed
in another place.  Torch's own keys, such as the addresses of Gloo, have no such code.
"""

import hmac
from collections.abc import Callable, Sequence
from typing import TypeVar

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from hpcfl.comm.in_time import in_time
from hpcfl.errors import RankError

_CODE = "sha256"
_CODE_BYTES = 32

_Value = TypeVar("_Value")


class LimitedStore:
    """The keys below a name of a store, each operation with a limit of time.

    torch's store waits for ever where the process that holds it is stopped or cut off.

    Args:
        store: of torch; other threads may use it, too.
        name: begins each key.
        limit_s: longer than the store's own time-out, which is that of ``get`` and ``wait``.
    """

    def __init__(self, store: Store, name: str, limit_s: float) -> None:
        self._store, self._name, self._limit_s = store, name, limit_s

    def below(self, name: str) -> "LimitedStore":
        """The keys below another name."""
        return LimitedStore(self._store, f"{self._name}/{name}", self._limit_s)

    def sealed(self, secret: bytes) -> "SealedStore":
        """The same keys, with a code at each text."""
        return SealedStore(self._store, self._name, self._limit_s, secret)

    @property
    def of_torch(self) -> Store:
        """A store of other keys for torch, which sets no limits."""
        return PrefixStore(f"{self._name}/torch", self._store)

    def set(self, key: str, value: bytes = b"") -> None:
        """Set a key.

        Raises:
            DistError: the store is gone.
            RankError: it does not answer.
        """
        # Bytes are taken too, whatever torch's stubs say.
        self._call(lambda: self._store.set(self._full(key), value))  # type: ignore[arg-type]

    def get(self, key: str) -> bytes:
        """The value of a key, once it is set.

        Raises:
            DistError: it is not set in time, or the store is gone.
            RankError: the store does not answer.
        """
        return self._call(lambda: self._store.get(self._full(key)))

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all of these keys are set.

        Raises:
            DistError: the store is gone.
            RankError: it does not answer.
        """
        return self._call(lambda: self._store.check([*map(self._full, keys)]))

    def wait(self, keys: Sequence[str]) -> None:
        """Wait until all of these keys are set.

        Raises:
            DistError: they are not in time, or the store is gone.
            RankError: the store does not answer.
        """
        self._call(lambda: self._store.wait([*map(self._full, keys)]))

    def _full(self, key: str) -> str:
        return f"{self._name}/{key}"

    def _call(self, call: Callable[[], _Value]) -> _Value:
        try:
            return in_time(self._limit_s, call)
        except TimeoutError as error:
            raise RankError(
                f"the store of the ranks did not answer within {self._limit_s:g} s: rank 0, or "
                "torchrun, which holds it, is stopped, hangs or is cut off (comm.timeout_s)",
                prints=True,  # because rank 0 may not be able to
            ) from error


class SealedStore(LimitedStore):
    """The same with a code at each text, by a secret that the ranks alone have."""

    def __init__(self, store: Store, name: str, limit_s: float, secret: bytes) -> None:
        super().__init__(store, name, limit_s)
        self._secret = secret

    def below(self, name: str) -> "SealedStore":
        """The keys below another name."""
        return super().below(name).sealed(self._secret)

    def set(self, key: str, value: bytes = b"") -> None:
        """Set a key, see ``LimitedStore.set``."""
        super().set(key, self.seal(key, value))

    def get(self, key: str) -> bytes:
        """The value of a key, see ``LimitedStore.get``.

        Raises:
            RankError: also where its code is not that of the ranks.
        """
        return self.unseal(key, super().get(key))

    def seal(self, key: str, value: bytes) -> bytes:
        """The value behind its code, for this key alone."""
        return self._code(key, value) + value

    def unseal(self, key: str, sealed: bytes) -> bytes:
        """The value, without its code.

        Raises:
            RankError: the code is not that of the ranks for this key and value.
        """
        value = sealed[_CODE_BYTES:]
        if not hmac.compare_digest(sealed[:_CODE_BYTES], self._code(key, value)):
            raise RankError(
                f"the text {self._full(key)} that this rank received does not carry the code of "
                "the run's ranks: another process wrote it, or a rank could not read the ranks' "
                "secret and says why itself; start again",
                prints=True,
            )
        return value

    def _code(self, key: str, value: bytes) -> bytes:
        return hmac.digest(self._secret, self._full(key).encode() + b"\0" + value, _CODE)
