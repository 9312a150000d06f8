"""One model over several ranks: FSDP2, every layer a unit, compute in bfloat16, weights in float32."""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from unmdpo.engine.scoring import PairScorer, body
from unmdpo.errors import UserError


def shard(scorer: PairScorer, *, compute: torch.dtype = torch.bfloat16, offload: bool = False) -> PairScorer:
    """Shards parameters, gradients and optimizer state over all ranks, in place.

    The model holds float32 weights, which become the sharded masters; each layer is gathered in
    `compute` when its turn comes, and gradients are reduced in float32. With `offload` the shards rest
    in the host's memory. Compile layers before, and make the optimizer after.
    """
    if any(p.requires_grad and p.dtype != torch.float32 for p in scorer.model.parameters()):
        raise UserError("a model is sharded with float32 weights: load it with dtype float32")
    mesh = init_device_mesh(scorer.device.type, (dist.get_world_size(),))
    precision = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    resting = CPUOffloadPolicy() if offload else OffloadPolicy()
    for layer in body(scorer.model).layers:  # type: ignore[union-attr]
        fully_shard(layer, mesh=mesh, mp_policy=precision, offload_policy=resting)
    fully_shard(scorer, mesh=mesh, mp_policy=precision, offload_policy=resting)
    return scorer
