"""Every family of models that the decoder example supports, against independent definitions."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from decoder.config import SIZES as NEEDED
from decoder.config import config_of, said_in
from decoder.families import FAMILIES
from decoder.reference import Reference, stored
from decoder.tensors import Tensors
from decoder.weights import check_tensors
from decoder_models import (
    DENSE,
    FED,
    MODELS,
    POSITIONS,
    SIZES,
    config_for,
    drawn,
    logits_by_graph,
    saved,
)

TOLERANCE = 0.03
"""Tolerance in standard deviations of all logits: graphs keep some values in BF16."""


def worst(found, expected):
    return np.abs(found - expected).max() / expected.std()


@pytest.mark.parametrize("name", MODELS)
def test_a_graph_of_tiles_finds_the_logits_of_the_definition(name):
    tensors = drawn(MODELS[name])
    expected = Reference(MODELS[name], tensors.get).logits(FED)
    found = logits_by_graph(MODELS[name], tensors, ranks=2, tiles=True)
    assert worst(found, expected) < TOLERANCE


SHARED = ("llama 3", "qwen2 with a window in later layers", "qwen3")
"""Models that two ranks share."""


@pytest.mark.parametrize(
    ("name", "ranks"), [*((name, 1) for name in DENSE), *((name, 2) for name in SHARED)]
)
def test_a_graph_that_hands_on_words_finds_the_logits_of_the_definition(name, ranks):
    tensors = drawn(MODELS[name])
    expected = Reference(MODELS[name], tensors.get).logits(FED)
    found = logits_by_graph(MODELS[name], tensors, ranks=ranks)
    assert worst(found, expected) < TOLERANCE


KEPT = json.loads(Path(__file__).with_name("decoder_logits.json").read_text())
"""By model, the first logits of the last position, from transformers 5.24."""


@pytest.mark.parametrize("name", MODELS)
def test_the_definition_finds_what_transformers_found(name):
    tensors = drawn(MODELS[name])
    if float(tensors["model.norm.weight"][0]) != KEPT["drawn"][name]:
        pytest.skip("this NumPy draws other numbers from a seed")
    found = Reference(MODELS[name], tensors.get).logits(FED)[-1]
    np.testing.assert_allclose(found[: len(KEPT["logits"][name])], KEPT["logits"][name], atol=2e-4)


def of_transformers():
    for package in ("transformers", "torch"):
        pytest.importorskip(package, reason=f"pip install {package}: the families' own definitions")
    return sys.modules["transformers"]


@pytest.mark.parametrize("name", MODELS)
def test_the_definition_is_that_of_transformers(name, tmp_path):
    transformers = of_transformers()
    import torch

    folder = saved(tmp_path / "model", MODELS[name], drawn(MODELS[name]))
    model, loaded = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not any(loaded.values()), loaded
    with torch.no_grad():
        expected = model.eval()(torch.tensor([FED])).logits[0].double().numpy()
    found = Reference(MODELS[name], stored(folder)).logits(FED)
    np.testing.assert_allclose(found, expected, atol=2e-4)
    np.testing.assert_allclose(expected[-1][:4], KEPT["logits"][name], atol=2e-4)
    # transformers saves the same model with another form of its config.
    again = tmp_path / "again"
    model.save_pretrained(again)
    config = config_of(said_in(again / "config.json"), "again", positions_max=POSITIONS)
    assert config == config_for(MODELS[name])
    check_tensors(Tensors(again), config)
    found = Reference(said_in(again / "config.json"), stored(again)).logits(FED)
    np.testing.assert_allclose(found, expected, atol=2e-4)


@pytest.mark.parametrize("kind", FAMILIES)
def test_what_a_config_leaves_out_is_what_transformers_takes(kind):
    transformers = of_transformers()
    said = {"model_type": kind} | {name: value for name, value in SIZES.items() if name in NEEDED}
    family = FAMILIES[kind]
    if family.experts_at is not None:
        experts = {"num_experts": 8, "num_local_experts": 8, "moe_intermediate_size": 48}
        said |= {key: value for key, value in experts.items() if key in family.reads}
        said["num_experts_per_tok"] = 3
    # Other families' classes accept no null there.
    nulls = {"head_dim": None, "num_key_value_heads": None} if kind == "llama" else {}
    for others in ({}, nulls):
        theirs = transformers.AutoConfig.for_model(**said, **others)
        ours = config_of({**said, **others}, "ours")
        head_dim = getattr(theirs, "head_dim", None)
        assert ours.num_key_value_heads == theirs.num_key_value_heads
        if head_dim is not None:
            assert ours.head_dim == head_dim
        assert ours.rms_norm_eps == theirs.rms_norm_eps
        assert ours.rope_theta == theirs.rope_parameters["rope_theta"]
        assert ours.tie_word_embeddings == theirs.tie_word_embeddings
        assert ours.window(1) == getattr(theirs, "sliding_window", None)
        eos = theirs.eos_token_id
        assert ours.eos_token_id == (() if eos is None else (eos,))
