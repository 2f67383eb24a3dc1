"""Value types shared by the kinds: names, quantities, durations, images, paths, references.

Each is a plain `str` or number with a validator, so that Python authors write literals. Errors are
`PydanticCustomError`s whose context may carry a `hint`, the remedy.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any, get_args, get_origin
from unicodedata import combining, normalize

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from avactl.base.object_urls import BUCKET, SCHEMES
from avactl.base.quantity import parse_quantity
from avactl.base.variable_references import escape_references
from avactl.diagnostics.lookalikes import LOOK_ALIKES, describe_character
from avactl.spec.schema.worded_durations import plain_duration


def value_error(message: str, hint: str = "", fix: str = "") -> PydanticCustomError:
    """Build the error of a value check: the problem, the remedy, and the right value if there is just one."""
    # Pass the text through the context: pydantic would interpret braces in a template.
    return PydanticCustomError("invalid_value", "{message}", {"message": message, "hint": hint, "fix": fix})


@dataclass(frozen=True, slots=True)
class Says:
    """Description of a value type for `avactl explain`: its form and its unit."""

    text: str


# -- names ---------------------------------------------------------------------------------------------------------

_IS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?").fullmatch
NAME_PATTERN = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"


def _suggest_name(value: str) -> str:
    lowered = value.lower()
    odd = next((one for one, latin in zip(lowered, lowered.translate(LOOK_ALIKES), strict=True) if one != latin), "")
    value = normalize("NFKD", lowered.translate(LOOK_ALIKES))
    value = "".join(one for one in value if not combining(one))
    fixed = re.sub(r"[^a-z0-9-]+", "-", value.lower()).strip("-")[:63].strip("-")
    looks = f"; {describe_character(odd)}" if odd else ""
    return f"write `{fixed}`{looks}" if fixed else "use lowercase letters, digits and `-`"


def _check_name(value: str) -> str:
    if len(value) > 63:
        raise value_error(
            f"`{value[:24]}…` has {len(value)} characters; a name has at most 63", "choose a shorter name"
        )
    if not _IS_LABEL(value):
        raise value_error(
            f"`{value}` is not a valid name: use lowercase letters, digits and `-`, "
            "beginning and ending with a letter or digit",
            _suggest_name(value),
        )
    return value


Name = Annotated[
    str,
    AfterValidator(_check_name),
    WithJsonSchema({"type": "string", "pattern": NAME_PATTERN, "maxLength": 63}),
    Says("name: lowercase letters, digits, `-`"),
]
"""A DNS label (RFC 1123): the form of most Kubernetes object names."""


_IS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*").fullmatch


_LABEL_NAME_PATTERN = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
LABEL_KEY_PATTERN = rf"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?{_LABEL_NAME_PATTERN}$"
LABEL_VALUE_PATTERN = f"^({_LABEL_NAME_PATTERN})?$"
_LABEL_NAME = re.compile(_LABEL_NAME_PATTERN).fullmatch


def label_key(value: str, what: str = "a label key") -> str:
    """Check the key of a Kubernetes label, taint or annotation: a name with an optional DNS prefix."""
    prefix, slash, name = value.rpartition("/")
    if not _LABEL_NAME(name) or (slash and (len(prefix) > 253 or not _IS_SUBDOMAIN(prefix))):
        raise value_error(
            f"`{value[:80]}` is not {what}",
            "use at most 63 letters, digits, `-`, `_`, `.`, with an optional prefix: `example.com/name`",
        )
    return value


def label_value(value: str) -> str:
    """Check the value of a Kubernetes label or taint: at most 63 letters, digits, `-`, `_`, `.`; may be empty."""
    if len(value) > 63:
        raise value_error(f"`{value[:24]}…` has {len(value)} characters; a label value has at most 63", "shorten it")
    if value and not _LABEL_NAME(value):
        raise value_error(
            f"`{value}` is not a label value",
            "use letters, digits, `-`, `_`, `.`; begin and end with a letter or digit",
        )
    return value


@dataclass(frozen=True, slots=True)
class Ref:
    """Marks a text field as the name of a spec of `kind`. Resolved by the compiler's resolve pass."""

    kind: str


ClusterRef = Annotated[Name, Ref("Cluster")]
MachineTypeRef = Annotated[Name, Ref("MachineType")]
NodePoolRef = Annotated[Name, Ref("NodePool")]
TeamRef = Annotated[Name, Ref("Team")]
CacheTierRef = Annotated[Name, Ref("CacheTier")]

# -- quantities ----------------------------------------------------------------------------------------------------

MAX_QUANTITY = 40
"""Maximum length of a quantity: 2^63 has 19 digits, plus nine for nanos."""
_MAX_QUANTITY = 2**63
"""Upper bound of a quantity. Source: k8s.io/apimachinery/pkg/api/resource, "no number greater than 2^63-1"."""
QUANTITY_PATTERN = r"^([0-9]+(\.[0-9]+)?|\.[0-9]+)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"
"""Quantities allowed in specs: no sign, exponent, or suffix `n` or `u`."""
_IS_QUANTITY = re.compile(QUANTITY_PATTERN).fullmatch


_UNIT_SLIPS = {
    **dict.fromkeys(("core", "cores", "cpu", "cpus", "vcpu", "vcpus"), ""),
    "kb": "k",
    "mb": "M",
    "gb": "G",
    "tb": "T",
    "pb": "P",
    "kib": "Ki",
    "mib": "Mi",
    "gib": "Gi",
    "tib": "Ti",
    "pib": "Pi",
    "g": "G",
    "t": "T",
    "gi": "Gi",
    "mi": "Mi",
    "ti": "Ti",
    "ki": "Ki",
    "pi": "Pi",
    "k": "k",
}


def _check_quantity(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise PydanticCustomError("quantity_type", "expected a quantity such as `512Gi` or 4")
    if isinstance(value, float):
        if not 0 <= value < 1e18:
            raise value_error(f"{value} is not a quantity", "write a non-negative number with a suffix such as `Gi`")
        value = format(Decimal(repr(value)), "f")
    if isinstance(value, int) and abs(value) >= _MAX_QUANTITY:
        raise value_error("the number is too large for a quantity", "write a number below 2^63, or one with a suffix")
    text = str(value).strip()
    if len(text) > MAX_QUANTITY:
        hint = "write fewer digits, with a suffix such as `Gi`"
        raise value_error(f"`{text[:24]}…` has {len(text)} characters; a quantity has at most {MAX_QUANTITY}", hint)
    if _IS_QUANTITY(text) is None:
        hint = "write a number and a suffix: m, k, M, G, T, P, Ki, Mi, Gi, Ti, Pi"
        number = re.match(r"[0-9.]+", text)
        unit = text[number.end() :].strip().lower() if number else ""
        meant = f"{number[0]}{_UNIT_SLIPS[unit]}" if number and unit in _UNIT_SLIPS else ""
        raise value_error(f"`{text}` is not a quantity", f"write `{meant}`" if meant else hint, meant)
    if parse_quantity(text) >= _MAX_QUANTITY:
        raise value_error(f"`{text}` is too large for a quantity", "write less than 8Ei")
    return text


_QUANTITY_SCHEMA = WithJsonSchema(
    {
        "anyOf": [
            {"type": "string", "pattern": QUANTITY_PATTERN, "maxLength": MAX_QUANTITY},
            {"type": "number", "minimum": 0},
        ]
    }
)


def _check_not_zero(value: str) -> str:
    if value.endswith("m") or 0 < parse_quantity(value) < 1000:
        number = re.sub("[^0-9.]", "", value)
        unit = "Mi" if value.endswith("m") else "Gi"
        raise value_error(
            f"`{value}` is less than a kilobyte: the suffix is missing or wrong", f"write `{number}{unit}`"
        )
    return value


_BYTES_PATTERN = r"^(0|[0-9]{4,}|([0-9]+(\.[0-9]+)?|\.[0-9]+)(k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei))$"
_BYTES_SCHEMA = WithJsonSchema(
    {
        "anyOf": [
            {"type": "string", "pattern": _BYTES_PATTERN, "maxLength": MAX_QUANTITY},
            {"type": "number", "minimum": 1000},
            {"const": 0},
        ]
    }
)
AnyBytes = Annotated[str, BeforeValidator(_check_quantity), _QUANTITY_SCHEMA, Says("bytes, as a quantity: `512Gi`")]
"""A number of bytes; the kind's own checks define the minimum."""
Bytes = Annotated[
    str,
    BeforeValidator(_check_quantity),
    AfterValidator(_check_not_zero),
    _BYTES_SCHEMA,
    Says("bytes, as a quantity: `512Gi`"),
]
"""Memory or storage in bytes, as a Kubernetes quantity: `512Gi`."""
Cpu = Annotated[str, BeforeValidator(_check_quantity), _QUANTITY_SCHEMA, Says("CPU cores, as a quantity: `4`, `500m`")]
"""CPU cores, as a Kubernetes quantity: `4`, `500m`."""


def is_quantity(annotation: Any) -> bool:
    """Return whether values of a type are resource quantities, so that `1Gi` and `1024Mi` are equal."""
    marks = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    return any(isinstance(mark, BeforeValidator) and mark.func is _check_quantity for mark in marks)


_MAX_CORES = 2048
"""More CPU cores than any machine has: such a number is in millicores."""


def _check_cores(value: str) -> str:
    cores = parse_quantity(value)
    if cores > _MAX_CORES:
        number = re.sub("[^0-9.]", "", value)
        fewer = f"write `{number}m`" if value == number else f"write {_MAX_CORES} or less"
        raise value_error(f"`{value}` CPU cores are more than any machine has", fewer)
    return value


PodCpu = Annotated[Cpu, AfterValidator(_check_cores)]
"""CPU cores of one pod or machine."""

# -- durations -----------------------------------------------------------------------------------------------------

_IS_DURATION = re.compile(r"(?:[0-9]+(?:d|h|ms|m|s))+").fullmatch
_DURATION_PART = re.compile(r"([0-9]+)(d|h|ms|m|s)").findall
_UNIT_SECONDS = {
    "d": Fraction(86400),
    "h": Fraction(3600),
    "m": Fraction(60),
    "s": Fraction(1),
    "ms": Fraction(1, 1000),
}
_MAX_DURATION_S = 2**31 - 1
"""Maximum seconds in Kubernetes fields such as ttlSecondsAfterFinished."""
MAX_DURATION = 40
"""Maximum length of a duration."""
DURATION_PATTERN = "^([0-9]+(d|h|ms|m|s))+$"


@lru_cache(maxsize=1024)  # a repository has few different durations, and fractions are slow
def duration_seconds(value: str) -> Fraction:
    """Parse a duration into seconds: `1h30m` → 5400."""
    return sum((int(number) * _UNIT_SECONDS[unit] for number, unit in _DURATION_PART(value)), Fraction(0))


def parse_duration(text: str, name: str) -> float:
    """Parse an option: `90s` or `5m` into seconds. Raises ValueError."""
    if re.fullmatch(DURATION_PATTERN, text) is None:
        raise ValueError(f"{name}: `{text}` is not a duration; write e.g. `90s` or `5m`")
    return float(duration_seconds(text))


def _check_duration(value: str) -> str:
    if len(value) > MAX_DURATION:
        hint = "write a number and a unit: `1h30m`"
        raise value_error(f"`{value[:24]}…` has {len(value)} characters; a duration has at most {MAX_DURATION}", hint)
    if not _IS_DURATION(value):
        hint = "write a number and a unit: d, h, m, s, ms; e.g. `1h30m`"
        if value.isdigit():
            raise _missing_unit(value)
        meant = plain_duration(value)
        raise value_error(f"`{value}` is not a duration", f"write `{meant}`" if meant else hint, meant)
    if duration_seconds(value) > _MAX_DURATION_S:
        raise value_error(f"`{value}` is longer than 68 years", "write a shorter duration, or omit the key")
    return value


def _with_unit(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise _missing_unit(value)
    return value


def _missing_unit(value: float | str) -> PydanticCustomError:
    hint = "write a number and a unit: d, h, m, s, ms; e.g. `1h30m`"
    if re.fullmatch(r"0*[1-9][0-9]*", str(value), re.ASCII):
        hint = f"write `{value}d`, `{value}h`, `{value}m` or `{value}s`"
    return value_error(f"`{value}` is not a duration: it has no unit", hint)


Duration = Annotated[
    str,
    BeforeValidator(_with_unit),
    AfterValidator(_check_duration),
    WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN, "maxLength": MAX_DURATION}),
    Says("duration: `1h30m`"),
]
"""A duration: numbers with units d, h, m, s, ms."""


def _check_positive(value: str) -> str:
    if not duration_seconds(value):
        raise value_error(f"`{value}` is no time at all", "write a duration above 0, or remove the key")
    return value


PositiveDuration = Annotated[Duration, AfterValidator(_check_positive)]
"""A duration above 0, where 0 would mean that something fails at once, or is done without a pause."""

# -- images, URLs, paths -------------------------------------------------------------------------------------------

MAX_PATH = 4096
"""Maximum length of a path (Linux's PATH_MAX) and of a URL."""
MAX_IMAGE = 511
"""Maximum length of an image reference: a name of 255, a tag of 128, a digest, and space for a registry port."""

_IMAGE = re.compile(
    r"(?P<name>[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?::[0-9]+)?(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
).fullmatch


_CREDENTIALS = re.compile(r"[^/@\s]*:[^/@\s]*@(?!sha256:)")
"""User and password before the host of a URL, which no message repeats."""


def _check_image(value: str) -> str:
    if len(value) > MAX_IMAGE:
        message = f"`{value[:60]}…` has {len(value):,} characters; an image reference has at most {MAX_IMAGE}"
        raise value_error(message, "shorten it")
    if not _IMAGE(value):
        hint, fix = "write `registry/name:tag` or `registry/name@sha256:` followed by 64 hex digits", ""
        if "@sha256:" in value:
            digits = len(value.rpartition(":")[2])
            hint = f"a sha256 digest has 64 hex digits, this has {digits}"
        elif (bare := value.partition("://")[2]) and _IMAGE(bare):
            hint, fix = f"an image has no `https://`: write `{bare}`", bare
        elif _IMAGE(name := value.lower()):
            hint, fix = f"the name of an image is lowercase: write `{name}`", name
        shown = _CREDENTIALS.sub("…@", value)
        raise value_error(f"`{shown}` is not an image reference", *(("", "") if shown != value else (hint, fix)))
    return value


def _pinned_image(value: str) -> str:
    if "@" not in _check_image(value):
        raise value_error(
            f"`{value}` is not pinned by digest", "tags are mutable; write `name@sha256:…` (`crane digest` prints it)"
        )
    return value


_IMAGE_NAME = r"[a-z0-9]+([._-]+[a-z0-9]+)*(:[0-9]+)?(/[a-z0-9]+(([._]|__|-+)[a-z0-9]+)*)*"
_IMAGE_SCHEMA = f"^{_IMAGE_NAME}(:[A-Za-z0-9_][A-Za-z0-9._-]{{0,127}})?(@sha256:[0-9a-f]{{64}})?$"
Image = Annotated[
    str,
    AfterValidator(_check_image),
    WithJsonSchema({"type": "string", "pattern": _IMAGE_SCHEMA}),
    Says("container image"),
]
"""A container image, by tag or by digest."""
PinnedImage = Annotated[
    str,
    AfterValidator(_pinned_image),
    WithJsonSchema({"type": "string", "pattern": _IMAGE_SCHEMA.replace(")?$", ")$")}),
    Says("container image, pinned by digest"),
]
"""A container image pinned by digest."""

OBJECT_PREFIX = BUCKET + r"(/(?!\.{1,2}(/|$))[^\s/?#%$`\"'<>|\\\x00-\x20\x7f]+)*"
"""Pattern of an object-store URL in its only form, so that URLs of one place are equal and paths stay below it."""
_HUGGING_FACE = re.compile(
    r"(hf://|https://(huggingface\.co|hf\.co)/)(models/|(?P<dataset>datasets/))?(?P<id>([\w.-]{1,96}/)?[\w.-]{1,96})([:@/].*)?"
).fullmatch
_OBJECT_URL = re.compile(f"{OBJECT_PREFIX}/?").fullmatch


def _object_url(value: str) -> str:
    want_length(value)
    if not _OBJECT_URL(value) or not value.isprintable():
        scheme, _, rest = value.partition("://")
        if "@" in rest.partition("/")[0]:
            hint = "put credentials in a Secret, not in a URL"
        elif scheme in ("s3a", "s3n"):
            hint = f"write `s3://{rest}`"
        elif (hub := _HUGGING_FACE(value)) is not None:
            kind = " --repo-type dataset" if hub["dataset"] else ""
            hint = (
                f"copy it to a bucket once, pinned to a commit: `hf download {hub['id']}{kind} --revision COMMIT "
                "--local-dir D` and `rclone copy D s3:BUCKET/PREFIX`; then write `s3://BUCKET/PREFIX`"
            )
        elif scheme in SCHEMES:
            hint = "write the bucket in lowercase, and directories without `..`, `//`, `%` and shell characters"
        elif (slip := re.fullmatch(r"([a-z0-9]+):/*(.*)", value)) and _OBJECT_URL(url := f"{slip[1]}://{slip[2]}"):
            hint = f"write `{url}`"
        else:
            hint = f"use one of {', '.join(f'{each}://' for each in SCHEMES)}"
        raise value_error(f"`{value.partition('@')[2] or value}` is not an object-store URL", hint)
    return value


HUB = "hf"
"""Scheme of URLs of Hugging Face's hub."""
HUB_URL_PATTERN = r"hf://[A-Za-z0-9_][A-Za-z0-9._-]{0,95}/[A-Za-z0-9_][A-Za-z0-9._-]{0,95}@[0-9a-f]{40}"
_HUB_URL = re.compile(HUB_URL_PATTERN).fullmatch


def _model_url(value: str) -> str:
    hub = _HUGGING_FACE(value)
    if hub is None or hub["dataset"]:
        return _object_url(value)
    want_length(value)
    if not _HUB_URL(value):
        name = hub["id"] if "/" in hub["id"] else f"ORGANISATION/{hub['id']}"
        raise value_error(
            f"`{value}` names no commit of a model on Hugging Face's hub",
            f"write `hf://{name}@COMMIT` with the 40 digits of the commit: branches and tags can move",
        )
    return value


ModelUrl = Annotated[
    str,
    AfterValidator(_model_url),
    WithJsonSchema({"type": "string", "pattern": f"^({OBJECT_PREFIX}/?|{HUB_URL_PATTERN})$"}),
    Says("URL of a model: `s3://bucket/prefix`, or `hf://organisation/name@commit`"),
]
"""An object-store location, or a commit of a model on Hugging Face's hub."""
ObjectUrl = Annotated[
    str,
    AfterValidator(_object_url),
    WithJsonSchema({"type": "string", "pattern": f"^{OBJECT_PREFIX}/?$"}),
    Says("object-store URL: `s3://bucket/prefix`"),
]
"""An object-store location: `s3://bucket/prefix`."""


def want_length(value: str) -> None:
    """Raise an error if a path or URL is too long."""
    if len(value) > MAX_PATH:
        raise value_error(f"the value has {len(value):,} characters; the limit is {MAX_PATH:,}", "shorten it")


def want_no_references(value: str) -> None:
    """Raise an error if a path or URL has `$$` or `$(`, which Kubernetes replaces in programs' arguments."""
    if escape_references(value) != value:
        message = f"`{value}` contains `$$` or `$(`, which Kubernetes replaces where programs read it"
        raise value_error(message, "write the path or URL itself")


def _unsafe_path(message: str, hint: str) -> PydanticCustomError:
    return PydanticCustomError("unsafe_path", "{message}", {"message": message, "hint": hint})


def _abs_path(value: str) -> str:
    want_length(value)
    inner = value.rstrip("/").split("/")[1:]
    if not value.startswith("/") or {"", ".", ".."} & {*inner} or ":" in value or not value.isprintable():
        message = f"`{value}` is not an absolute path without `..`, `.`, `//` and `:`"
        fixed = f"/{value}" if inner != [""] and re.fullmatch(r"[\w-]+(/[\w-]+)*", value) else "/data"
        raise _unsafe_path(message, f"write a path such as `{fixed}`")
    want_no_references(value)
    return value


def _rel_path(value: str) -> str:
    want_length(value)
    if not value.isprintable():
        raise _unsafe_path(f"{value!r} contains a control character", "write a relative path without `..`")
    if value.startswith(("/", "~")) or ".." in value.split("/") or "\\" in value:
        raise _unsafe_path(f"`{value}` points outside its directory", "write a relative path without `..`")
    return value


AbsPath = Annotated[
    str,
    AfterValidator(_abs_path),
    WithJsonSchema({"type": "string", "pattern": r"^(?!.*\$[$(])(/|(/(?!\.{1,2}(/|$))[^/:]+)+/*)$"}),
    Says("absolute path"),
]
"""An absolute path in its only form: without `..`, `.` and `//`, and without references to variables."""
_SYSTEM = (
    "bin",
    "boot",
    "dev",
    "etc",
    "home",
    "lib",
    "lib32",
    "lib64",
    "libx32",
    "proc",
    "root",
    "run",
    "sbin",
    "sys",
    "tmp",
    "usr",
    "var/cache",
    "var/lib/cni",
    "var/lib/containerd",
    "var/lib/containers",
    "var/lib/docker",
    "var/lib/etcd",
    "var/lib/kubelet",
    "var/lib/rancher",
    "var/log",
    "var/run",
    "var/tmp",
)
_SYSTEM_DIRECTORIES = tuple(f"/{name}/" for name in _SYSTEM)


def _host_directory(value: str) -> str:
    if "," in value:
        message = f"`{value}` has a comma, which programs read as the end of one of several directories"
        raise value_error(message, "write several directories as a list")
    path = f"{_abs_path(value).rstrip('/')}/"
    if path.startswith(_SYSTEM_DIRECTORIES):
        raise value_error(f"`{value}` is a directory of the system", "use a directory for data, such as `/data`")
    if any(each.startswith(path) for each in _SYSTEM_DIRECTORIES):
        raise value_error(f"`{value}` contains directories of the system", "use a directory for data, such as `/data`")
    return value


HostPath = Annotated[
    str,
    AfterValidator(_host_directory),
    WithJsonSchema({"type": "string", "pattern": r"^(?!.*\$[$(])(/(?!\.{1,2}(/|$))[^/:,]+)+/*$"}),
    Says("directory on machines"),
]
"""A directory on machines outside of the system's own."""
RelPath = Annotated[
    str,
    AfterValidator(_rel_path),
    WithJsonSchema({"type": "string", "pattern": r"^(?![/~])(?!(.*/)?\.\.(/|$))[^\\]*$"}),
    Says("relative path"),
]
"""A relative path without `..`."""


def _repository_file(value: str) -> str:
    if any(part.startswith(".") and part != "." for part in value.split("/")):
        message = f"`{value}` is hidden; specs cannot reference hidden files"
        raise _unsafe_path(message, "move the file to a path without components that begin with `.`")
    return value


RepositoryFile = Annotated[
    RelPath,
    AfterValidator(_repository_file),
    WithJsonSchema({"type": "string", "pattern": r"^(?![/~])(?!(.*/)?\.[^/])[^\\]*$"}),
    Says("file in the repository, relative to the spec file"),
]
"""A file referenced by a spec: not hidden, so neither `.env` nor part of `.git`."""

_PERCENT_PATTERN = r"^(100|[1-9][0-9]?)%$"


def _check_percent(value: str) -> str:
    if not re.fullmatch(_PERCENT_PATTERN, value):
        number = float(value) if re.fullmatch(r"[0-9]{1,3}|0?\.[0-9]{1,2}", value) else 0.0
        share = round(number * 100) if 0 < number < 1 else int(number)
        hint = f"write `{share}%`" if 0 < share <= 100 else "write a whole number such as `80%`"
        raise value_error(f"`{value[:20]}` is not a percentage from `1%` to `100%`", hint)
    return value


Percent = Annotated[
    str,
    AfterValidator(_check_percent),
    WithJsonSchema({"type": "string", "pattern": _PERCENT_PATTERN}),
    Says("percentage: `80%`"),
]
"""A percentage from `1%` to `100%`."""


def percent_number(value: str) -> int:
    """Return the number of a `Percent`."""
    return int(value.removesuffix("%"))


Count = Annotated[int, Field(ge=1, le=100_000)]
"""A count of at least 1."""
Port = Annotated[int, Field(ge=1, le=65535)]
"""A TCP port."""


def _check_subject(value: str) -> str:
    if value.startswith("system:"):
        raise value_error(f"`{value}` is reserved by Kubernetes", "use a user or group of the identity provider")
    if not value or value.split() != [value]:
        what = f"`{value}` contains whitespace" if value else "the name is empty"
        raise value_error(what, "write the name exactly as the identity provider reports it")
    if "*" in value:
        raise value_error(
            f"`{value}` is not a name: patterns and `*` match nobody or everybody", "list users and groups by name"
        )
    return value


Subject = Annotated[
    str,
    Field(max_length=253),
    AfterValidator(_check_subject),
    WithJsonSchema({"type": "string", "pattern": r"^(?!system:)[^\s*]+$", "maxLength": 253}),
]
"""A user or group name from the identity provider."""
