"""Graphs of tasks that one persistent kernel runs, iteration after iteration.

    TensorMemory  memory of this rank, and of all ranks, for a graph's tensors
    Graph         tasks with what they read, write, wait for and signal
    Megakernel    a graph, proved and compiled, ready to run
    DenseDecoder  a Llama-shaped model's step as a graph
    perfetto      one file of the traces of all ranks

Task types are C++ (src/megakernel/tasks); this is how Python puts them together. Every rank writes
a graph of its own and declares the same tensors and events in the same order.
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
    """Lists what callers use, so that completion does not offer the modules that hold it."""
    return list(__all__)
