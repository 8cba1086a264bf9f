"""Errors for options and calls that are not supported."""

from __future__ import annotations

from typing import Any

import torch

import tokenyard

OVERLAP = "overlap"
BESIDE_OVERLAP = (
    "packed_recv_count",
    "comp_signal",
    "block_m",
    "threshold",
    "num_sms",
    "src_signals",
    "src_signal_expect_value",
)
"""Options without effect while `overlap` is off: SGLang passes them in both cases."""


def unsupported(asked: str, why: str) -> tokenyard.Unsupported:
    return tokenyard.Unsupported(f"{asked}: {why}", asked=asked, why=why)


ADVICE = {
    OVERLAP: "no combine here waits for the signals of a GEMM; leave it out (in SGLang,"
    " --enable-single-batch-overlap)",
    "use_nvfp4": "rows travel in BF16 or FP8; leave it out (in vLLM, VLLM_DEEPEPLL_NVFP4_DISPATCH;"
    " in SGLang, pass --deepep-dispatcher-output-dtype bf16)",
}
"""Alternatives, by option of a fork."""


def refuse(options: dict[str, Any], call: str) -> None:
    """Raises Unsupported for options of DeepEP's forks (other formats, overlap with a GEMM).

    Options that are off (False, 0 or None) are ignored.
    """
    off = BESIDE_OVERLAP if options.get(OVERLAP) is False else ()
    asked = [name for name, value in options.items() if name not in off and _is_on(value)]
    if asked:
        known = (ADVICE[name] for name in asked if name in ADVICE)
        why = next(known, "only options of DeepEP's own Buffer are known here; leave them out")
        raise unsupported(f"{call} with {', '.join(asked)}", why)


def _is_on(value: Any) -> bool:
    # A tensor counts as on: reading its value would wait for the device.
    return isinstance(value, torch.Tensor) or bool(value)
