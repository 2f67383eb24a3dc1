"""Synchronous training with TensorFlow by workers that come and go."""

from __future__ import annotations

import avactl_worker
import linear
import tensorflow as tf
from avactl_worker.tensorflow import average


def main() -> None:
    weights = tf.Variable(tf.zeros(linear.FEATURES, tf.float64))
    optimizer = tf.keras.optimizers.SGD(linear.RATE)
    optimizer.build([weights])
    with avactl_worker.connect() as master:
        group = master.group([weights, *optimizer.variables])
        for step in group.steps(linear.EPOCHS):
            with step:
                features, targets = linear.data(group.rank, group.size)
                with tf.GradientTape() as tape:
                    error = tf.linalg.matvec(features, weights) - targets
                    squared_error = tf.reduce_sum(error**2)
                gradient = tape.gradient(squared_error, weights)
                # The mean over workers of `size` times their parts is the sum over all records.
                scaled = gradient * group.size / linear.RECORDS
                gradients, (mean,) = average(step, [scaled], squared_error)
                optimizer.apply_gradients(zip(gradients, [weights], strict=True))
                if group.rank == 0:
                    linear.show(step.number - 1, mean * group.size)
        if group.leader:
            total = tf.reduce_sum(weights).numpy()
            print(f"{group.size} workers at the end, sum of weights {total:.6f}", flush=True)


if __name__ == "__main__":
    main()
