"""A job's store, served over TCP, through which its ranks find one another."""

from __future__ import annotations

from os import PathLike

import _tokenyard

from ..closing import Closing
from ..secret import secret_of
from ..sizes import size_of, text_of


class StoreServer(Closing):
    """Serves "tcp://host:port" to processes that know the secret, on a thread of its own.

    A job whose rank 0 may die should keep its store outside that rank: in a process that runs
    this class or `python -m tokenyard store`. A context manager that closes the server.

    >>> with tokenyard.StoreServer(secret="s") as server:
    ...     server.address.startswith("tcp://127.0.0.1:")
    True
    """

    def __init__(
        self,
        *,
        secret: str | None = None,
        secret_file: str | PathLike[str] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        """Starts to listen.

        Args:
            secret, secret_file: known to all ranks of the job; as `Collectives.connect`.
            host: the address to listen on, at which ranks reach the store.
            port: 0 for any free port.

        Raises:
            OsError: the address or port cannot be used.
            InvalidArgument: there is no good secret, or the port is out of range.
        """
        self._host = host
        self._native = _tokenyard.StoreServer(
            host=text_of("host", host),
            port=size_of("port", port, largest=65535),
            secret=secret_of(secret, secret_file),
        )

    @property
    def port(self) -> int:
        """TCP port on which the store listens."""
        return self._native.port

    @property
    def address(self) -> str:
        """Store address to pass to `Collectives.connect`."""
        return f"tcp://{self._host}:{self.port}"

    @property
    def refused(self) -> int:
        """Number of connections that were rejected."""
        return self._native.refused

    def close(self) -> None:
        """Stops the server and drops its contents; a second call does nothing."""
        self._native.close()
