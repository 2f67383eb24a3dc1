"""seccomp: allowlist of the system calls that a computing Python process needs.

A running interpreter needs memory, reading, time, its identity and exit. Sources: seccomp(2),
linux/seccomp.h, linux/filter.h; numbers of asm/unistd_64.h (x86_64) and asm-generic/unistd.h (aarch64).
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from typing import Any, NamedTuple

_Numbers = dict[str, tuple[int | None, ...]]
"""Name of a call: its numbers on x86_64 and on aarch64, None if the architecture does not have it."""


def _parse_table(text: str) -> _Numbers:
    rows = [line.split() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return {name: tuple(None if number == "-" else int(number) for number in row) for name, *row in rows}


_ALLOWED_CALLS = _parse_table(
    """
    # files that are open, and reading
    read                  0   63
    pread64              17   67
    write                 1   64
    close                 3   57
    lseek                 8   62
    dup                  32   23
    stat                  4    -
    lstat                 6    -
    fstat                 5   80
    newfstatat          262   79
    statx               332  291
    access               21    -
    faccessat           269   48
    faccessat2          439  439
    readlink             89    -
    readlinkat          267   78
    getdents64          217   61
    getcwd               79   17
    poll                  7    -
    ppoll               271   73
    select               23    -
    pselect6            270   72
    # memory
    munmap               11  215
    mremap               25  216
    brk                  12  214
    madvise              28  233
    # time
    clock_gettime       228  113
    clock_getres        229  114
    clock_nanosleep     230  115
    nanosleep            35  101
    gettimeofday         96  169
    time                201    -
    times               100  153
    # signals to itself, locks, its end
    rt_sigaction         13  134
    rt_sigprocmask       14  135
    rt_sigreturn         15  139
    sigaltstack         131  132
    futex               202   98
    sched_yield          24  124
    restart_syscall     219  128
    exit                 60   93
    exit_group          231   94
    # questions about itself
    getpid               39  172
    getppid             110  173
    gettid              186  178
    getuid              102  174
    geteuid             107  175
    getgid              104  176
    getegid             108  177
    getrlimit            97  163
    getrusage            98  165
    sched_getaffinity   204  123
    uname                63  160
    getrandom           318  278
    """
)
"""Calls allowed with any arguments."""

_FILTERED_CALLS = _parse_table(
    """
    open                  2    -
    openat              257   56
    mmap                  9  222
    mprotect             10  226
    fcntl                72   25
    ioctl                16   29
    prlimit64           302  261
    """
)
"""Calls allowed with some arguments; see _filters."""

# glibc falls back from these to older calls (clone, openat) if the kernel does not support them.
_ABSENT: _Numbers = {"clone3": (435, 435), "openat2": (437, 437)}


class _Architecture(NamedTuple):
    column: int
    arch: int
    """AUDIT_ARCH of linux/audit.h."""
    large_file: int
    """The kernel's O_LARGEFILE: musl always sets it."""


_MACHINES = {"x86_64": _Architecture(0, 0xC000003E, 0o100000), "aarch64": _Architecture(1, 0xC00000B7, 0o400000)}
_X32_BIT = 0x40000000
"""Lowest number of the x32 calls, which share x86_64's AUDIT_ARCH but have their own numbers."""

_SECCOMP_NUMBERS = (317, 277)
_SET_MODE_FILTER, _TSYNC = 1, 1

# -- BPF: one instruction is (code, jump if true, jump if false, constant) -------------------------------------------

_Instruction = tuple[int, int, int, int]
_ARCH, _NUMBER = 4, 0
"""Offsets in struct seccomp_data."""


def _load(offset: int) -> _Instruction:
    return (0x20, 0, 0, offset)  # BPF_LD | BPF_W | BPF_ABS


def _load_low_half(argument: int) -> _Instruction:
    """Load the low half of an argument, which is all that the kernel reads of an int parameter."""
    return _load(16 + 8 * argument)


def _load_high_half(argument: int) -> _Instruction:
    return _load(20 + 8 * argument)


def _mask_bits(bits: int) -> _Instruction:
    return (0x54, 0, 0, bits & 0xFFFFFFFF)  # BPF_ALU | BPF_AND | BPF_K


def _skip_unless(value: int, count: int) -> _Instruction:
    return (0x15, 0, count, value)  # BPF_JMP | BPF_JEQ | BPF_K


def _skip_if(value: int, count: int) -> _Instruction:
    return (0x15, count, 0, value)


def _skip_if_below(value: int, count: int) -> _Instruction:
    return (0x35, 0, count, value)  # BPF_JMP | BPF_JGE | BPF_K


def _return_action(action: int) -> _Instruction:
    return (0x06, 0, 0, action)  # BPF_RET | BPF_K


_RETURN_ALLOW = _return_action(0x7FFF0000)
_RETURN_REFUSE = _return_action(0x00050000 | errno.EPERM)
_IS_ABSENT = _return_action(0x00050000 | errno.ENOSYS)
_RETURN_KILL = _return_action(0x80000000)  # SECCOMP_RET_KILL_PROCESS

_READ_ONLY = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_PROT_WRITE, _PROT_EXEC, _PROT_BTI = 2, 4, 16
_MAP_ANONYMOUS = 0x20
_F_DUPFD, _F_GETFD, _F_SETFD, _F_GETFL, _F_DUPFD_CLOEXEC = 0, 1, 2, 3, 1030
_TCGETS, _TIOCGWINSZ, _FIONCLEX, _FIOCLEX = 0x5401, 0x5413, 0x5450, 0x5451


def _one_of(argument: int, values: tuple[int, ...]) -> list[_Instruction]:
    tests = [_skip_if(value, len(values) - index) for index, value in enumerate(values)]
    return [_load_low_half(argument), *tests, _RETURN_REFUSE, _RETURN_ALLOW]


def _argument_filters(machine: _Architecture) -> dict[str, list[_Instruction]]:
    """Return the argument filter of each call that has one; each ends in a return."""
    directory = getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_PATH", 0)
    flags = _READ_ONLY | directory | machine.large_file
    return {
        # O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, O_TMPFILE, and any unknown flag.
        "open": [_load_low_half(1), _mask_bits(~flags), _skip_unless(0, 1), _RETURN_ALLOW, _RETURN_REFUSE],  # musl's
        "openat": [_load_low_half(2), _mask_bits(~flags), _skip_unless(0, 1), _RETURN_ALLOW, _RETURN_REFUSE],
        # No memory that is writable and executable; code is mapped from files only.
        "mmap": [
            *(
                _load_low_half(2),
                _mask_bits(_PROT_WRITE | _PROT_EXEC),
                _skip_unless(_PROT_WRITE | _PROT_EXEC, 1),
                _RETURN_REFUSE,
            ),
            *(_mask_bits(_PROT_EXEC), _skip_unless(0, 1), _RETURN_ALLOW),
            *(_load_low_half(3), _mask_bits(_MAP_ANONYMOUS), _skip_unless(0, 1), _RETURN_ALLOW, _RETURN_REFUSE),
        ],
        # The aarch64 loader needs PROT_BTI; x86_64 rejects the unknown bit.
        "mprotect": [
            _load_low_half(2),
            _mask_bits(_PROT_EXEC | _PROT_BTI),
            _skip_unless(_PROT_EXEC, 1),
            _RETURN_REFUSE,
            _RETURN_ALLOW,
        ],
        # F_SETOWN and F_SETFL could send signals; locks and leases could block other processes.
        "fcntl": _one_of(1, (_F_GETFD, _F_SETFD, _F_GETFL, _F_DUPFD, _F_DUPFD_CLOEXEC)),
        "ioctl": _one_of(1, (_TCGETS, _TIOCGWINSZ, _FIOCLEX, _FIONCLEX)),
        # Own limits, read-only: the new limit, a 64-bit pointer, must be null.
        "prlimit64": [
            *(
                _load_low_half(0),
                _skip_unless(0, 5),
                _load_low_half(2),
                _skip_unless(0, 3),
                _load_high_half(2),
                _skip_unless(0, 1),
                _RETURN_ALLOW,
                _RETURN_REFUSE,
            ),
        ],
    }


def allowed_numbers(machine: str) -> dict[str, int]:
    """Return the calls that are not refused outright on an architecture, by name."""
    column = _MACHINES[machine].column
    calls = {name: row[column] for name, row in (_ALLOWED_CALLS | _FILTERED_CALLS | _ABSENT).items()}
    return {name: number for name, number in calls.items() if number is not None}


def filter_program(name: str) -> list[_Instruction]:
    """Return the filter for an architecture as named by uname(2). Raises KeyError for an unknown one."""
    machine = _MACHINES[name]
    filters = _argument_filters(machine)
    decisions = {
        call: filters.get(call, [_IS_ABSENT if call in _ABSENT else _RETURN_ALLOW]) for call in allowed_numbers(name)
    }
    # Calls of another architecture (32-bit, x32) have other numbers: kill the process.
    lines = [
        _load(_ARCH),
        _skip_if(machine.arch, 1),
        _RETURN_KILL,
        _load(_NUMBER),
        _skip_if_below(_X32_BIT, 1),
        _RETURN_KILL,
    ]
    for call, number in allowed_numbers(name).items():
        lines += [_skip_unless(number, len(decisions[call])), *decisions[call]]
    return [*lines, _RETURN_REFUSE]


def apply(ctypes: Any, libc: Any) -> bool:
    """Filter all further system calls of the process; False if the kernel or architecture is not supported."""
    name = os.uname().machine
    if name not in _MACHINES or sys.maxsize < 1 << 32:
        return False
    lines = filter_program(name)
    raw = b"".join(struct.pack("=HBBI", *line) for line in lines)
    buffer = ctypes.create_string_buffer(raw, len(raw))
    filter_ = struct.pack("@HP", len(lines), ctypes.addressof(buffer))
    number = _SECCOMP_NUMBERS[_MACHINES[name].column]
    return bool(libc.syscall(number, _SET_MODE_FILTER, _TSYNC, ctypes.c_char_p(filter_)) == 0)
