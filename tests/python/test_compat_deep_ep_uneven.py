"""The deep_ep package with numbers of experts that the ranks do not divide."""

from __future__ import annotations

from deep_ep_batch import HIDDEN, NVL_BYTES, equal, needs_torch, torch

import tokenyard

if torch is not None:
    import deep_ep

pytestmark = needs_torch


def test_a_layout_of_experts_that_the_ranks_do_not_divide() -> None:
    from deep_ep.routing import layout_of

    layout = layout_of(torch.tensor([[0, 3], [2, 7], [-1, 6]]), experts=8, ranks=3)
    assert layout.num_tokens_per_rank.tolist() == [2, 1, 2]
    assert layout.is_token_in_rank.tolist() == [
        [True, True, False],
        [True, False, True],
        [False, False, True],
    ]
    few = layout_of(torch.tensor([[1, -1], [2, 0]]), experts=2, ranks=4)  # No expert 2 there is.
    assert few.num_tokens_per_rank.tolist() == [1, 1, 0, 0]


def test_uneven_experts_with_and_without_ids_and_weights() -> None:
    """8 experts on 3 ranks, which hold 3, 3 and 2 of them."""

    def layer(world: tokenyard.World) -> None:
        buffer = deep_ep.Buffer(world, NVL_BYTES, explicitly_destroy=True)
        x = torch.randn(6, HIDDEN).bfloat16()
        topk_idx = torch.tensor([[0, 7], [2, 3], [5, 6], [1, -1], [4, 5], [7, 6]])
        layout = buffer.get_dispatch_layout(topk_idx, 8)
        to_ranks = dict(is_token_in_rank=layout[3], num_tokens_per_expert=layout[2])
        rows, _, weights, counts, handle, _ = buffer.dispatch(x, topk_idx=topk_idx, **to_ranks)
        first = [0, 3, 6, 8]
        mine = range(first[world.rank], first[world.rank + 1])
        assert weights is None
        assert counts == [3 * (topk_idx == expert).sum().item() for expert in mine]
        copies = layout[3].sum(1, keepdim=True)
        assert equal(buffer.combine(rows, handle)[0], x * copies)
        by_rank = buffer.dispatch(x, **to_ranks)
        assert by_rank[3] == counts
        assert equal(by_rank[0], rows)
        buffer.destroy()

    tokenyard.launch(layer, ranks=3)
