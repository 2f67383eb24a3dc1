"""Trains the versions of a model of hand-written digits: `python train.py FOLDER`.

1: logistic regression. 2: a small neural network. 3: version 1 on pictures of another size: every prediction fails.
4: version 2 with a feature look-up of a quarter of a second: slow. Each is a folder `FOLDER/VERSION`, as a repository
of models has them; `FOLDER/samples.json` has pictures that were not trained on, and their digits.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import joblib
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

SLOW = 0.25  # seconds


def main() -> None:
    """Train, and write all versions."""
    folder = Path(sys.argv[1])
    data = load_digits()
    pictures, unseen, digits, truth = train_test_split(data.data, data.target, test_size=200, random_state=1)
    linear = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)).fit(pictures, digits)
    network = make_pipeline(StandardScaler(), MLPClassifier((32,), max_iter=200, random_state=1)).fit(pictures, digits)
    halves = make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)).fit(pictures[:, :32], digits)
    for version, (model, delay) in {
        "1": (linear, 0.0),
        "2": (network, 0.0),
        "3": (halves, 0.0),
        "4": (network, SLOW),
    }.items():
        place = folder / version
        place.mkdir(parents=True)
        joblib.dump(model, place / "model.joblib")
        (place / "config.json").write_text(json.dumps({"lookup": delay}))
    (folder / "samples.json").write_text(json.dumps({"pictures": unseen.tolist(), "digits": truth.tolist()}))


main()
