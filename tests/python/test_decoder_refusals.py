"""Unsupported and unknown keys of a config are rejected by name."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import decode
from decoder.config import config_of
from decoder.keys import CHANGES, HARMLESS
from decoder.rope import RopeScaling
from decoder_models import EXPERTS, LLAMA_3, MODELS, POSITIONS, SIZES, SLIDES, said
from program import Refused

MIXTRAL = dict(num_local_experts=4, num_experts_per_tok=2)


def complaint_of(config: dict[str, Any], positions: int = POSITIONS) -> str:
    with pytest.raises(Refused) as raised:
        config_of(config, "config.json", positions_max=positions).check(1)
    return str(raised.value)


@pytest.mark.parametrize("key", CHANGES)
def test_what_the_tasks_cannot_do_is_named(key: str) -> None:
    complaint = complaint_of(said("llama", **{key: "something"}))
    assert f"{key} 'something' ({CHANGES[key][1]}) is not among what the tasks can do" in complaint


@pytest.mark.parametrize("key", CHANGES)
def test_values_that_change_nothing_are_taken(key: str) -> None:
    for value in (*CHANGES[key][0], None):
        config_of(said("llama", **{key: value}), "config.json")


@pytest.mark.parametrize("key", sorted(HARMLESS))
def test_keys_that_change_nothing_are_taken(key: str) -> None:
    config_of(said("qwen3", **{key: "something"}), "config.json")


def test_an_unknown_key_is_refused() -> None:
    complaint = complaint_of(said("llama", my_multiplier=3.0))
    assert complaint == "config.json: my_multiplier 3.0 is no known key of a llama"


def test_every_fault_is_named_at_once() -> None:
    complaint = complaint_of(
        said(
            "deepseek_v3",
            kv_lora_rank=512,
            n_shared_experts=1,
            quantization_config={"quant_method": "fp8"},
            unknown_of_deepseek=1,
        )
    )
    for part in ("model_type 'deepseek_v3' is none of llama,", "kv_lora_rank 512",
                 "n_shared_experts 1", "quantization_config {'quant_method': 'fp8'}"):  # fmt: skip
        assert part in complaint
    assert "unknown_of_deepseek" not in complaint


CANNOT_BE = {
    "gemma": (said("gemma"), "model_type 'gemma' is none of"),
    "no model type": (dict(SIZES), "it does not say model_type"),
    "head of a classifier": (
        said("llama", architectures=["LlamaForSequenceClassification"]),
        "lack LlamaForCausalLM",
    ),
    "key of another family": (
        said("llama", sliding_window=4096),
        "sliding_window 4096 is no known key of a llama, which belongs to mistral",
    ),
    "experts of a dense family": (said("qwen3", num_experts=8), "num_experts 8 is no known key"),
    "normalising of mixtral": (
        said("mixtral", **MIXTRAL, norm_topk_prob=False),
        "norm_topk_prob False is no known key of a mixtral, which belongs to qwen3_moe",
    ),
    "yarn": (said("llama", rope_scaling={"rope_type": "yarn"}), "rope_scaling of type 'yarn'"),
    "yarn of transformers 5": (
        said("qwen3", rope_parameters={"rope_type": "yarn", "factor": 4.0}),
        "rope_parameters of type 'yarn'",
    ),
    "old linear": (said("llama", rope_scaling={"type": "linear", "factor": 2.0}), "'linear'"),
    "a factor of the default": (said("llama", rope_scaling={"factor": 2.0}), "factor 2.0"),
    "rope parts": (
        said("llama", rope_parameters={"rope_theta": 1e4, "partial_rotary_factor": 0.5}),
        "partial_rotary_factor 0.5",
    ),
    "positions of three kinds": (
        said("qwen2", rope_scaling={"type": "default", "mrope_section": [16, 24, 24]}),
        "mrope_section",
    ),
    "rope by layer type": (
        said(
            "qwen3",
            **SLIDES,
            max_window_layers=1,
            rope_parameters={
                "full_attention": {"rope_theta": 1e6},
                "sliding_attention": {"rope_theta": 1e4},
            },
        ),
        "rope_parameters of full_attention and sliding_attention is not among",
    ),
    "two bases": (
        said("llama", rope_theta=1e4, rope_parameters={"rope_theta": 1e6}),
        "rope_theta 10000.0 and rope_parameters's rope_theta 1000000.0 differ",
    ),
    "two scalings": (
        said("llama", rope_scaling=LLAMA_3, rope_parameters={"rope_theta": 1e6}),
        "rope_scaling and rope_parameters differ",
    ),
    "llama 3 without a factor": (
        said("llama", rope_parameters={"rope_type": "llama3", "factor": 8.0}),
        "does not say low_freq_factor and high_freq_factor and original_max_position_embeddings",
    ),
    "rope that is a list": (said("llama", rope_parameters=[1]), "must be an object, not [1]"),
    "rope_theta of 0": (said("llama", rope_theta=0), "rope_theta must be above 0"),
    "infinite epsilon": (said("llama", rms_norm_eps=float("inf")), "rms_norm_eps must be a finite"),
    "negative epsilon": (said("llama", rms_norm_eps=-1.0), "rms_norm_eps must be at least 0"),
    "a large size": (said("llama", hidden_size=2**40), "hidden_size must be a number of 32 bits"),
    "many layers": (said("llama", num_hidden_layers=10**9), "num_hidden_layers must be from 1"),
    "window of 0": (said("mistral", sliding_window=0), "sliding_window must be at least 1"),
    "other layer types": (
        said("qwen3", layer_types=["full_attention", "linear_attention"]),
        "layer_types must be full_attention or sliding_attention",
    ),
    "too few layer types": (said("qwen3", layer_types=["full_attention"]), "each of 2 layers"),
    "layer types without a window": (
        said("qwen3", layer_types=["full_attention", "sliding_attention"]),
        "contradict a sliding_window of None in a qwen3",
    ),
    "layer types of a mistral": (
        said("mistral", sliding_window=8, layer_types=["full_attention", "sliding_attention"]),
        "contradict a sliding_window of 8 in a mistral",
    ),
    "eos beyond the vocabulary": (said("llama", eos_token_id=[1, 256]), "up to 8 tokens from 0 to"),
    "too many eos": (said("llama", eos_token_id=list(range(9))), "up to 8 tokens"),
    "eos in words": (said("llama", eos_token_id="</s>"), "eos_token_id must be a number"),
    "no experts": (said("mixtral"), "a mixtral must say num_experts_per_tok and num_local_experts"),
    "two numbers of experts": (
        said("mixtral", **MIXTRAL, num_experts=8),
        "num_local_experts and num_experts differ",
    ),
    "no size of experts": (
        said("qwen3_moe", num_experts=8, num_experts_per_tok=2),
        "it does not say moe_intermediate_size",
    ),
    "sparse step of 0": (said("qwen3_moe", **EXPERTS, decoder_sparse_step=0), "decoder_sparse_"),
    "dense layers in words": (
        said("qwen3_moe", **EXPERTS, mlp_only_layers="all"),
        "mlp_only_layers must be a list",
    ),
    "too many picks": (
        said("qwen3_moe", **EXPERTS | {"num_experts_per_tok": 9}),
        "of 8 experts a token picks at most 8, not 9",
    ),
    "too few positions": (
        said("llama", max_position_embeddings=16),
        "--positions: the model has 16 (max_position_embeddings), not 24",
    ),
}


@pytest.mark.parametrize("name", CANNOT_BE)
def test_a_config_that_cannot_be_is_refused(name: str) -> None:
    config, complaint = CANNOT_BE[name]
    assert complaint in complaint_of(config)


def test_a_config_that_the_tasks_cannot_do_ends_in_one_sentence(tmp_path: Path) -> None:
    about = tmp_path / "config.json"
    about.write_text(json.dumps(said("llama", final_logit_softcapping=30.0)))
    with pytest.raises(Refused) as raised:
        decode.main(["--config", str(about)])
    assert str(raised.value) == (
        f"{about}: final_logit_softcapping 30.0 (capped logits) is not among what the tasks can do"
    )


DEFAULTS = {
    # The defaults of transformers 5's classes for these configs.
    "llama": ("kv 8, dim 8, eps 1e-06, theta 10000, windows None None, eos 2"),
    "mistral": ("kv 8, dim 8, eps 1e-06, theta 10000, windows 4096 4096, eos 2"),
    "mixtral": ("kv 8, dim 8, eps 1e-05, theta 1e+06, windows None None, eos 2"),
    "qwen2": ("kv 32, dim 8, eps 1e-06, theta 10000, windows None None, eos "),
    "qwen3": ("kv 32, dim 128, eps 1e-06, theta 10000, windows None None, eos "),
    "qwen3_moe": ("kv 4, dim 8, eps 1e-06, theta 10000, windows None None, eos "),
}


@pytest.mark.parametrize("kind", DEFAULTS)
def test_what_a_config_leaves_out_is_as_transformers_has_it(kind: str) -> None:
    least = dict(
        vocab_size=512, hidden_size=64, num_hidden_layers=2, num_attention_heads=8,
        intermediate_size=128, num_experts_per_tok=2, num_experts=4, moe_intermediate_size=64,
        model_type=kind,
    )  # fmt: skip
    if kind not in ("mixtral", "qwen3_moe"):
        del least["num_experts_per_tok"], least["num_experts"]
    if kind != "qwen3_moe":
        del least["moe_intermediate_size"]
    found = config_of(least, "config.json")
    windows = " ".join(str(found.window(layer)) for layer in range(2))
    eos = " ".join(str(token) for token in found.eos_token_id)
    assert DEFAULTS[kind] == (
        f"kv {found.num_key_value_heads}, dim {found.head_dim}, eps {found.rms_norm_eps:g}, theta "
        f"{found.rope_theta:g}, windows {windows}, eos {eos}"
    )
    nulls = config_of({**least, "head_dim": None, "num_key_value_heads": None}, "config.json")
    assert (nulls.num_key_value_heads, nulls.head_dim) == (8, 8)


def test_rotation_is_read_in_each_of_its_forms() -> None:
    scaling = RopeScaling(8.0, 1.0, 4.0, 16)
    whole = LLAMA_3 | {"rope_theta": 5e5}
    forms = [
        {"rope_theta": 5e5, "rope_scaling": LLAMA_3},
        {"rope_scaling": whole},
        {"rope_parameters": whole},
        {"rope_parameters": LLAMA_3, "rope_theta": 5e5},
        {"rope_parameters": whole, "rope_scaling": whole, "rope_theta": 5e5},
        {"rope_parameters": {"full_attention": whole}, "layer_types": ["full_attention"] * 2},
    ]
    for form in forms:
        found = config_of(said("llama", **form), "config.json")
        assert (found.rope_theta, found.rope_scaling) == (5e5, scaling), form


def test_tokens_that_end_are_one_or_several() -> None:
    for value, tokens in ((7, (7,)), ([7, 9], (7, 9)), ([], ()), (None, ())):
        assert config_of(said("llama", eos_token_id=value), "config.json").eos_token_id == tokens


def test_a_window_of_qwen_is_there_only_if_it_is_used() -> None:
    config = said("qwen2", sliding_window=5, max_window_layers=1, use_sliding_window=False)
    assert config_of(config, "config.json").windows == (None, None)
    config["use_sliding_window"] = True
    assert config_of(config, "config.json").windows == (None, 5)
    assert config_of({**config, "max_window_layers": 0}, "config.json").windows == (5, 5)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_of_the_families_is_taken(name: str) -> None:
    config_of(MODELS[name], "config.json", positions_max=POSITIONS).check(2)
