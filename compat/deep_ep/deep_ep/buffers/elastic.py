"""`ElasticBuffer` under DeepEP's path."""

from ..elastic import ElasticBuffer
from ..elastic_handle import EPHandle

__all__ = ["EPHandle", "ElasticBuffer"]
