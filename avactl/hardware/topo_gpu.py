"""GPU models: product names in `nvidia-smi`, memory and NVLink generation."""

from __future__ import annotations

import re
from typing import NamedTuple


class GpuFacts(NamedTuple):
    """Facts implied by a model's name."""

    memory_gib: int | None
    """Memory by the data sheet, GiB; None if the model is sold with several sizes."""
    nvlink: int | None
    """NVLink generation; None without NVLink, or if unknown."""


MODELS: dict[str, GpuFacts] = {
    "M4": GpuFacts(4, None),
    "M40": GpuFacts(None, None),
    "M60": GpuFacts(8, None),
    "K80": GpuFacts(12, None),
    "P4": GpuFacts(8, None),
    "P40": GpuFacts(24, None),
    "P100": GpuFacts(16, 1),
    "V100": GpuFacts(None, 2),
    "V100S": GpuFacts(32, None),
    "T4": GpuFacts(16, None),
    "RTX2080Ti": GpuFacts(11, 2),
    "RTX6000": GpuFacts(24, 2),
    "RTX8000": GpuFacts(48, 2),
    "TITANRTX": GpuFacts(24, 2),
    "A2": GpuFacts(16, None),
    "A10": GpuFacts(24, None),
    "A10G": GpuFacts(24, None),
    "A16": GpuFacts(16, None),
    "A30": GpuFacts(24, 3),
    "A40": GpuFacts(48, 3),
    "A100": GpuFacts(None, 3),
    "A800": GpuFacts(80, 3),
    "A4500": GpuFacts(20, 3),
    "A5000": GpuFacts(24, 3),
    "A5500": GpuFacts(24, 3),
    "A6000": GpuFacts(48, 3),
    "RTX3090": GpuFacts(24, 3),
    "RTX3090Ti": GpuFacts(24, 3),
    "RTX4090": GpuFacts(24, None),
    "RTX5090": GpuFacts(32, None),
    "L4": GpuFacts(24, None),
    "L20": GpuFacts(48, None),
    "L40": GpuFacts(48, None),
    "L40S": GpuFacts(48, None),
    "H20": GpuFacts(None, 4),
    "H100": GpuFacts(80, 4),
    "H800": GpuFacts(80, 4),
    "H200": GpuFacts(141, 4),
    "GH200": GpuFacts(None, 4),
    "B100": GpuFacts(192, 5),
    "B200": GpuFacts(180, 5),
    "B300": GpuFacts(288, 5),
    "GB200": GpuFacts(186, 5),
    "GB300": GpuFacts(288, 5),
}
"""Facts by model, as machine types name it. Sources: NVIDIA's data sheets of the products."""

_BRANDS = re.compile(r"^(?:NVIDIA|Tesla|Quadro|GeForce|GRID)[\s_-]+", re.IGNORECASE)
_GIGABYTES = re.compile(r"(?<![A-Za-z0-9])([0-9]{1,3})\s?GB\b", re.IGNORECASE)
_NOT_MODEL = re.compile(
    r"^(?:SXM[0-9]?|SXM|PCIE?|PG[0-9]+|HBM[0-9]e?|NVL[0-9]*|[0-9]+GB|MIG.*|Generation|Blackwell|Max|Laptop)$",
    re.IGNORECASE,
)


class GpuName(NamedTuple):
    """A GPU, as identified by its product name."""

    model: str
    memory_gib: int | None


def parse_name(product: str) -> GpuName:
    """Parse model and memory from a product name: `NVIDIA A100-SXM4-80GB` → A100, 80; `NVIDIA RTX 3090` → RTX3090.

    The number in `GH200 480GB` is the CPU's memory and is ignored.
    """
    name = re.sub(r"\(.*?\)", "", product).strip()
    while (shorter := _BRANDS.sub("", name)) != name:
        name = shorter
    size = _GIGABYTES.search(name.replace("-", " "))
    words = [word for word in re.split(r"[\s_-]+", name) if word]
    kept: list[str] = []
    for word in words:
        if kept and _NOT_MODEL.match(word):
            break
        kept.append(word)
    model = "".join(kept)
    # `RTX A6000` is called A6000; other RTX cards keep the prefix.
    model = re.sub(r"^RTX(?=A[0-9])", "", model)
    model = re.sub(r"[^A-Za-z0-9.-]", "", model).strip("-.")[:40].strip("-.")
    facts = MODELS.get(model)
    memory = int(size[1]) if size and not model.startswith("GH") else None
    return GpuName(model, memory or (facts.memory_gib if facts else None))


class Listed(NamedTuple):
    """GPUs of a machine, from `nvidia-smi -L` or `--query-gpu=name,memory.total --format=csv`."""

    products: tuple[str, ...]
    """Distinct product names, in order."""
    memory_mib: int | None
    """Memory of one GPU, MiB; the smallest if they differ."""


_LIST = re.compile(r"\W*GPU [0-9, ]+: *(?P<name>[A-Z][^(]*?) *(?:\(UUID:.*)?").fullmatch
_BRAND = r"(?P<name>(?:NVIDIA|Tesla|Quadro|GeForce|TITAN)"
_CSV = re.compile(rf"\W*(?:[0-9]+, *)?{_BRAND}[^,|]*?) *, *(?P<memory>[0-9]+) *(?:MiB)?\b").match
_TABLE = re.compile(rf"\|\s+[0-9]+\s+{_BRAND} ?[^|]*?)\s+(?:On|Off|N/A)\s*\|").match
_TABLE_MEMORY = re.compile(r"[0-9]+MiB */ *(?P<memory>[0-9]+)MiB *\|").search
_LONGEST = 400
"""Longest line of these lists, in characters."""


def listed(content: str) -> Listed | None:
    """Parse the GPUs that a text lists in any format of `nvidia-smi`; None if it lists none."""
    products: dict[str, None] = {}
    sizes: list[int] = []
    for line in content.split("\n"):
        line = line.rstrip("\r")
        if len(line) > _LONGEST:
            continue
        csv = _CSV(line)
        named = csv or _LIST(line) or _TABLE(line)
        if named and any(char.isdigit() for char in named["name"]):
            products[named["name"].strip()] = None
        memory = csv or _TABLE_MEMORY(line)
        if memory and int(memory["memory"]) >= 1024:
            sizes.append(int(memory["memory"]))
    return Listed(tuple(products), min(sizes, default=None)) if products or sizes else None
