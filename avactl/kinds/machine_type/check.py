"""Checks of a MachineType: its parts agree with each other and with the limits of the hardware."""

from __future__ import annotations

from collections.abc import Iterator

from avactl.base.quantity import parse_quantity
from avactl.diagnostics import Diagnostic, Note
from avactl.diagnostics.suggest import did_you_mean
from avactl.hardware.machine import NVLINK
from avactl.program.program import Item, Program
from avactl.program.unique_entries import check_duplicates
from avactl.spec.platform.machine_type import MachineTypeSpec, Nvlink

_CODE = "invalid-topology"
_GIB = 2**30


def check(item: Item[MachineTypeSpec], program: Program) -> Iterator[Diagnostic]:
    """Yield the problems of one machine type."""
    yield from check_machine_type(item)


def check_machine_type(item: Item[MachineTypeSpec]) -> Iterator[Diagnostic]:
    """Yield the problems of one machine type, independently of other specs."""
    yield from _check_memory(item)
    if item.spec.gpus is None:
        yield from _check_no_gpus(item)
    else:
        yield from _check_switches(item)
    yield from _check_nics(item)
    if item.spec.gpus is not None and item.spec.nvlink is not None:
        yield from _check_nvlink(item, item.spec.nvlink)


def _make_problem(
    item: Item[MachineTypeSpec], path: tuple[str | int, ...], message: str, hint: str, *notes: Note, key: bool = False
) -> Diagnostic:
    return Diagnostic(_CODE, message, item.span(*path, key=key), hint=hint, notes=notes)


def _check_memory(item: Item[MachineTypeSpec]) -> Iterator[Diagnostic]:
    """Yield amounts that indicate a missing suffix."""
    spec = item.spec
    amounts: list[tuple[tuple[str, ...], str, int]] = [(("spec", "memory"), spec.memory, _GIB)]
    if spec.gpus is not None:
        amounts.insert(0, (("spec", "gpus", "memory"), spec.gpus.memory, _GIB // 4))
    for path, value, least in amounts:
        if parse_quantity(value) < least:
            number = value.rstrip("kKMGTPEim")
            yield Diagnostic(
                "invalid-value",
                f"{'.'.join(path)}: {value}{' bytes' if number == value else ''} is too little memory for a machine",
                item.span(*path),
                hint=f"write `{number}Gi`",
            )
    if parse_quantity(spec.cpu) < 1:
        yield Diagnostic(
            "invalid-value",
            f"spec.cpu: {spec.cpu} CPU cores; a machine has at least one",
            item.span("spec", "cpu"),
            hint="write the number of cores that pods may use",
        )


def _check_no_gpus(item: Item[MachineTypeSpec]) -> Iterator[Diagnostic]:
    """Yield the keys that describe connections of GPUs."""
    for key in ("switches", "nvlink", "bandwidth"):
        if item.doc.get("spec", key):
            yield _make_problem(
                item,
                ("spec", key),
                f"`spec.{key}` connects GPUs, and the machine has none",
                "add `gpus: {model: …, count: …, memory: …}`, or remove the key",
                key=True,
            )


def _format_indexes(count: int) -> str:
    return f"the machine has {count} GPU{'s' if count > 1 else ''}: " + ("0" if count == 1 else f"0 to {count - 1}")


def _check_switches(item: Item[MachineTypeSpec]) -> Iterator[Diagnostic]:
    spec = item.spec
    count = spec.gpu_count
    seen: dict[int, tuple[int, int]] = {}
    wrong = False
    for index, switch in enumerate(spec.switches):
        path = ("spec", "switches", index)
        if switch.socket >= spec.sockets:
            yield _no_socket(item, (*path, "socket"), switch.socket)
        for place, gpu in enumerate(switch.gpus):
            here = (*path, "gpus", place)
            if gpu >= count:
                wrong = True
                yield _make_problem(item, here, f"GPU {gpu} does not exist", _format_indexes(count))
            elif (before := seen.setdefault(gpu, (index, place))) != (index, place):
                wrong = True
                note = Note(item.span("spec", "switches", before[0], "gpus", before[1]), "first occurrence")
                yield _make_problem(item, here, f"GPU {gpu} is listed under a switch twice", "list each GPU once", note)
    missing = [str(gpu) for gpu in range(count) if gpu not in seen]
    if spec.switches and missing and not wrong:
        which = f"GPU {missing[0]} is not" if len(missing) == 1 else f"GPUs {', '.join(missing)} are not"
        hint = f"declare a GPU on its own root port as a switch with one GPU: `{{socket: 0, gpus: [{missing[0]}]}}`"
        yield _make_problem(item, ("spec", "switches"), f"{which} under any switch", hint, key=True)


def _no_socket(item: Item[MachineTypeSpec], path: tuple[str | int, ...], socket: int) -> Diagnostic:
    sockets = item.spec.sockets
    has = "one socket: 0" if sockets == 1 else f"{sockets} sockets: 0 to {sockets - 1}"
    notes = (Note(item.span("spec", "sockets"), "declared here"),) if item.doc.get("spec", "sockets") else ()
    hint = f"the machine has {has}" if notes else f"add `sockets: {socket + 1}`; the default is one socket"
    return _make_problem(item, path, f"socket {socket} does not exist", hint, *notes)


def _check_nics(item: Item[MachineTypeSpec]) -> Iterator[Diagnostic]:
    spec = item.spec
    names = [nic.name for nic in spec.nics]
    yield from check_duplicates(item, ("spec", "nics"), names, "NIC")
    by_name = {nic.name: index for index, nic in enumerate(spec.nics)}
    for index, nic in enumerate(spec.nics):
        if nic.socket >= spec.sockets:
            yield _no_socket(item, ("spec", "nics", index, "socket"), nic.socket)
    seen: dict[str, tuple[int, int]] = {}
    for index, switch in enumerate(spec.switches):
        for place, name in enumerate(switch.nics):
            here = ("spec", "switches", index, "nics", place)
            if name not in by_name:
                hint = did_you_mean(name, names, "its NICs") if names else "declare it in `nics`"
                yield _make_problem(item, here, f"NIC `{name}` does not exist", hint)
                continue
            before = seen.setdefault(name, (index, place))
            if before != (index, place):
                note = Note(item.span("spec", "switches", before[0], "nics", before[1]), "first occurrence")
                yield _make_problem(
                    item, here, f"NIC `{name}` is listed under a switch twice", "list each NIC once", note
                )
            elif spec.nics[by_name[name]].socket != switch.socket:
                socket = spec.nics[by_name[name]].socket
                note = Note(item.span("spec", "nics", by_name[name]), f"declared on socket {socket} here")
                yield _make_problem(
                    item,
                    here,
                    f"NIC `{name}` is under a switch of socket {switch.socket} but declared on socket {socket}",
                    f"write `socket: {switch.socket}` in `nics`, or move it to a switch of socket {socket}",
                    note,
                )


def _check_nvlink(item: Item[MachineTypeSpec], nvlink: Nvlink) -> Iterator[Diagnostic]:
    count = item.spec.gpu_count
    path = ("spec", "nvlink")
    if nvlink.generation is None and item.spec.bandwidth.nvlink is None:
        hint = "write the `generation` of NVLink, or `bandwidth: {nvlink: …}` for links of other vendors"
        yield _make_problem(item, path, "the speed of the links is not known", hint, key=True)
    if bool(nvlink.pairs) == bool(nvlink.nvswitch_links):
        what = "both `pairs` and `nvswitchLinks`" if nvlink.pairs else "neither `pairs` nor `nvswitchLinks`"
        hint = "use `pairs` for direct links, or `nvswitchLinks` for links to NVSwitch"
        yield _make_problem(item, path, f"`spec.nvlink` has {what}", hint, key=True)
    generation, most = nvlink.generation, None
    if generation is not None:
        most = NVLINK[generation].max_links
        if nvlink.nvswitch_links > most:
            what = f"{nvlink.nvswitch_links} links to NVSwitch"
            yield _too_many(item, generation, (*path, "nvswitchLinks"), what, most)
    if nvlink.domain is not None:
        yield from _check_domain(item, nvlink, nvlink.domain)
    seen: dict[frozenset[int], int] = {}
    used = [0] * count
    for index, pair in enumerate(nvlink.pairs):
        here = (*path, "pairs", index, "gpus")
        beyond = [place for place, gpu in enumerate(pair.gpus) if gpu >= count]
        if beyond:
            yield _make_problem(
                item, (*here, beyond[0]), f"GPU {pair.gpus[beyond[0]]} does not exist", _format_indexes(count)
            )
            continue
        if pair.gpus[0] == pair.gpus[1]:
            yield _make_problem(item, here, f"GPU {pair.gpus[0]} is linked with itself", "name two different GPUs")
            continue
        before = seen.setdefault(frozenset(pair.gpus), index)
        if before != index:
            note = Note(item.span(*path, "pairs", before), "first occurrence")
            message = f"GPUs {pair.gpus[0]} and {pair.gpus[1]} are listed as a pair twice"
            yield _make_problem(item, here, message, "combine their `links` in one entry", note)
            continue
        for gpu in pair.gpus:
            used[gpu] += pair.links
            if generation is not None and most is not None and used[gpu] - pair.links <= most < used[gpu]:
                yield _too_many(item, generation, here, f"GPU {gpu} has {used[gpu]} links", most)


def _too_many(
    item: Item[MachineTypeSpec], generation: int, path: tuple[str | int, ...], what: str, most: int
) -> Diagnostic:
    fits = next((number for number, nvlink in NVLINK.items() if nvlink.max_links > most), None)
    hint = f"write {most} or less" if path[-1] == "nvswitchLinks" else "each link counts at both of its ends"
    if fits is not None:
        hint += f"; generation {fits} has {NVLINK[fits].max_links} links per GPU"
    note = Note(item.span("spec", "nvlink", "generation"), f"generation {generation}")
    return _make_problem(item, path, f"{what}, but a GPU with NVLink {generation} has at most {most}", hint, note)


def _check_domain(item: Item[MachineTypeSpec], nvlink: Nvlink, domain: int) -> Iterator[Diagnostic]:
    count = item.spec.gpu_count
    path = ("spec", "nvlink", "domain")
    if not nvlink.nvswitch_links:
        yield _make_problem(
            item,
            path,
            "an NVLink domain that spans machines requires NVSwitch",
            "add `nvswitchLinks`, or remove `domain`",
        )
    elif domain % count:
        yield _make_problem(
            item,
            path,
            f"a domain of {domain} GPUs is not a whole number of machines with {count} GPUs",
            f"write a multiple of {count}; omit `domain` if it does not span machines",
        )
