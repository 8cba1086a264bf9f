"""Decodes tokens with a model whose decode step is one task graph.

One persistent kernel runs the graph, one token per iteration, until a stop token. The model is a
Llama, Mistral, Mixtral, Qwen2, Qwen3 or Qwen3-MoE, or without weights a tiny one drawn from a seed.
Every token is checked against NumPy. Several ranks share the model (tensor parallel) and get the
same tokens.
"""

from __future__ import annotations

import program
from decoder.arguments import parser


def main(arguments: list[str] | None = None) -> int:
    chosen = parser(__doc__ or "").parse_args(arguments)
    with program.importing():
        from decoder import decoding  # Heavy: only once the arguments are valid.

    return decoding.run(chosen)


if __name__ == "__main__":
    program.run(main)
