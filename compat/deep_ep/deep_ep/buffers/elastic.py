"""The second, likewise."""

from ..elastic import ElasticBuffer
from ..elastic_handle import EPHandle

__all__ = ["EPHandle", "ElasticBuffer"]
