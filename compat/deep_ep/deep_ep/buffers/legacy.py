"""The first of them, as some import it."""

from ..buffer import Buffer

__all__ = ["Buffer"]
