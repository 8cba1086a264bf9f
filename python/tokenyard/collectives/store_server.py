"""The store of a job, served over TCP: where its ranks find one another."""

from __future__ import annotations

import _tokenyard

from ..closing import Closing
from ..sizes import size_of, text_of


class StoreServer(Closing):
    """Serves "tcp://host:port" to whoever knows the secret, from a thread of its own.

    A job whose rank 0 may die should have its store elsewhere: here, or by
    `python -m tokenyard store`.

    >>> with tokenyard.StoreServer(secret="s") as server:
    ...     server.address.startswith("tcp://127.0.0.1:")
    True
    """

    def __init__(self, *, secret: str, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listens at once.

        Args:
            secret: what all ranks of the job know.
            host: the address to listen at, and under which ranks reach it.
            port: 0 for any that is free.

        Raises:
            OsError: it cannot listen there.
            InvalidArgument: an empty secret, or a port that cannot be.
        """
        self._host = host
        self._native = _tokenyard.StoreServer(
            host=text_of("host", host),
            port=size_of("port", port, largest=65535),
            secret=text_of("secret", secret),
        )

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._native.port

    @property
    def address(self) -> str:
        """What `Collectives.connect` takes as its store."""
        return f"tcp://{self._host}:{self.port}"

    @property
    def refused(self) -> int:
        """Connections that were turned away."""
        return self._native.refused

    def close(self) -> None:
        """Ends it; what it knew is gone. May be called again."""
        self._native.close()
