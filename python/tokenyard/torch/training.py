"""Support for training loops that lose ranks."""

import torch  # No postponed annotations here: torch inspects those of a hook.
import torch.distributed as dist


def average_hook(
    group: dist.ProcessGroup | None, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Averages gradients over the ranks that took part.

    DistributedDataParallel divides by its initial number of ranks. With on_failure="exclude", use

    >>> model.register_comm_hook(None, tokenyard.torch.average_hook)
    """
    work = dist.all_reduce(bucket.buffer(), dist.ReduceOp.AVG, group=group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])
