"""A model's tensors by name, from one safetensors file or from several that an index lists."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import ml_dtypes
import numpy as np
from program import Refused

INDEX = "model.safetensors.index.json"
WHOLE = "model.safetensors"

BF16 = ml_dtypes.bfloat16
DTYPES = ("BF16", "F16", "F32", "F64")
"""Supported dtypes; narrower ones come with scales."""


class WeightsError(Refused):
    """Files that do not hold the model that the config describes."""


class Source(Protocol):
    """A source of tensors, each in BF16."""

    said_by: str
    """Name of the source of the list of tensors, for errors."""

    def __iter__(self) -> Iterator[str]: ...

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Returns a tensor's shape; raises WeightsError if its dtype is not supported."""
        ...

    def get(self, name: str) -> np.ndarray: ...


class Drawn:
    """Tensors that no file holds."""

    said_by = "the random model"

    def __init__(self, tensors: Mapping[str, np.ndarray]) -> None:
        self._tensors = tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def shape_of(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].shape

    def get(self, name: str) -> np.ndarray:
        return self._tensors[name]


def first_file(path: Path) -> Path:
    """Returns the file that lists the tensors: of a folder, its index or its only file.

    Raises:
        WeightsError: the folder has neither.
    """
    if not path.is_dir():
        return path
    for name in (INDEX, WHOLE):
        if (path / name).is_file():
            return path / name
    raise WeightsError(f"{path} has neither {INDEX} nor {WHOLE}")


class Tensors:
    """Open safetensors files; each tensor is read on access.

    Args:
        path: a safetensors file, an index (.json), or a folder that contains one of the two.

    Raises:
        WeightsError: it is no such file, the index lists files that are missing or outside its
            folder, or a file has a tensor that the index omits.
    """

    def __init__(self, path: Path) -> None:
        first = first_file(path)
        self.said_by = str(first)
        self.rounded: Counter[str] = Counter()
        """By dtype, the number of tensors read so far that BF16 cannot represent exactly."""
        if first.suffix == ".json":
            self._file_of = _files_listed(first)
            self._files = {file: _opened(file) for file in sorted(set(self._file_of.values()))}
            for file, held in self._files.items():
                extra = [name for name in held.keys() if name not in self._file_of]  # noqa: SIM118
                if extra:
                    raise WeightsError(f"{file} has {listed(extra)}, which {first} leaves out")
        else:
            whole = _opened(first)
            self._file_of = dict.fromkeys(whole.keys(), first)
            self._files = {first: whole}

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Returns a tensor's shape; raises WeightsError if it is missing or quantised."""
        file = self._file_of[name]
        if name not in self._files[file].keys():  # noqa: SIM118  It is no dictionary.
            raise WeightsError(f"{file} has no tensor {name}, which {self.said_by} says it has")
        about = self._files[file].get_slice(name)
        if about.get_dtype() not in DTYPES:
            raise WeightsError(
                f"{file}: {name} is of dtype {about.get_dtype()}, and is read of "
                f"{', '.join(DTYPES)}"
            )
        return tuple(about.get_shape())

    def get(self, name: str) -> np.ndarray:
        """Returns a tensor in BF16. Raises WeightsError if a number is out of its range."""
        file = self._file_of[name]
        tensor = self._files[file].get_tensor(name)
        with np.errstate(over="ignore"):
            rounded = tensor.astype(BF16)
        same = (rounded.astype(tensor.dtype) == tensor) | np.isnan(tensor)
        if not same.all():
            if (np.isinf(rounded.astype(np.float32)) & np.isfinite(tensor)).any():
                raise WeightsError(f"{file}: {name} has numbers that are too large for BF16")
            self.rounded[self._files[file].get_slice(name).get_dtype()] += 1
        return rounded


def listed(names: Iterable[str], most: int = 3) -> str:
    """Returns up to `most` names, and the number of others."""
    ordered = sorted(names)
    more = f" and {len(ordered) - most} more" if len(ordered) > most else ""
    what = "the tensors" if len(ordered) > 1 else "the tensor"
    return f"{what} {', '.join(ordered[:most])}{more}"


def _opened(file: Path) -> Any:
    from safetensors import SafetensorError, safe_open  # Needed only with weights.

    try:
        return safe_open(file, framework="numpy")
    except SafetensorError as error:
        raise WeightsError(f"{file} is not a safetensors file: {error}") from None


def _is_file(path: Path) -> bool:
    """Returns whether it is a file; a name that is too long for one is none."""
    try:
        return path.is_file()
    except OSError:
        return False


def _files_listed(index: Path) -> dict[str, Path]:
    """Returns the file of each tensor that an index lists."""
    try:
        said = json.loads(index.read_bytes())
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{index} is not JSON: {error}") from None
    names = said.get("weight_map") if isinstance(said, dict) else None
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise WeightsError(f"{index} has no weight_map from tensors to files")
    for name in sorted(set(names.values())):
        # Links are followed wherever they lead: caches of checkpoints consist of them.
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise WeightsError(f"{index} names {name!r}, which is outside of its folder")
        if not _is_file(index.parent / name):
            raise WeightsError(f"{index} names {name!r}, which its folder does not have")
    return {tensor: index.parent / name for tensor, name in names.items()}
