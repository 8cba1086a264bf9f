"""The shape of a model, as Hugging Face's config.json tells it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Config:
    """Names are those of config.json, where there is one."""

    vocab_size: int = 256
    hidden_size: int = 64
    num_hidden_layers: int = 2
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 16
    intermediate_size: int = 128
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    num_local_experts: int = 0
    """0: a dense feed-forward."""
    num_experts_per_tok: int = 2
    page_tokens: int = 8
    """Positions of a page of the KV cache."""
    positions_max: int = 64

    @property
    def group(self) -> int:
        """Query heads of a KV head."""
        return self.num_attention_heads // self.num_key_value_heads

    def check(self, ranks: int) -> None:
        """Raises ValueError naming what cannot be."""
        rules = {
            "hidden_size must be a multiple of 8": self.hidden_size % 8 == 0,
            "num_attention_heads must be a multiple of num_key_value_heads":
                self.num_attention_heads % self.num_key_value_heads == 0,
            f"num_key_value_heads must be a multiple of the {ranks} ranks":
                self.num_key_value_heads % ranks == 0,
            f"intermediate_size must be a multiple of 8 times the {ranks} ranks":
                self.intermediate_size % (8 * ranks) == 0,
            f"vocab_size must be a multiple of the {ranks} ranks": self.vocab_size % ranks == 0,
            "head_dim must be even and at most 128":
                self.head_dim % 2 == 0 and self.head_dim <= 128,
            "positions_max must be a multiple of page_tokens":
                self.positions_max % self.page_tokens == 0,
        }  # fmt: skip
        for rule, kept in rules.items():
            if not kept:
                raise ValueError(rule)


def read_config(path: Path, **others: int) -> Config:
    """From a config.json; `others` are what such a file does not say."""
    said = json.loads(path.read_text())
    missing = {"hidden_size", "num_attention_heads"} - said.keys()
    if missing:
        raise ValueError(f"{path} does not say {' and '.join(sorted(missing))}")
    said.setdefault("head_dim", said["hidden_size"] // said["num_attention_heads"])
    known = {name: said[name] for name in Config.__dataclass_fields__ if name in said}
    return Config(**{**known, **others})
