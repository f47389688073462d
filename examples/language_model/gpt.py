"""A small GPT: blocks of causal attention and of two dense layers, each behind a layer norm."""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


class Block(nn.Module):
    """Attention of each place to itself and those before it, then two dense layers."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, width] to the same."""
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1))
        seen = scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4), is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """1.07 million parameters for bytes."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        outputs: int,
        width: int = 128,
        layers: int = 5,
        heads: int = 4,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(outputs, width)
        self.places = nn.Parameter(0.02 * torch.randn(*input_shape, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, outputs))
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        """Tokens [B, T] to logits [B, T, outputs]."""
        return self.last(self.blocks(self.tokens(ids) + self.places))
