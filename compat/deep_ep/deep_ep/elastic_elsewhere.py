"""What DeepEP's ElasticBuffer does besides, and this one does not: said when it is called."""

from __future__ import annotations

from typing import Any, NoReturn

from .refusal import unsupported

ENGRAM = "there is no remote cache here"
PIPELINE = "pipelines of ranks are torch.distributed's; the backend `tokenyard` has send and recv"
GATHER = "gathering is torch.distributed's; the backend `tokenyard` has all_gather"


class Elsewhere:
    """Calls that raise Unsupported."""

    def engram_write(self, *arguments: Any, **options: Any) -> NoReturn:
        raise unsupported("engram_write", ENGRAM)

    def engram_fetch(self, *arguments: Any, **options: Any) -> NoReturn:
        raise unsupported("engram_fetch", ENGRAM)

    @staticmethod
    def get_engram_storage_size_hint(*arguments: Any, **options: Any) -> NoReturn:
        raise unsupported("get_engram_storage_size_hint", ENGRAM)

    def pp_set_config(self, *arguments: Any, **options: Any) -> NoReturn:
        raise unsupported("pp_set_config", PIPELINE)

    def pp_send(self, *arguments: Any, **options: Any) -> NoReturn:
        raise unsupported("pp_send", PIPELINE)

    def pp_recv(self, *arguments: Any, **options: Any) -> NoReturn:
        raise unsupported("pp_recv", PIPELINE)

    @staticmethod
    def get_pp_buffer_size_hint(*arguments: Any, **options: Any) -> NoReturn:
        raise unsupported("get_pp_buffer_size_hint", PIPELINE)

    def agrs_set_config(self, *arguments: Any, **options: Any) -> NoReturn:
        raise unsupported("agrs_set_config", GATHER)

    def create_agrs_session(self, *arguments: Any, **options: Any) -> NoReturn:
        raise unsupported("create_agrs_session", GATHER)

    def destroy_agrs_session(self, *arguments: Any, **options: Any) -> NoReturn:
        raise unsupported("destroy_agrs_session", GATHER)

    def agrs_new_session(self, *arguments: Any, **options: Any) -> NoReturn:
        raise unsupported("agrs_new_session", GATHER)

    def agrs_get_inplace_tensor(self, *arguments: Any, **options: Any) -> NoReturn:
        raise unsupported("agrs_get_inplace_tensor", GATHER)

    def all_gather(self, *arguments: Any, **options: Any) -> NoReturn:
        raise unsupported("all_gather", GATHER)

    @staticmethod
    def get_agrs_buffer_size_hint(*arguments: Any, **options: Any) -> NoReturn:
        raise unsupported("get_agrs_buffer_size_hint", GATHER)

    @staticmethod
    def get_agrs_num_max_session_bytes(*arguments: Any, **options: Any) -> NoReturn:
        raise unsupported("get_agrs_num_max_session_bytes", GATHER)
