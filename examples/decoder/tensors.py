"""The tensors of a model by name: in one safetensors file, or in several that an index lists."""

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
"""Of tensors that mean what they say: those of fewer bits come with scales."""


class WeightsError(Refused):
    """Files that do not hold the model that the config describes."""


class Source(Protocol):
    """Where tensors come from, each in BF16."""

    said_by: str
    """What says which there are, for errors."""

    def __iter__(self) -> Iterator[str]: ...

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Raises WeightsError if the tensor cannot be read as it is."""
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
    """The file that says where tensors are: of a folder, its index, or the one file that has all.

    Raises:
        WeightsError: a folder that has neither.
    """
    if not path.is_dir():
        return path
    for name in (INDEX, WHOLE):
        if (path / name).is_file():
            return path / name
    raise WeightsError(f"{path} has neither {INDEX} nor {WHOLE}")


class Tensors:
    """Open files, each tensor of which is read when it is asked for.

    Args:
        path: a safetensors file, an index (.json), or a folder that has one of the two.

    Raises:
        WeightsError: what is no such file, an index of files that are missing or elsewhere, or a
            file with a tensor that the index leaves out.
    """

    def __init__(self, path: Path) -> None:
        first = first_file(path)
        self.said_by = str(first)
        self.rounded: Counter[str] = Counter()
        """By dtype, how many of the tensors read so far BF16 cannot hold exactly."""
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
        """Raises WeightsError if the file lacks the tensor, or has it as quantised weights."""
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
        """In BF16. Raises WeightsError if that cannot hold one of the numbers."""
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
    """Some names, and how many more there are."""
    ordered = sorted(names)
    more = f" and {len(ordered) - most} more" if len(ordered) > most else ""
    what = "the tensors" if len(ordered) > 1 else "the tensor"
    return f"{what} {', '.join(ordered[:most])}{more}"


def _opened(file: Path) -> Any:
    from safetensors import SafetensorError, safe_open  # Only who has weights needs it.

    try:
        return safe_open(file, framework="numpy")
    except SafetensorError as error:
        raise WeightsError(f"{file} is not a safetensors file: {error}") from None


def _files_listed(index: Path) -> dict[str, Path]:
    """By an index: the file of each tensor."""
    try:
        said = json.loads(index.read_bytes())
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{index} is not JSON: {error}") from None
    names = said.get("weight_map") if isinstance(said, dict) else None
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise WeightsError(f"{index} has no weight_map from tensors to files")
    for name in sorted(set(names.values())):
        # Links are followed, wherever they lead: caches of checkpoints are made of them.
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise WeightsError(f"{index} names {name!r}, which is outside of its folder")
        if not (index.parent / name).is_file():
            raise WeightsError(f"{index} names {name!r}, which its folder does not have")
    return {tensor: index.parent / name for tensor, name in names.items()}
