"""Expected results of collectives, in NumPy, and inputs whose results are exact."""

from __future__ import annotations

from functools import reduce

import ml_dtypes
import numpy as np

DTYPES = [
    *(np.dtype(name) for name in ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32")),
    *(np.dtype(name) for name in ("uint64", "int64", "float16", "float32", "float64")),
    *(np.dtype(kind) for kind in (ml_dtypes.bfloat16, np.complex64, np.complex128)),
]
SHORT = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
OPS = ("sum", "average", "product", "min", "max", "bit_and", "bit_or", "bit_xor")


def allowed(op: str, dtype: np.dtype) -> bool:
    """Returns whether a reduction is defined for a type."""
    whole = dtype.kind in "bui"
    if op.startswith("bit_"):
        return whole
    if op == "average":
        return not whole
    return op not in ("min", "max") or dtype.kind != "c"


def given(dtype: np.dtype, op: str, rank: int, shape: tuple[int, ...], salt: int = 0) -> np.ndarray:
    """Returns a rank's input. Sums and products over six ranks are exact in every type."""
    rng = np.random.default_rng((rank, salt, len(op)))
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind in "ui" and op != "product":
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)  # Sums wrap.
    small = rng.choice([-2, -1, 1, 2] if dtype.kind != "u" else [1, 2], shape)
    if dtype.kind == "c":
        return (small + 1j * rng.choice([-1, 0, 1], shape)).astype(dtype)
    return small.astype(dtype)


FUNCTIONS = {
    "sum": np.add,
    "average": np.add,
    "product": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "bit_and": np.bitwise_and,
    "bit_or": np.bitwise_or,
    "bit_xor": np.bitwise_xor,
}
"""How NumPy reduces; an average is divided afterwards."""


def reduced(op: str, arrays: list[np.ndarray]) -> np.ndarray:
    """Reduces all ranks' arrays; short floats in float32, rounded once."""
    dtype = arrays[0].dtype
    if dtype.kind == "b":
        logical = {"sum": np.logical_or, "max": np.logical_or, "product": np.logical_and}
        logical |= {"min": np.logical_and, "bit_and": np.logical_and, "bit_or": np.logical_or}
        return reduce(logical.get(op, np.logical_xor), arrays)
    wide = [array.astype(np.float32) if dtype in SHORT else array for array in arrays]
    total = reduce(FUNCTIONS[op], wide)
    if op == "average":
        # Part by part: NumPy divides complex numbers by complex numbers only, and rounds twice.
        total.real /= total.real.dtype.type(len(arrays))
        if dtype.kind == "c":
            total.imag /= total.real.dtype.type(len(arrays))
    return total.astype(dtype)


def same_bits(seen: np.ndarray, wanted: np.ndarray) -> bool:
    """Compares arrays, NaN equal to NaN. Signs of complex zeros depend on the order of factors."""
    if seen.dtype.kind == "c":
        return np.array_equal(seen, wanted)
    return seen.shape == wanted.shape and seen.tobytes() == wanted.tobytes()
