"""Training with TensorFlow's parameter servers: the chief gives steps to workers, the servers hold the weights.

When a server has gone, the chief fails; its next attempt restores the last checkpoint.
"""

from __future__ import annotations

import json
import os

import linear
import numpy as np
import tensorflow as tf


def serve(resolver: tf.distribute.cluster_resolver.TFConfigClusterResolver) -> None:
    """Run the server of a worker or parameter server, until the job ends the pod."""
    tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol="grpc",
        start=True,
    ).join()


def train(resolver: tf.distribute.cluster_resolver.TFConfigClusterResolver) -> None:
    workers, servers = (resolver.cluster_spec().num_tasks(role) for role in ("worker", "ps"))
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        weights = tf.Variable(np.zeros(linear.FEATURES))
        done = tf.Variable(0, dtype=tf.int64)
    checkpoints = tf.train.CheckpointManager(
        tf.train.Checkpoint(weights=weights, done=done),
        os.environ["AVACTL_CHECKPOINT_DIR"],
        max_to_keep=int(os.environ["AVACTL_CHECKPOINT_KEEP"]),
    )
    checkpoints.restore_or_initialize()
    print(f"{workers} workers, {servers} servers, from epoch {int(done)}", flush=True)

    @tf.function
    def step(features: tf.Tensor, targets: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        error = tf.linalg.matvec(features, weights) - targets
        return 2 * tf.linalg.matvec(features, error, transpose_a=True), tf.reduce_sum(error**2)

    shards = [tuple(map(tf.constant, linear.data(shard, workers))) for shard in range(workers)]
    for epoch in range(int(done), linear.EPOCHS):
        results = [coordinator.schedule(step, args=shard) for shard in shards]
        coordinator.join()
        fetched = [result.fetch() for result in results]
        weights.assign_sub(linear.RATE / linear.RECORDS * sum(gradient for gradient, _ in fetched))
        linear.show(epoch, float(sum(squared_error for _, squared_error in fetched)))
        done.assign(epoch + 1)
        checkpoints.save()


def main() -> None:
    role = json.loads(os.environ["TF_CONFIG"])["task"]["type"]
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    (train if role == "chief" else serve)(resolver)


if __name__ == "__main__":
    main()
