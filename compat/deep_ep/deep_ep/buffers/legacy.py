"""`Buffer` under DeepEP's path."""

from ..buffer import Buffer

__all__ = ["Buffer"]
