"""A program as a user of the package writes it: typed strictly, and run."""

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

import tokenyard


def layer(world: tokenyard.World) -> float:
    """Sends two tokens to their experts and back, and returns the largest result."""
    x: npt.NDArray[Any] = np.ones((2, 64), dtype=ml_dtypes.bfloat16)
    topk_idx: npt.NDArray[Any] = np.array([[0], [1]])
    exchange = tokenyard.ExpertParallel(world, experts=2, hidden=64, topk=1, tokens_max=8)
    try:
        received = exchange.dispatch(x, topk_idx)
        out = exchange.combine(received.x, received)
        reach: str = world.topology.peers[1 - world.rank].how
        print(f"rank {world.rank} reaches its peer by {reach}")
        return float(out.astype(np.float32).max())
    finally:
        exchange.close()


def main() -> None:
    """Runs the layer on two ranks of this process."""
    results: list[float] = tokenyard.launch(layer, 2)
    version: str = tokenyard.__version__
    print(f"tokenyard {version}: largest results {results}")


if __name__ == "__main__":
    main()
