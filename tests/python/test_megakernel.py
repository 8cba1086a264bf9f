"""The decoder example finds NumPy's tokens, however it is spread."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import tokenyard

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import decode


@pytest.mark.parametrize(
    "how",
    [
        ["--ranks", "1"],
        ["--ranks", "2"],
        ["--ranks", "4"],
        ["--ranks", "1", "--experts", "4"],
        ["--ranks", "2", "--experts", "4"],
        ["--ranks", "2", "--processes"],
        ["--ranks", "4", "--processes"],
        ["--ranks", "1", "--counters"],
        ["--ranks", "2", "--counters"],
        ["--ranks", "4", "--counters", "--processes"],
        ["--ranks", "1", "--workers", "1", "--seed", "9"],
        ["--ranks", "2", "--workers", "2", "--schedulers", "1"],
    ],
    ids=" ".join,
)
def test_finds_the_tokens_of_numpy(how, capsys):
    assert decode.main([*how, "--tokens", "32"]) == 0
    said = capsys.readouterr().out
    assert "NumPy finds the same" in said
    assert "goes on; 34 steps" in said


def saved(path, weights, config):
    """A file such as Hugging Face's of a Llama, written by the safetensors package."""
    hidden = config.hidden_size
    tensors = {
        "model.embed_tokens.weight": weights.embedding,
        "model.norm.weight": weights.final_norm,
        "lm_head.weight": weights.head,
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
            at + "mlp.gate_proj.weight": layer.gate[0],
            at + "mlp.up_proj.weight": layer.up[0],
            at + "mlp.down_proj.weight": layer.down[0],
        }
    save_file(tensors, path)


def test_weights_come_from_safetensors(tmp_path, capsys):
    config = decode.Config()
    file = tmp_path / "model.safetensors"
    saved(file, decode.random_weights(config, 5), config)
    assert decode.main(["--tokens", "8", "--seed", "5", "--no-check"]) == 0
    drawn = capsys.readouterr().out.splitlines()[0]
    assert decode.main(["--tokens", "8", "--weights", str(file)]) == 0
    said = capsys.readouterr().out
    assert said.splitlines()[0] == drawn
    assert "NumPy finds the same" in said


PROMPTS = ("1,2,3", "7", "200,1", "5,6,7,8", "9", "33,44", "3,2,1", "250")


@pytest.mark.parametrize("sequences", [2, 4, 8])
def test_sequences_side_by_side_find_the_tokens_of_numpy(sequences, capsys):
    prompts = [word for prompt in PROMPTS[:sequences] for word in ("--prompt", prompt)]
    assert decode.main([*prompts, "--tokens", str(24 // sequences)]) == 0
    said = capsys.readouterr().out
    assert said.count("tokens: ") == sequences
    assert "NumPy finds the same" in said


@pytest.mark.parametrize(("ranks", "sequences"), [(2, 2), (4, 2), (2, 8)])
def test_sequences_side_by_side_of_ranks_that_share_a_model(ranks, sequences, capsys):
    prompts = [word for prompt in PROMPTS[:sequences] for word in ("--prompt", prompt)]
    assert decode.main([*prompts, "--ranks", str(ranks), "--tokens", "4"]) == 0
    said = capsys.readouterr().out
    assert said.count("tokens: ") == sequences
    assert "NumPy finds the same" in said


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--prompt", "1,two"], "--prompt"),
        (["--prompt", "1", "--prompt", "2", "--prompt", "3"], "--prompt"),
        (["--weights", "no/such/file"], "no/such/file"),
        (["--config", "no/such/file"], "no/such/file"),
        (["--ranks", "3"], "3 ranks"),
    ],
)
def test_wrong_arguments_get_one_sentence(arguments: list[str], complaint: str, capsys):
    with pytest.raises(SystemExit, match="2"):
        decode.main(arguments)
    assert complaint in capsys.readouterr().err


def test_a_config_that_lacks_a_size_is_refused(tmp_path, capsys):
    config = tmp_path / "config.json"
    config.write_text('{"hidden_size": 64}')
    with pytest.raises(SystemExit, match="2"):
        decode.main(["--config", str(config)])
    assert "num_attention_heads" in capsys.readouterr().err


def test_several_sequences_are_refused_where_the_graph_cannot_have_them():
    with pytest.raises(tokenyard.InvalidArgument, match="blocks"):
        decode.main(["--prompt", "1", "--prompt", "2", "--workers", "5"])


def test_a_sequence_that_has_stopped_waits_for_the_others(capsys):
    both = ["--prompt", "1,2,3", "--prompt", "7", "--tokens", "12"]
    assert decode.main(both) == 0
    third = capsys.readouterr().out.split()[3]
    assert decode.main([*both, "--stop", third]) == 0
    said = capsys.readouterr().out
    assert "stopped, " in said
    assert "NumPy finds the same" in said


def test_ends_at_the_stop_token(capsys):
    assert decode.main(["--tokens", "8"]) == 0
    third = capsys.readouterr().out.split()[3]
    assert decode.main(["--tokens", "8", "--stop", third]) == 0
    assert "stopped; " in capsys.readouterr().out


def test_says_how_many_positions_would_do():
    with pytest.raises(tokenyard.InvalidArgument, match=r"positions_max.*at least 103"):
        decode.main(["--tokens", "100"])


def test_logits_that_are_no_numbers_are_named(monkeypatch):
    drawn = decode.random_weights

    def with_a_hole(config, seed):
        weights = drawn(config, seed)
        weights.final_norm[3] = np.nan
        return weights

    monkeypatch.setattr(decode, "random_weights", with_a_hole)
    with pytest.raises(tokenyard.InternalError, match=r"logits of position 0 are not numbers"):
        decode.main(["--no-check"])


def test_a_trace_is_a_file_for_perfetto(tmp_path, capsys):
    assert decode.main(["--tokens", "4", "--trace", str(tmp_path / "t.json")]) == 0
    assert "critical path" in capsys.readouterr().out
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {"X", "s", "f", "M"} <= {event["ph"] for event in events}
