"""A GPU that is none: its tensors compute on the CPU, and obey the rules of CUDA.

``fake_cuda`` replaces four things, and leaves all of hpcfl as it is:

- Tensors.  ``.to("cuda")`` and ``device="cuda"`` make tensors of a subclass that say ``cuda:0`` of
  their device and hold their values in memory.  Operations that PyTorch refuses are refused:
  tensors of two devices in one call (but for 0-d CPU tensors in pointwise calls), ``numpy`` of a
  tensor on the device, and operations without a deterministic kernel.  Of several GPUs the process
  uses the current one alone.
- Pinned memory.  A copy into it that does not wait arrives only when a stream is synchronised;
  until then it holds other bytes.  A copy from it that does not wait reads it until the host waits
  for the device, and must find there what it found first.
- Streams.  What a replay on another stream reads and writes may be used by the main stream only
  after it waits for that stream, and the reverse.  A capture refuses an operation that its stream
  has not run before: libraries would choose kernels and allocate in it.
- The functions of ``torch.cuda`` that hpcfl calls.  A captured graph holds the operations on the
  device in their order, and a replay computes them again into the same memory.  Within a capture
  nothing may be read by the host, and no memory be copied to or from it; a 0-d CPU tensor keeps
  the value that it had then.

What the host reads of the device, and so waits for, is counted, and so is what it copies to it.

Not covered: kernels themselves, their rounding and their memory.  ``nccl_stand_in.py`` has NCCL.

torch's own ``FakeTensorMode`` cannot be used here: autograd asks for the guard of its tensors'
device, and a build for CPUs has none for CUDA, which ends the process.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._C import DispatchKey, DispatchKeySet, _functorch
from torch._ops import HigherOrderOperator, _compute_keyset
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from hpcfl.data import images

CUDA = torch.device("cuda:0")
aten = torch.ops.aten

# CUDA kernels that torch.use_deterministic_algorithms documents to raise.
NONDETERMINISTIC = {
    aten._adaptive_avg_pool2d_backward,
    aten._cdist_backward,
    aten.adaptive_max_pool2d_backward,
    aten.bincount,
    aten.cumsum,
    aten.grid_sampler_2d_backward,
    aten.histc,
    aten.kthvalue,
    aten.max_unpool2d,
    aten.median,
    aten.nll_loss2d_forward,
    aten.put_,
    aten.reflection_pad2d_backward,
    aten.replication_pad2d_backward,
    aten.scatter_add_,
    aten.scatter_reduce,
    aten.upsample_bilinear2d_backward,
}
HOST_WAITS = {  # these need a value on the host: CUDA refuses them in a capture
    aten._local_scalar_dense,
    aten.is_nonzero,
    aten.equal,
    aten.nonzero,
    aten.masked_select,
    aten._unique2,
}


class FakeTensor(Tensor):
    """A tensor on the fake device; its values are its own memory."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _call(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})


class Stream:
    """A queue of operations; those of two streams run in any order, unless one waits."""

    def __init__(self) -> None:
        self.waited = 0
        """The last operation of the main stream that it waits for."""
        self.queued: set[int] = set()
        """The memory of its replays that the main stream does not wait for yet."""
        self.ran: set[Any] = set()
        """The operations that it ran outside of captures."""

    def synchronize(self) -> None:
        """Let all copies arrive."""
        _runtime().synchronize()

    def wait_stream(self, other: "Stream") -> None:
        """Begin after what the other stream has been given until now."""
        runtime = _runtime()
        runtime.calls.append("wait_stream")
        if other is runtime.main:
            self.waited = runtime.operations
        elif self is runtime.main:
            other.queued.clear()


class Runtime:
    """The state of the device: copies under way, pinned memory, the graph under capture.

    Args:
        gpus: that the process sees.
    """

    def __init__(self, gpus: int = 1) -> None:
        self.gpus, self.current = gpus, 0
        """How many there are, and the number of the one in use."""
        self.main = self.stream = Stream()
        """The default stream, and the one that operations are queued on now."""
        self.streams: list[Stream] = []
        """The others."""
        self.captured: list[Stream] = []
        """For each graph, the stream of its capture."""
        self.replayed: list[Stream] = []
        """The stream of each replay."""
        self.operations = 0
        """Of the main stream."""
        self.last_use: dict[int, int] = {}
        """Of memory, the last operation of the main stream that used it."""
        self.calls: list[str] = []
        """What was called of ``torch.cuda``."""
        self.reads: list[str] = []
        """What made the host wait for a value of the device."""
        self.uploads: list[torch.Size] = []
        """The shapes of what was copied to the device."""
        self.free = 1 << 35
        """Bytes of the device's memory."""
        self.pinned: list[Tensor] = []
        self.copies: list[Callable[[], object]] = []
        self.read: list[tuple[Tensor, Tensor]] = []
        """What copies to the device may still read, and what they found there first."""
        self.collectives: list[Callable[[bool], object]] = []
        """Waits for a collective, while Python's lock is held or not."""
        self.graph: Graph | None = None

    def is_pinned(self, tensor: Tensor) -> bool:
        """Whether the tensor's memory is pinned."""
        own = tensor.untyped_storage().data_ptr()
        return own != 0 and any(own == t.untyped_storage().data_ptr() for t in self.pinned)

    def pin(self, tensor: Tensor) -> Tensor:
        """The tensor, whose memory is pinned from now on."""
        self.pinned.append(tensor)
        return tensor

    @property
    def device(self) -> torch.device:
        """The GPU in use."""
        return torch.device("cuda", self.current)

    def set_device(self, device: Any) -> None:
        """Use another GPU; tensors of the one before are not told apart."""
        self.calls.append("set_device")
        self.current = _number(device)

    def require_current(self, device: torch.device | str) -> None:
        """Refuse another GPU than the one in use, which is another rank's."""
        if torch.device(device) not in (self.device, torch.device("cuda")):
            raise RuntimeError(f"a tensor on {device}, and {self.device} is in use")

    def host_waits(self, *, locked: bool = False) -> None:
        """Let the device do all that it was given.

        Args:
            locked: the host holds Python's lock meanwhile.
        """
        for wait in self.collectives:
            wait(locked)
        self.collectives.clear()
        for source, first in self.read:
            if not torch.equal(source, first):
                raise RuntimeError("pinned memory was overwritten before the device had read it")
        self.read.clear()

    def synchronize(self, *_: object) -> None:
        """Let all copies arrive."""
        self.refuse_in_capture("synchronize")
        self.calls.append("synchronize")
        self.host_waits()
        for copy in self.copies:
            copy()
        self.copies.clear()

    def use(self, func: object, tensors: list[Tensor]) -> None:
        """Note an operation on tensors, which no other stream may use at the same time."""
        if self.graph is not None or self.stream is not self.main:
            return
        self.operations += 1
        for tensor in tensors:
            memory = _memory(tensor)
            self.last_use[memory] = self.operations
            if any(memory in stream.queued for stream in self.streams):
                raise RuntimeError(f"{func} uses memory of a stream that was not waited for")

    def note_read(self, what: object, *, locked: bool = False) -> None:
        """The host waits for a value, see ``host_waits``."""
        self.refuse_in_capture(what)
        self.reads.append(str(what))
        self.host_waits(locked=locked)

    def note_upload(self, source: Tensor, *, non_blocking: bool) -> None:
        """A tensor of the host is copied to the device."""
        self.refuse_in_capture(f"a copy of {tuple(source.shape)}")
        self.uploads.append(source.shape)
        if not non_blocking:
            self.host_waits()
        elif self.is_pinned(source):
            self.read.append((source, source.clone()))

    def note_operation(self, func: Any, args: Any, kwargs: Any, made: Any) -> None:
        """Note an operation on the device, in the graph under capture if there is one."""
        if self.graph is None:
            self.stream.ran.add(func)
            return
        if func not in self.captured[-1].ran:
            raise RuntimeError(f"{func} in a capture on a stream that has not run it before")
        self.graph.add(func, args, kwargs, made)

    def refuse_in_capture(self, what: object) -> None:
        """Raise if a graph is being captured."""
        if self.graph is not None:
            raise RuntimeError(f"operation not permitted when stream is capturing: {what}")


class Graph:
    """A captured graph."""

    def __init__(self) -> None:
        self.operations: list[tuple[Any, Any, Any, list[Tensor]]] = []

    def add(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Note an operation, and its outputs that have memory of their own."""
        inputs = {_memory(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        made = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        own = [leaf for leaf in made if _memory(leaf) not in inputs]
        baked = tree_map(_value_now, (args, kwargs))
        self.operations.append((func, *baked, own))

    def forget_values(self) -> None:
        """A capture computes nothing: what it allocated is undefined until a replay."""
        for *_, own in self.operations:
            for leaf in own:
                if leaf.is_floating_point():
                    leaf.fill_(torch.nan)

    def replay(self) -> None:
        """Compute everything again, into the same memory."""
        runtime = _runtime()
        runtime.calls.append("replay")
        runtime.replayed.append(runtime.stream)
        leaves = tree_leaves([operation[1:] for operation in self.operations])
        memory = {_memory(leaf) for leaf in leaves if isinstance(leaf, Tensor)}
        if runtime.stream is not runtime.main:
            if any(runtime.last_use.get(own, 0) > runtime.stream.waited for own in memory):
                raise RuntimeError("a replay does not wait for what the main stream does")
            runtime.stream.queued |= memory
        with kernels():
            for func, args, kwargs, own in self.operations:
                found = func(*args, **kwargs)
                if own:
                    values = [leaf for leaf in tree_leaves(found) if isinstance(leaf, Tensor)]
                    for leaf, value in zip(own, values, strict=True):
                        leaf.copy_(value)


def _number(gpu: torch.device | int) -> int:
    number = gpu.index if isinstance(gpu, torch.device) else gpu
    assert number is not None, "a GPU without its number"
    return number


def _value_now(leaf: Any) -> Any:
    return leaf.clone() if type(leaf) is Tensor else leaf


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


_current: list[Runtime] = []


def _runtime() -> Runtime:
    return _current[-1]


def is_fake(tensor: Any) -> bool:
    """Whether a tensor, or what vmap and autograd wrap in it, is on the fake device."""
    while isinstance(tensor, Tensor) and _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return isinstance(tensor, FakeTensor)


@contextmanager
def kernels() -> Iterator[None]:
    """Call the CPU's kernels alone: autograd and this module have done their part."""
    views = DispatchKeySet(DispatchKey.ADInplaceOrView)
    with (
        torch._C._DisableTorchDispatch(),
        torch._C._AutoDispatchBelowAutograd(),
        torch._C._ExcludeDispatchKeyGuard(views),
    ):
        yield


def _wrap(leaf: Any) -> Any:
    if type(leaf) is not Tensor:
        return leaf
    return torch.Tensor._make_subclass(FakeTensor, leaf, leaf.requires_grad)


def _plain(tensor: Tensor) -> Tensor:
    """The same memory as a CPU tensor."""
    with torch._C.DisableTorchFunction(), kernels():
        return tensor.detach().as_subclass(Tensor) if isinstance(tensor, FakeTensor) else tensor


class FakeDevice(TorchFunctionMode):
    """Sees the calls that no tensor of the device takes part in: those that make one."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, HigherOrderOperator):
            return _call(func, args, kwargs)
        # It calls Python again, in which the mode must be on; by itself it would call this method.
        keys = _compute_keyset(args, kwargs, func.non_fallthrough_keys)
        with self:
            return func.dispatch(keys.highestPriorityTypeId(), *args, **kwargs)


def _is_cuda(value: Any) -> bool:
    return isinstance(value, torch.device | str) and str(value).startswith("cuda")


def _call(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """A call of Python: what depends on the device; all else is left to ``_compute``."""
    with torch._C.DisableTorchFunctionSubclass():
        if func in _REPLACED:
            return _REPLACED[func](func, *args, **kwargs)
        if kwargs.get("pin_memory"):
            made = func(*args, **{**kwargs, "pin_memory": False})
            made.view(-1).view(torch.uint8).fill_(0x7F)
            return _runtime().pin(made)
        if _is_cuda(kwargs.get("device")):
            _runtime().require_current(kwargs["device"])
            return _make(func, args, {**kwargs, "device": "cpu"})
        return func(*args, **kwargs)


def _make(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Make a tensor on the device."""
    runtime = _runtime()
    if func is torch.tensor:  # from a value of the host
        runtime.refuse_in_capture(func)
        runtime.host_waits()
    made = _wrap(func(*args, **kwargs))
    runtime.note_operation(func, args, kwargs, made)
    return made


def _device(get: Any, tensor: Tensor, *_: object) -> Any:
    return _runtime().device if is_fake(tensor) else get(tensor)


def _is_pinned(_: Any, tensor: Tensor) -> bool:
    return not is_fake(tensor) and _runtime().is_pinned(tensor)


def _pin_memory(_: Any, tensor: Tensor) -> Tensor:
    assert not is_fake(tensor), "cannot pin a tensor of the device"
    return _runtime().pin(tensor.clone())


def _read(func: Any, tensor: Tensor, *args: Any, force: bool = False) -> Any:
    """``numpy`` and ``tolist``."""
    if not is_fake(tensor):
        return func(tensor, *args)
    if func is Tensor.numpy and not force:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")
    # Of all that reads a GPU, torch copies for numpy(force=True) alone without releasing the lock.
    _runtime().note_read(func.__name__, locked=func is Tensor.numpy)
    return func(_plain(tensor), *args)


def _to(func: Any, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
    """``to``, ``cpu`` and ``cuda``: a copy where the device changes, else as ever."""
    rest = {name: value for name, value in kwargs.items() if name != "device"}
    places = [value for value in (*args, kwargs.get("device")) if _is_place(value)]
    others = [value for value in args if not _is_place(value)]
    if func is not Tensor.to:
        places = [_runtime().device if func is Tensor.cuda else torch.device("cpu")]
    here = is_fake(tensor)
    there = _is_cuda(places[0]) if places else here
    if places and str(places[0]) == "meta":
        return _plain(tensor).to("meta", *others, **rest)
    if here == there or _functorch.is_functorch_wrapped_tensor(tensor):
        return Tensor.to(tensor, *others, **rest) if others or rest else tensor
    if there:
        _runtime().require_current(places[0])
        # torch keeps memory of its own from being used again before such a copy is done.
        assert not rest.get("non_blocking") or _runtime().is_pinned(tensor), "not torch's own"
        _runtime().note_upload(tensor, non_blocking=rest.pop("non_blocking", False))
    else:
        _runtime().note_read(f"a copy of {tuple(tensor.shape)}")
    dtypes = [value for value in (*others, rest.get("dtype")) if isinstance(value, torch.dtype)]
    copied = torch.empty_like(_plain(tensor), dtype=dtypes[0] if dtypes else tensor.dtype)
    copied.copy_(_plain(tensor))
    return _wrap(copied) if there else copied


def _is_place(value: Any) -> bool:
    return isinstance(value, torch.device | str)


def _embedding(func: Any, *args: Any, **kwargs: Any) -> Any:
    with _MadeInside():
        return func(*args, **kwargs)


_REPLACED: dict[Any, Callable[..., Any]] = {
    Tensor.device.__get__: _device,
    Tensor.to: _to,
    Tensor.cpu: _to,
    Tensor.cuda: _to,
    Tensor.is_pinned: _is_pinned,
    Tensor.pin_memory: _pin_memory,
    Tensor.numpy: _read,
    Tensor.tolist: _read,
    functional.embedding: _embedding,
}


class _MadeInside(TorchDispatchMode):
    """Puts what PyTorch's own code makes from nothing, such as a range, on the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if any(isinstance(leaf, Tensor) for leaf in args) or type(made) is not Tensor:
            return made
        _runtime().note_operation(func, args, kwargs or {}, made)
        return _wrap(made)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would make torch import its compiler, only to skip it


def _compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operation on at least one tensor of the device."""
    runtime, packet = _runtime(), func.overloadpacket
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    host = [leaf for leaf in tensors if not isinstance(leaf, FakeTensor)]
    masks = packet in (aten.index, aten.index_put_) and any(t.dtype == torch.bool for t in tensors)
    if packet in HOST_WAITS or masks:
        runtime.note_read(func)
    if packet in NONDETERMINISTIC and args[0].is_floating_point():
        raise RuntimeError(f"{func} does not have a deterministic implementation on CUDA")
    if packet is aten.copy_ and host:
        return _copy(*args[:2], *args[2:], **kwargs)
    if host:
        scalars = torch.Tag.pointwise in func.tags and all(leaf.dim() == 0 for leaf in host)
        changed = host[0] is args[0] and packet.__name__.endswith("_")
        if changed or not scalars:
            raise RuntimeError(
                f"Expected all tensors to be on the same device: {func} of "
                f"{[(tuple(leaf.shape), 'cpu') for leaf in host]} and tensors on cuda:0"
            )
    runtime.use(func, [leaf for leaf in tensors if isinstance(leaf, FakeTensor)])
    with kernels():
        made = tree_map(_wrap, func(*args, **kwargs))
    if packet is not aten.detach:
        runtime.note_operation(func, args, kwargs, made)
    return made


def _copy(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """A copy between memory and the device."""
    runtime = _runtime()
    what = f"a copy of {tuple(source.shape)}"
    runtime.refuse_in_capture(what)
    runtime.use("a copy", [leaf for leaf in (target, source) if isinstance(leaf, FakeTensor)])

    def copy() -> None:
        with kernels():
            target.copy_(source)

    if non_blocking and not isinstance(target, FakeTensor):
        assert runtime.is_pinned(target), "a copy into other memory waits"
        runtime.copies.append(copy)
        return target
    if isinstance(target, FakeTensor):
        runtime.note_upload(source, non_blocking=non_blocking)
    else:
        runtime.note_read(what)
    copy()
    return target


@contextmanager
def fake_cuda(gpus: int = 1) -> Iterator[Runtime]:
    """Give the block so many fake GPUs, of which ``cuda:0`` is in use; their state."""
    torch.empty(1, device="meta").mul(1.0)  # torch imports its rules of shapes now, not inside
    runtime = Runtime(gpus)
    caches = images._affine, images._gather_indices
    with pytest.MonkeyPatch.context() as patch:
        _replace_torch_cuda(patch, runtime)
        _current.append(runtime)
        for cache in caches:
            cache.cache_clear()
        try:
            with FakeDevice():
                yield runtime
        finally:
            for cache in caches:
                cache.cache_clear()
            _current.pop()


def _as_cudnn(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A recurrent layer as cuDNN computes it, which has no backward pass in evaluation."""

    def checked(layer: nn.Module, *args: Any) -> Any:
        if torch.is_grad_enabled() and not layer.training:
            raise RuntimeError("cudnn RNN backward can only be called in training mode")
        return forward(layer, *args)

    return checked


class _Generator:
    """The device's generator, whose state cannot be read in a capture."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._own = runtime, torch.Generator()

    def __getattr__(self, name: str) -> Any:
        self._runtime.refuse_in_capture(f"{name} of a generator")
        return getattr(self._own, name)


def _replace_torch_cuda(patch: pytest.MonkeyPatch, runtime: Runtime) -> None:
    """Replace the functions of ``torch.cuda`` that hpcfl calls; autocast is the CPU's."""

    def note(name: str, value: Any = None) -> Callable[..., Any]:
        def called(*_: object) -> Any:
            runtime.calls.append(name)
            return value

        return called

    def new_stream() -> Stream:
        runtime.streams.append(Stream())
        return runtime.streams[-1]

    @contextmanager
    def on_stream(stream: Stream) -> Iterator[None]:
        before, runtime.stream = runtime.stream, stream
        runtime.calls.append("side stream")
        yield
        runtime.calls.append("main stream")
        runtime.stream = before

    @contextmanager
    def capture(graph: Graph, stream: Stream, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local"
        runtime.captured.append(stream)
        runtime.synchronize()  # torch.cuda.graph does so
        runtime.calls.append("capture")
        runtime.graph = graph
        try:
            yield
        except RuntimeError:  # torch's end of a capture hides what made it fail
            raise RuntimeError("operation failed due to a previous error during capture") from None
        finally:
            runtime.graph = None
        graph.forget_values()

    autocast = torch.autocast

    def properties(gpu: Any) -> SimpleNamespace:
        uuid = f"GPU-{_number(gpu)}"
        return SimpleNamespace(uuid=uuid, total_memory=1 << 36, major=9, minor=0)

    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: runtime.gpus,
        "set_device": runtime.set_device,
        "current_device": lambda: runtime.current,
        "get_device_name": lambda *_: "fake",
        "get_device_properties": properties,
        "max_memory_allocated": lambda *_: 1,
        "mem_get_info": lambda *_: (runtime.free, 1 << 36),
        "default_generators": tuple(_Generator(runtime) for _ in range(runtime.gpus)),
        "is_current_stream_capturing": lambda: runtime.graph is not None,
        "synchronize": runtime.synchronize,
        "current_stream": lambda *_: runtime.stream,
        "Stream": new_stream,
        "set_stream": note("set_stream"),
        "stream": on_stream,
        "CUDAGraph": Graph,
        "graph": capture,
    }.items():
        patch.setattr(torch.cuda, name, value)
    patch.setattr(torch, "autocast", lambda _, *args, **kw: autocast("cpu", *args, **kw))
    patch.setattr(torch.backends.cudnn, "is_acceptable", lambda _: False)
    for layer in (nn.LSTM, nn.GRU, nn.RNN):
        patch.setattr(layer, "forward", _as_cudnn(layer.forward))
    # Module.to would set the data of a plain parameter to a tensor of the device.
    compatible = torch._has_compatible_shallow_copy_type
    patch.setattr(
        torch,
        "_has_compatible_shallow_copy_type",
        lambda a, b: is_fake(a) == is_fake(b) and compatible(a, b),
    )
