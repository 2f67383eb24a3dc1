"""TensorFlow: a `tf.data.Dataset`, and callbacks of Keras."""

from __future__ import annotations

from typing import Any, Sequence

import tensorflow as tf  # type: ignore[import-not-found,import-untyped,unused-ignore]

from avactl_worker.dataset import Dataset
from avactl_worker.progress import report
from avactl_worker.step import Step


def dataset(data: Dataset[Any], output_signature: Any) -> Any:
    """Return a `tf.data.Dataset` of a dataset's records, which has a `read` function.

    `output_signature` is that of `tf.data.Dataset.from_generator`. One pass ends when this worker gets no more tasks of
    the epoch; with `model.fit`, use `Trained`, which counts what was trained:

        batches = dataset(data, tf.TensorSpec((28, 28))).batch(32)
        for epoch in data.passes():
            model.fit(batches, callbacks=[Trained(data, batch_size=32)])
    """
    return tf.data.Dataset.from_generator(data.stream, output_signature=output_signature)


class Trained(tf.keras.callbacks.Callback):  # type: ignore[misc,unused-ignore]
    """Counts the records of each batch as trained, and reports the loss with the tasks."""

    def __init__(self, data: Dataset[Any], batch_size: int) -> None:
        super().__init__()
        self._data, self._batch_size = data, batch_size

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Count a batch; the last one of a pass may be shorter."""
        metrics = {"loss": float(logs["loss"])} if logs and "loss" in logs else {}
        self._data.trained(self._batch_size, **metrics)


class Report(tf.keras.callbacks.Callback):  # type: ignore[misc,unused-ignore]
    """Reports the progress of `model.fit`, with or without a job master: see `avactl_worker.report`."""

    def __init__(self, batch_size: int | None = None) -> None:
        """`batch_size`: records of a step, over all workers."""
        super().__init__()
        self._records, self._step, self._epoch = batch_size, 0, 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Note the epoch."""
        self._epoch = epoch + 1

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Count a step."""
        self._step += 1
        steps, epochs = self.params.get("steps"), self.params.get("epochs")
        report(
            self._step,
            steps * epochs if steps and epochs else None,
            records=self._records,
            epoch=self._epoch,
            epochs=epochs,
            **(logs or {}),
        )


def average(step: Step, gradients: Sequence[Any], *metrics: Any) -> tuple[list[Any], list[float]]:
    """Return gradients of a tape and metrics as means over all workers, weighted by their records.

    Gradients may be sparse; None is not allowed: use `tape.gradient(…, unconnected_gradients="zero")`. Call it once a
    step, outside of functions that TensorFlow compiles.
    """
    if any(each is None for each in gradients):
        raise ValueError('a gradient is None: use `tape.gradient(…, unconnected_gradients="zero")`')
    dense = [tf.convert_to_tensor(each) for each in gradients]
    found = step.mean([[each.numpy() for each in dense], [float(each) for each in metrics]])
    means = [tf.convert_to_tensor(mean, each.dtype) for mean, each in zip(found[0], dense)]
    return means, found[1]
