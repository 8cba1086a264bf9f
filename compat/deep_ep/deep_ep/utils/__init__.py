"""The names that DeepEP's tests, and callers of its API, import from `deep_ep.utils`."""

from .event import EventHandle, EventOverlap

__all__ = ["EventHandle", "EventOverlap"]
