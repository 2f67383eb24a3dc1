"""Node masks: one element for each slot of the placement state; None stands for all nodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]


def intersect_masks(one: Mask | None, other: Mask | None) -> Mask | None:
    """Return the nodes in both masks."""
    if one is None or other is None:
        return other if one is None else one
    return one & other


def preferred_masks_first(preferred: Mask | None, masks: Sequence[Mask | None]) -> list[Mask | None]:
    """Return the masks restricted to the preferred nodes, followed by the masks as they are."""
    return list(masks) if preferred is None else [*(intersect_masks(mask, preferred) for mask in masks), *masks]
