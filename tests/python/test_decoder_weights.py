"""The decoder example reads the weights of a model: of one file, or of shards and their index."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import decode
from decoder.config import Config
from decoder.tensors import INDEX, WHOLE, WeightsError
from decoder.weights import EMBEDDING, HEAD, random_weights, read_weights


def saved(path, weights, config, **changed):
    """A file such as Hugging Face's of a Llama or a Mixtral."""
    hidden = config.hidden_size
    tensors = {
        EMBEDDING: weights.embedding,
        "model.norm.weight": weights.final_norm,
        HEAD: weights.head,
    }
    for index, layer in enumerate(weights.layers):
        at = f"model.layers.{index}."
        tensors |= {
            at + "input_layernorm.weight": layer.attention_norm,
            at + "self_attn.q_proj.weight": layer.q.reshape(-1, hidden),
            at + "self_attn.k_proj.weight": layer.k.reshape(-1, hidden),
            at + "self_attn.v_proj.weight": layer.v.reshape(-1, hidden),
            at + "self_attn.o_proj.weight": layer.out.reshape(hidden, -1),
            at + "post_attention_layernorm.weight": layer.mlp_norm,
        }
        if layer.router is None:
            names = {"gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}
            tensors |= {
                f"{at}{name}.weight": getattr(layer, ours)[0] for ours, name in names.items()
            }
            continue
        moe = at + "block_sparse_moe."
        tensors[moe + "gate.weight"] = layer.router
        for expert in range(config.num_local_experts):
            for ours, name in {"gate": "w1", "up": "w3", "down": "w2"}.items():
                tensors[f"{moe}experts.{expert}.{name}.weight"] = getattr(layer, ours)[expert]
    tensors |= changed
    tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(tensors, path)
    return tensors


SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def saved_in_shards(folder, tensors):
    """The same tensors, every other one in the second file, and an index; its map is returned."""
    folder.mkdir()
    shard_of = {name: SHARDS[at % 2] for at, name in enumerate(sorted(tensors))}
    for shard in SHARDS:
        held = {name: tensors[name] for name in tensors if shard_of[name] == shard}
        save_file(held, folder / shard)
    write_index(folder, shard_of)
    return shard_of


def write_index(folder, weight_map):
    said = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(said))


@pytest.mark.parametrize("kind", ["file", "folder", "folder of shards", "index"])
@pytest.mark.parametrize("experts", [0, 4])
def test_weights_come_from_safetensors(experts, kind, tmp_path, capsys):
    config = Config(num_local_experts=experts)
    whole = tmp_path / WHOLE
    tensors = saved(whole, random_weights(config, 5), config)
    shards = tmp_path / "shards"
    saved_in_shards(shards, tensors)
    given = {
        "file": whole,
        "folder": tmp_path,
        "folder of shards": shards,
        "index": shards / INDEX,
    }
    about = tmp_path / "config.json"
    said = {name: value for name, value in vars(config).items() if name != "rope_scaling"}
    about.write_text(json.dumps(said))
    drawn = ["--tokens", "8", "--seed", "5", "--no-check", "--experts", str(experts)]
    assert decode.main(drawn) == 0
    tokens = capsys.readouterr().out.splitlines()[0]
    read = ["--config", str(about), "--weights", str(given[kind])]
    assert decode.main(["--tokens", "8", *read]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[0] == tokens
    assert "NumPy finds the same" in said


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({NORM: None}, f"has no tensor {NORM}"),
        ({NORM: np.ones(63, np.float32)}, rf"{NORM} has the shape \[63\], .* have \[64\]"),
        ({HEAD: np.ones((64, 256), np.float32)}, rf"{HEAD} has the shape"),
        ({HEAD: np.ones((256, 64), np.int8)}, rf"{HEAD} is of dtype I8, .* BF16, F16, F32, F64"),
    ],
)
def test_weights_of_another_model_are_named(changed, complaint, tmp_path):
    config = Config()
    file = tmp_path / WHOLE
    saved(file, random_weights(config, 5), config, **changed)
    with pytest.raises(WeightsError, match=complaint):
        decode.main(["--tokens", "8", "--weights", str(file)])


NO_HEAD = f"has no tensor {HEAD}, and the config says"
UNTIED = [
    ({}, "nothing of tie_word_embeddings, which means false for a model of type 'llama'"),
    (dict(tie_word_embeddings=False), "tie_word_embeddings false"),
    (dict(model_type="gemma", tie_word_embeddings=False), "tie_word_embeddings false"),
]
TIED = [dict(tie_word_embeddings=True), dict(model_type="gemma")]


@pytest.mark.parametrize(("said", "complaint"), UNTIED)
def test_a_head_that_is_missing_is_named(said, complaint, tmp_path):
    config = Config(**said)
    file = tmp_path / WHOLE
    saved(file, random_weights(config, 5), config, **{HEAD: None})
    with pytest.raises(WeightsError) as raised:
        read_weights(file, config)
    assert str(raised.value) == (
        f"{file} {NO_HEAD} {complaint}, so {EMBEDDING} does not stand in for it"
    )


@pytest.mark.parametrize("said", TIED)
def test_the_embedding_is_the_head_where_the_config_ties_them(said, tmp_path):
    config = Config(**said)
    file = tmp_path / WHOLE
    saved(file, random_weights(config, 5), config, **{HEAD: None})
    found = read_weights(file, config)
    assert (found.head == random_weights(config, 5).embedding).all()


@pytest.mark.parametrize("said", TIED)
def test_a_head_that_differs_is_used_though_the_config_ties_it(said, tmp_path):
    config, drawn = Config(**said), random_weights(Config(), 5)
    file = tmp_path / WHOLE
    saved(file, drawn, config)
    with pytest.warns(UserWarning, match=rf"{HEAD} is not {EMBEDDING}, though the config says"):
        found = read_weights(file, config)
    assert (found.head == drawn.head).all()


@pytest.mark.parametrize(("ties", "same"), [(True, True), (False, True), (False, False)])
def test_a_head_as_the_config_says_needs_no_warning(ties, same, tmp_path):
    config, drawn = Config(tie_word_embeddings=ties), random_weights(Config(), 5)
    head = drawn.embedding if same else drawn.head
    file = tmp_path / WHOLE
    saved(file, drawn, config, **{HEAD: head})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (read_weights(file, config).head == head).all()


@pytest.mark.parametrize("says", [True, False, None])
def test_a_config_file_says_whether_the_head_is_tied(says, tmp_path, capsys):
    config = Config(num_hidden_layers=1)
    file, about = tmp_path / WHOLE, tmp_path / "config.json"
    saved(file, random_weights(config, 5), config, **{HEAD: None})
    about.write_text(json.dumps(vars(config) | {"tie_word_embeddings": says}))
    arguments = ["--tokens", "8", "--config", str(about), "--weights", str(file)]
    if says:
        assert decode.main(arguments) == 0
        assert "NumPy finds the same" in capsys.readouterr().out
    else:
        with pytest.raises(WeightsError, match=NO_HEAD):
            decode.main(arguments)


def test_what_is_no_safetensors_file_is_named(tmp_path):
    file = tmp_path / WHOLE
    file.write_text("hello")
    with pytest.raises(WeightsError, match="is not a safetensors file"):
        decode.main(["--tokens", "8", "--weights", str(file)])


@pytest.fixture
def shards(tmp_path):
    """A folder of them, and what its index says."""
    config = Config()
    folder = tmp_path / "shards"
    tensors = saved(tmp_path / WHOLE, random_weights(config, 5), config)
    return folder, saved_in_shards(folder, tensors)


def complaint_of(weights):
    with pytest.raises(WeightsError) as raised:
        read_weights(weights, Config())
    return str(raised.value)


def test_a_shard_that_is_missing_is_named(shards):
    folder, _ = shards
    (folder / SHARDS[1]).unlink()
    said = f"{folder / INDEX} names '{SHARDS[1]}', which its folder does not have"
    assert complaint_of(folder) == said


def test_a_tensor_that_an_index_lacks_is_named(shards):
    folder, shard_of = shards
    del shard_of[NORM]
    write_index(folder, shard_of)
    assert complaint_of(folder) == f"{folder / INDEX} has no tensor {NORM}"


def test_a_tensor_that_a_shard_lacks_is_named(shards):
    folder, shard_of = shards
    others = next(shard for shard in SHARDS if shard != shard_of[NORM])
    write_index(folder, shard_of | {NORM: others})
    said = f"{folder / others} has no tensor {NORM}, which {folder / INDEX} says it has"
    assert complaint_of(folder) == said


@pytest.mark.parametrize("above", [True, False])
def test_a_shard_outside_of_the_folder_is_refused(above, shards):
    folder, shard_of = shards
    outside = f"../{WHOLE}" if above else str(folder.parent / WHOLE)
    write_index(folder, shard_of | {NORM: outside})
    said = f"{folder / INDEX} names '{outside}', which is outside of its folder"
    assert complaint_of(folder) == said


def test_shards_may_be_links(shards):
    folder, _ = shards
    (folder / SHARDS[0]).rename(folder.parent / "blob")
    (folder / SHARDS[0]).symlink_to("../blob")
    found, drawn = read_weights(folder, Config()), random_weights(Config(), 5)
    assert (found.head == drawn.head).all()
    assert (found.layers[1].gate == drawn.layers[1].gate).all()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "is not JSON"),
        ("[]", "has no weight_map"),
        ('{"weight_map": {"a": 1}}', "has no weight_map"),
    ],
)
def test_what_is_no_index_is_named(text, complaint, tmp_path):
    (tmp_path / INDEX).write_text(text)
    assert f"{tmp_path / INDEX} {complaint}" in complaint_of(tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        decode.main(["--weights", str(tmp_path)])
    assert f"{tmp_path} has neither {INDEX} nor {WHOLE}" in capsys.readouterr().err
