"""Packs the table of which mutants a test reached."""

import base64
import zlib


def pack(states: bytes) -> str:
    """Packs a table: bit i is set where mutant i was reached, which its state of 0 says."""
    bits = int("".join("0" if state else "1" for state in reversed(states)), 2)
    return base64.b85encode(zlib.compress(bits.to_bytes((len(states) + 7) // 8, "little"))).decode()


def unpack(text: str) -> frozenset[int]:
    """Returns the numbers of the mutants that were reached."""
    table = zlib.decompress(base64.b85decode(text))
    return frozenset(
        8 * at + bit for at, byte in enumerate(table) if byte for bit in range(8) if byte >> bit & 1
    )
