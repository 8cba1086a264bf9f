"""Keys of a config.json beyond the shape of a model: ignored ones, and unsupported values.

A key that is not listed here is rejected, since it may change the results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .families import FAMILIES, Family

READ = frozenset(
    {
        *("architectures", "model_type", "vocab_size", "hidden_size", "num_hidden_layers"),
        *("num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size"),
        *("rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters", "layer_types"),
        *("max_position_embeddings", "eos_token_id", "tie_word_embeddings"),
    }
)
"""Keys of every family that config.py reads."""

HARMLESS = frozenset(
    {
        # Origin of the file, and how to load it.
        *("_name_or_path", "_commit_hash", "transformers_version", "transformers.js_config"),
        *("torch_dtype", "dtype", "use_bfloat16", "torchscript", "unsloth_fixed"),
        *("is_llama_config", "max_sequence_length", "unsloth_version"),
        *("_attn_implementation", "attn_implementation"),
        *("_attn_implementation_autoset", "_flash_attn_2_enabled", "tokenizer_class"),
        # Training.
        *("attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "initializer_range"),
        *("router_aux_loss_coef", "router_jitter_noise", "output_router_logits"),
        # Results of a call, and how they are computed.
        *("use_cache", "output_attentions", "output_hidden_states", "output_scores"),
        *("return_dict", "use_return_dict", "return_dict_in_generate", "pretraining_tp"),
        *("chunk_size_feed_forward", "tf_legacy_loss"),
        # Other uses of the model.
        *("id2label", "label2id", "problem_type", "finetuning_task", "task_specific_params"),
        *("prefix", "decoder_start_token_id", "sep_token_id"),
        # Prompts come as token numbers, and nothing is padded.
        *("bos_token_id", "pad_token_id", "unk_token_id"),
        # Sampling, and lengths that the command line gives: decoding is greedy.
        *("do_sample", "temperature", "top_k", "top_p", "typical_p", "max_length"),
        *("length_penalty", "early_stopping", "num_return_sequences", "remove_invalid_values"),
    }
)
"""Keys that do not affect greedy decoding, whatever their value."""

NOTHING = ()
CHANGES: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "hidden_act": (("silu", "swish"), "another activation"),
    "hidden_activation": (("silu", "swish"), "another activation"),
    "attention_bias": ((False,), "biases of all projections of the attention"),
    "mlp_bias": ((False,), "biases of the feed-forward"),
    "quantization_config": (NOTHING, "quantised weights"),
    "compression_config": (NOTHING, "compressed weights"),
    "auto_map": (NOTHING, "code of the model's own"),
    "partial_rotary_factor": ((1,), "heads that rotate in part"),
    "rotary_pct": ((1,), "heads that rotate in part"),
    "rope_interleaved": ((False,), "rotation of neighbours"),
    "rope_interleave": ((False,), "rotation of neighbours"),
    "original_max_position_embeddings": (NOTHING, "stretched rotation"),
    "use_mrope": ((False,), "rotation by several positions"),
    "mrope_section": (NOTHING, "rotation by several positions"),
    "no_rope_layers": (([],), "layers that do not rotate"),
    "no_rope_layer_interval": ((0,), "layers that do not rotate"),
    "final_logit_softcapping": (NOTHING, "capped logits"),
    "attn_logit_softcapping": (NOTHING, "capped attention scores"),
    "router_logit_softcapping": (NOTHING, "capped router scores"),
    "embedding_multiplier": ((1,), "scaled embeddings"),
    "scale_emb": ((1,), "scaled embeddings"),
    "residual_multiplier": ((1,), "scaled residuals"),
    "scale_depth": (NOTHING, "scaled residuals"),
    "attention_multiplier": (NOTHING, "scaled attention scores"),
    "query_pre_attn_scalar": (NOTHING, "scaled attention scores"),
    "attn_temperature_tuning": ((False, 0), "attention scaled by position"),
    "logits_scaling": ((1,), "scaled logits"),
    "logit_scale": ((1,), "scaled logits"),
    "dim_model_base": (NOTHING, "scaled logits"),
    "clip_qkv": (NOTHING, "clipped Q, K and V"),
    "use_qk_norm": ((False,), "normalised Q and K"),
    "qk_norm": ((False,), "normalised Q and K"),
    "qk_layernorm": ((False,), "normalised Q and K"),
    "attention_chunk_size": (NOTHING, "attention in chunks"),
    "parallel_attn": ((False,), "attention beside the feed-forward"),
    "use_parallel_residual": ((False,), "attention beside the feed-forward"),
    "alibi": ((False,), "attention biased by distance"),
    "kv_lora_rank": (NOTHING, "latent attention"),
    "q_lora_rank": (NOTHING, "latent attention"),
    "qk_nope_head_dim": (NOTHING, "latent attention"),
    "qk_rope_head_dim": (NOTHING, "latent attention"),
    "v_head_dim": (NOTHING, "values of another size than keys"),
    "n_shared_experts": ((0,), "shared experts"),
    "num_shared_experts": ((0,), "shared experts"),
    "shared_expert_intermediate_size": ((0,), "shared experts"),
    "shared_intermediate_size": ((0,), "shared experts"),
    "n_routed_experts": ((0,), "experts of another family"),
    "first_k_dense_replace": ((0,), "experts of another family"),
    "n_group": ((1,), "experts picked by groups"),
    "topk_group": ((1,), "experts picked by groups"),
    "routed_scaling_factor": ((1,), "scaled experts"),
    "scoring_func": (("softmax",), "another weighting of experts"),
    "topk_method": (("greedy",), "another choice of experts"),
    "num_nextn_predict_layers": ((0,), "layers that predict further tokens"),
    "is_encoder_decoder": ((False,), "an encoder"),
    "is_decoder": ((False, True), "a decoder"),
    "add_cross_attention": ((False,), "an encoder"),
    "tie_encoder_decoder": ((False,), "an encoder"),
    "cross_attention_hidden_size": (NOTHING, "an encoder"),
    "pruned_heads": (({},), "heads that are missing"),
    "num_beams": ((1,), "decoding that is not greedy"),
    "num_beam_groups": ((1,), "decoding that is not greedy"),
    "diversity_penalty": ((0,), "decoding that is not greedy"),
    "repetition_penalty": ((1,), "penalties of tokens"),
    "no_repeat_ngram_size": ((0,), "penalties of tokens"),
    "encoder_no_repeat_ngram_size": ((0,), "penalties of tokens"),
    "exponential_decay_length_penalty": (NOTHING, "penalties of tokens"),
    "min_length": ((0,), "a shortest answer"),
    "bad_words_ids": (NOTHING, "tokens that may not come"),
    "suppress_tokens": (NOTHING, "tokens that may not come"),
    "begin_suppress_tokens": (NOTHING, "tokens that may not come"),
    "forced_bos_token_id": (NOTHING, "tokens that must come"),
    "forced_eos_token_id": (NOTHING, "tokens that must come"),
}
"""By key: values without effect, and the meaning of any other value."""


def complaints(said: Mapping[str, Any], family: Family | None) -> Iterator[str]:
    """Yields what the config contains that the tasks do not, or perhaps not, support.

    For an unknown family, names only keys with a known meaning.
    """
    reads = READ | (family.reads if family is not None else frozenset())
    for key, value in said.items():
        if key in reads or key in HARMLESS or value is None:
            continue
        if key in CHANGES:
            harmless, meaning = CHANGES[key]
            if value not in harmless:
                yield f"{key} {value!r} ({meaning}) is not among what the tasks can do"
        elif family is not None:
            others = [name for name, other in FAMILIES.items() if key in other.reads]
            whose = f", which belongs to {' and '.join(others)}" if others else ""
            yield f"{key} {value!r} is no known key of a {said.get('model_type')}{whose}"
