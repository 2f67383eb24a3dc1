"""Documents that one side of avactl writes and another reads: base of their models, `dump` and `load`.

Each document is declared once, as a strict and frozen model with bounds. The compiler, or the daemon that writes it,
constructs the model and dumps it; readers load the same model. Anybody who may write the object that carries a document
can write anything into it, so its size is checked before it is parsed, and every value has a bound.

Compiler and daemons may be of different releases during an upgrade. Keys that a reader does not know are ignored, and a
field that was added after the first release has a default, which is what the document meant before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Self, TypeVar

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    RootModel,
    StringConstraints,
    ValidationError,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from avactl.base.terminal import shorten_middle, visible_text

MAX_COUNT = 10**15
"""Largest count of anything."""
MAX_SIZE_BYTES = 1 << 60
"""Size of anything: an exbibyte."""
MAX_SECONDS = 366 * 86_400
MAX_UNIX_TIME_S = 1e11
_MAX_ERROR = 300
"""Characters of an error."""
LIMIT_ERROR = "avactl_limit"
"""Type of the errors of validators that check lengths and ranges."""
_LIMIT_ERRORS = (
    "too_long",
    "string_too_long",
    "greater_than",
    "greater_than_equal",
    "less_than",
    "less_than_equal",
    LIMIT_ERROR,
)
"""Types of the errors about lengths and ranges."""

T = TypeVar("T")

Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Bytes = Annotated[int, Field(ge=0, le=MAX_SIZE_BYTES)]
Seconds = Annotated[int, Field(ge=0, le=MAX_SECONDS)]
UnixTime = Annotated[float, Field(ge=0, lt=MAX_UNIX_TIME_S)]
UnixSeconds = Annotated[int, Field(ge=0, lt=int(MAX_UNIX_TIME_S))]
Amount = Annotated[float, Field(ge=0, le=1e18)]
Label = Annotated[str, Field(max_length=317)]
"""Key or value of a label, or a short name that is free text: at most a label's prefix, slash and name."""
Text = Annotated[str, Field(min_length=1, max_length=4096)]
OBJECT_NAME_PATTERN = "[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
ObjectName = Annotated[str, StringConstraints(pattern=rf"^{OBJECT_NAME_PATTERN}\Z")]
"""Name of a Kubernetes object: a DNS subdomain."""


def _validate_numbers(value: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    # pydantic passes NaN and integers of any size on in what it does not know; a text with them could not be written.
    try:
        if orjson.loads(orjson.dumps(value)) == value:
            return value
    except orjson.JSONEncodeError:
        pass
    raise PydanticCustomError(LIMIT_ERROR, "has a number that is not finite, or has more than 64 bits")


JsonObject = Annotated[Mapping[str, JsonValue], AfterValidator(_validate_numbers)]
"""An object with keys of another program, which is passed on as it is."""


class DocumentError(ValueError):
    """A document is not what its contract says; the message names the field."""


class DocumentTooLargeError(DocumentError):
    """A document, or a value in it, is beyond the limits of its contract."""


def absent(default: T) -> T:
    """Declare the default of a field whose key is omitted while it has this value."""
    field: T = Field(default=default, exclude_if=lambda value: bool(value == default))
    return field


def _key(field: str) -> str:
    return to_camel(field).replace("Gbps", "GBps")


class ContractPart(BaseModel):
    """A part of a document. Its keys are the names of its fields in camelCase."""

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="ignore",
        allow_inf_nan=False,
        alias_generator=_key,
        validate_by_name=True,
        validate_by_alias=True,
        regex_engine="python-re",
        defer_build=True,  # a process uses few of the documents
    )

    def replace(self, **changes: object) -> Self:
        """Return a changed copy."""
        return self.model_copy(update=changes)


class Contract(ContractPart):
    """A whole document."""

    MAX_BYTES: ClassVar[int] = 512 * 1024
    """Size of the text."""


class RootContract(RootModel[T], Contract):
    """A document that is a map or a list, or an object with keys of a user's choice."""

    model_config = ConfigDict(extra=None)
    MAX_BYTES: ClassVar[int] = 64 * 1024


D = TypeVar("D", bound=Contract)


def dump(document: Contract, indent: bool = False) -> str:
    """Return the text of a document, with sorted keys: on one line for annotations, or indented for ConfigMaps.

    Fields that were not set are omitted: their default is what a document without the key means. Raises DocumentError
    for a text that `load` refuses: changed copies and the parts that a daemon counts in were not validated.
    """
    options = orjson.OPT_SORT_KEYS | (orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE if indent else 0)
    text = orjson.dumps(document.model_dump(by_alias=True, exclude_unset=True), option=options)
    load(type(document), text)
    return text.decode()


def load(model: type[D], text: object) -> D:
    """Parse a document. Raises DocumentError, whatever `text` is."""
    if not isinstance(text, str | bytes) or not text:
        raise DocumentError("it is missing")
    if len(text) > model.MAX_BYTES:
        raise DocumentTooLargeError(f"it has more than {model.MAX_BYTES:,} bytes")
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    try:
        return model.model_validate_json(data, by_alias=True, by_name=False)
    except ValidationError as error:
        kind = DocumentTooLargeError if exceeds_limits(error) else DocumentError
        raise kind(explain(error)) from None


def load_file(model: type[D], path: Path) -> D:
    """Parse a document in a file. Raises OSError and DocumentError."""
    with path.open("rb") as file:
        return load(model, file.read(model.MAX_BYTES + 1))


def exceeds_limits(error: ValidationError) -> bool:
    """Return True if only lengths and ranges are wrong: a smaller document would be valid."""
    return all(each["type"] in _LIMIT_ERRORS for each in error.errors(include_url=False, include_input=False))


def explain(error: ValidationError) -> str:
    """Describe the first error of a validation on one line: the path of the field, and what is wrong with it."""
    first = error.errors(include_url=False, include_input=False)[0]
    words, context = first["msg"], first.get("ctx", {})
    place = _path(first["loc"])
    if first["type"] == "value_error":
        words = str(context["error"])
    elif first["type"] == "json_invalid":
        place, words = "", f"is not JSON: {context['error']}"
    elif first["type"] == "literal_error":
        words = f"is not one of {context['expected']}"
    else:
        words = _WORDS.get(first["type"], words[0].lower() + words[1:]).format(**context)
    return visible_text(shorten_middle(f"{f'`{shorten_middle(place, 200)}`' if place else 'it'} {words}", _MAX_ERROR))


def _path(location: Iterable[int | str]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


_WORDS = {
    "missing": "is missing",
    "int_type": "is not an integer",
    "int_from_float": "is not an integer",
    "float_type": "is not a number",
    "finite_number": "is not a finite number",
    "string_type": "is not a string",
    "string_pattern_mismatch": "is not valid",
    "string_too_short": "is too short",
    "string_too_long": "has more than {max_length} characters",
    "bool_type": "is not true or false",
    "list_type": "is not a list",
    "tuple_type": "is not a list",
    "dict_type": "is not an object",
    "mapping_type": "is not an object",
    "model_type": "is not an object",
    "model_attributes_type": "is not an object",
    "too_long": "has more than {max_length} entries",
    "too_short": "has less than {min_length} entries",
    "greater_than": "is not more than {gt}",
    "greater_than_equal": "is less than {ge}",
    "less_than": "is not less than {lt}",
    "less_than_equal": "is more than {le}",
}
