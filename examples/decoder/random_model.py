"""A model drawn from a seed, as the tensors of a checkpoint."""

from __future__ import annotations

import numpy as np

from .config import Config
from .layout import EMBEDDING, HEAD, layout
from .tensors import BF16


def random_tensors(config: Config, seed: int) -> dict[str, np.ndarray]:
    """Draws tensors by name, without a tied head.

    Activations neither vanish nor explode, and tokens vary.
    """
    random = np.random.default_rng(seed)
    shapes = layout(config)
    if config.tie_word_embeddings:
        del shapes[HEAD]
    return {name: _drawn(random, name, shape).astype(BF16) for name, shape in shapes.items()}


def _drawn(random: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    normal = random.standard_normal(shape, np.float32)
    if name.endswith("norm.weight"):
        return 1 + 0.1 * normal
    if name == EMBEDDING or name.endswith("bias"):
        return normal
    return normal / np.float32(np.sqrt(shape[-1]))
