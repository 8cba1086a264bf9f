"""The tensors of a model by name: in one safetensors file, or in several that an index lists."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

INDEX = "model.safetensors.index.json"
WHOLE = "model.safetensors"

BF16 = ml_dtypes.bfloat16
DTYPES = ("BF16", "F16", "F32", "F64")
"""Of tensors that mean what they say: those of fewer bits come with scales."""


class WeightsError(ValueError):
    """Files that do not hold the model that the config describes."""


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
        WeightsError: what is no such file, or an index of files that are missing or elsewhere.
    """

    def __init__(self, path: Path) -> None:
        self.said_by = first_file(path)
        if self.said_by.suffix == ".json":
            self._file_of = _files_listed(self.said_by)
            self._files = {file: _opened(file) for file in sorted(set(self._file_of.values()))}
        else:
            whole = _opened(self.said_by)
            self._file_of = dict.fromkeys(whole.keys(), self.said_by)
            self._files = {self.said_by: whole}

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def get(self, name: str, *shape: int) -> np.ndarray:
        """In BF16.

        Raises:
            WeightsError: there is none, or it has another shape, or a dtype of quantised weights.
        """
        if name not in self:
            raise WeightsError(f"{self.said_by} has no tensor {name}")
        file = self._file_of[name]
        if name not in self._files[file].keys():  # noqa: SIM118  It is no dictionary.
            raise WeightsError(f"{file} has no tensor {name}, which {self.said_by} says it has")
        dtype = self._files[file].get_slice(name).get_dtype()
        if dtype not in DTYPES:
            raise WeightsError(
                f"{file}: {name} is of dtype {dtype}, and is read of {', '.join(DTYPES)}"
            )
        tensor = self._files[file].get_tensor(name)
        if tensor.shape != shape:
            raise WeightsError(
                f"{file}: {name} has the shape {list(tensor.shape)}, and by the config it "
                f"would have {list(shape)}"
            )
        return tensor.astype(BF16)


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
    except ValueError as error:
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
