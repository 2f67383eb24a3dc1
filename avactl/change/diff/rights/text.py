"""Rights as text: one line each, and the whole of a long command below it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from avactl.change.diff import phrases
from avactl.change.diff.fields import changed_lines, field_differences
from avactl.change.diff.model import Consequence
from avactl.change.diff.objects import field_changes
from avactl.change.diff.rights.model import RANK, Right

_MAX_INLINE_CHARACTERS = 300
"""Longest command on the line of its right; a longer one is below it, whole."""


def list_rights(rights: Iterable[Right]) -> list[Consequence]:
    """Return all rights of a new spec; the names of the variables of an object are one line."""
    variables: dict[str, list[str]] = {}
    found = []
    for right in rights:
        if right.what == "env":
            variables.setdefault(right.of, []).append(right.subject)
        else:
            found.append(_format_right(right, ""))
    found += [_make_consequence("env", ", ".join(dict.fromkeys(names)), of) for of, names in variables.items()]
    return _sort_by_gravity(found)


def compare_rights(before: Sequence[Right], now: Sequence[Right]) -> list[Consequence]:
    """Return the rights that are gained (`+`), lost (`-`) or changed (`→`)."""
    known = {_right_identity(right) for right in before}, {_right_identity(right) for right in now}
    gone = _by_key(right for right in before if _right_identity(right) not in known[1])
    come = _by_key(right for right in now if _right_identity(right) not in known[0])
    variables: dict[str, list[str]] = {}
    found: list[Consequence] = []
    for key in {**gone, **come}:
        old, new = gone.get(key, []), come.get(key, [])
        what, subject, of = key
        moved = subject and len(old) == len(new) == 1
        if what == "env":
            told = (
                [f"{old[0].subject} {phrases.show_move(old[0].value, new[0].value)}"]
                if moved
                else [
                    f"{sign} {right.subject} {phrases.show_value(right.value)}"
                    for sign, side in (("-", old), ("+", new))
                    for right in side
                ]
            )
            variables.setdefault(of, []).extend(told)
        elif moved:
            found += _format_change(old[0], new[0])
        else:
            found += [_format_right(right, sign) for sign, side in (("- ", old), ("+ ", new)) for right in side]
    found += [_make_consequence("env", ", ".join(told), of) for of, told in variables.items()]
    return _sort_by_gravity(found)


def _sort_by_gravity(found: Iterable[Consequence]) -> list[Consequence]:
    return sorted(found, key=lambda consequence: consequence.rank)


def _right_identity(right: Right) -> tuple[str, str, str, str]:
    return right.what, right.subject, right.of, repr(right.value)


def _by_key(rights: Iterable[Right]) -> dict[tuple[str, str, str], list[Right]]:
    found: dict[tuple[str, str, str], list[Right]] = {}
    for right in rights:
        found.setdefault((right.what, right.subject, right.of), []).append(right)
    return found


def _make_consequence(what: str, text: str, of: str, lines: Sequence[str] = ()) -> Consequence:
    where = f" ({of})" if of else ""
    return Consequence("security", f"{what} {text}{where}", lines=tuple(lines), rank=RANK[what])


def _format_right(right: Right, sign: str) -> Consequence:
    mark = sign.strip() or "+"
    if right.what == "runs":
        text, whole = _format_command(right), _command_lines(right)
        lines = [f"{mark}{line}" for line in whole] if _is_long(right) else []
        return _make_consequence("runs", f"{sign}{text}", right.of, lines)
    if right.what == "sets":
        return _make_consequence(
            "sets", f"{sign}{phrases.shorten_path(right.subject)} {phrases.show_value(right.value)}", right.of
        )
    return _make_consequence(right.what, f"{sign}{phrases.show_value(right.value, _MAX_INLINE_CHARACTERS)}", right.of)


def _format_change(old: Right, new: Right) -> Iterator[Consequence]:
    if new.what == "sets":
        for change in field_changes(field_differences(old.value, new.value, (new.subject,))):
            yield _make_consequence("sets", phrases.show_field(change), new.of, change.lines)
        return
    images = [right.value.get("image") for right in (old, new)]
    lines = (
        changed_lines(*("\n".join(_command_lines(right)) for right in (old, new)))
        if _is_long(old) or _is_long(new)
        else []
    )
    place = f" in {new.subject}" if images[1] is None else ""
    if images[0] == images[1]:
        place = place or f" in {_show_value(images[1])}"
        text = f"{_format_words(old)} → {_format_words(new)}{place}"
    elif _format_words(old) == _format_words(new):
        text = f"{_format_words(new)} in {_show_value(images[0])} → {_show_value(images[1])}"
    else:
        text = f"{_format_command(old)} → {_format_command(new)}"
    yield _make_consequence("runs", text, new.of, lines)


def _format_command(right: Right) -> str:
    image = right.value.get("image")
    return f"{_format_words(right)} in {right.subject if image is None else _show_value(image)}"


def _format_words(right: Right) -> str:
    words = right.value["command"]
    return _show_value(" ".join(map(str, words))) if words else "its default command"


def _show_value(text: object) -> str:
    return phrases.show_value(text, _MAX_INLINE_CHARACTERS)


def _command_lines(right: Right) -> list[str]:
    """Return the image and all words of a command; a word with several lines has several."""
    image = right.value.get("image")
    return [
        *([f"image {image}"] if image is not None else []),
        *(line for word in right.value["command"] for line in str(word).splitlines() or [""]),
    ]


def _is_long(right: Right) -> bool:
    texts = (" ".join(map(str, right.value["command"])), str(right.value.get("image") or ""))
    return any("\n" in text or len(text) > _MAX_INLINE_CHARACTERS for text in texts)
