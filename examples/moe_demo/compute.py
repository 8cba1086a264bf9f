"""The array operations that an expert needs, in NumPy on the host and in torch on GPUs."""

from __future__ import annotations

from typing import Any, Protocol

import ml_dtypes
import numpy as np


class Compute(Protocol):
    """Operations on arrays of NumPy or torch, beyond the operators that both share."""

    def array(self, values: np.ndarray) -> Any:
        """Copies host values to this rank's device."""

    def float32(self, array: Any) -> Any: ...
    def store(self, target: Any, values: Any) -> None:
        """Writes float32 values to a bfloat16 array, rounded."""

    def rows(self, mask: Any) -> Any:
        """Returns the indices of rows in which `mask` is true."""

    def silu(self, array: Any) -> Any: ...
    def to_host(self, array: Any) -> np.ndarray:
        """Copies an array to host memory as float32."""

    def finish(self) -> None:
        """Waits for enqueued work, so that each phase is timed separately."""


class HostCompute:
    """NumPy."""

    def array(self, values: np.ndarray) -> np.ndarray:
        return values

    def float32(self, array: np.ndarray) -> np.ndarray:
        return array.astype(np.float32)

    def store(self, target: np.ndarray, values: np.ndarray) -> None:
        target[:] = values.astype(target.dtype)

    def rows(self, mask: np.ndarray) -> np.ndarray:
        return np.flatnonzero(mask)

    def silu(self, array: np.ndarray) -> np.ndarray:
        return array / (1 + np.exp(-array))

    def to_host(self, array: np.ndarray) -> np.ndarray:
        return array.astype(np.float32)

    def finish(self) -> None:
        pass


class GpuCompute:
    """torch, on one GPU."""

    def __init__(self, index: int) -> None:
        import torch

        self._torch: Any = torch
        self._device = torch.device("cuda", index)
        torch.cuda.set_device(self._device)
        torch.backends.cuda.matmul.allow_tf32 = False  # The reference is float32 throughout.

    def array(self, values: np.ndarray) -> Any:
        if values.dtype == ml_dtypes.bfloat16:
            bits = self._torch.from_numpy(values.view(np.int16)).to(self._device)
            return bits.view(self._torch.bfloat16)
        return self._torch.from_numpy(values).to(self._device)

    def float32(self, array: Any) -> Any:
        return array.float()

    def store(self, target: Any, values: Any) -> None:
        target.copy_(values)

    def rows(self, mask: Any) -> Any:
        return mask.nonzero()[:, 0]

    def silu(self, array: Any) -> Any:
        return self._torch.nn.functional.silu(array)

    def to_host(self, array: Any) -> np.ndarray:
        return array.float().cpu().numpy()

    def finish(self) -> None:
        self._torch.cuda.current_stream().synchronize()
