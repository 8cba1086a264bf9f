"""The decoder example's check detects graphs that drop part of a model."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from decoder.check import TOLERANCE, check
from decoder.reference import Reference
from decoder_models import MODELS, drawn

PROMPT = [(7 * i + 3) % 256 for i in range(12)]
COUNT = 33


def greedy(said, tensors):
    """Returns the prompt and the tokens that the reference finds after it."""
    reference, tokens = Reference(said, tensors.get), list(PROMPT)
    while len(tokens) < COUNT:
        tokens.append(int(np.argmax(reference.logits(tokens)[-1])))
    return tokens


def verdict(said, tensors, found, stops=()):
    return check(Reference(said, tensors.get), [PROMPT], [found], stops, COUNT)


@pytest.mark.parametrize("name", MODELS)
def test_the_definition_agrees_with_itself(name):
    tensors = drawn(MODELS[name])
    assert str(verdict(MODELS[name], tensors, greedy(MODELS[name], tensors))) == (
        "NumPy finds the same"
    )


def without(name, ending, value):
    """Returns a model's tensors, those with this suffix all of one value."""
    tensors = drawn(MODELS[name])
    changed = {key: np.full_like(t, value) for key, t in tensors.items() if key.endswith(ending)}
    assert changed
    return tensors | changed


DROPPED = {
    "biases": ("qwen2", {"model_type": "llama"}, None),
    "one bias": ("qwen2", {}, ("layers.0.self_attn.v_proj.bias", 0)),
    "norms": ("qwen3", {"model_type": "llama"}, None),
    "a window": ("mistral with a window", {"sliding_window": None}, None),
    "windows of some layers": (
        "qwen2 with a window in later layers",
        {"use_sliding_window": False},
        None,
    ),
    "all but windows of some layers": (
        "qwen2 with a window in later layers",
        {"max_window_layers": 0},
        None,
    ),
    "stretched frequencies": ("llama 3 of transformers 5", {"rope_parameters": None}, None),
    "a base": ("qwen3", {"rope_theta": None}, None),
    "weights that do not add up to 1": (
        "qwen3_moe that does not normalise",
        {"norm_topk_prob": True},
        None,
    ),
    "dense layers": ("qwen3_moe with a window", {"use_sliding_window": False}, None),
}


@pytest.mark.parametrize("what", DROPPED)
def test_what_a_graph_drops_is_found(what):
    name, changed, values = DROPPED[what]
    tensors = drawn(MODELS[name]) if values is None else without(name, *values)
    found = greedy(MODELS[name] | changed, tensors)
    said = verdict(MODELS[name], drawn(MODELS[name]), found)
    assert said.wrong, str(said)
    assert "NumPy finds others: at position" in str(said)


@pytest.mark.parametrize(("lower", "is_tie"), [(0.9, True), (1.5, False)])
def test_a_token_that_is_nearly_as_good_is_told_and_taken(lower, is_tie):
    class Says:
        def logits(self, tokens):
            rows = np.random.default_rng(3).standard_normal((len(tokens), 256))
            rows[:, 7] = 9.0
            rows[12, 5] = 9.0 - lower * TOLERANCE * rows[12].std()
            return rows

    told = check(Says(), [PROMPT], [[*PROMPT, 7, 5, 7]], [], 15)
    said = "at position 13 7, of which the logit is above that of 5 by"
    assert [len(told.ties), len(told.wrong)] == ([1, 0] if is_tie else [0, 1])
    assert said in (told.ties + told.wrong)[0]
    assert str(told).startswith(
        "NumPy finds the same, but for what are nearly ties" if is_tie else "NumPy finds others"
    )


@pytest.mark.parametrize(
    ("stops", "cut", "complaint"),
    [
        ([], 2, "an end after 19 tokens"),  # Too few, without a stop token.
        ("third", 0, "an end after 21 tokens"),  # It continues beyond its end.
        ("third", 18, None),
    ],
)
def test_where_a_sequence_ends_is_checked(stops, cut, complaint):
    said, tensors = MODELS["llama"], drawn(MODELS["llama"])
    found = greedy(said, tensors)
    ends = [found[len(PROMPT) + 2]] if stops == "third" else stops
    told = verdict(said, tensors, found[: len(found) - cut], ends)
    assert told.wrong == ([] if complaint is None else [complaint])
