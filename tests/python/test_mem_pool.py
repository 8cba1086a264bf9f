"""The arena as an allocator, called as torch calls it: by two C functions."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

import _tokenyard
import tokenyard

HOST = -1
"""A device number that is not CUDA's."""


def allocator() -> Any:
    library = ctypes.CDLL(_tokenyard.__file__)
    library.tokenyard_allocate.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    library.tokenyard_allocate.restype = ctypes.c_void_p
    library.tokenyard_free.argtypes = [
        ctypes.c_void_p,
        ctypes.c_ssize_t,
        ctypes.c_int,
        ctypes.c_void_p,
    ]
    library.tokenyard_free.restype = None
    return library


def test_memory_comes_from_the_arena_and_goes_back() -> None:
    def layer(world: tokenyard.World) -> None:
        library = allocator()
        _tokenyard.lend_arena(world._native)
        exchange = tokenyard.ExpertParallel(world, experts=2, hidden=8, topk=1, tokens_max=4)
        x = np.ones((4, 8), np.float32)
        ids = np.array([[0], [1], [1], [0]])
        received = exchange.dispatch(x, ids, np.ones((4, 1), np.float32))
        for _ in range(50):  # More than the arena holds, unless memory is freed.
            pointer = library.tokenyard_allocate(received.x.nbytes, HOST, None)
            assert abs(pointer - received.x.ctypes.data) < 1 << 20
            memory = (ctypes.c_float * received.x.size).from_address(pointer)
            y = np.frombuffer(memory, np.float32).reshape(received.x.shape)
            y[:] = 3 * received.x
            assert (exchange.combine(y, received.route) == 3).all()
            library.tokenyard_free(pointer, received.x.nbytes, HOST, None)
            held = library.tokenyard_allocate(1 << 19, HOST, None)
            assert held
            library.tokenyard_free(held, 1 << 19, HOST, None)

    tokenyard.launch(layer, ranks=1, arena_bytes=1 << 20)


def test_what_is_not_there_is_a_null_pointer() -> None:
    def layer(world: tokenyard.World) -> None:
        library = allocator()
        _tokenyard.lend_arena(world._native)
        assert library.tokenyard_allocate(1 << 21, HOST, None) is None
        assert library.tokenyard_allocate(16, HOST + 77, None) is None
        library.tokenyard_free(12345, 16, HOST, None)  # No world's.

    tokenyard.launch(layer, ranks=1, arena_bytes=1 << 20)
    assert allocator().tokenyard_allocate(16, HOST, None) is None  # The world has gone.


def test_a_world_on_the_host_has_no_pool() -> None:
    pytest.importorskip("torch")

    def layer(world: tokenyard.World) -> None:
        with pytest.raises(tokenyard.Unsupported, match="mem_pool"):
            world.mem_pool()

    tokenyard.launch(layer, ranks=1)
