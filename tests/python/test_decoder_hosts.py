"""Decoders whose ranks are on several hosts: processes over TCP that count as such."""

from __future__ import annotations

import numpy as np
import pytest
from decoder_models import MODELS, drawn, logits_by_graph, said
from programs import EXAMPLES, run_python

TWO_PARTS = said("qwen3", intermediate_size=2 * 2048)
"""A model of which each of two ranks has a whole part of the feed-forward."""


def test_ranks_of_two_hosts_find_the_bits_of_one_rank() -> None:
    tensors = drawn(TWO_PARTS)
    alone = logits_by_graph(TWO_PARTS, tensors)
    assert np.array_equal(logits_by_graph(TWO_PARTS, tensors, ranks=2, hosts=2), alone)


def test_two_ranks_on_each_of_two_hosts_find_the_bits_of_four_on_one() -> None:
    tensors = drawn(MODELS["llama 3"])
    on_one = logits_by_graph(MODELS["llama 3"], tensors, ranks=4)
    assert np.array_equal(logits_by_graph(MODELS["llama 3"], tensors, ranks=4, hosts=2), on_one)


@pytest.mark.parametrize("name", ["mixtral", "qwen2 with a window in later layers"])
def test_a_graph_of_tiles_finds_the_bits_of_ranks_on_one_host(name: str) -> None:
    tensors = drawn(MODELS[name])
    on_one = logits_by_graph(MODELS[name], tensors, ranks=2, tiles=True)
    on_two = logits_by_graph(MODELS[name], tensors, ranks=2, tiles=True, hosts=2)
    assert np.array_equal(on_two, on_one)


@pytest.mark.parametrize(
    "arguments", [["--prompt", "1,2,3", "--prompt", "7"], ["--experts", "4"]], ids=["words", "moe"]
)
def test_the_example_decodes_on_two_hosts(arguments: list[str]) -> None:
    spread = ["--ranks", "2", "--hosts", "2", "--processes"]
    done = run_python(EXAMPLES / "decode.py", *arguments, *spread, "--tokens", "8")
    assert done.returncode == 0, done.stderr
    assert "NumPy finds the same" in done.stdout


def test_hosts_that_do_not_divide_the_ranks_are_refused() -> None:
    done = run_python(EXAMPLES / "decode.py", "--ranks", "2", "--hosts", "3")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("--hosts: a divisor of the 2 ranks, not 3")
