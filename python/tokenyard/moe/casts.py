"""Casts to formats whose scales few values share, and the dispatch of such rows.

    mxfp8    float8_e4m3fn values, a power of two (e8m0) per 32 of them
    nvfp4    e2m1 values, two per byte, a float8_e4m3fn scale per 16, and one float32 for all rows

Rows are cast before they are sent, and travel beside their scales. Every step is one operation of
IEEE float32, so NumPy, torch on the CPU and torch on a GPU give the same bits.
"""

from __future__ import annotations

from typing import Any, Generic, NamedTuple

import ml_dtypes
import numpy as np

from ..arrays import NUMPY, A, arrays_of
from ..errors import invalid
from ..expert_parallel import ExpertParallel, ExpertRows, Received
from ..expert_parallel.row_formats import SUMMED

MXFP8_GROUP, NVFP4_GROUP = 32, 16
"""Values per scale."""
E4M3_MAX, E2M1_MAX = 448.0, 6.0
EXPONENT_OF_448, MANTISSA_OF_448 = 8, 0x600000
"""448 is 1.75 * 2^8; the mantissa as float32 stores it."""
E4M3_NAN, E8M0_NAN = 0x7F, 0xFF
E2M1_STEPS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
"""Midpoints between the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4 and 6, whose codes are 0 to 7. A value
on a midpoint gets the even code, so it passes every second of them."""
TILE_ROWS, TILE_PART, TILE_GROUPS = 128, 32, 4
"""Scales as block-scaled GEMMs read them: tiles of 128 rows and 4 groups, 32 rows interleaved."""


class CastRows(NamedTuple, Generic[A]):
    """Rows in a format with scales by group."""

    x: A
    """mxfp8: [rows, hidden] float8_e4m3fn. nvfp4: [rows, hidden / 2] uint8, the first value of a
    pair in the low four bits."""
    scales: A
    """mxfp8: [rows, hidden / 32] uint8, of which e stands for 2^(e - 127); dispatched with
    `scales_by_columns`, [rows, hidden / 128] int32 of four each. nvfp4: [rows, hidden / 16]
    float8_e4m3fn."""


class CastDispatched(NamedTuple, Generic[A]):
    """The result of `dispatch_cast`."""

    rows: CastRows[A]
    """The received rows, by source; with `alignment`, rows by expert."""
    received: Received[A]
    """Ids, weights, counts and route."""
    by_expert: ExpertRows[A] | None
    """Offsets of rows by expert, for `combine(by_expert=)`; None without `alignment`."""


def cast_mxfp8(x: A) -> CastRows[A]:
    """Returns rows in MXFP8. A group's scale is the least power of two that brings it within 448.

    Args:
        x: [rows, hidden] bfloat16, float16 or float32; hidden is a multiple of 32. A group with a
            NaN or an infinity is NaN, values and scale.

    Raises:
        InvalidArgument: another dtype or shape.

    >>> rows = cast_mxfp8(np.full((1, 32), 896, np.float32))
    >>> float(rows.x[0, 0]), rows.scales.tolist()
    (448.0, [[128]])
    """
    ops = _ops_of(x)
    groups = _groups(x, MXFP8_GROUP, ops)
    bits = ops.bits(ops.most(groups))
    biased, mantissa = bits >> 23, bits & 0x7FFFFF
    # Rounded up where the mantissa exceeds that of 448.
    exponent = ops.at_least(biased - EXPONENT_OF_448 + (mantissa > MANTISSA_OF_448), 0)
    finite = biased < 0xFF
    power = ops.from_bits(254 - exponent << 23)  # 2^(127 - exponent); never subnormal.
    values = ops.to_e4m3(groups * power[..., None])
    values = ops.where(finite[..., None], values, E4M3_NAN)
    scales = ops.byte(ops.where(finite, exponent, E8M0_NAN))
    return CastRows(ops.as_e4m3(ops.byte(values).reshape(x.shape)), scales)


def cast_nvfp4(x: A, global_scale: float) -> CastRows[A]:
    """Returns rows in NVFP4. A value is about e2m1 * scale / global_scale.

    A group's scale is its largest magnitude / 6 * global_scale, rounded to float8_e4m3fn, at most
    448.

    Args:
        x: [rows, hidden] bfloat16, float16 or float32, finite; hidden is a multiple of 16.
        global_scale: 448 * 6 over the largest magnitude to expect, the same on all ranks.

    Raises:
        InvalidArgument: another dtype or shape, or a global scale that is not above 0 and finite in
            float32.

    >>> rows = cast_nvfp4(np.full((1, 16), -3, np.float32), global_scale=2.0)
    >>> hex(rows.x[0, 0]), float(rows.scales[0, 0])
    ('0xff', 1.0)
    """
    ops = _ops_of(x)
    with np.errstate(over="ignore"):
        if not 0 < np.float32(global_scale) < np.inf:
            raise invalid("global_scale", "above 0 and finite in float32", str(global_scale))
    groups = _groups(x, NVFP4_GROUP, ops)
    factor = ops.number(global_scale, groups)
    with np.errstate(over="ignore"):  # An overflow becomes the largest value.
        scales = ops.to_e4m3(ops.most(groups) / ops.number(E2M1_MAX, groups) * factor)
        decode = ops.from_e4m3(scales) / factor
        # A group whose scale rounds to 0 is 0.
        some = (decode > 0)[..., None]
        scaled = ops.where(some, groups, 0) / ops.where(some, decode[..., None], 1)
    codes = ops.byte(ops.where(ops.negative(scaled), 8, 0))  # Stays uint8 below.
    magnitude = abs(scaled)
    for code, midpoint in enumerate(E2M1_STEPS):
        # Ties go to the even code: from an odd one up, to an even one down.
        codes = codes + (magnitude > midpoint if code % 2 == 0 else magnitude >= midpoint)
    pairs = codes.reshape(x.shape[0], x.shape[1] // 2, 2)
    return CastRows(pairs[..., 0] | pairs[..., 1] << 4, ops.as_e4m3(ops.byte(scales)))


def dispatch_cast(
    exchange: ExpertParallel,
    x: A,
    topk_idx: A,
    topk_weights: A | None = None,
    *,
    rows: str,
    global_scale: float | None = None,
    alignment: int | None = None,
    scales_by_columns: bool = False,
    **options: Any,
) -> CastDispatched[A]:
    """Casts rows, dispatches them, and returns them with their scales by group. Collective.

    Results come home in bfloat16, by `exchange.combine(y, dispatched.received)`.

    Args:
        x: [tokens, hidden] bfloat16, float16 or float32; hidden is the exchange's, and a multiple
            of 32.
        topk_idx, topk_weights: as `ExpertParallel.dispatch`.
        rows: "mxfp8" or "nvfp4".
        global_scale: of nvfp4, the same on all ranks; None for mxfp8.
        alignment: if given, rows are grouped by expert as they arrive, each expert's first row at
            a multiple of it: see `ExpertParallel.dispatch_by_expert`.
        scales_by_columns: of mxfp8, whether to receive scales as DeepGEMM reads them through TMA:
            four in an int32, the first in its lowest byte, and each column contiguous and 16-byte
            aligned. hidden is then a multiple of 128.
        options: other arguments of `dispatch` or `dispatch_by_expert`.

    Raises:
        InvalidArgument: a wrong format, dtype or shape.
        PeerTimeout, PeerLost: as `ExpertParallel.dispatch`.

    >>> def layer(world):
    ...     exchange = ExpertParallel(world, experts=2, hidden=64, topk=1, tokens_max=4)
    ...     x = np.full((3, 64), 6, ml_dtypes.bfloat16)
    ...     to_rank_1 = np.ones((3, 1), np.int64)
    ...     there = dispatch_cast(exchange, x, to_rank_1, rows="nvfp4", global_scale=448.0)
    ...     return there.rows.x.shape, there.rows.scales.shape
    >>> tokenyard.launch(layer, ranks=2)
    [((0, 32), (0, 4)), ((6, 32), (6, 4))]
    """
    if rows not in ("mxfp8", "nvfp4"):
        raise invalid("rows", "'mxfp8' or 'nvfp4'", repr(rows))
    if (rows == "nvfp4") != (global_scale is not None):
        wanted = "a number for nvfp4" if rows == "nvfp4" else "None for mxfp8"
        raise invalid("global_scale", wanted, str(global_scale))
    ops = _ops_of(x)
    cast = cast_mxfp8(x) if global_scale is None else cast_nvfp4(x, global_scale)
    # Codes of NVFP4 travel as bytes, of which a dispatch takes any number.
    if x.shape[1] != exchange.hidden:
        wanted = f"shape [tokens, hidden = {exchange.hidden}]"
        raise invalid("x", wanted, f"shape {list(x.shape)}")
    groups = cast.scales.shape[1]
    if scales_by_columns and (rows != "mxfp8" or groups % 4):
        wanted = "False, or rows 'mxfp8' and a hidden that is a multiple of 128"
        raise invalid("scales_by_columns", wanted, f"rows {rows!r} and hidden {exchange.hidden}")
    # Scales travel as words of four bytes.
    scales = ops.padded(ops.as_bytes(cast.scales), cast.scales.shape[0], -(-groups // 4) * 4)
    if scales_by_columns:
        scales = ops.as_words(scales)
        options["scales_by_columns"] = True
    grouped: ExpertRows[A] | None = None
    if alignment is None:
        received = exchange.dispatch(cast.x, topk_idx, topk_weights, scales=scales, **options)
    else:
        received, grouped = exchange.dispatch_by_expert(
            cast.x, topk_idx, topk_weights, alignment=alignment, scales=scales, **options
        )
    brought: Any = received if grouped is None else grouped
    theirs = brought.scales if scales_by_columns else brought.scales[:, :groups]
    if rows == "nvfp4":
        theirs = ops.as_e4m3(theirs)
    return CastDispatched(CastRows(brought.x, theirs), received, grouped)


def tile_scales(scales: A) -> A:
    """Returns scales in the order in which cuBLAS and CUTLASS read those of block-scaled GEMMs.

    The scale of row r and group g is at tile (r // 128, g // 4), byte
    r % 32 * 16 + r % 128 // 32 * 4 + g % 4; tiles follow one another along a row of tiles. Missing
    rows and groups are zeros. With rows by expert and `alignment=128`, each expert's scales are a
    contiguous part.

    Args:
        scales: [rows, groups] of one byte each.

    Returns:
        [tiles, 512] uint8.

    >>> tile_scales(np.arange(8, dtype=np.uint8).reshape(2, 4))[0, [0, 3, 16, 19]].tolist()
    [0, 3, 4, 7]
    """
    ops = _ops_of(scales)
    bands, columns = -(-scales.shape[0] // TILE_ROWS), -(-scales.shape[1] // TILE_GROUPS)
    whole = ops.padded(ops.as_bytes(scales), bands * TILE_ROWS, columns * TILE_GROUPS)
    parts = TILE_ROWS // TILE_PART
    tiles = whole.reshape(bands, parts, TILE_PART, columns, TILE_GROUPS)
    ordered: A = ops.ordered(tiles, (0, 3, 2, 1, 4))
    return ordered.reshape(bands * columns, TILE_ROWS * TILE_GROUPS)


def _groups(x: Any, values: int, ops: Any) -> Any:
    """Returns [rows, groups, values] float32."""
    arrays = arrays_of("x", x)
    if arrays.dtype(x) not in SUMMED:
        raise invalid("x", "dtype " + " or ".join(SUMMED), f"dtype {arrays.dtype(x)}")
    if len(x.shape) != 2 or x.shape[1] % values:
        shape = list(x.shape)
        raise invalid("x", f"shape [rows, hidden], hidden a multiple of {values}", f"shape {shape}")
    return ops.float32(x).reshape(x.shape[0], x.shape[1] // values, values)


def _ops_of(x: Any) -> Any:
    """Returns the operations of the library that `x` belongs to."""
    if arrays_of("x", x) is NUMPY:
        return _NumpyOps
    from .casts_torch import TorchOps

    return TorchOps


class _NumpyOps:
    """Operations of NumPy for the casts; `casts_torch.TorchOps` has the same of torch."""

    @staticmethod
    def float32(x: Any) -> Any:
        return np.asarray(x, np.float32)

    @staticmethod
    def number(value: float, like: Any) -> Any:
        return np.float32(value)

    @staticmethod
    def most(groups: Any) -> Any:
        """Returns the largest magnitude of each group."""
        return np.abs(groups).max(-1)

    @staticmethod
    def bits(values: Any) -> Any:
        return values.view(np.int32)

    @staticmethod
    def negative(values: Any) -> Any:
        return np.signbit(values)

    @staticmethod
    def at_least(values: Any, least: int) -> Any:
        return np.maximum(values, least)

    @staticmethod
    def where(condition: Any, yes: Any, no: Any) -> Any:
        return np.where(condition, yes, no)

    @staticmethod
    def from_bits(values: Any) -> Any:
        return values.view(np.float32)

    @staticmethod
    def to_e4m3(values: Any) -> Any:
        """Returns the bits of float8_e4m3fn, as integers; beyond 448, of 448."""
        within = np.clip(values, np.float32(-E4M3_MAX), np.float32(E4M3_MAX))
        return within.astype(ml_dtypes.float8_e4m3fn).view(np.uint8).astype(np.int32)

    @staticmethod
    def from_e4m3(bits: Any) -> Any:
        return bits.astype(np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)

    @staticmethod
    def byte(values: Any) -> Any:
        return values.astype(np.uint8)

    @staticmethod
    def as_e4m3(values: Any) -> Any:
        return values.view(ml_dtypes.float8_e4m3fn)

    @staticmethod
    def as_bytes(values: Any) -> Any:
        return values.view(np.uint8)

    @staticmethod
    def as_words(values: Any) -> Any:
        return values.view(np.int32)

    @staticmethod
    def padded(values: Any, rows: int, columns: int) -> Any:
        """Returns a contiguous matrix of this shape, with zeros behind."""
        behind = ((0, rows - values.shape[0]), (0, columns - values.shape[1]))
        return np.ascontiguousarray(np.pad(values, behind))

    @staticmethod
    def ordered(values: Any, axes: tuple[int, ...]) -> Any:
        return values.transpose(axes)
