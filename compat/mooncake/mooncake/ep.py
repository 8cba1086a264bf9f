"""`mooncake.ep`: the raw calls behind Mooncake's Buffer, as far as they have a meaning here."""

from .ep_runtime import get_ep_buffer_size_hint
from .raw_buffer import MAX_QP_COUNT, EventHandle
from .raw_buffer import RawBuffer as Buffer

__all__ = ["MAX_QP_COUNT", "Buffer", "EventHandle", "get_ep_buffer_size_hint"]
