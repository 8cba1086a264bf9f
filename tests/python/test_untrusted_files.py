"""Files and variables that others write: any content is read, or refused by an error that names it.

Hypothesis invents the contents. TOKENYARD_FUZZ_EXAMPLES sets how many each test tries (./run fuzz).
"""

import json
import os
import struct
import sys
from pathlib import Path

import pytest

hypothesis = pytest.importorskip("hypothesis")
pytest.importorskip("safetensors")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "decoder"))
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import decoder.config as config  # noqa: E402
from decoder.tensors import Tensors, WeightsError  # noqa: E402
from decoder.values import ConfigError  # noqa: E402

import tokenyard  # noqa: E402
from tokenyard.secret import read_secret_file  # noqa: E402
from tokenyard.world.environment import find_rank  # noqa: E402
from tokenyard.world.node_list import NODES_MAX, expand_nodes  # noqa: E402

EXAMPLES = int(os.environ.get("TOKENYARD_FUZZ_EXAMPLES", "150"))
anything = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    database=None,
)


def refusal(kind, call):
    """Returns the text of the error of type `kind` that `call` raises; None if it raises none."""
    try:
        call()
    except kind as error:
        return str(error)
    return None


numbers = st.one_of(st.integers(), st.integers(-2, 70000), st.floats())
leaves = st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=8))
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)

KEYS = sorted(
    {
        *config.toy(4),
        "architectures",
        "head_dim",
        "hidden_act",
        "layer_types",
        "max_position_embeddings",
        "mlp_only_layers",
        "moe_intermediate_size",
        "norm_topk_prob",
        "num_experts",
        "rope_parameters",
        "rope_scaling",
        "sliding_window",
        "tie_word_embeddings",
        "use_sliding_window",
    }
)
ROPE = st.dictionaries(
    st.sampled_from(
        ["rope_type", "type", "factor", "low_freq_factor", "high_freq_factor", "rope_theta",
         "original_max_position_embeddings"]
    ),
    st.one_of(values, st.sampled_from(["llama3", "default", "linear"])),
    max_size=6,
)  # fmt: skip


@anything
@given(
    st.sampled_from([0, 4]),
    st.dictionaries(st.sampled_from(KEYS), st.one_of(values, ROPE), max_size=5),
    st.sets(st.sampled_from(KEYS), max_size=2),
    st.sampled_from([*config.FAMILIES, None]),
)
def test_a_config_is_read_or_refused(experts, changes, dropped, family):
    said = config.toy(experts) | changes
    if family is not None:
        said["model_type"] = family
    for name in dropped:
        said.pop(name, None)

    def read():
        shape = config.config_of(said, "config.json")
        shape.check(ranks=1)
        shape.check_tiles(ranks=1)
        shape.rope_frequencies()

    assert refusal(ConfigError, read) != ""


@anything
@given(st.one_of(st.binary(max_size=64), values.map(lambda value: json.dumps(value).encode())))
def test_a_config_file_is_read_or_refused(tmp_path, content):
    file = tmp_path / "config.json"
    file.write_bytes(content)
    assert "config.json" in (refusal(ConfigError, lambda: config.said_in(file)) or "config.json")


def safetensors_of(header, data):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


tensors = st.fixed_dictionaries(
    {
        "dtype": st.one_of(
            st.sampled_from(["BF16", "F16", "F32", "I8", "F8_E4M3", "BOOL"]), values
        ),
        "shape": st.one_of(st.lists(st.integers(0, 4), max_size=3), values),
        "data_offsets": st.one_of(st.tuples(st.integers(0, 40), st.integers(0, 80)), values),
    }
)


@anything
@given(
    st.one_of(
        st.binary(max_size=64),
        st.builds(
            safetensors_of,
            st.dictionaries(st.text(max_size=4), st.one_of(tensors, values), max_size=3),
            st.binary(max_size=80),
        ),
        st.builds(
            lambda count, data: safetensors_of(
                {"x": {"dtype": "F32", "shape": [count], "data_offsets": [0, 4 * count]}},
                data.ljust(4 * count, b"\x7f"),
            ),
            st.integers(0, 4),
            st.binary(max_size=8),
        ),
    )
)
def test_weights_are_read_or_refused(tmp_path, content):
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)

    def read():
        held = Tensors(file)
        for name in held:
            shape = held.shape_of(name)
            assert held.get(name).shape == shape

    assert "model.safetensors" in (refusal(WeightsError, read) or "model.safetensors")


@anything
@given(
    st.one_of(
        st.binary(max_size=40),
        values.map(lambda value: json.dumps({"weight_map": value}).encode()),
        st.dictionaries(
            st.text(max_size=4),
            st.sampled_from(
                ["model.safetensors", "../x", "/etc/passwd", "", "x" * 300, "a/" * 3000]
            ),
        ).map(lambda names: json.dumps({"weight_map": names}).encode()),
    )
)
def test_an_index_is_read_or_refused(tmp_path, content):
    (tmp_path / "model.safetensors").write_bytes(safetensors_of({}, b""))
    index = tmp_path / "model.safetensors.index.json"
    index.write_bytes(content)

    def read():
        held = Tensors(index)
        for name in held:
            held.shape_of(name)

    assert str(tmp_path) in (refusal(WeightsError, read) or str(tmp_path))


@anything
@given(st.one_of(st.text(max_size=24), st.text("node[]0123456789,-", max_size=24)))
def test_a_node_list_is_expanded_or_refused(text):
    nodes = []
    assert refusal(ValueError, lambda: nodes.extend(expand_nodes(text))) != ""
    assert len(nodes) <= NODES_MAX * len(text)
    assert all(node and "[" not in node and "," not in node for node in nodes)


VARIABLES = [
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
    "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_RANK", "PMI_SIZE",
    "MPI_LOCALRANKID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_JOB_ID",
    "SLURM_JOB_NODELIST", "SLURM_STEP_ID", "PMIX_RANK", "PMIX_NAMESPACE", "TOKENYARD_STORE",
]  # fmt: skip


@anything
@given(
    st.dictionaries(
        st.sampled_from(VARIABLES),
        st.one_of(st.text(max_size=8), st.integers(-1, 12).map(str), st.just("tcp://a:29400")),
        max_size=12,
    )
)
def test_a_launchers_variables_are_read_or_refused(variables):
    found = []
    refused = refusal(tokenyard.InvalidArgument, lambda: found.append(find_rank(variables)))
    assert (refused is None) == bool(found)
    assert all(0 <= rank.rank < rank.size and rank.store for rank in found)


@anything
@given(st.binary(max_size=40))
def test_a_secret_file_is_read_or_refused(tmp_path, content):
    file = tmp_path / "secret"
    file.write_bytes(content)
    file.chmod(0o600)
    secrets = []
    refused = refusal(
        tokenyard.InvalidArgument, lambda: secrets.append(read_secret_file("secret_file", file))
    )
    assert "secret_file" in (refused or "secret_file")
    assert all(secret == secret.strip() for secret in secrets)
