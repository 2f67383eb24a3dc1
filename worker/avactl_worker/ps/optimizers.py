"""Optimizers that run on the servers.

Sources: Duchi et al., Adaptive subgradient methods, 2011 (AdaGrad); Kingma and Ba, Adam, 2015; McMahan et al., Ad click
prediction: a view from the trenches, 2013 (FTRL-proximal). Adam counts the steps of each row, so that a rare row has
the corrections of its own first steps.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class SGD(NamedTuple):
    """Gradient descent."""

    rate: float = 0.01

    def slots(self, dim: int) -> list[tuple[int, float]]:
        """Return the columns and the first value of each array that is kept beside the values."""
        return []

    def update(self, values: Any, slots: list[Any], gradients: Any, scale: float) -> None:
        """Change the values of rows, and their slots, in place. `scale` is a factor of the rate."""
        values -= np.float32(self.rate * scale) * gradients


class Momentum(NamedTuple):
    """Gradient descent with momentum, as PyTorch defines it."""

    rate: float = 0.01
    momentum: float = 0.9

    def slots(self, dim: int) -> list[tuple[int, float]]:
        """See SGD."""
        return [(dim, 0.0)]

    def update(self, values: Any, slots: list[Any], gradients: Any, scale: float) -> None:
        """See SGD."""
        slots[0] *= np.float32(self.momentum)
        slots[0] += gradients
        values -= np.float32(self.rate * scale) * slots[0]


class AdaGrad(NamedTuple):
    """AdaGrad."""

    rate: float = 0.01
    initial: float = 0.0
    epsilon: float = 1e-10

    def slots(self, dim: int) -> list[tuple[int, float]]:
        """See SGD."""
        return [(dim, self.initial)]

    def update(self, values: Any, slots: list[Any], gradients: Any, scale: float) -> None:
        """See SGD."""
        slots[0] += gradients * gradients
        values -= np.float32(self.rate * scale) * gradients / (np.sqrt(slots[0]) + np.float32(self.epsilon))


class Adam(NamedTuple):
    """Adam; of a row that gets no gradient, nothing changes."""

    rate: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def slots(self, dim: int) -> list[tuple[int, float]]:
        """See SGD."""
        return [(dim, 0.0), (dim, 0.0), (1, 0.0)]

    def update(self, values: Any, slots: list[Any], gradients: Any, scale: float) -> None:
        """See SGD."""
        first, second, steps = slots
        steps += np.float32(1)
        first += np.float32(1 - self.beta1) * (gradients - first)
        second += np.float32(1 - self.beta2) * (gradients * gradients - second)
        count = steps.astype(np.float64)
        rate = (self.rate * scale / (1 - self.beta1**count)).astype(np.float32)
        root = np.sqrt(1 - self.beta2**count).astype(np.float32)
        values -= rate * first / (np.sqrt(second) / root + np.float32(self.epsilon))


class FTRL(NamedTuple):
    """FTRL-proximal: weights of rare features are exactly zero with `l1`. Only for tables that begin with zeros."""

    rate: float = 0.1
    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0

    def slots(self, dim: int) -> list[tuple[int, float]]:
        """See SGD."""
        return [(dim, 0.0), (dim, 0.0)]

    def update(self, values: Any, slots: list[Any], gradients: Any, scale: float) -> None:
        """See SGD."""
        linear, squares = slots
        rate = np.float32(self.rate * scale)
        before = np.sqrt(squares)
        squares += gradients * gradients
        after = np.sqrt(squares)
        linear += gradients - (after - before) / rate * values
        shrunk = np.sign(linear) * np.float32(self.l1) - linear
        divisor = (np.float32(self.beta) + after) / rate + np.float32(self.l2)
        values[...] = np.where(np.abs(linear) <= np.float32(self.l1), np.float32(0), shrunk / divisor)


OPTIMIZERS: dict[str, Any] = {each.__name__: each for each in (SGD, Momentum, AdaGrad, Adam, FTRL)}
