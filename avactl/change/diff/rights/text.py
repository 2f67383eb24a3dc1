"""Rights as text: one line each, and the whole of a long command below it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from avactl.change.diff import phrases
from avactl.change.diff.fields import changed_lines
from avactl.change.diff.fields import differences as field_differences
from avactl.change.diff.model import Consequence
from avactl.change.diff.objects import field_changes
from avactl.change.diff.rights.model import RANK, Right

_MAX_INLINE_CHARACTERS = 300
"""Longest command on the line of its right; a longer one is below it, whole."""


def listed(rights: Iterable[Right]) -> list[Consequence]:
    """Return all rights of a new spec; the names of the variables of an object are one line."""
    variables: dict[str, list[str]] = {}
    found = []
    for right in rights:
        if right.what == "env":
            variables.setdefault(right.of, []).append(right.subject)
        else:
            found.append(_told(right, ""))
    found += [_consequence("env", ", ".join(dict.fromkeys(names)), of) for of, names in variables.items()]
    return _sorted(found)


def differences(before: Sequence[Right], now: Sequence[Right]) -> list[Consequence]:
    """Return the rights that are gained (`+`), lost (`-`) or changed (`→`)."""
    known = {_identity(right) for right in before}, {_identity(right) for right in now}
    gone = _by_key(right for right in before if _identity(right) not in known[1])
    come = _by_key(right for right in now if _identity(right) not in known[0])
    variables: dict[str, list[str]] = {}
    found: list[Consequence] = []
    for key in {**gone, **come}:
        old, new = gone.get(key, []), come.get(key, [])
        what, subject, of = key
        moved = subject and len(old) == len(new) == 1
        if what == "env":
            told = (
                [f"{old[0].subject} {phrases.move(old[0].value, new[0].value)}"]
                if moved
                else [
                    f"{sign} {right.subject} {phrases.show(right.value)}"
                    for sign, side in (("-", old), ("+", new))
                    for right in side
                ]
            )
            variables.setdefault(of, []).extend(told)
        elif moved:
            found += _moved(old[0], new[0])
        else:
            found += [_told(right, sign) for sign, side in (("- ", old), ("+ ", new)) for right in side]
    found += [_consequence("env", ", ".join(told), of) for of, told in variables.items()]
    return _sorted(found)


def _sorted(found: Iterable[Consequence]) -> list[Consequence]:
    return sorted(found, key=lambda consequence: consequence.rank)


def _identity(right: Right) -> tuple[str, str, str, str]:
    return right.what, right.subject, right.of, repr(right.value)


def _by_key(rights: Iterable[Right]) -> dict[tuple[str, str, str], list[Right]]:
    found: dict[tuple[str, str, str], list[Right]] = {}
    for right in rights:
        found.setdefault((right.what, right.subject, right.of), []).append(right)
    return found


def _consequence(what: str, text: str, of: str, lines: Sequence[str] = ()) -> Consequence:
    where = f" ({of})" if of else ""
    return Consequence("security", f"{what} {text}{where}", lines=tuple(lines), rank=RANK[what])


def _told(right: Right, sign: str) -> Consequence:
    mark = sign.strip() or "+"
    if right.what == "runs":
        text, whole = _command(right), _whole(right)
        lines = [f"{mark}{line}" for line in whole] if _is_long(right) else []
        return _consequence("runs", f"{sign}{text}", right.of, lines)
    if right.what == "sets":
        return _consequence("sets", f"{sign}{phrases.short(right.subject)} {phrases.show(right.value)}", right.of)
    return _consequence(right.what, f"{sign}{phrases.show(right.value, _MAX_INLINE_CHARACTERS)}", right.of)


def _moved(old: Right, new: Right) -> Iterator[Consequence]:
    if new.what == "sets":
        for change in field_changes(field_differences(old.value, new.value, (new.subject,))):
            yield _consequence("sets", phrases.field(change), new.of, change.lines)
        return
    images = [right.value.get("image") for right in (old, new)]
    lines = changed_lines(*("\n".join(_whole(right)) for right in (old, new))) if _is_long(old) or _is_long(new) else []
    place = f" in {new.subject}" if images[1] is None else ""
    if images[0] == images[1]:
        place = place or f" in {_shown(images[1])}"
        text = f"{_words(old)} → {_words(new)}{place}"
    elif _words(old) == _words(new):
        text = f"{_words(new)} in {_shown(images[0])} → {_shown(images[1])}"
    else:
        text = f"{_command(old)} → {_command(new)}"
    yield _consequence("runs", text, new.of, lines)


def _command(right: Right) -> str:
    image = right.value.get("image")
    return f"{_words(right)} in {right.subject if image is None else _shown(image)}"


def _words(right: Right) -> str:
    words = right.value["command"]
    return _shown(" ".join(map(str, words))) if words else "its default command"


def _shown(text: object) -> str:
    return phrases.show(text, _MAX_INLINE_CHARACTERS)


def _whole(right: Right) -> list[str]:
    """Return the image and all words of a command; a word with several lines has several."""
    image = right.value.get("image")
    return [
        *([f"image {image}"] if image is not None else []),
        *(line for word in right.value["command"] for line in str(word).splitlines() or [""]),
    ]


def _is_long(right: Right) -> bool:
    texts = (" ".join(map(str, right.value["command"])), str(right.value.get("image") or ""))
    return any("\n" in text or len(text) > _MAX_INLINE_CHARACTERS for text in texts)
