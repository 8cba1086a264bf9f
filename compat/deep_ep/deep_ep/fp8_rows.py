"""FP8 tokens and their scales, which travel side by side as one row."""

from __future__ import annotations

import torch

from tokenyard.errors import invalid


def pack(tokens: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
    """[tokens, hidden] bfloat16 whose bytes are those of a token, then of its scales."""
    if scales is None:
        return tokens
    hidden, scale_bytes = tokens.size(1), 4 * scales.size(1)
    if scale_bytes > hidden:
        raise invalid("x", f"at most {hidden // 4} scales a token", str(scales.size(1)))
    rows = torch.empty(tokens.shape, dtype=torch.bfloat16, device=tokens.device)
    octets = rows.view(torch.uint8)
    octets[:, :hidden] = tokens.view(torch.uint8)
    octets[:, hidden : hidden + scale_bytes] = scales.contiguous().view(torch.uint8)
    return rows


def unpack(
    rows: torch.Tensor, tokens: torch.Tensor, scales: torch.Tensor | None
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """What was packed, in dtypes and widths of `tokens` and `scales`."""
    if scales is None:
        return rows
    hidden, scale_bytes = tokens.size(1), 4 * scales.size(1)
    octets = rows.view(torch.uint8)
    return (
        octets[:, :hidden].contiguous().view(tokens.dtype),
        octets[:, hidden : hidden + scale_bytes].contiguous().view(scales.dtype),
    )
