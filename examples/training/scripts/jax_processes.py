"""Data-parallel training with JAX: one process for each worker, one global array."""

from __future__ import annotations

import os

import jax
import linear
import numpy as np
from jax import numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec


@jax.jit
def step(weights: jax.Array, features: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
    def squared_error(weights: jax.Array) -> jax.Array:
        return jnp.sum((features @ weights - targets) ** 2)

    total, gradient = jax.value_and_grad(squared_error)(weights)
    return weights - linear.RATE / linear.RECORDS * gradient, total


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    jax.distributed.initialize(
        coordinator_address=f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
        num_processes=int(os.environ["AVACTL_WORKERS"]),
        process_id=int(os.environ["AVACTL_INDEX"]),
    )
    rank, size = jax.process_index(), jax.process_count()
    if rank == 0:
        print(f"{size} workers", flush=True)
    mesh = Mesh(np.array(jax.devices()), "workers")
    everywhere, by_worker = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), ("workers",)))
    features, targets = (
        jax.make_array_from_process_local_data(by_worker, values) for values in linear.data(rank, size)
    )
    weights = jax.device_put(np.zeros(linear.FEATURES), everywhere)
    for epoch in range(linear.EPOCHS):
        weights, total = step(weights, features, targets)
        if rank == 0:
            linear.show(epoch, float(total))


if __name__ == "__main__":
    main()
