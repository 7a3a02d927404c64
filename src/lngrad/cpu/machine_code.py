"""Machine code put into memory without a compiler: an object file as LLVM writes it, placed, linked, made executable.

Only what compiled kernels need: ELF for x86-64 on Linux, code and constants, calls of the C library. An object file with
anything else in it, or for another system, is refused; then a compiler's own loader takes it.
Source: the System V ABI, chapter 4 (object files), and its AMD64 supplement, section 4.4 (relocation).
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import sys
from struct import Struct, error, pack_into
from typing import NamedTuple

from lngrad.typing import Address

_MAGIC, _X86_64 = b"\x7fELF\x02\x01\x01", 62  # 64 bits, little-endian
_HEADER = Struct("<7s9xHHIQQQIHHHHHH")
_SECTION = Struct("<IIQQQQIIQQ")
_SYMBOL = Struct("<IBBHQQ")
_RELOCATION = Struct("<QQq")
_PROGRAM, _SYMBOLS, _RELOCATIONS = 1, 2, 4  # kinds of sections
_WRITABLE, _IN_MEMORY = 1, 2  # bits of a section's flags
_ADDRESSES = b".data.rel.ro"
_ABSOLUTE, _RELATIVE, _CALL = 1, 2, 4  # kinds of relocations
_JUMP = b"\xff\x25\x00\x00\x00\x00"  # jmp to the address that follows: a call reaches 2 GB, and the C library is further away
_JUMP_BYTES = 16


class NotLinked(Exception):
    """This machine code can't be put into memory here; the text says why."""


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


class _Symbol(NamedTuple):
    name: int
    info: int
    other: int
    section: int
    value: int
    size: int


def foreign() -> str | None:
    """This system, if its object files are not known here."""
    known = sys.platform.startswith("linux") and platform.machine() == "x86_64"
    return None if known else f"{sys.platform} on {platform.machine()}"


def link(code: bytes, name: str) -> Address:
    """The address of a function of an object file; it stays in memory until the process ends.

    Args:
        code: The object file. It is trusted: compare a digest first.
        name: Of the function.

    Raises:
        NotLinked: The object file has what is not known here, or the system allows no new code.
    """
    if foreign() is not None:
        raise NotLinked(foreign())
    try:
        return _Object(code).link(name)
    except (error, IndexError, ValueError) as reason:  # cut off, or a distance of more than 2 GB
        raise NotLinked(f"object file: {reason}") from None
    except OSError as reason:
        raise NotLinked(f"memory: {reason}") from None


class _Object:
    """One object file, and where its sections lie in an image of them."""

    def __init__(self, code: bytes):
        magic, _, machine, _, _, _, at, _, _, _, _, size, number, names = _HEADER.unpack_from(code)
        if magic != _MAGIC or machine != _X86_64 or size != _SECTION.size:
            raise NotLinked("object file: not ELF for x86-64")
        self.code = code
        self.sections = [_Section(*_SECTION.unpack_from(code, at + k * size)) for k in range(number)]
        table = [section for section in self.sections if section.kind == _SYMBOLS][0]  # noqa: RUF015  # IndexError is told
        self.symbols = [_Symbol(*fields) for fields in _SYMBOL.iter_unpack(self._content(table))]
        self._names = self._content(self.sections[table.link])
        self._section_names = self._content(self.sections[names])
        self.places, self.bytes = self._place()

    def _content(self, section: _Section) -> bytes:
        return self.code[section.offset : section.offset + section.size]

    def _name(self, symbol: _Symbol) -> str:
        return self._names[symbol.name : self._names.index(b"\0", symbol.name)].decode()

    def _place(self) -> tuple[dict[int, int], int]:
        """Where in the image each section of code and constants begins, and where the last one ends."""
        places, end = {}, 0
        for number, section in enumerate(self.sections):
            if section.kind == _PROGRAM and section.flags & _IN_MEMORY and not self._can_change(section):
                places[number] = end + -end % max(1, section.alignment)
                end = places[number] + section.size
        return places, end + -end % _JUMP_BYTES

    def _can_change(self, section: _Section) -> bool:
        """Whether the code writes into a section; into constants with addresses only a linker does."""
        return bool(section.flags & _WRITABLE) and not self._section_names.startswith(_ADDRESSES, section.name)

    def link(self, name: str) -> Address:
        """Put the code into memory; the address of a function."""
        entry = next((symbol for symbol in self.symbols if symbol.section and self._name(symbol) == name), None)
        if entry is None:
            raise NotLinked(f"object file: no function {name}")
        memory = mmap.mmap(-1, self.bytes + _JUMP_BYTES * len(self.symbols), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        image = bytearray(len(memory))
        for number, place in self.places.items():
            image[place : place + self.sections[number].size] = self._content(self.sections[number])
        for section in self.sections:
            if section.kind == _RELOCATIONS and section.info in self.places:
                self._relocate(section, image, base)
        memory[:] = bytes(image)
        _allow_execution(base, len(memory))
        ctypes.pythonapi.Py_IncRef(
            ctypes.py_object(memory)
        )  # for ever: other threads run in it until the process is gone
        return base + self._offset(entry)

    def _offset(self, symbol: _Symbol) -> int:
        if symbol.section not in self.places:
            raise NotLinked(f"object file: {self._name(symbol) or 'a symbol'} is neither code nor a constant")
        return self.places[symbol.section] + symbol.value

    def _relocate(self, section: _Section, image: bytearray, base: int) -> None:
        """Write addresses into one section of the image, which will lie at base."""
        start = self.places[section.info]
        for offset, info, addend in _RELOCATION.iter_unpack(self._content(section)):
            number, kind = info >> 32, info & 0xFFFFFFFF
            symbol = self.symbols[number]
            if symbol.section:
                value = base + self._offset(symbol)
            else:
                value = _of_c_library(self._name(symbol))
                if kind == _CALL:
                    jump = self.bytes + _JUMP_BYTES * number
                    pack_into("<6sQ", image, jump, _JUMP, value)
                    value = base + jump
            if kind == _ABSOLUTE:
                pack_into("<Q", image, start + offset, value + addend)
            elif kind in (_RELATIVE, _CALL):
                pack_into("<i", image, start + offset, value + addend - (base + start + offset))
            else:
                raise NotLinked(f"object file: relocation {kind}")


def _of_c_library(name: str) -> Address:
    """The address of a function such as memset."""
    try:
        return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value or 0
    except AttributeError:
        raise NotLinked(f"the C library has no {name}") from None


def _allow_execution(start: Address, nbytes: int) -> None:
    mprotect = ctypes.CDLL(None, use_errno=True).mprotect
    mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    if mprotect(start, nbytes, mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "mprotect")
