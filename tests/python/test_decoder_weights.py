"""The decoder example reads weights from one file, or from shards and their index."""

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
from decoder.config import config_of, toy
from decoder.layout import EMBEDDING, FINAL_NORM, HEAD
from decoder.random_model import random_tensors
from decoder.tensors import INDEX, WHOLE, Tensors, WeightsError
from decoder.weights import read_weights
from decoder_models import MODELS, config_for, drawn
from program import Refused


def config_from(**others):
    return config_of(toy() | others, "the test")


def saved(folder, tensors, said, **changed):
    """Writes a file like Hugging Face's, and its config, without tensors that are None."""
    folder.mkdir(exist_ok=True)
    tensors = {name: tensor for name, tensor in (tensors | changed).items() if tensor is not None}
    save_file(tensors, folder / WHOLE)
    (folder / "config.json").write_text(json.dumps(said))
    return folder / WHOLE


def tiny(folder, **changed):
    """Returns the tiny model, drawn from seed 5."""
    return saved(folder, random_tensors(config_from(), 5), toy(), **changed)


SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def saved_in_shards(folder, tensors, said):
    """Writes the tensors alternately to two files, and an index; returns its map."""
    folder.mkdir()
    shard_of = {name: SHARDS[at % 2] for at, name in enumerate(sorted(tensors))}
    for shard in SHARDS:
        held = {name: tensors[name] for name in tensors if shard_of[name] == shard}
        save_file(held, folder / shard)
    write_index(folder, shard_of)
    (folder / "config.json").write_text(json.dumps(said))
    return shard_of


def write_index(folder, weight_map):
    said = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(said))


@pytest.mark.parametrize("kind", ["file", "folder", "folder of shards", "index"])
@pytest.mark.parametrize("experts", [0, 4])
def test_weights_come_from_safetensors(experts, kind, tmp_path, capsys):
    said = toy(experts)
    tensors = random_tensors(config_of(said, "the test"), 5)
    whole = saved(tmp_path / "whole", tensors, said)
    shards = tmp_path / "shards"
    saved_in_shards(shards, tensors, said)
    given = {
        "file": whole,
        "folder": whole.parent,
        "folder of shards": shards,
        "index": shards / INDEX,
    }
    drawn = ["--tokens", "8", "--seed", "5", "--no-check", "--experts", str(experts)]
    assert decode.main(drawn) == 0
    tokens = capsys.readouterr().out.splitlines()[0]
    assert decode.main(["--tokens", "8", "--weights", str(given[kind])]) == 0
    found = capsys.readouterr()
    assert found.out.splitlines()[0] == tokens
    assert "NumPy finds the same" in found.out
    # Without --config the one beside the weights is used, and named.
    beside = given[kind] if given[kind].is_dir() else given[kind].parent
    assert found.err.splitlines()[0] == f"--config: {beside / 'config.json'}"


def test_weights_without_a_config_are_refused(tmp_path):
    file = tiny(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(Refused, match=r"there is no .*config\.json beside them, so --config is"):
        decode.main(["--weights", str(file)])


def test_a_config_says_how_many_experts(tmp_path):
    with pytest.raises(Refused, match="--experts is for the tiny model"):
        decode.main(["--weights", str(tiny(tmp_path)), "--experts", "4"])


Q_BIAS = "model.layers.1.self_attn.q_proj.bias"


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({FINAL_NORM: None}, f"lacks the tensor {FINAL_NORM}, which a llama of this config has"),
        (
            {FINAL_NORM: None, EMBEDDING: None, "model.layers.0.mlp.up_proj.weight": None}
            | {"model.layers.1.mlp.up_proj.weight": None},
            f"lacks the tensors {EMBEDDING}, model.layers.0.mlp.up_proj.weight, "
            "model.layers.1.mlp.up_proj.weight and 1 more",
        ),
        (
            {FINAL_NORM: np.ones(63, np.float32)},
            f"{FINAL_NORM} has the shape [63], and by the config it would have [64]",
        ),
        ({HEAD: np.ones((64, 256), np.float32)}, f"{HEAD} has the shape"),
        (
            {HEAD: np.ones((256, 64), np.int8)},
            f"{HEAD} is of dtype I8, and is read of BF16, F16, F32, F64",
        ),
        ({Q_BIAS: np.ones(128, np.float32)}, f"has the tensor {Q_BIAS}, which no task uses"),
        (
            {"model.layers.2.mlp.up_proj.weight": np.ones((128, 64), np.float32)},
            "has the tensor model.layers.2.mlp.up_proj.weight, which no task uses",
        ),
        (
            {FINAL_NORM: np.full(64, 3.4e38, np.float32)},
            f"{FINAL_NORM} has numbers that are too large for BF16",
        ),
    ],
)
def test_weights_of_another_model_are_named(changed, complaint, tmp_path):
    file = tiny(tmp_path, **changed)
    with pytest.raises(WeightsError) as raised:
        decode.main(["--tokens", "8", "--weights", str(file)])
    assert complaint in str(raised.value)


@pytest.mark.parametrize("name", MODELS)
def test_every_tensor_of_a_family_is_used_and_needed(name, tmp_path):
    """Each missing tensor, and each of another family, is reported."""
    tensors, config = drawn(MODELS[name]), config_for(MODELS[name])
    for missing in tensors:
        if missing.startswith("model.layers.1."):  # Those of the other layers are alike.
            file = saved(tmp_path, tensors, {}, **{missing: None})
            with pytest.raises(WeightsError, match=f"lacks the tensor {missing},"):
                read_weights(Tensors(file), config)
    others = {key: tensor for other in MODELS.values() for key, tensor in drawn(other).items()}
    for key in others.keys() - tensors.keys() - {HEAD}:
        file = saved(tmp_path, tensors, {}, **{key: others[key]})
        with pytest.raises(WeightsError, match=f"has the tensor {key}, which no task uses"):
            read_weights(Tensors(file), config)


def test_frequencies_that_old_checkpoints_hold_are_passed_over(tmp_path, capsys):
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    file = tiny(tmp_path, **{name: np.ones(8, np.float32)})
    assert decode.main(["--tokens", "2", "--weights", str(file)]) == 0


NO_HEAD = (
    f"has no tensor {HEAD}, and the config does not say tie_word_embeddings true, so {EMBEDDING} "
    "does not stand in for it"
)


@pytest.mark.parametrize("says", [{}, {"tie_word_embeddings": False}])
def test_a_head_that_is_missing_is_named(says, tmp_path):
    file = tiny(tmp_path, **{HEAD: None})
    with pytest.raises(WeightsError) as raised:
        read_weights(Tensors(file), config_from(**says))
    assert str(raised.value) == f"{file} {NO_HEAD}"


def test_the_embedding_is_the_head_where_the_config_ties_them(tmp_path):
    file = tiny(tmp_path, **{HEAD: None})
    found = read_weights(Tensors(file), config_from(tie_word_embeddings=True))
    assert (found.head == random_tensors(config_from(), 5)[EMBEDDING]).all()


def test_a_head_that_differs_is_used_though_the_config_ties_it(tmp_path):
    file = tiny(tmp_path)
    with pytest.warns(UserWarning, match=rf"{HEAD} is not {EMBEDDING}, though the config says"):
        found = read_weights(Tensors(file), config_from(tie_word_embeddings=True))
    assert (found.head == random_tensors(config_from(), 5)[HEAD]).all()


@pytest.mark.parametrize(("ties", "same"), [(True, True), (False, True), (False, False)])
def test_a_head_as_the_config_says_needs_no_warning(ties, same, tmp_path):
    tensors = random_tensors(config_from(), 5)
    head = tensors[EMBEDDING if same else HEAD]
    file = tiny(tmp_path, **{HEAD: head})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = read_weights(Tensors(file), config_from(tie_word_embeddings=ties))
    assert (found.head == head).all()


@pytest.mark.parametrize("says", [True, False, None])
def test_a_config_file_says_whether_the_head_is_tied(says, tmp_path, capsys):
    file = tiny(tmp_path, **{HEAD: None})
    about = tmp_path / "config.json"
    about.write_text(json.dumps(toy() | {"tie_word_embeddings": says}))
    arguments = ["--tokens", "8", "--config", str(about), "--weights", str(file)]
    if says:
        assert decode.main(arguments) == 0
        assert "NumPy finds the same" in capsys.readouterr().out
    else:
        with pytest.raises(WeightsError, match=NO_HEAD):
            decode.main(arguments)


@pytest.mark.parametrize(("dtype", "name"), [(np.float16, "F16"), (np.float32, "F32")])
def test_numbers_that_bf16_cannot_hold_are_said(dtype, name, tmp_path, capsys):
    whole = random_tensors(config_from(), 5)
    exact = {key: tensor.astype(np.float32) for key, tensor in whole.items()}
    file = saved(tmp_path, exact, toy())
    arguments = ["--tokens", "4", "--weights", str(file)]
    assert decode.main(arguments) == 0
    assert "rounded" not in capsys.readouterr().err  # F32 that BF16 holds.
    finer = np.full((128, 64), 1 / 3, dtype)
    changed = {f"model.layers.{i}.mlp.up_proj.weight": finer for i in range(2)}
    saved(tmp_path, exact, toy(), **changed)
    assert decode.main(arguments) == 0
    found = capsys.readouterr()
    assert f"{file}: 2 tensors of {name} rounded to BF16" in found.err.splitlines()
    assert "NumPy finds the same" in found.out


def test_what_is_no_safetensors_file_is_named(tmp_path):
    file = tiny(tmp_path)
    file.write_text("hello")
    with pytest.raises(WeightsError, match="is not a safetensors file"):
        decode.main(["--tokens", "8", "--weights", str(file)])


@pytest.fixture
def shards(tmp_path):
    """Makes a folder of shards; returns it with the contents of its index."""
    folder = tmp_path / "shards"
    tensors = random_tensors(config_from(), 5)
    save_file(tensors, tmp_path / WHOLE)
    return folder, saved_in_shards(folder, tensors, toy())


def complaint_of(weights):
    with pytest.raises(WeightsError) as raised:
        read_weights(Tensors(weights), config_from())
    return str(raised.value)


def test_a_shard_that_is_missing_is_named(shards):
    folder, _ = shards
    (folder / SHARDS[1]).unlink()
    said = f"{folder / INDEX} names '{SHARDS[1]}', which its folder does not have"
    assert complaint_of(folder) == said


def test_a_tensor_that_an_index_leaves_out_is_named(shards):
    folder, shard_of = shards
    shard = shard_of.pop(FINAL_NORM)
    write_index(folder, shard_of)
    said = f"{folder / shard} has the tensor {FINAL_NORM}, which {folder / INDEX} leaves out"
    assert complaint_of(folder) == said


def test_a_tensor_that_a_shard_lacks_is_named(shards):
    folder, shard_of = shards
    name = "model.layers.9.mlp.up_proj.weight"
    write_index(folder, shard_of | {name: SHARDS[0]})
    assert f"has the tensor {name}, which no task uses" in complaint_of(folder)
    tensors = random_tensors(config_from(), 5)
    of_shard = {key: tensors[key] for key in tensors if shard_of[key] == SHARDS[0]}
    missing = next(iter(of_shard))
    del of_shard[missing]
    save_file(of_shard, folder / SHARDS[0])
    write_index(folder, shard_of)
    said = f"{folder / SHARDS[0]} has no tensor {missing}, which {folder / INDEX} says it has"
    assert complaint_of(folder) == said


@pytest.mark.parametrize("above", [True, False])
def test_a_shard_outside_of_the_folder_is_refused(above, shards):
    folder, shard_of = shards
    outside = f"../{WHOLE}" if above else str(folder.parent / WHOLE)
    write_index(folder, shard_of | {FINAL_NORM: outside})
    said = f"{folder / INDEX} names '{outside}', which is outside of its folder"
    assert complaint_of(folder) == said


def test_shards_may_be_links(shards):
    folder, _ = shards
    (folder / SHARDS[0]).rename(folder.parent / "blob")
    (folder / SHARDS[0]).symlink_to("../blob")
    found, expected = read_weights(Tensors(folder), config_from()), random_tensors(config_from(), 5)
    assert (found.head == expected[HEAD]).all()
    assert (found.layers[1].gate[0] == expected["model.layers.1.mlp.gate_proj.weight"]).all()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "has no weight_map"),
        ('{"weight_map": {"a": 1}}', "has no weight_map"),
    ],
)
def test_what_is_no_index_is_named(text, complaint, tmp_path):
    (tmp_path / INDEX).write_text(text)
    assert f"{tmp_path / INDEX} {complaint}" in complaint_of(tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(WeightsError, match=f"{tmp_path} has neither {INDEX} nor {WHOLE}"):
        decode.main(["--weights", str(tmp_path)])
