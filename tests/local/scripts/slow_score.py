"""The script of the example, slow enough to be disturbed."""

from __future__ import annotations

import time

import numpy as np
import score

save = np.save


def slowly(*args: object) -> None:
    time.sleep(0.1)
    save(*args)  # type: ignore[arg-type]


np.save = slowly
score.main()
