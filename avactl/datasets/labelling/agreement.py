"""Agreement of the people who labelled the same objects: the exact share, label by label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import orjson

from avactl.datasets.labelling.studio import Annotation, Task


class Agreed(NamedTuple):
    """Labels of one object on which enough people agree."""

    url: str
    labels: dict[str, Any]


class AgreementCounts:
    """Sums over all objects."""

    def __init__(self) -> None:
        self.objects = self.labelled = self.annotations = self.disputed = self.refused = 0
        self.pairs: Counter[str] = Counter()
        self.equal: Counter[str] = Counter()

    def agreement(self) -> dict[str, float]:
        """Return by label the share of pairs of people who say the same of an object, of all pairs."""
        return {name: self.equal[name] / pairs for name, pairs in sorted(self.pairs.items()) if pairs}


def agreed_labels(tasks: Iterable[Task], least: float, people: int, counts: AgreementCounts) -> Iterator[Agreed]:
    """Yield the labels that more people chose than any other, if their share is at least `least`.

    `people`: how many must have labelled an object. `NAME_agreement` is the share if there were several.
    """
    for task in tasks:
        counts.objects += 1
        counts.refused += task.refused
        latest = _latest(task.annotations)
        counts.annotations += len(latest)
        labels: dict[str, Any] = {}
        for name in sorted({name for each in latest for name in each.labels}):
            said = Counter(_canonical(each.labels[name]) for each in latest if name in each.labels)
            total = sum(said.values())
            counts.pairs[name] += total * (total - 1) // 2
            counts.equal[name] += sum(number * (number - 1) // 2 for number in said.values())
            (value, most), *others = said.most_common(2)
            if total < people or most / total < least or (others and others[0][1] == most):
                counts.disputed += total >= people
                continue
            labels[name] = orjson.loads(value)
            if total > 1:
                labels[f"{name}_agreement"] = round(most / total, 4)
        if labels and task.url:
            counts.labelled += 1
            yield Agreed(task.url, labels)


def _latest(annotations: Iterable[Annotation]) -> list[Annotation]:
    """Return the last annotation of each person: a second one replaces the first."""
    found: dict[str, Annotation] = {}
    for each in sorted(annotations, key=lambda each: each.at):
        found[each.person] = each
    return list(found.values())


def _canonical(value: Any) -> bytes:
    """Return a value as text that is the same for equal ones; choices have no order."""
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        value = sorted(value)
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
