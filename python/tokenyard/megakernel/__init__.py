"""Task graphs that one persistent kernel runs, iteration after iteration.

    TensorMemory  allocates memory for a graph's tensors, on this rank or on all ranks
    Graph         tasks with the bytes they access and the events they await and signal
    Megakernel    a graph that is verified, compiled and ready to run
    DenseDecoder  a decode step of a Llama-shaped model as a graph
    perfetto      merges the traces of all ranks into one file

Task types are written in C++ (src/megakernel/tasks) and put together in Python. Every rank builds
its own graph and declares the same tensors and events in the same order.
"""

from ..errors import InvalidGraph, TaskTimeout
from .dense_decoder import DecoderShape, DenseDecoder, LayerPieces, RopeScaling, tiled
from .megakernel import Megakernel, perfetto
from .task_graph import (
    THIS_RANK,
    Event,
    Graph,
    Piece,
    Region,
    Signal,
    Task,
    Tensor,
    TensorMemory,
    Wait,
)

__all__ = [
    "THIS_RANK",
    "DecoderShape",
    "DenseDecoder",
    "Event",
    "Graph",
    "InvalidGraph",
    "LayerPieces",
    "Megakernel",
    "Piece",
    "Region",
    "RopeScaling",
    "Signal",
    "Task",
    "TaskTimeout",
    "Tensor",
    "TensorMemory",
    "Wait",
    "perfetto",
    "tiled",
]


def __dir__() -> list[str]:
    """Lists the public names, so that completion does not offer internal modules."""
    return list(__all__)
