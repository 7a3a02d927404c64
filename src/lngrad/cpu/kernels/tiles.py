"""Elements, vectors and tiles of eight by eight, copied from one storage to another: raw where they are the same.

A tile is turned in registers: eight vectors along the rows become eight vectors along the columns, or back.
"""

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from lngrad.cpu.jobs import LANES
from lngrad.cpu.kernels.simd import stored_as

_I32, _I64 = ir.IntType(32), ir.IntType(64)

# Each step shuffles pairs of vectors (how far apart, the two masks); after three the tile is turned. The masks are such that
# the processor has one instruction for each: 32-bit vectors fill a register of two halves, 16-bit ones half a register.
_ZIP = (4, (0, 8, 1, 9, 2, 10, 3, 11), (4, 12, 5, 13, 6, 14, 7, 15))
_STEPS = {
    16: (_ZIP, _ZIP, _ZIP),
    32: (
        (1, (0, 8, 1, 9, 4, 12, 5, 13), (2, 10, 3, 11, 6, 14, 7, 15)),
        (2, (0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15)),
        (4, (0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)),
    ),
}


def _turned(builder, vectors, bits):
    """Vectors whose lane l of vector k was lane k of vector l."""
    for apart, low, high in _STEPS[16 if bits == 16 else 32]:
        masks = [ir.Constant(ir.VectorType(_I32, LANES), mask) for mask in (low, high)]
        firsts = [k for k in range(LANES) if not k & apart]
        results = [[builder.shuffle_vector(vectors[k], vectors[k + apart], mask) for mask in masks] for k in firsts]
        if bits == 16:
            vectors = [vector for pair in results for vector in pair]
        else:
            vectors = [None] * LANES
            for k, (one, other) in zip(firsts, results, strict=True):
                vectors[k], vectors[k + apart] = one, other
    return vectors if bits == 16 else [vectors[k] for k in (0, 2, 1, 3, 4, 6, 5, 7)]


def _at(builder, address, element, width=0):
    kind = ir.VectorType(element, width) if width else element
    return builder.inttoptr(address, kind.as_pointer())


def _raw(kind):
    return ir.IntType(kind.bitwidth)


def _copying(width):
    def codegen(context, builder, signature, args):
        source, target = signature.args[:2]
        value = builder.load(_at(builder, args[2], _raw(source), width), align=1)
        value = stored_as(builder, value, source, target)
        builder.store(value, _at(builder, args[3], _raw(target), width), align=1)
        return context.get_dummy_value()

    return codegen


@intrinsic
def copy_element(typingctx, source, target, source_address, target_address):
    """One element from one address to another, from the storage that `source` tells to that of `target`."""
    return types.void(source, target, types.int64, types.int64), _copying(0)


@intrinsic
def copy_lanes(typingctx, source, target, source_address, target_address):
    """Eight elements that follow each other."""
    return types.void(source, target, types.int64, types.int64), _copying(LANES)


def _columns(builder, base, offsets):
    """The addresses of a tile's columns."""
    words = builder.inttoptr(offsets, _I64.as_pointer())
    return [builder.add(base, builder.load(builder.gep(words, [ir.Constant(_I64, k)]))) for k in range(LANES)]


def _rows(builder, packed, row_bytes):
    """The addresses of a tile's packed rows."""
    return [builder.add(packed, builder.mul(row_bytes, ir.Constant(_I64, k))) for k in range(LANES)]


def _load_all(builder, addresses, kind):
    return [builder.load(_at(builder, address, _raw(kind), LANES), align=1) for address in addresses]


def _store_all(builder, vectors, addresses, kind):
    for vector, address in zip(vectors, addresses, strict=True):
        builder.store(vector, _at(builder, address, _raw(kind), LANES), align=1)


_TILE = (types.int64,) * 4  # address of the first row, address of the columns' offsets, packed, bytes of a packed row


@intrinsic
def gather_tile(typingctx, outer, inner, base, offsets, packed, row_bytes):
    """Eight rows that follow each other, of eight columns anywhere, to eight packed rows."""

    def codegen(context, builder, signature, args):
        outer, inner = signature.args[:2]
        base, offsets, packed, row_bytes = args[2:]
        columns = _load_all(builder, _columns(builder, base, offsets), outer)
        rows = [stored_as(builder, row, outer, inner) for row in _turned(builder, columns, outer.bitwidth)]
        _store_all(builder, rows, _rows(builder, packed, row_bytes), inner)
        return context.get_dummy_value()

    return types.void(outer, inner, *_TILE), codegen


@intrinsic
def scatter_tile(typingctx, outer, inner, base, offsets, packed, row_bytes):
    """The reverse of gather_tile."""

    def codegen(context, builder, signature, args):
        outer, inner = signature.args[:2]
        base, offsets, packed, row_bytes = args[2:]
        rows = _load_all(builder, _rows(builder, packed, row_bytes), inner)
        columns = _turned(builder, [stored_as(builder, row, inner, outer) for row in rows], outer.bitwidth)
        _store_all(builder, columns, _columns(builder, base, offsets), outer)
        return context.get_dummy_value()

    return types.void(outer, inner, *_TILE), codegen


@intrinsic
def copy_rows(typingctx, function, base, table, first, rows, N, packed):
    """Call strided.move_rows, compiled for a pair of storages and a direction, by its address."""

    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(ir.VoidType(), [_I64] * 6)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 7), codegen
