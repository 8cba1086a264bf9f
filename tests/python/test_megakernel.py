"""The decoder example finds NumPy's tokens in every configuration."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import tokenyard

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import decode
from decoder.config import Config, config_of, said_in, toy
from decoder.rope import RopeScaling
from program import Refused

from decoder import decoding, progress


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
    assert re.search(r"goes on; 34 steps in [\d.]+ s", said)


def told(path, **others):
    """Writes a config.json of the tiny model."""
    path.write_text(json.dumps(toy() | others))
    return path


LLAMA_3 = RopeScaling(8.0, 1.0, 4.0, 16)
"""Scaling that stretches some of the tiny model's frequencies fully, some partly, some not."""


@pytest.mark.parametrize("how", [[], ["--counters"], ["--ranks", "2"]], ids=" ".join)
def test_frequencies_are_stretched_as_llama_3_does(how, tmp_path, capsys):
    scaling = {"rope_type": "llama3", **vars(LLAMA_3)}
    tokens = []
    for others in ({}, {"rope_scaling": scaling}):
        about = told(tmp_path / "config.json", **others)
        assert decode.main(["--tokens", "24", "--config", str(about), *how]) == 0
        said = capsys.readouterr().out
        assert "NumPy finds the same" in said
        tokens.append(said.splitlines()[0])
    assert tokens[0] != tokens[1]


def test_frequencies_by_the_rules_of_llama_3():
    plain = Config(rope_theta=500000.0, head_dim=64).rope_frequencies()
    scaling = RopeScaling(32.0, 1.0, 4.0, 8192)
    found = Config(rope_theta=500000.0, head_dim=64, rope_scaling=scaling).rope_frequencies()
    turn = 2 * np.pi / plain
    kept, stretched = turn < 8192 / 4, turn > 8192
    np.testing.assert_array_equal(found[kept], plain[kept])
    np.testing.assert_allclose(found[stretched], plain[stretched] / 32, rtol=1e-6)
    between = ~(kept | stretched)
    assert between.any()
    smooth = (8192 / turn[between] - 1) / (4 - 1)
    expected = (1 - smooth) * plain[between] / 32 + smooth * plain[between]
    np.testing.assert_allclose(found[between], expected, rtol=1e-5)


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
        (["--prompt", ""], "--prompt"),
        (["--prompt", "1,256"], "from 0 to 255"),
        (["--prompt", "1", "--prompt", "2", "--prompt", "3"], "--prompt"),
        (["--prompt", "1,2,3", "--positions", "8", "--prompt", ",".join("1" * 9)], "9 tokens"),
        (["--weights", "no/such/file"], "no/such/file"),
        (["--config", "no/such/file"], "no/such/file"),
        (["--trace", "no/such/folder/t.json"], "no/such/folder"),
        (["--trace", "."], "is a folder"),
        (["--ranks", "3"], "num_key_value_heads must be a multiple of the 3 ranks, which 4 is not"),
        (["--ranks", "0"], "--ranks: '0'"),
        (["--seed", "-1"], "--seed: '-1'"),
        (["--tokens", "1e3"], "--tokens: '1e3'"),
        (["--positions", "7"], "--positions must be a multiple of a page's 8"),
        (["--tokens", "100"], "--positions: 100 tokens after this prompt need 104, not 64"),
        (["--tokens", "63"], "need 72, not 64"),
        (["--stop", "-1"], "--stop: '-1'"),
        (["--stop", "256"], "--stop: tokens are from 0 to 255"),
        (["--workers", "0"], "--workers: '0'"),
        (["--schedulers", "-1"], "--schedulers: '-1'"),
        (["--experts", "1"], "a token picks at most 1"),
        (["--experts", "4", "--prompt", "1", "--prompt", "2"], "several sequences"),
        (["--stop", "1,2,3,4,5,6,7,8,9"], "--stop: up to 8 tokens, not 9"),
        (["--stop", "never"], "--stop"),
        (["--workers", "1025"], "--workers: '1025' is not a whole number from 1 to 1024"),
        (["--ranks", "100000"], "must be a multiple of the 100000 ranks"),
        (["--tokens", "100000000000"], "--tokens: '100000000000'"),
        (["--positions", "2147483640"], "--positions 2147483640 and the sizes of the model would"),
        (["--experts", "100000000"], "of memory"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments_get_one_sentence(arguments: list[str], complaint: str, capsys):
    assert complaint in refusal_of(arguments, capsys)


def refusal_of(arguments, capsys):
    """Returns the example's message for wrong arguments: argparse's, or its own."""
    with pytest.raises((SystemExit, Refused)) as raised:
        decode.main(arguments)
    if isinstance(raised.value, Refused):
        return str(raised.value)
    assert raised.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"hidden_size": 64', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1, 2]", "object"),
        ('{"hidden_size": 64}', "num_attention_heads"),
        (dict(hidden_size="64"), "hidden_size must be a number, not '64'"),
        (dict(hidden_size=None), "does not say hidden_size"),
        (dict(hidden_size=True), "hidden_size must be a number, not True"),
        (dict(tie_word_embeddings="no"), "tie_word_embeddings must be true or false, not 'no'"),
        (dict(model_type=1), "model_type must be a string, not 1"),
        (dict(num_key_value_heads=0), "num_key_value_heads must be at least 1"),
        (dict(num_attention_heads=0), "num_attention_heads must be at least 1"),
        (dict(hidden_act="gelu"), "hidden_act 'gelu'"),
        (dict(attention_bias=True), "attention_bias True"),
        (dict(rope_scaling={"factor": 2.0}), "rope_scaling"),
        (dict(rope_scaling={"rope_type": "yarn"}), "rope_scaling of type 'yarn'"),
        (dict(rope_scaling={"rope_type": "llama3", "factor": 8.0}), "low_freq_factor"),
        (dict(num_attention_heads=32, num_key_value_heads=1), "up to 16 query heads, not 32"),
        (dict(hidden_size=8192 + 64), "hidden_size may be up to 8192, not 8256"),
        (dict(head_dim=128, num_attention_heads=128, num_key_value_heads=32), "not 16384"),
        (dict(intermediate_size=16384, hidden_size=4096), "intermediate_size may be up to 8192"),
    ],
)
def test_a_config_that_cannot_be_is_refused(text, complaint, tmp_path, capsys):
    config = tmp_path / "config.json"
    if isinstance(text, str):
        config.write_text(text)
    else:
        told(config, **text)
    assert complaint in refusal_of(["--config", str(config)], capsys)


def test_a_config_says_what_it_needs_to(tmp_path):
    said = dict(
        vocab_size=512, hidden_size=64, num_hidden_layers=1, num_attention_heads=4,
        intermediate_size=128, head_dim=None, rope_scaling=None, torch_dtype="bfloat16",
        model_type="llama",
    )  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(said))
    config = config_of(said_in(tmp_path / "config.json"), "it", positions_max=128)
    assert (config.num_key_value_heads, config.head_dim, config.group) == (4, 16, 1)
    assert config.positions_max == 128


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


@pytest.mark.parametrize("how", [[], ["--counters"], ["--prompt", "1,2,3", "--prompt", "9"]])
def test_ends_at_any_of_the_stop_tokens(how, capsys):
    assert decode.main(["--tokens", "8", *how]) == 0
    found = capsys.readouterr().out.split("\n")[0].split()[1:]
    assert decode.main(["--tokens", "8", "--stop", f"{found[5]},{found[2]}", *how]) == 0
    said = capsys.readouterr().out
    assert said.split("\n")[0].split()[1:] == found[: found.index(found[2]) + 1]
    assert "stopped" in said
    assert "NumPy finds the same" in said


@pytest.mark.parametrize("several", [False, True])
def test_ends_at_the_tokens_that_a_config_says(several, tmp_path, capsys):
    assert decode.main(["--tokens", "8"]) == 0
    found = capsys.readouterr().out.split("\n")[0].split()[1:]
    third = int(found[2])
    about = told(tmp_path / "config.json", eos_token_id=[250, third] if several else third)
    arguments = ["--tokens", "8", "--config", str(about)]
    assert decode.main(arguments) == 0
    said = capsys.readouterr().out
    assert said.split("\n")[0].split()[1:] == found[:3]
    assert "NumPy finds the same" in said
    assert decode.main([*arguments, "--stop", "none"]) == 0
    assert capsys.readouterr().out.split("\n")[0].split()[1:] == found


@pytest.mark.parametrize("how", [[], ["--counters"], ["--prompt", "1,2,3", "--prompt", "9"]])
def test_tokens_found_before_the_cache_was_full_are_kept(how, capsys):
    assert decode.main(["--tokens", "13", *how]) == 0
    enough = capsys.readouterr().out.split("\n")[0].split()
    assert decode.main(["--tokens", "100", "--positions", "16", "--stop", "0", *how]) == 1
    found = capsys.readouterr()
    assert found.out.split("\n")[0].split()[:14] == enough
    assert "cache full" in found.out
    assert "NumPy finds the same" in found.out
    assert "the cache of 16 was full before a stop token came; 100 tokens" in found.err
    assert "take 104" in found.err


def test_logits_that_are_no_numbers_are_named(monkeypatch):
    drawn = decoding.random_tensors

    def with_a_hole(config, seed):
        tensors = drawn(config, seed)
        tensors["model.norm.weight"][3] = np.nan
        return tensors

    monkeypatch.setattr(decoding, "random_tensors", with_a_hole)
    with pytest.raises(tokenyard.InternalError, match=r"logits of position 0 are not numbers"):
        decode.main(["--no-check"])


def test_progress_is_told_meanwhile(monkeypatch, capsys):
    monkeypatch.setattr(progress, "ELSEWHERE_S", 0)
    assert decode.main(["--prompt", "1,2", "--prompt", "3", "--tokens", "4", "--no-check"]) == 0
    said = capsys.readouterr()
    steps = [line.split(",")[0] for line in said.err.splitlines()]
    assert steps[-1] == "step 5 of 5"
    assert all("tokens/s" in line for line in said.err.splitlines())
    assert re.search(r"5 steps in .* s: [\d.]+ tokens/s", said.out)


def test_a_trace_is_a_file_for_perfetto(tmp_path, capsys):
    assert decode.main(["--tokens", "4", "--trace", str(tmp_path / "t.json")]) == 0
    assert "critical path" in capsys.readouterr().out
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {"X", "s", "f", "M"} <= {event["ph"] for event in events}


def arrows_between_ranks(events):
    """Returns edges (rank, task) to (rank, task), by names of tasks without numbers."""
    tasks = sorted(
        (event["ts"], event["pid"], event["tid"], event["name"])
        for event in events
        if event["ph"] == "X" and event["cat"] != "waiting"
    )

    def task_at(arrow):
        row = (arrow["pid"], arrow["tid"])
        begun = [name for ts, *at, name in tasks if tuple(at) == row and ts <= arrow["ts"]]
        return arrow["pid"], re.sub(r" \d+", "", begun[-1])

    remote = [event for event in events if event.get("cat") == "remote event"]
    begins = {event["id"]: event for event in remote if event["ph"] == "s"}
    ends = [event for event in remote if event["ph"] == "f"]
    assert all(begins[end["id"]]["ts"] <= end["ts"] for end in ends)
    return {(task_at(begins[end["id"]]), task_at(end)) for end in ends}


@pytest.mark.parametrize(
    ("how", "stages"),
    [
        ([], [("attention out", "gate/up"), ("down", "qkv"), ("best of a rank", "next token")]),
        (["--processes"], [("attention out", "gate/up")]),
        (["--counters"], [("out to rank {to}", "out sum"), ("best to rank {to}", "next token")]),
        (["--counters", "--schedulers", "1"], [("down to rank {to}", "down sum")]),
    ],
)
def test_a_trace_of_ranks_is_one_file_with_arrows_between_them(how, stages, tmp_path, capsys):
    file = tmp_path / "t.json"
    assert decode.main(["--ranks", "2", "--tokens", "4", "--trace", str(file), *how]) == 0
    assert capsys.readouterr().out.count("critical path") == 1
    assert list(tmp_path.iterdir()) == [file]
    events = json.loads(file.read_text())["traceEvents"]
    ranks = {event["pid"]: event["args"] for event in events if event.get("name") == "process_name"}
    assert [ranks[rank]["name"] for rank in sorted(ranks)] == ["rank 0", "rank 1"]
    # Ranks on one machine have one clock.
    assert ranks[1]["at_least_us"] <= 0 <= ranks[1]["at_most_us"]
    assert ranks[1]["contradiction_us"] == 0
    arrows = arrows_between_ranks(events)
    for signals, awaits in stages:
        for rank in range(2):
            to = re.sub(r" \d+", "", signals.format(to=1 - rank))
            assert ((rank, to), (1 - rank, awaits)) in arrows
