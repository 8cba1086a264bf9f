"""What an expert needs of an array library, for NumPy on the host and torch on GPUs."""

from __future__ import annotations

from typing import Any, Protocol

import ml_dtypes
import numpy as np


class Compute(Protocol):
    """Arrays are NumPy's or torch's; the operators between them are the same."""

    def array(self, values: np.ndarray) -> Any:
        """Host values where the kernels of this rank can read them."""

    def float32(self, array: Any) -> Any: ...
    def store(self, target: Any, values: Any) -> None:
        """Writes float32 values to a bfloat16 array, rounded."""

    def rows(self, mask: Any) -> Any:
        """Numbers of the rows in which `mask` holds."""

    def silu(self, array: Any) -> Any: ...
    def to_host(self, array: Any) -> np.ndarray:
        """As float32 in host memory."""

    def finish(self) -> None:
        """Waits for what was enqueued, so that a phase's time is its own."""


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
