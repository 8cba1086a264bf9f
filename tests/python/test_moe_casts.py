"""MXFP8 and NVFP4: bit for bit against their definitions, in NumPy and torch, and dispatched.

The reference decodes every code of a format by its definition, and rounds by looking for the
nearest value, of two equally near ones the one whose code is even.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tokenyard
from tokenyard.moe import cast_mxfp8, cast_nvfp4, dispatch_cast, tile_scales

try:
    import torch
except ModuleNotFoundError:
    torch = None

LIBRARIES = [
    "numpy",
    *(["torch"] if torch else []),
    *(["cuda"] if torch and torch.cuda.is_available() else []),
]


def e4m3_of(code: int) -> float:
    """Sign, four bits of exponent with bias 7, three of mantissa; no infinities."""
    exponent, mantissa = code >> 3 & 15, code & 7
    if code & 0x7F == 0x7F:
        return float("nan")
    value = 2.0 ** (exponent - 7) * (1 + mantissa / 8) if exponent else 2.0**-6 * mantissa / 8
    return -value if code & 0x80 else value


def e2m1_of(code: int) -> float:
    """Sign, two bits of exponent with bias 1, one of mantissa."""
    exponent, mantissa = code >> 1 & 3, code & 1
    value = 2.0 ** (exponent - 1) * (1 + mantissa / 2) if exponent else mantissa / 2
    return -value if code & 8 else value


E4M3 = np.array([e4m3_of(code) for code in range(0x7F)])
E2M1 = np.array([e2m1_of(code) for code in range(8)])


def nearest(values: Any, table: Any, sign: int) -> Any:
    """Returns the codes of the nearest values of a table of magnitudes; beyond it, its last."""
    magnitude = np.abs(values.astype(np.float64))
    at = np.clip(np.searchsorted(table, magnitude), 1, len(table) - 1)
    below, above = magnitude - table[at - 1], table[at] - magnitude
    up = (above < below) | ((above == below) & (at % 2 == 0))
    return np.where(up, at, at - 1) | np.where(np.signbit(values), sign, 0)


def reference_mxfp8(x: Any) -> tuple[Any, Any]:
    groups = x.astype(np.float64).reshape(len(x), -1, 32)
    most = np.abs(groups).max(-1)
    exponents = np.arange(-127, 128)
    fits = most[..., None] <= 448.0 * 2.0**exponents
    exponent = exponents[fits.argmax(-1)]
    codes = nearest(groups / 2.0 ** exponent[..., None], E4M3, 0x80)
    return codes.reshape(x.shape).astype(np.uint8), (exponent + 127).astype(np.uint8)


def reference_nvfp4(x: Any, global_scale: float) -> tuple[Any, Any]:
    groups = x.astype(np.float32).reshape(len(x), -1, 16)
    factor = np.float32(global_scale)
    with np.errstate(over="ignore"):  # Beyond the largest: the largest.
        scales = nearest(np.abs(groups).max(-1) / np.float32(6) * factor, E4M3, 0x80)
    decode = (E4M3[scales].astype(np.float32) / factor)[..., None]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scaled = np.where(decode > 0, groups / decode, np.float32(0))
    codes = nearest(scaled, E2M1, 8).reshape(len(x), -1, 2)
    return (codes[..., 0] | codes[..., 1] << 4).astype(np.uint8), scales.astype(np.uint8)


def as_library(x: Any, library: str) -> Any:
    if library == "numpy":
        return x
    tensor = (
        torch.from_numpy(x.view(np.uint16).astype(np.int32))
        if x.dtype == ml_dtypes.bfloat16
        else None
    )
    moved = torch.from_numpy(x) if tensor is None else tensor.to(torch.uint16).view(torch.bfloat16)
    return moved.to("cuda" if library == "cuda" else "cpu")


def bytes_of(values: Any) -> Any:
    if isinstance(values, np.ndarray):
        return np.ascontiguousarray(values).view(np.uint8)
    return values.contiguous().view(torch.uint8).cpu().numpy()


def rows_of(kind: str) -> Any:
    random = np.random.default_rng(5)
    if kind == "normal":
        return random.standard_normal((64, 192)).astype(ml_dtypes.bfloat16)
    if kind == "float32":
        return random.standard_normal((64, 192), np.float32)
    if kind == "bits":  # Each finite number, tiny and huge ones mixed in a group.
        bits = random.integers(0, 2**16, (256, 192), np.uint16)
        bits[bits & 0x7F80 == 0x7F80] &= 0x3FFF
        return bits.view(ml_dtypes.bfloat16)
    if kind == "scales":  # Of one magnitude per group, from the least to the largest.
        bits = random.integers(0, 0x7F80, (512, 6), np.uint16).repeat(32, 1)
        bits ^= random.integers(0, 2, bits.shape, np.uint16) << 15
        return bits.view(ml_dtypes.bfloat16)
    # On and beside every midpoint of e2m1, in groups whose largest is 6 or 448.
    midpoints = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
    near = [m * (1 + s * 2.0**-7) for m in midpoints for s in (-1, 0, 1)]
    row = np.array([6.0, *near, 0.0, -0.0] + [-value for value in midpoints] + [448.0], np.float32)
    return np.tile(np.resize(row, 192), (2, 1)).astype(ml_dtypes.bfloat16)


KINDS = ["normal", "float32", "bits", "scales", "midpoints"]


def test_the_tables_are_those_of_ml_dtypes() -> None:
    e4m3 = np.arange(0x7F, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn)
    assert (e4m3.astype(np.float64) == E4M3).all()
    e2m1 = np.arange(16, dtype=np.uint8).astype(np.uint8).view(ml_dtypes.float4_e2m1fn)
    assert [float(value) for value in e2m1] == [e2m1_of(code) for code in range(16)]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("kind", KINDS)
def test_mxfp8_is_its_definition_bit_for_bit(kind: str, library: str) -> None:
    x = rows_of(kind)
    values, scales = reference_mxfp8(x)
    cast = cast_mxfp8(as_library(x, library))
    assert (bytes_of(cast.scales) == scales).all()
    assert (bytes_of(cast.x) == values).all()
    assert cast.x.shape == x.shape


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("global_scale", [1.0, 2688 / 4.75, 3e-30])
def test_nvfp4_is_its_definition_bit_for_bit(kind: str, library: str, global_scale: float) -> None:
    x = rows_of(kind)
    values, scales = reference_nvfp4(x, global_scale)
    cast = cast_nvfp4(as_library(x, library), global_scale)
    assert (bytes_of(cast.scales) == scales).all()
    assert (bytes_of(cast.x) == values).all()
    assert cast.x.shape == (len(x), 96)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_group_with_no_number_is_none(library: str) -> None:
    x = np.ones((1, 96), np.float32)
    x[0, 3], x[0, 40] = np.nan, -np.inf
    cast = cast_mxfp8(as_library(x, library))
    assert bytes_of(cast.scales).tolist() == [[0xFF, 0xFF, 119]]
    assert (bytes_of(cast.x)[0, :64] == 0x7F).all()
    assert (bytes_of(cast.x)[0, 64:] != 0x7F).all()


@pytest.mark.parametrize("library", LIBRARIES)
def test_scales_lie_in_tiles_as_gemms_read_them(library: str) -> None:
    rows, groups = 300, 6
    scales = np.random.default_rng(1).integers(1, 256, (rows, groups), np.uint8)
    tiles = bytes_of(tile_scales(as_library(scales, library)))
    expected = np.zeros((3 * 2, 512), np.uint8)
    for row in range(rows):
        for group in range(groups):
            tile = row // 128 * 2 + group // 4
            at = row % 32 * 16 + row % 128 // 32 * 4 + group % 4
            expected[tile, at] = scales[row, group]
    assert (tiles == expected).all()


FORMATS = [("mxfp8", None), ("nvfp4", 200.0)]
EXPERTS, TOPK, TOKENS = 8, 3, 9


def drawn(rank: int, hidden: int) -> tuple[Any, Any, Any]:
    random = np.random.default_rng(rank)
    x = random.standard_normal((TOKENS - rank, hidden)).astype(ml_dtypes.bfloat16)
    ids = np.array([random.permutation(EXPERTS)[:TOPK] for _ in x])
    return x, ids, random.random((len(x), TOPK), np.float32)


def on_ranks(program: Any, library: str) -> Any:
    """Returns what two ranks return; on one GPU they share it."""

    def rank(world: tokenyard.World) -> Any:
        if library == "cuda":
            torch.cuda.set_device(world.device_index)
        return program(world)

    return tokenyard.launch(rank, ranks=2, device="cuda" if library == "cuda" else "host")


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("hidden", [256, 96])  # 96: scales do not fill words.
@pytest.mark.parametrize(("rows", "global_scale"), FORMATS)
def test_rows_arrive_cast_with_their_scales(
    rows: str, global_scale: float | None, hidden: int, library: str
) -> None:
    def program(world: tokenyard.World) -> list[Any]:
        exchange = tokenyard.ExpertParallel(
            world, experts=EXPERTS, hidden=hidden, topk=TOPK, tokens_max=TOKENS
        )
        x, ids, weights = (as_library(each, library) for each in drawn(world.rank, hidden))
        there = dispatch_cast(exchange, x, ids, weights, rows=rows, global_scale=global_scale)
        received = there.received
        ones = np.ones((len(there.rows.x), hidden), ml_dtypes.bfloat16)
        home = exchange.combine(as_library(ones, library), received)
        return [
            bytes_of(there.rows.x).copy(),
            bytes_of(there.rows.scales).copy(),
            bytes_of(received.source_token).view(np.int32).copy(),
            list(received.rows_from),
            bytes_of(home).copy(),
        ]

    ranks = 2
    for rank, (x, scales, tokens, rows_from, home) in enumerate(on_ranks(program, library)):
        sources = np.repeat(np.arange(ranks), rows_from)
        assert len(sources) == len(x) > 0
        for source in range(ranks):
            sent = drawn(source, hidden)[0]
            cast = reference_mxfp8(sent) if rows == "mxfp8" else reference_nvfp4(sent, global_scale)
            mine = sources == source
            assert (x[mine] == cast[0][tokens[mine]]).all()
            assert (scales[mine] == cast[1][tokens[mine]]).all()
        ids = drawn(rank, hidden)[1]
        ranks_of_token = [len(set(each // (EXPERTS // ranks))) for each in ids]
        sums = home.view(ml_dtypes.bfloat16).astype(np.float32)
        assert (sums == np.array(ranks_of_token)[:, None]).all()


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("alignment", [None, 8])
def test_scales_lie_by_columns_as_deep_gemm_reads_them(alignment: int | None, library: str) -> None:
    hidden = 384

    def program(world: tokenyard.World) -> None:
        exchange = tokenyard.ExpertParallel(
            world, experts=EXPERTS, hidden=hidden, topk=TOPK, tokens_max=TOKENS
        )
        given = [as_library(each, library) for each in drawn(world.rank, hidden)]
        by_rows = dispatch_cast(exchange, *given, rows="mxfp8", alignment=alignment)
        there = dispatch_cast(
            exchange, *given, rows="mxfp8", alignment=alignment, scales_by_columns=True
        )
        scales: Any = there.rows.scales
        assert tuple(scales.shape) == (len(there.rows.x), hidden // 128)
        row, column = (
            [stride // 4 for stride in scales.strides] if library == "numpy" else scales.stride()
        )
        assert row == 1
        assert column % 4 == 0
        held = (
            slice(None)
            if there.by_expert is None
            else bytes_of(there.by_expert.row_of).view(np.int32) >= 0
        )
        assert (bytes_of(scales)[held] == bytes_of(by_rows.rows.scales)[held]).all()
        assert len(bytes_of(scales)[held]) > 0

    on_ranks(program, library)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("rows", "global_scale"), FORMATS)
def test_rows_by_expert_have_their_scales_and_come_home(
    rows: str, global_scale: float | None, library: str
) -> None:
    hidden = 128

    def program(world: tokenyard.World) -> None:
        exchange = tokenyard.ExpertParallel(
            world, experts=EXPERTS, hidden=hidden, topk=TOPK, tokens_max=TOKENS
        )
        x, ids, weights = (as_library(each, library) for each in drawn(world.rank, hidden))
        there = dispatch_cast(
            exchange, x, ids, weights, rows=rows, global_scale=global_scale, alignment=8
        )
        plain = dispatch_cast(exchange, x, ids, weights, rows=rows, global_scale=global_scale)
        row_of = bytes_of(there.by_expert.row_of).view(np.int32)
        held = row_of >= 0
        assert held.sum() == sum(plain.received.tokens_per_expert)
        assert (bytes_of(there.rows.x)[held] == bytes_of(plain.rows.x)[row_of[held]]).all()
        scales = bytes_of(there.rows.scales)
        assert (scales[held] == bytes_of(plain.rows.scales)[row_of[held]]).all()
        y = as_library(np.ones((len(row_of), hidden), ml_dtypes.bfloat16), library)
        home = exchange.combine(y, there.received, by_expert=there.by_expert)
        assert (bytes_of(home).view(ml_dtypes.bfloat16).astype(np.float32) == TOPK).all()

    on_ranks(program, library)


@pytest.mark.parametrize("library", LIBRARIES)
def test_no_rows_are_cast_to_no_rows(library: str) -> None:
    none = as_library(np.ones((0, 64), np.float32), library)
    assert [tuple(each.shape) for each in cast_mxfp8(none)] == [(0, 64), (0, 2)]
    assert [tuple(each.shape) for each in cast_nvfp4(none, 1.0)] == [(0, 32), (0, 4)]


def test_wrong_arguments_are_named() -> None:
    x = np.ones((2, 48), np.float32)
    for call, argument in (
        (lambda: cast_mxfp8(x), "x"),
        (lambda: cast_nvfp4(x.astype(np.float64), 1.0), "x"),
        (lambda: cast_nvfp4(x, 0.0), "global_scale"),
        (lambda: cast_nvfp4(x, float("nan")), "global_scale"),
        (lambda: cast_nvfp4(x, 1e39), "global_scale"),
        (lambda: cast_nvfp4(x, 1e-46), "global_scale"),
        (lambda: dispatch_cast(None, x, x, rows="fp4"), "rows"),
        (lambda: dispatch_cast(None, x, x, rows="nvfp4"), "global_scale"),
        (lambda: dispatch_cast(None, x, x, rows="mxfp8", global_scale=1.0), "global_scale"),
    ):
        with pytest.raises(tokenyard.errors.InvalidArgument) as error:
            call()
        assert error.value.argument == argument


@pytest.mark.parametrize(("rows", "scale", "hidden"), [("mxfp8", None, 64), ("nvfp4", 1.0, 128)])
def test_scales_that_do_not_lie_by_columns_are_refused(
    rows: str, scale: float | None, hidden: int
) -> None:
    def wrong(world: tokenyard.World) -> str:
        exchange = tokenyard.ExpertParallel(world, experts=2, hidden=hidden, topk=1, tokens_max=4)
        x, ids = np.ones((3, hidden), np.float32), np.zeros((3, 1), np.int64)
        options: Any = dict(rows=rows, global_scale=scale, scales_by_columns=True)
        with pytest.raises(tokenyard.InvalidArgument) as caught:
            dispatch_cast(exchange, x, ids, **options)
        return caught.value.argument

    assert tokenyard.launch(wrong, ranks=2) == ["scales_by_columns"] * 2


@pytest.mark.parametrize(("rows", "scale"), [("mxfp8", None), ("nvfp4", 448.0)])
def test_rows_of_another_width_than_the_exchanges_are_refused(
    rows: str, scale: float | None
) -> None:
    def wrong(world: tokenyard.World) -> tuple[str, str]:
        exchange = tokenyard.ExpertParallel(world, experts=2, hidden=64, topk=1, tokens_max=4)
        x, ids = np.ones((3, 96), np.float32), np.zeros((3, 1), np.int64)
        with pytest.raises(tokenyard.InvalidArgument) as caught:
            dispatch_cast(exchange, x, ids, rows=rows, global_scale=scale)
        return caught.value.argument, caught.value.expected

    assert tokenyard.launch(wrong, ranks=2) == [("x", "shape [tokens, hidden = 64]")] * 2
