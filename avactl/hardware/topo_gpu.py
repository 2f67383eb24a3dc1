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


_BY_NVLINK: dict[int | None, dict[str, int | None]] = {
    None: {
        "M4": 4,
        "M40": None,
        "M60": 8,
        "K80": 12,
        "P4": 8,
        "P40": 24,
        "V100S": 32,
        "T4": 16,
        "A2": 16,
        "A10": 24,
        "A10G": 24,
        "A16": 16,
        "RTX4090": 24,
        "RTX5090": 32,
        "L4": 24,
        "L20": 48,
        "L40": 48,
        "L40S": 48,
        "MI100": 32,
        "MI210": 64,
        "MI250": 64,
        "MI250X": 64,
        "MI300A": 128,
        "MI300X": 192,
        "MI325X": 256,
        "MI355X": 288,
    },
    1: {"P100": 16},
    2: {"V100": None, "RTX2080Ti": 11, "RTX6000": 24, "RTX8000": 48, "TITANRTX": 24},
    3: {
        "A30": 24,
        "A40": 48,
        "A100": None,
        "A800": 80,
        "A4500": 20,
        "A5000": 24,
        "A5500": 24,
        "A6000": 48,
        "RTX3090": 24,
        "RTX3090Ti": 24,
    },
    4: {"H20": None, "H100": 80, "H800": 80, "H200": 141, "GH200": None},
    5: {"B100": 192, "B200": 180, "B300": 288, "GB200": 186, "GB300": 288},
}
MODELS = {model: GpuFacts(memory, nvlink) for nvlink, found in _BY_NVLINK.items() for model, memory in found.items()}
"""Facts by model, as machine types name it. Sources: NVIDIA's data sheets of the products."""

FABRIC_GBPS = {
    "MI100": 46.0,
    "MI210": 50.0,
    "MI250": 50.0,
    "MI250X": 50.0,
    "MI300A": 64.0,
    "MI300X": 64.0,
    "MI325X": 64.0,
    "MI355X": 76.8,
}
"""Bandwidth of one Infinity Fabric link in one direction, GB/s. Sources: AMD's data sheets of the products.

Of MI250 and MI250X, each of the two dies of a card is a GPU, with half of its memory.
"""
_BRANDS = re.compile(r"^(?:NVIDIA|Tesla|Quadro|GeForce|GRID|AMD|Instinct)[\s_-]+", re.IGNORECASE)
_GIGABYTES = re.compile(r"(?<![A-Za-z0-9])([0-9]{1,3})\s?GB\b", re.IGNORECASE)
_NOT_MODEL = re.compile(
    r"^(?:SXM[0-9]?|SXM|PCIE?|PG[0-9]+|HBM[0-9]e?|NVL[0-9]*|[0-9]+GB|MIG.*|OAM|VF|HF|Generation|Blackwell|Max|Laptop)$",
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
_SERIES = re.compile(r"\W*GPU ?\[?[0-9]+\]?\W*:\s*Card [Ss]eries:\s*(?P<name>\S.*?)\s*").fullmatch
"""`rocm-smi --showproductname`."""
_LONGEST = 400
"""Longest line of these lists, in characters."""


def listed(content: str) -> Listed | None:
    """Parse the GPUs that a text lists in any format of `nvidia-smi`, or of `rocm-smi --showproductname`."""
    products: dict[str, None] = {}
    sizes: list[int] = []
    for line in content.split("\n"):
        line = line.rstrip("\r")
        if len(line) > _LONGEST:
            continue
        csv = _CSV(line)
        named = csv or _LIST(line) or _TABLE(line) or _SERIES(line)
        if named and any(char.isdigit() for char in named["name"]):
            products[named["name"].strip()] = None
        memory = csv or _TABLE_MEMORY(line)
        if memory and int(memory["memory"]) >= 1024:
            sizes.append(int(memory["memory"]))
    return Listed(tuple(products), min(sizes, default=None)) if products or sizes else None
