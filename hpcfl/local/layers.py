"""Layers under ``vmap``: computed for K clients at once, each with its own parameters.

``torch.func.vmap`` runs a model that is written for one client on the stacked parameters of K; the
mode of this module replaces the few functions that vmap refuses or computes slowly.
"""

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from hpcfl.local.triton_kernels.blocks import MOST_HIDDEN, MOST_NORMED
from hpcfl.models.fused import norm_relu, pooled_relu
from hpcfl.models.losses import widen

Convolutions = Literal["grouped", "products", "triton"]


# Elements.  Rows of a multiple of this width have the same alignment for every client, and leave no
# remainder after whole vectors of the processor.  Otherwise a CPU's kernels would round the numbers
# of one client differently from those of the next, and a client's bits would depend on its slot.
PAD_MULTIPLE = 64
ATTENTION_DROPOUT = "the dropout inside an attention; set it to 0"
_GROUP = 32  # places of a sequence that CUDA's gradient of an embedding sums together


class PaddedLayers(TorchFunctionMode):
    """A mode that replaces functions of layers whose batches are padded, of one client.

    Batch normalisation leaves padding out; functional dropout, and that of attention, are refused.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Tensor | None = None
        """[B], 1 for an example and 0 for padding."""
        self.moves_statistics = False
        """Whether batch normalisation moves its running statistics, in place."""
        self._replacements: dict[Any, Callable[..., Any]] = {
            functional.batch_norm: self._batch_norm,
            functional.dropout: refuse_dropout,
            functional.scaled_dot_product_attention: self._attention,
        }

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Call ``func``, or its replacement."""
        return self._replacements.get(func, func)(*args, **(kwargs or {}))

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **more: Any,
    ) -> Tensor:
        """Attention without dropout, whose random numbers could not be those of each client."""
        if dropout_p:
            raise NotImplementedError(ATTENTION_DROPOUT)
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask, is_causal=is_causal, **more
        )

    def _call(self, function: Callable[..., Any], *values: Any) -> Any:
        """Call a function of the stacked tensors of clients, of this client's tensors."""
        found = function(*(v.unsqueeze(0) if isinstance(v, Tensor) else v for v in values))
        return tuple(tensor.squeeze(0) for tensor in found)

    def _batch_norm(
        self,
        input: Tensor,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        """Batch normalisation whose statistics in training leave padding out.

        Raises:
            NotImplementedError: the first dimension is not the batch.
        """
        if not training:
            return functional.batch_norm(
                input, running_mean, running_var, weight, bias, eps=eps, training=False
            )
        if self.counts is None or len(self.counts) != len(input):
            raise NotImplementedError(
                f"batch normalisation of a tensor {tuple(input.shape)} whose first dimension is "
                "not the batch"
            )
        output: Tensor
        output, *found = self._call(_normalised, input, self.counts, weight, bias, eps)
        if self.moves_statistics and running_mean is not None and running_var is not None:
            for running, new in zip((running_mean, running_var), found, strict=True):
                running.mul_(1 - momentum).add_(momentum * new)
        return output


class LaneLayers(PaddedLayers):
    """The same, for one client on a GPU, whose convolutions are computed channels last.

    GroupNorm leaves images channels first.  cuDNN then takes kernels for the next convolution that
    use no tensor cores (ResNet-20: a round of 107 instead of 130 ms).
    """

    def __init__(self) -> None:
        super().__init__()
        self._replacements[torch.conv2d] = _channels_last_conv2d


def _channels_last_conv2d(input: Tensor, weight: Tensor, *settings: Any, **more: Any) -> Tensor:
    if input.dim() != 4:  # one image without a batch has no such order
        return torch.conv2d(input, weight, *settings, **more)
    last = torch.channels_last
    images, kernels = (tensor.contiguous(memory_format=last) for tensor in (input, weight))
    return torch.conv2d(images, kernels, *settings, **more)


class VmapLayers(PaddedLayers):
    """The same, entered inside ``vmap``, and other functions of layers for many clients at once.

    Args:
        convolutions: "grouped", as vmap computes them, one group a client; or batched matrix
            "products" of the images' patches, for devices whose grouped convolutions are slow; or
            "triton" kernels, which also normalise groups and compute LSTMs, for NVIDIA GPUs.
        pad: pad dense layers, as a CPU needs it, so that a client's bits do not depend on its slot
            in the block (see ``PAD_MULTIPLE``); else pad embeddings, as a GPU needs it.
    """

    def __init__(self, convolutions: Convolutions, *, pad: bool) -> None:
        super().__init__()
        triton = convolutions == "triton"
        self._replacements[torch._VF.lstm] = partial(_lstm, triton=triton)
        if convolutions != "grouped":
            self._replacements[torch.conv2d] = partial(_conv2d, triton=triton)
        if triton:
            self._replacements[functional.batch_norm] = self._batch_norm_channels_first
            self._replacements[functional.group_norm] = _group_norm
            self._replacements[norm_relu] = _norm_relu
            self._replacements[pooled_relu] = _pooled_relu
        if pad:
            self._replacements[functional.linear] = _linear
            self._replacements[functional.scaled_dot_product_attention] = _attention
            self._replacements[functional.multi_head_attention_forward] = _heads
        else:
            self._replacements[functional.embedding] = _embedding
            # nn.LSTM compares data_ptr to decide whether to flatten its weights for cuDNN; a
            # constant 0 prevents it.
            self._replacements[torch.Tensor.data_ptr] = lambda _: 0

    def _call(self, function: Callable[..., Any], *values: Any) -> Any:
        return stacked(function, *values)

    def _batch_norm_channels_first(self, input: Tensor, *values: Any, **more: Any) -> Tensor:
        """CUDA asks for the order of images in memory, which inside vmap only one of has."""
        return self._batch_norm(stacked(_contiguous, input), *values, **more)


class VmapReductions(TorchFunctionMode):
    """A mode, entered around ``vmap`` on a GPU, for reductions of the clients' vectors.

    CUDA's kernels sum a row in an order that depends on its address modulo 16 bytes.  So that a
    client's bits do not depend on its slot in the block, vectors are padded by zeros to a multiple
    of ``PAD_MULTIPLE`` before their norm, sum, mean or product is taken.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Call ``func`` of padded vectors, if it is such a reduction."""
        reduce = _REDUCTIONS.get(func)
        vectors = args[: 2 if func in _PRODUCTS else 1]
        if reduce is None or not all(isinstance(v, Tensor) and v.dim() == 1 for v in vectors):
            return func(*args, **(kwargs or {}))
        return reduce(func, *args, **(kwargs or {}))


def aligned(vectors: Tensor) -> Tensor:
    """[..., P] with P rounded up to a multiple of ``PAD_MULTIPLE`` by zeros."""
    missing = -vectors.shape[-1] % PAD_MULTIPLE
    return functional.pad(vectors, (0, missing)) if missing else vectors


def _reduced(func: Any, vector: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    found: Tensor = func(aligned(vector), *args, **kwargs)
    return found


def _norm(func: Any, vector: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    order = kwargs.get("ord", kwargs.get("p", args[0] if args else 2))
    least = isinstance(order, int | float) and order < 0  # zeros would be the smallest numbers
    found: Tensor = func(vector if least else aligned(vector), *args, **kwargs)
    return found


def _mean(func: Any, vector: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    padded = aligned(vector)
    found: Tensor = func(padded, *args, **kwargs)
    return found * (len(padded) / len(vector))


def _product(func: Any, one: Tensor, other: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return aligned(one * other).sum()


_PRODUCTS = (torch.dot, torch.Tensor.dot, torch.inner, torch.Tensor.inner)
_REDUCTIONS: dict[Any, Callable[..., Tensor]] = {
    **dict.fromkeys((torch.sum, torch.Tensor.sum), _reduced),
    **dict.fromkeys((torch.norm, torch.Tensor.norm), _norm),
    **dict.fromkeys((torch.linalg.norm, torch.linalg.vector_norm), _norm),
    **dict.fromkeys((torch.mean, torch.Tensor.mean), _mean),
    **dict.fromkeys(_PRODUCTS, _product),
}


def stacked(function: Callable[..., Any], *tensors: Any) -> Any:
    """Inside ``vmap``: call a function of the stacked tensors of all clients, [K, ...] each.

    Gradients flow through ``function``; a tensor that all clients share is expanded.
    """
    return _Stacked.apply(function, *tensors)  # type: ignore[no-untyped-call]


class _Stacked(Function):
    """A function whose vmap rule receives the stacked tensors that vmap hides."""

    @staticmethod
    def forward(function: Callable[..., Any], *tensors: Any) -> Any:
        raise RuntimeError("a function of stacked tensors was called outside vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Save nothing: autograd records the operations of the rule."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, function: Callable[..., Any], *tensors: Any) -> Any:
        """Call ``function`` with the clients' dimension in front."""
        size = info.batch_size
        found = function(
            *(
                tensor
                if not isinstance(tensor, Tensor)
                else tensor.expand(size, *tensor.shape)
                if at is None
                else tensor.movedim(at, 0)
                for tensor, at in zip(tensors, in_dims[1:], strict=True)
            )
        )
        return found, (0,) * len(found) if isinstance(found, tuple) else 0


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """``functional.scaled_dot_product_attention`` without dropout."""
    if dropout_p:
        raise NotImplementedError(ATTENTION_DROPOUT)
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (of.repeat_interleave(groups, -3) for of in (key, value))
    if is_causal:
        attn_mask = query.new_ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = _scores(~attn_mask, query)
    output: Tensor = stacked(_attended, query, key, value, attn_mask, scale)[0]
    return output


def _scores(mask: Tensor, like: Tensor) -> Tensor:
    """What is added to the scores: -inf where a mask of bools hides a key; other masks as is."""
    if mask.dtype != torch.bool:
        return mask
    return like.new_zeros(mask.shape).masked_fill(mask, -torch.inf)


def _attended(
    queries: Tensor, keys: Tensor, values: Tensor, masks: Tensor | None, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Values [K, ..., L, D] and weights [K, ..., L, S] of stacked queries, keys and values.

    All rows are padded.  A query that no key is shown to gets zeros, as of PyTorch's function;
    ``nn.MultiheadAttention`` alone, where weights are asked for, would have nan.
    """
    width, size = values.shape[-1], keys.shape[-2]
    missing = (0, 0, 0, -size % PAD_MULTIPLE)  # of keys and of values, in rows of zeros
    rows = functional.pad(_padded(keys), missing)
    factor = queries.shape[-1] ** -0.5 if scale is None else scale
    scores = _padded(queries * factor) @ rows.transpose(-1, -2)
    if masks is not None:
        for _ in range(scores.dim() - masks.dim()):
            masks = masks.unsqueeze(1)
        masks = masks.expand(*masks.shape[:-1], size)
        scores = scores + functional.pad(masks, (0, missing[-1]))
    places = torch.arange(scores.shape[-1], device=scores.device)
    scores = scores.masked_fill(places >= size, -torch.inf)
    hidden = (scores == -torch.inf).all(-1, keepdim=True)
    weights = scores.masked_fill(hidden, 0).softmax(-1).masked_fill(hidden, 0)
    output = weights @ functional.pad(_padded(values), missing)
    return output[..., :width], weights[..., :size]


def _heads(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """``functional.multi_head_attention_forward``, which ``nn.MultiheadAttention`` calls.

    The mode sees none of the functions that the original calls.

    Raises:
        NotImplementedError: dropout, or keys that are added to those of the sequence.
    """
    if dropout_p and training:
        raise NotImplementedError(ATTENTION_DROPOUT)
    if add_zero_attn or any(added is not None for added in (bias_k, static_k, static_v)):
        raise NotImplementedError("nn.MultiheadAttention with add_bias_kv or add_zero_attn")
    weights: Any = (q_proj_weight, k_proj_weight, v_proj_weight)
    if in_proj_weight is not None and not use_separate_proj_weight:
        weights = in_proj_weight.chunk(3)
    biases: Any = (None,) * 3 if in_proj_bias is None else in_proj_bias.chunk(3)
    batched = query.dim() == 3
    sequences = [of if batched else of.unsqueeze(1) for of in (query, key, value)]

    def split(rows: Tensor) -> Tensor:
        """[B, H, L, D] of [L, B, H D]."""
        return rows.reshape(*rows.shape[:2], num_heads, -1).permute(1, 2, 0, 3)

    projected = map(_linear, sequences, weights, biases)
    queries, keys, values = map(split, projected)
    mask = None if attn_mask is None else _scores(attn_mask, queries)
    if mask is not None and mask.dim() == 3:  # [B H, L, S]
        mask = mask.reshape(-1, num_heads, *mask.shape[1:])
    if key_padding_mask is not None:
        absent = _scores(key_padding_mask if batched else key_padding_mask[None], queries)
        mask = absent[:, None, None] + (0 if mask is None else mask)
    output, shares = stacked(_attended, queries, keys, values, mask, None)
    output = _linear(output.permute(2, 0, 1, 3).flatten(2), out_proj_weight, out_proj_bias)
    if average_attn_weights:
        shares = shares.mean(1)
    if not batched:
        output, shares = output.squeeze(1), shares.squeeze(0)
    return output, shares if need_weights else None


def refuse_dropout(
    input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Refuse functional dropout in training; return the input otherwise.

    Its random numbers could not be those of each client.
    """
    if training and p:
        raise NotImplementedError("torch.nn.functional.dropout; a module nn.Dropout can be")
    return input


def _embedding(input: Tensor, weight: Tensor, *settings: Any, **more: Any) -> Tensor:
    """An embedding, with the indices padded to a multiple of ``_GROUP``.

    CUDA sums gradient rows in groups counted from the first client; unpadded, a client's bits would
    depend on its slot.
    """
    places = input.reshape(-1)
    padded = functional.pad(places, (0, -len(places) % _GROUP))
    found = functional.embedding(padded, weight, *settings, **more)
    return found[: len(places)].reshape(*input.shape, -1)


def _normalised(
    inputs: Tensor, counts: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs [K, B, C, ...] normalised; their means and unbiased variances [K, C].

    Sums are over rows of a padded length, one for each channel of a client.
    """
    clients, examples, channels, *places = inputs.shape
    size = examples * prod(places)
    rows = aligned(widen(inputs).transpose(1, 2).reshape(clients, channels, size))
    counted = counts.to(rows.dtype).unsqueeze(2).expand(-1, -1, prod(places))
    kept = aligned(counted.reshape(clients, 1, size))
    total = (counts.sum(1) * prod(places)).clamp(min=1).to(rows.dtype).view(clients, 1, 1)
    means = (rows * kept).sum(2, keepdim=True) / total
    centred = (rows - means) * kept
    variances = centred.square().sum(2, keepdim=True) / total
    normed = centred * (variances + eps).rsqrt()
    if weight is not None:
        normed = normed * weight.unsqueeze(2)
    if bias is not None:
        normed = normed + bias.unsqueeze(2)
    outputs = normed[..., :size].reshape(clients, channels, examples, *places).transpose(1, 2)
    unbiased = variances * total / (total - 1).clamp(min=1)
    return (
        outputs.to(inputs.dtype).clone(memory_format=torch.contiguous_format),
        means.detach().squeeze(2),
        unbiased.detach().squeeze(2),
    )


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A dense layer."""
    output: Tensor = stacked(_dense, input, weight)
    return output if bias is None else output + bias


def _dense(inputs: Tensor, weights: Tensor) -> Tensor:
    """[K, ..., O] of inputs [K, ..., I] and weights [K, O, I]."""
    rows = inputs.reshape(len(inputs), -1, inputs.shape[-1])
    outputs = _padded(rows) @ _padded(weights).transpose(1, 2)
    return outputs.view(*inputs.shape[:-1], weights.shape[1])


def _padded(tensors: Tensor) -> Tensor:
    """A copy of [K, M, n], n rounded up to a multiple of PAD_MULTIPLE by zeros."""
    padded = aligned(tensors)
    if padded is tensors:
        return tensors.clone(memory_format=torch.contiguous_format)
    return padded


def _conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    *,
    triton: bool = False,
) -> Tensor:
    """A convolution; with one group, a batched product of patches and kernels, or by Triton."""
    if groups != 1 or isinstance(padding, str) or _pair(dilation) != (1, 1):
        return torch.conv2d(input, weight, bias, stride, padding, dilation, groups)
    how = _by_triton if triton else _products
    output: Tensor = stacked(how, input, weight, bias, _pair(stride), _pair(padding))
    return output


def _by_triton(images: Tensor, kernels: Tensor, bias: Tensor | None, *settings: Any) -> Tensor:
    """The same as ``_products``, in memory channels last."""
    from hpcfl.local.triton_kernels.conv import convolution

    device = images.device.type
    if torch.is_autocast_enabled(device):  # it does not reach into the kernel
        images = images.to(torch.get_autocast_dtype(device))
    return convolution(images, kernels, bias, *settings)


def _group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    residual: Tensor | None = None,
    *,
    relu: bool = False,
) -> Tensor:
    """Group normalisation by Triton, where there are weights and a program has room for a group."""
    if weight is not None and bias is not None and input.shape[1] <= MOST_NORMED * num_groups:
        how = partial(_group_norm_by_triton, relu=relu)
        output: Tensor = stacked(how, input, weight, bias, num_groups, eps, residual)
        return output
    # torch asks whether the images are contiguous, and inside vmap cannot make them so.
    output = functional.group_norm(stacked(_contiguous, input), num_groups, weight, bias, eps)
    if residual is not None:
        output = output + residual
    return functional.relu(output) if relu else output


def _group_norm_by_triton(*values: Any, relu: bool) -> Tensor:
    from hpcfl.local.triton_kernels.group_norm import group_norm

    return group_norm(*values, relu=relu)


def _contiguous(images: Tensor) -> Tensor:
    return images.clone(memory_format=torch.contiguous_format)


def _norm_relu(norm: nn.GroupNorm, images: Tensor, residual: Tensor | None = None) -> Tensor:
    """relu(norm(images) + residual), as one kernel."""
    return _group_norm(
        images, norm.num_groups, norm.weight, norm.bias, norm.eps, residual, relu=True
    )


def _pooled_relu(images: Tensor) -> Tensor:
    """relu(max_pool2d(images, 2)), as one kernel."""
    from hpcfl.local.triton_kernels.pool import pooled_relu

    output: Tensor = stacked(pooled_relu, images)
    return output


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (*value, *value)[:2]


def _products(
    images: Tensor,
    kernels: Tensor,
    bias: Tensor | None,
    stride: tuple[int, int],
    padding: tuple[int, int],
) -> Tensor:
    """[K, B, O, h, w] of images [K, B, C, H, W] and kernels [K, O, C, a, b]."""
    clients, examples = images.shape[:2]
    outputs, _, *kernel = kernels.shape[1:]
    pad_h, pad_w = padding
    padded = functional.pad(images, (pad_w, pad_w, pad_h, pad_h)) if any(padding) else images
    patches = padded.unfold(3, kernel[0], stride[0]).unfold(4, kernel[1], stride[1])
    height, width = patches.shape[3:5]
    # [K, B h w, C a b]: one row for each patch, so that one product serves a client's batch.
    rows = patches.permute(0, 1, 3, 4, 2, 5, 6).reshape(clients, examples * height * width, -1)
    columns = kernels.reshape(clients, outputs, -1).transpose(1, 2)
    products = rows @ columns if bias is None else torch.baddbmm(bias[:, None], rows, columns)
    # In the memory order of images: inside vmap a layer that needs it cannot make it contiguous.
    images = products.view(clients, examples, height, width, outputs).permute(0, 1, 4, 2, 3)
    return images.clone(memory_format=torch.contiguous_format)


def _lstm(
    input: Tensor,
    state: Sequence[Tensor],
    weights: Sequence[Tensor],
    bias: bool,
    layers: int,
    dropout: float,
    training: bool,
    bidirectional: bool,
    batch_first: bool,
    *,
    triton: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """An LSTM in time steps of products of all clients; the parameters are torch._VF.lstm's.

    Raises:
        NotImplementedError: it is bidirectional, has dropout or projections, or a packed sequence.
    """
    each = 4 if bias else 2  # tensors of a layer: weights, and biases
    if bidirectional or (dropout and training) or len(weights) != each * layers:
        raise NotImplementedError("an LSTM that is bidirectional, or has dropout or projections")
    sequence = input if batch_first else input.transpose(0, 1)
    hidden, cell = state
    # With exact products of float32 the kernel needs more registers than there are.
    tf32 = torch.backends.cuda.matmul.allow_tf32
    by_triton = triton and tf32 and hidden.shape[-1] <= MOST_HIDDEN
    of_layer = _recurrence_by_triton if by_triton else _recurrence
    last = []
    for layer in range(layers):
        own = weights[each * layer : each * layer + each]
        sequence, h, c = stacked(of_layer, sequence, hidden[layer], cell[layer], *own)
        last.append((h, c))
    hidden, cell = (torch.stack(part) for part in zip(*last, strict=True))
    return sequence if batch_first else sequence.transpose(0, 1), hidden, cell


def _recurrence(
    sequence: Tensor,
    hidden: Tensor,
    cell: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    *biases: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer: [K, B, T, E] -> [K, B, T, H], and its last hidden and cell states [K, B, H]."""
    gates_in = _gates_in(sequence, weight_ih, *biases)
    recurrent = _padded(weight_hh).transpose(1, 2)
    outputs = []
    # Unbound, not indexed: the gradient of an index is as large as all time steps, at each of them.
    for gate_inputs in gates_in.unbind(2):
        i, f, g, o = (gate_inputs + _padded(hidden) @ recurrent).chunk(4, 2)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * cell.tanh()
        outputs.append(hidden)
    return torch.stack(outputs, 2), hidden, cell


def _recurrence_by_triton(
    sequence: Tensor,
    hidden: Tensor,
    cell: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    *biases: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same as ``_recurrence``."""
    from hpcfl.local.triton_kernels.lstm import recurrence

    gates_in = _gates_in(sequence.transpose(1, 2), weight_ih, *biases)
    states, last = recurrence(gates_in, hidden, cell, weight_hh)
    return states.transpose(1, 2), states[:, -1], last


def _gates_in(sequence: Tensor, weight_ih: Tensor, *biases: Tensor) -> Tensor:
    """[K, ..., 4H], what the inputs [K, ..., E] of all time steps add to the gates.

    One product, as it does not depend on the hidden states.
    """
    inputs = _dense(sequence.reshape(len(sequence), -1, sequence.shape[-1]), weight_ih)
    for bias in biases:
        inputs = inputs + bias.unsqueeze(1)
    return inputs.view(*sequence.shape[:-1], -1)
