"""Classes and parts of a source: what its labels mean for a pack.

The label `class` is the class of a record, and a shard has records of one `split` only: names that other labels can
take. Classes are numbered in the order of their names over the whole source, so that one class has one number in every
directory; classes that are numbers keep them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from avactl.datasets.errors import ArgumentError, DatasetError
from avactl.datasets.pack.model import PackFormat, Settings
from avactl.datasets.selection import label_text
from avactl.datasets.sources import SourceObject
from avactl.datasets.text import display_name
from avactl.diagnostics.suggest import one_of

_CLASS, _PART = "class", "split"
_MAX_PARTS, _MAX_CLASSES = 100, 1_000_000
_MAX_NUMBER = {PackFormat.recordio: 2**24}
"""Largest number of a class: RecordIO stores a 32-bit float. Other formats have 32 bits."""
_IS_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}").fullmatch
_LOOKS_LIKE_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?").fullmatch
_NO_CLASS_HINT = "label the files by directories, as in `--labels split/class`, or pack without classes: `--class ''`"


class Classes(NamedTuple):
    """Meaning of a source's labels."""

    label: str
    """Label of the class; "" if there is none."""
    numbers: Mapping[str, int]
    """Number of each class."""
    part: str
    """Label of which a shard has one value; "" if shards have all."""
    parts: tuple[str, ...]
    """Values of that label, in their order; "" for samples that lack it."""

    def number(self, key: str, labels: Mapping[str, Any], format: PackFormat) -> int | None:
        """Return the number of a sample's class. Raises DatasetError if the format needs one, and it has none."""
        value = labels.get(self.label) if self.label else None
        if value is not None:
            return self.numbers[label_text(value)]
        if self.label and format.takes_one_file:
            raise DatasetError(f"{display_name(key)} has no label `{self.label}`", _NO_CLASS_HINT)
        return None

    def part_of(self, labels: Mapping[str, Any]) -> str:
        """Return the part of a sample."""
        return label_text(value) if (value := labels.get(self.part)) is not None else ""


def find_classes(objects: Iterable[SourceObject], settings: Settings) -> Classes:
    """Read the labels of all objects once. Raises DatasetError, ArgumentError."""
    by_name: dict[str, set[str]] = {}
    label = _CLASS if settings.class_label is None else settings.class_label
    part = _PART if settings.part_label is None else settings.part_label
    wanted = {name: limit for name, limit in ((label, _MAX_CLASSES), (part, _MAX_PARTS)) if name}
    bare: set[str] = set()
    seen: set[str] = set()
    for each in objects:
        seen.update(each.labels)
        for name, limit in wanted.items():
            if each.labels.get(name) is None:
                bare.add(name)
                continue
            values = by_name.setdefault(name, set())
            values.add(label_text(each.labels[name]))
            if len(values) > limit:
                raise DatasetError(f"the label `{name}` has more than {limit:,} values", "name another label")
    for name in settings.labels.split("/") if settings.labels else ():
        if name != "_" and name not in seen:
            raise ArgumentError(f"no file has a directory for the label `{name}`", "name as many as there are")
    for asked, option in ((settings.class_label, "--class"), (settings.part_label, "--by")):
        if asked and asked not in by_name:
            known = one_of(sorted(seen)[:10]) if seen else "none"
            raise ArgumentError(
                f"no file has the label `{asked}`", f"labels of the files: {known}; none: `{option} ''`"
            )
    label, part = (name if name in by_name else "" for name in (label, part))
    if not label and settings.class_label is None and settings.format.takes_one_file:
        text = f"a record of {settings.format.value} has the number of a class, and the files have no label `{_CLASS}`"
        raise ArgumentError(text, _NO_CLASS_HINT)
    if settings.classes and not label:
        raise ArgumentError("`--classes` numbers classes, and the files have none", _NO_CLASS_HINT)
    parts = sorted({*by_name.get(part, ()), *([""] if part in bare else ())}) if part else []
    return Classes(label, _number(by_name.get(label, set()), settings), part, (*parts,))


def _number(values: set[str], settings: Settings) -> Mapping[str, int]:
    if settings.classes:
        if unknown := sorted(values - settings.classes.keys()):
            text = f"the class {display_name(unknown[0])} has no number in the file of `--classes`"
            raise DatasetError(text, "add it there with a number of its own")
        return settings.classes
    if not all(map(_IS_NUMBER, values)):
        if all(map(_LOOKS_LIKE_NUMBER, values)):
            odd = min(value for value in values if not _IS_NUMBER(value))
            text = f"the classes are numbers, and {display_name(odd)} is none that a record can have"
            hint = f'number them yourself: `--classes FILE`, as in `{{"{display_name(odd)}": 0}}`'
            raise DatasetError(text, hint)
        return {value: number for number, value in enumerate(sorted(values))}
    numbers = {value: int(value) for value in sorted(values, key=int)}
    _want_numbers(numbers, settings.format)
    return numbers


def _want_numbers(numbers: Mapping[str, int], format: PackFormat) -> None:
    most = _MAX_NUMBER.get(format, 2**31 - 1)
    if large := [name for name, number in numbers.items() if number > most]:
        text = f"the class {display_name(large[0])} has a number above {most:,}, which {format.value} cannot store"
        raise DatasetError(text, "give it a name that is no number")


def read_classes(path: str, format: PackFormat) -> dict[str, int]:
    """Read the `classes.json` of an earlier pack; {} for no path. Raises ArgumentError, DatasetError."""
    if not path:
        return {}
    try:
        data = orjson.loads(Path(path).read_bytes())
    except OSError as error:
        raise ArgumentError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except orjson.JSONDecodeError as error:
        raise ArgumentError(f"{path} is not JSON: {error.msg}") from None
    form = 'write `{"cat": 0, "dog": 1}`'
    if not isinstance(data, dict) or not all(type(number) is int and number >= 0 for number in data.values()):
        raise ArgumentError(f"{path} does not give each class a number", form)
    if len(set(data.values())) < len(data):
        raise ArgumentError(f"{path} gives one number to two classes", form)
    _want_numbers(data, format)
    return dict(sorted(data.items(), key=lambda item: item[1]))
