"""A model of Llama-3.2-1B's shape on a GPU finds the logits that torch finds, step by step."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import tokenyard
from tokenyard.megakernel import Megakernel

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from decoder.config import Config
from decoder.dense import DenseGraph
from decoder.tensors import BF16
from decoder.weights import Layer, Weights

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

STEPS = 64
LLAMA_1B = Config(
    vocab_size=128256,
    hidden_size=2048,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=64,
    intermediate_size=8192,
    rope_theta=500000.0,
    page_tokens=16,
    positions_max=80,
)


def drawn(config):
    """Draws weights on the GPU, at a scale at which activations neither vanish nor explode."""
    torch.manual_seed(3)

    def matrix(*shape, inputs):
        return torch.randn(shape, device="cuda").mul_(inputs**-0.5).bfloat16()

    def norm():
        return (1 + 0.1 * torch.randn(config.hidden_size, device="cuda")).bfloat16()

    hidden, dim, inner = config.hidden_size, config.head_dim, config.intermediate_size
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    layers = [
        {
            "attention_norm": norm(),
            "q": matrix(heads, dim, hidden, inputs=hidden),
            "k": matrix(kv_heads, dim, hidden, inputs=hidden),
            "v": matrix(kv_heads, dim, hidden, inputs=hidden),
            "out": matrix(hidden, heads, dim, inputs=heads * dim),
            "mlp_norm": norm(),
            "gate": matrix(1, inner, hidden, inputs=hidden),
            "up": matrix(1, inner, hidden, inputs=hidden),
            "down": matrix(1, hidden, inner, inputs=inner),
        }
        for _ in range(config.num_hidden_layers)
    ]
    table = matrix(config.vocab_size, hidden, inputs=1)
    head = matrix(config.vocab_size, hidden, inputs=hidden)
    return {"embedding": table, "layers": layers, "final_norm": norm(), "head": head}


def in_numpy(weights):
    """Returns them as the example's Weights."""

    def host(tensor):
        return tensor.view(torch.uint16).cpu().numpy().view(BF16)

    layers = [
        Layer(router=None, **{name: host(tensor) for name, tensor in layer.items()})
        for layer in weights["layers"]
    ]
    rest = {name: host(weights[name]) for name in ("embedding", "final_norm", "head")}
    return Weights(layers=layers, **rest)


class Reference:
    """The model in torch: sums in float32; cache and inner elements rounded to BF16."""

    def __init__(self, config, weights):
        self.config, self.weights = config, weights
        self.keys = [[] for _ in weights["layers"]]
        self.values = [[] for _ in weights["layers"]]

    def logits(self, token, position):
        x = self.weights["embedding"][token].float()
        for index, layer in enumerate(self.weights["layers"]):
            x = x + self._attention(index, layer, self._norm(x, layer["attention_norm"]), position)
            y = self._norm(x, layer["mlp_norm"])
            gate, up = layer["gate"][0].float() @ y, layer["up"][0].float() @ y
            inner = (torch.nn.functional.silu(gate) * up).bfloat16().float()
            x = x + layer["down"][0].float() @ inner
        return self.weights["head"].float() @ self._norm(x, self.weights["final_norm"])

    def _norm(self, x, weight):
        return x * weight.float() * torch.rsqrt(x.square().mean() + self.config.rms_norm_eps)

    def _rotated(self, x, position):
        half = self.config.head_dim // 2
        steps = torch.arange(half, device="cuda", dtype=torch.float32) / half
        angle = position * torch.pow(torch.tensor(self.config.rope_theta, device="cuda"), -steps)
        first, second = x[..., :half], x[..., half:]
        cosine, sine = angle.cos(), angle.sin()
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)

    def _attention(self, index, layer, x, position):
        q = self._rotated(layer["q"].float() @ x, position)
        self.keys[index].append(self._rotated(layer["k"].float() @ x, position).bfloat16())
        self.values[index].append((layer["v"].float() @ x).bfloat16())
        keys = torch.stack(self.keys[index], 1).float().repeat_interleave(self.config.group, 0)
        values = torch.stack(self.values[index], 1).float().repeat_interleave(self.config.group, 0)
        scores = torch.einsum("hd,htd->ht", q, keys) * self.config.head_dim**-0.5
        out = torch.einsum("ht,htd->hd", scores.softmax(-1), values)
        return layer["out"].float().reshape(self.config.hidden_size, -1) @ out.reshape(-1)


def logits_by_graph(world, weights, fed):
    """Returns the megakernel's logits [steps, sequences] for this rank's part of the vocabulary."""
    model = DenseGraph(world, LLAMA_1B, in_numpy(weights), prompts=fed, stops=[], blocks=0)
    kernel = Megakernel(
        world, model.graph, workers=model.decoder.blocks, unit_bytes=model.decoder.unit_bytes
    )
    found = []
    for _ in range(STEPS):
        assert kernel.run(1) == 1
        mine = LLAMA_1B.vocab_size // world.size
        logits = model.memory.read(model.logits.piece, np.float32, len(fed) * mine)
        found.append(logits.reshape(len(fed), mine))
    world.barrier("all have their logits")
    return found


@pytest.mark.parametrize(("ranks", "sequences"), [(1, 1), (2, 1), (4, 1), (1, 4), (2, 2)])
@torch.no_grad()
def test_logits_are_those_of_torch(ranks, sequences):
    if torch.cuda.device_count() < ranks:
        pytest.skip(f"{ranks} GPUs are needed")
    torch.backends.cuda.matmul.allow_tf32 = False
    weights = drawn(LLAMA_1B)
    fed = [
        [(i * 7919 + 11 + 5003 * s) % LLAMA_1B.vocab_size for i in range(STEPS + 1)]
        for s in range(sequences)
    ]
    parts = tokenyard.launch(logits_by_graph, ranks=ranks, device="cuda", args=(weights, fed))
    found = [np.concatenate(step, axis=1) for step in zip(*parts, strict=True)]
    for s, tokens in enumerate(fed):
        reference = Reference(LLAMA_1B, weights)
        for step, logits in enumerate(found):
            expected = reference.logits(tokens[step], step).cpu().numpy()
            largest = np.abs(expected).max()
            worst = np.abs(logits[s] - expected).max()
            # A different rounding of an inner element is amplified over the layers.
            assert worst < 2**-6 * largest, f"sequence {s}, step {step}: {worst} of {largest}"
