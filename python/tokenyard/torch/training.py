"""What a training loop needs whose ranks may be lost."""

import torch  # Without postponed annotations: torch looks at those of a hook.
import torch.distributed as dist


def average_hook(
    group: dist.ProcessGroup | None, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Averages gradients over the ranks that took part, however many were lost.

    DistributedDataParallel itself divides by the number of ranks that it began with. With
    on_failure="exclude", use

    >>> model.register_comm_hook(None, tokenyard.torch.average_hook)
    """
    work = dist.all_reduce(bucket.buffer(), dist.ReduceOp.AVG, group=group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])
