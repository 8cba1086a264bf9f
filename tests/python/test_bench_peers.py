"""The parts of bench/peers that need no GPU: traces, checks of contenders, the page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from programs import ROOT, run_python

PEERS = ROOT / "bench/peers"


@pytest.fixture(autouse=True)
def _peers_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PEERS))


def test_without_a_peer_it_says_so() -> None:
    run = run_python(PEERS)
    assert run.returncode == 2
    assert "There is no peer to measure beside" in run.stderr


def test_a_scene_whose_ranks_fail_is_named(tmp_path: Path) -> None:
    from scene import Place, SceneError, play

    place = Place("throughput", "nobody", str(tmp_path), {}, [16], ranks=2)
    with pytest.raises(SceneError, match="throughput beside nobody: a rank failed"):
        list(play(place, 60, {"CUDA_VISIBLE_DEVICES": ""}))


def test_a_trace_is_parted_at_the_meetings_of_ranks() -> None:
    pytest.importorskip("torch")
    from timing import parted

    def event(
        ts: float, dur: float, name: str, cat: str = "kernel", stream: int = 7
    ) -> dict[str, Any]:
        grid = dict(grid=[8, 2, 1]) if cat == "kernel" else {}
        return dict(ts=ts, dur=dur, name=name, cat=cat, tid=stream, args=grid)

    trace = [
        event(0, 9, "void before()"),
        event(10, 400, "at::native::spin_kernel(long)"),
        event(500, 30, "ncclDevKernel_AllReduce_Max_f32_RING_LL"),
        event(560, 7, "copy", "gpu_memcpy"),
        event(540, 20, "dispatch_kernel"),
        event(541, 5, "cudaLaunchKernel", "cuda_runtime"),
        event(570, 5, "ncclDevKernel_AllGather_RING_LL"),
        event(900, 400, "at::native::spin_kernel(long)"),
        event(1400, 30, "ncclDevKernel_AllReduce_Max_f32_RING_LL"),
        event(1440, 21, "dispatch_kernel"),
        event(1450, 31, "combine_kernel"),  # It starts early, and waits.
        event(1455, 9, "copy", "gpu_memcpy", stream=8),
    ]
    assert parted(dict(traceEvents=trace)) == [
        [
            ("dispatch_kernel", 20.0, 16),
            ("copy", 7.0, 0),
            ("ncclDevKernel_AllGather_RING_LL", 5.0, 16),
        ],
        [("dispatch_kernel", 21.0, 16), ("combine_kernel", 20.0, 16), ("copy", 9.0, 0)],
    ]


def test_a_train_counts_everything_but_its_first_pair() -> None:
    pytest.importorskip("torch")
    from low_latency import PAIRS, multiprocessor_us, phases
    from timing import Work

    first = [Work("dispatch", 1000.0), Work("combine", 1000.0)]
    pair = [Work("dispatch", 10.0, 3), Work("combine", 4.0, 2), Work("memset", 2.0)]
    assert phases(first + pair * PAIRS) == [10.0, 6.0]
    assert multiprocessor_us(pair * (PAIRS + 1)) == (30.0, 8.0)
    names = ("dispatch", "dispatch", "combine", "combine")
    halves = [Work(name, us) for name, us in zip(names, (1.0, 2.0, 3.0, 4.0), strict=True)]
    assert phases(halves * (PAIRS + 1)) == [1.0, 2.0, 3.0, 4.0]
    with pytest.raises(RuntimeError, match="kernels in a train"):
        phases(first)


def test_ours_passes_the_checks_and_a_wrong_sum_does_not() -> None:
    torch = pytest.importorskip("torch")
    import checks
    import ours
    from batches import Shape, draw

    import tokenyard

    shape = Shape(ranks=2, tokens=48, hidden=256, topk=3, experts=8)

    def program(world: tokenyard.World) -> str:
        everybody = [draw(shape, rank, 0, torch.device("cpu")) for rank in range(shape.ranks)]
        contender = ours.Throughput(world, shape, sms_max=2)
        contender.use(2, everybody[world.rank])
        checks.check_throughput(contender, everybody, world.rank)
        few = ours.LowLatency(world, shape)
        for hooks in (False, True):
            checks.check_low_latency(few, everybody[world.rank], hooks)
        few.close()

        home = contender.combine
        contender.combine = lambda y, rows: home(y, rows) * 1.25
        try:
            checks.check_throughput(contender, everybody, world.rank)
        except checks.WrongResultError as error:
            return str(error).partition(" by")[0]
        finally:
            contender.close()
        return "not noticed"

    assert tokenyard.launch(program, ranks=2) == ["tokenyard: sums are off"] * 2


def test_the_page_is_made_from_the_results(tmp_path: Path) -> None:
    from page import BEGIN, END, write_page

    def row(case: str, ours: float, peer: float, **more: Any) -> dict[str, Any]:
        spread = dict(median=ours, min=ours, max=ours)
        theirs = dict(name="peer 1", median=peer, min=peer, max=peer)
        return dict(case=case, hidden=64, floor=50.0, ours=spread, peer=theirs, **more)

    facts = dict(gpus=2, gpu="a GPU", driver="1", cuda="2", commit="abc", date="2026-01-01")
    call = dict(ours_call=dict(median=120.0), peer_call=dict(median=260.0))
    many = [row("dispatch bf16", 100.0, 250.0, tokens=4096, sms=16, **call)]
    few = [row("dispatch fp8, in kernel", 10.0, 34.0, tokens=128, sms=0)]
    for name, rows in (("throughput", many), ("low_latency", few)):
        text = json.dumps(dict(environment=facts, rows=rows))
        (tmp_path / f"{name}_peers_2_gpus.json").write_text(text)
    page = tmp_path / "against_deep_ep.md"
    page.write_text(f"# Kept\n\n{BEGIN}\nold\n{END}\nkept too\n")
    write_page(tmp_path, tmp_path)
    text = page.read_text()
    assert "| dispatch bf16 | 16 | 100 (120) | 250 (260) | 2.50 | 50 |" in text
    assert "| dispatch fp8, in kernel | 128 | 10.0 | 34.0 | 3.40 | 50.0 |" in text
    assert "old" not in text
    assert text.startswith("# Kept")
    assert text.endswith("kept too\n")
    drawn = (tmp_path / "against_deep_ep.svg").read_text()
    assert 1000 < len(drawn) < 4000
    assert {">100</text>", ">250</text>"} <= set(re.findall(r">[^<]*</text>", drawn))
    write_page(tmp_path, tmp_path)
    assert page.read_text() == text


def test_torchs_decoder_finds_the_tokens_of_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    from decoder.check import check
    from decoder.config import Config, toy
    from decoder.reference import Reference
    from decoder.tensors import BF16
    from torch_decoder import Decoder, Shape, random_weights

    config = Config()
    heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    hidden = config.hidden_size
    shape = Shape(
        vocabulary=config.vocab_size,
        hidden=hidden,
        layers=config.num_hidden_layers,
        query_heads=heads,
        kv_heads=kv_heads,
        head_dim=dim,
        inner=config.intermediate_size,
        rope_base=config.rope_theta,
    )
    drawn = random_weights(shape, "cpu")

    def in_numpy(tensor: Any) -> Any:
        return tensor.contiguous().view(torch.uint16).numpy().view(BF16)

    tensors = {
        "model.embed_tokens.weight": in_numpy(drawn.embedding),
        "model.norm.weight": in_numpy(drawn.final_norm),
        "lm_head.weight": in_numpy(drawn.head),
    }
    for index, layer in enumerate(drawn.layers):
        q, k, v = layer.qkv.split([heads * dim, kv_heads * dim, kv_heads * dim])
        gate, up = layer.gate_up.chunk(2)
        named = {
            "input_layernorm": layer.attention_norm,
            "self_attn.q_proj": q,
            "self_attn.k_proj": k,
            "self_attn.v_proj": v,
            "self_attn.o_proj": layer.out,
            "post_attention_layernorm": layer.mlp_norm,
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": layer.down,
        }
        for name, tensor in named.items():
            tensors[f"model.layers.{index}.{name}.weight"] = in_numpy(tensor)
    decoder = Decoder(shape, drawn.to(torch.float32), positions_max=32)
    decoder.rewind(first=77, position=0)
    tokens = [77]
    for _ in range(16):
        decoder.step()
        tokens.append(int(decoder.token))
    verdict = check(Reference(toy(), tensors.get), [[77]], [tokens], stops=[], count=17)
    assert str(verdict) == "NumPy finds the same"


def test_torchs_sequences_find_side_by_side_what_each_finds_alone() -> None:
    torch = pytest.importorskip("torch")
    from torch_decoder import Decoder, Shape, random_weights

    shape = Shape(
        vocabulary=512, hidden=64, layers=2, query_heads=8, kv_heads=2, head_dim=16, inner=128
    )
    weights = random_weights(shape, "cpu").to(torch.float32)
    together = Decoder(shape, weights, positions_max=32, sequences=3)
    drawing = torch.Generator().manual_seed(5)
    for cache in together.keys + together.values:
        cache.copy_(torch.randn(cache.shape, generator=drawing))
    together.rewind(first=77, position=9)
    together.position[1] = 0  # Each at a place of its own.
    alone = [Decoder(shape, weights, positions_max=32) for _ in range(3)]
    for s, decoder in enumerate(alone):
        caches = zip(decoder.keys + decoder.values, together.keys + together.values, strict=True)
        for mine, everybodys in caches:
            mine.copy_(everybodys[s : s + 1])
        decoder.rewind(first=77 + s, position=int(together.position[s]))
    for _ in range(16):
        logits = together.step()
        expected = torch.cat([decoder.step() for decoder in alone])
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
        assert together.token.tolist() == [int(decoder.token) for decoder in alone]
    assert together.position.tolist() == [25, 16, 25]


def test_results_have_one_row_per_line(tmp_path: Path) -> None:
    from results_file import write_results

    path = tmp_path / "kept.json"
    rows = [dict(case="a", ours=dict(median=0.1)), dict(case="b", peer=None)]
    write_results(path, dict(gpus=2), rows)
    assert json.loads(path.read_text()) == dict(environment=dict(gpus=2), rows=rows)
    assert path.read_text().splitlines()[2] == '{"case":"a","ours":{"median":0.1}},'
    # Digits are not compared: the C++ benches' writer may print a number in one digit more.
    for kept in (ROOT / "bench/results").glob("*.json"):
        rows = json.loads(kept.read_text())["rows"]
        lines = kept.read_text().splitlines()[2:-1]
        assert [json.loads(line.rstrip(",")) for line in lines] == rows, kept.name
