"""Tiny models of every family that the decoder example supports, and their graphs' logits."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

import tokenyard
from tokenyard.megakernel import Megakernel

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from decoder.config import Config, config_of, toy
from decoder.dense import DenseGraph
from decoder.model import DecodeGraph
from decoder.random_model import random_tensors
from decoder.tensors import WHOLE, Drawn
from decoder.tiles import UNIT_BYTES
from decoder.weights import read_weights

POSITIONS = 24
SIZES = {
    name: value for name, value in toy().items() if name not in ("model_type", "rope_theta")
} | {"max_position_embeddings": 64}
LLAMA_3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
"""Scaling that stretches some of the tiny model's frequencies fully, some partly, some not."""
SLIDES = {"use_sliding_window": True, "sliding_window": 5}
EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 48,
    "norm_topk_prob": True,
}


def said(model_type: str, **others: Any) -> dict[str, Any]:
    """Returns the contents of a config.json."""
    return {"model_type": model_type, **SIZES, **others}


MODELS = {
    "llama": said("llama", rope_theta=500000.0),
    "llama 3": said("llama", rope_theta=500000.0, rope_scaling=LLAMA_3),
    "llama 3 of transformers 5": said("llama", rope_parameters=LLAMA_3 | {"rope_theta": 1000.0}),
    "mistral": said("mistral", sliding_window=None),
    "mistral with a window": said("mistral", sliding_window=6),
    "mixtral": said("mixtral", num_local_experts=4, num_experts_per_tok=2),
    "mixtral with a window": said(
        "mixtral", num_local_experts=4, num_experts_per_tok=2, sliding_window=6
    ),
    "qwen2": said("qwen2", rope_parameters={"rope_theta": 1000.0, "rope_type": "default"}),
    "qwen2 with a window in later layers": said("qwen2", **SLIDES, max_window_layers=1),
    "qwen2 with a window by types": said(
        "qwen2", **SLIDES, layer_types=["sliding_attention", "full_attention"]
    ),
    "qwen3": said("qwen3", rope_theta=1000000.0),
    "qwen3 with tied head and a window": said(
        "qwen3", **SLIDES, max_window_layers=0, tie_word_embeddings=True
    ),
    "qwen3_moe": said("qwen3_moe", **EXPERTS),
    "qwen3_moe that does not normalise": said("qwen3_moe", **EXPERTS | {"norm_topk_prob": False}),
    "qwen3_moe with dense layers": said("qwen3_moe", **EXPERTS, decoder_sparse_step=2),
    "qwen3_moe with a window": said("qwen3_moe", **EXPERTS, **SLIDES, mlp_only_layers=[1]),
}
DENSE = [name for name, config in MODELS.items() if "num_experts_per_tok" not in config]
FED = [(7 * i + 3) % 256 for i in range(14)]


def config_for(config: dict[str, Any]) -> Config:
    return config_of(config, "the test", positions_max=POSITIONS)


def drawn(config: dict[str, Any], seed: int = 5) -> dict[str, np.ndarray]:
    """Returns tensors by name."""
    return random_tensors(config_for(config), seed)


def saved(folder: Path, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> Path:
    """Saves a model like Hugging Face."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / WHOLE, metadata={"format": "pt"})
    return folder


def logits_of_rank(
    world: tokenyard.World, config: dict[str, Any], tensors: dict[str, np.ndarray], tiles: bool
) -> np.ndarray:
    """Returns a rank's part of what `logits_by_graph` returns."""
    model_config = config_for(config)
    weights = read_weights(Drawn(tensors), model_config)
    prompt = [*FED, 0]
    if tiles:
        graph = DecodeGraph(world, model_config, weights, prompt=prompt, stops=[], tiles=4)
        kernel = Megakernel(world, graph.graph, workers=4, unit_bytes=UNIT_BYTES)
    else:
        graph = DenseGraph(world, model_config, weights, prompts=[prompt], stops=[], blocks=0)
        kernel = Megakernel(
            world,
            graph.graph,
            workers=graph.decoder.blocks,
            unit_bytes=graph.decoder.unit_bytes,
        )
    mine = model_config.vocab_size // world.size
    found = []
    for _ in FED:
        assert kernel.run(1) == 1
        found.append(graph.memory.read(graph.logits.piece, np.float32, mine).copy())
    world.barrier("all have their logits")
    return np.stack(found)


def logits_by_graph(
    config: dict[str, Any],
    tensors: dict[str, np.ndarray],
    *,
    ranks: int = 1,
    tiles: bool = False,
    hosts: int = 1,
) -> np.ndarray:
    """Returns the megakernel's logits [positions, vocabulary] for the tokens FED.

    `hosts`: on which the ranks count as being. If there are several, each rank is a process.
    """
    parts = tokenyard.launch(
        logits_of_rank,
        ranks=ranks,
        processes=hosts > 1,
        hosts=hosts,
        args=(config, tensors, tiles),
    )
    return np.concatenate(parts, axis=1)
