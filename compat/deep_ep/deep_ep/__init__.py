"""DeepEP's buffers over Tokenyard: code written against `deep_ep` runs as it is.

    Buffer          dispatch and combine for throughput and at low latency
    ElasticBuffer   dispatch and combine of DeepEP's second API, whose handle is an EPHandle
    Config          the multiprocessors that a call may use, and how large a buffer has to be
    EventOverlap    an event that work on other streams waits for
    topk_idx_t      the dtype of expert ids that DeepEP's own code asks for
    __version__     of DeepEP, whose calls these are: callers that know several ask for it

It is a distribution of its own, so that it never stands in for a real DeepEP unasked.
"""

from importlib import metadata

import torch

from .buffer import Buffer
from .config import Config
from .elastic import ElasticBuffer
from .elastic_handle import EPHandle
from .utils.envs import get_logical_domain_size, get_physical_domain_size
from .utils.event import EventHandle, EventOverlap

__all__ = [
    "Buffer",
    "Config",
    "EPHandle",
    "ElasticBuffer",
    "EventHandle",
    "EventOverlap",
    "get_logical_domain_size",
    "get_physical_domain_size",
    "topk_idx_t",
]

__version__ = "2.1.0"

topk_idx_t = torch.int64
"""torch.int32 is taken too; received ids are of the dtype that was dispatched."""

try:
    _real = metadata.version("deep_ep")
except metadata.PackageNotFoundError:
    pass
else:
    raise ImportError(
        f"deep_ep {_real} and tokenyard-deep-ep are both installed, and both are imported as"
        " deep_ep: please uninstall one of them"
    )
