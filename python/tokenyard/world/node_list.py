"""Expands Slurm's compact lists of nodes, such as "node[01-03,7],gpu2"."""

from __future__ import annotations

import re
from itertools import product
from math import prod

NODES_MAX = 1 << 16
"""Most nodes that one name with brackets may stand for; Slurm's own limit is lower."""

_NAME = re.compile(r"(?:[^\[\],\s]|\[[^\[\]\s]+\])+")
_PART = re.compile(r"\[([^\]]+)\]|([^\[]+)")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def expand_nodes(text: str) -> list[str]:
    """Returns the names of a list in its order; raises ValueError where it is malformed.

    A bracket holds numbers and ranges, and a name may hold several brackets. The last bracket
    counts fastest. Numbers keep the width to which the list pads them.

    >>> expand_nodes("node[01-03,7],gpu2")
    ['node01', 'node02', 'node03', 'node7', 'gpu2']
    """
    nodes: list[str] = []
    position = 0
    while True:
        name = _NAME.match(text, position)
        if name is None:
            raise ValueError(f"no node's name at {text[position:]!r}")
        nodes += _expand_name(name[0])
        position = name.end()
        if position == len(text):
            return nodes
        if text[position] != ",":
            raise ValueError(f"no comma at {text[position:]!r}")
        position += 1


def _expand_name(name: str) -> list[str]:
    choices = [
        [literal] if literal else _numbers(bracket) for bracket, literal in _PART.findall(name)
    ]
    if prod(map(len, choices)) > NODES_MAX:
        raise ValueError(f"{name!r} stands for more than {NODES_MAX} nodes")
    return ["".join(parts) for parts in product(*choices)]


def _numbers(bracket: str) -> list[str]:
    numbers: list[str] = []
    for text in bracket.split(","):
        ends = _RANGE.fullmatch(text)
        if ends is None:
            raise ValueError(f"no number or range: {text!r}")
        first, last = int(ends[1]), int(ends[2] or ends[1])
        if not first <= last < first + NODES_MAX:
            raise ValueError(f"no range of at most {NODES_MAX} numbers: {text!r}")
        numbers += (str(number).zfill(len(ends[1])) for number in range(first, last + 1))
    return numbers
