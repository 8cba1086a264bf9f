"""Tokenyard's `deep_ep` stands in for DeepEP: code written for DeepEP runs unchanged.

    Buffer          dispatch and combine for throughput and at low latency
    ElasticBuffer   dispatch and combine of DeepEP's second API, with EPHandle as its handle
    HybridEPBuffer  dispatch and combine of DeepEP's branch hybrid-ep, with rows by expert
    Config          multiprocessors of a call, and sizes of buffers
    EventOverlap    an event that work on other streams can wait for
    topk_idx_t      dtype of expert ids in DeepEP's own code
    __version__     version of DeepEP that has this API, for callers that support several

A separate distribution, so that it replaces the real DeepEP only where it is installed.
"""

import logging
from importlib import metadata

import torch

from .buffer import Buffer
from .config import Config
from .elastic import ElasticBuffer
from .elastic_handle import EPHandle
from .hybrid import HybridEPBuffer
from .utils.envs import get_logical_domain_size, get_physical_domain_size
from .utils.event import EventHandle, EventOverlap

__all__ = [
    "Buffer",
    "Config",
    "EPHandle",
    "ElasticBuffer",
    "EventHandle",
    "EventOverlap",
    "HybridEPBuffer",
    "get_logical_domain_size",
    "get_physical_domain_size",
    "topk_idx_t",
]

__version__ = "2.1.0"

topk_idx_t = torch.int64
"""torch.int32 is accepted, too; received ids have the dispatched dtype."""

try:
    _real = metadata.version("deep_ep")
except metadata.PackageNotFoundError:
    pass
else:
    raise ImportError(
        f"deep_ep {_real} and tokenyard-deep-ep are both installed, and both are imported as"
        " deep_ep: please uninstall one of them"
    )

logging.getLogger(__name__).info("deep_ep stands in for DeepEP, over Tokenyard")
