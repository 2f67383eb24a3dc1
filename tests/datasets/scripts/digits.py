"""Writes scikit-learn's handwritten digits, 1,797 images of 8 × 8 points, into the folder that is its argument."""

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

digits = load_digits()
folder = Path(sys.argv[1])
folder.mkdir()
np.savez(folder / "digits.npz", images=digits.images, target=digits.target)
