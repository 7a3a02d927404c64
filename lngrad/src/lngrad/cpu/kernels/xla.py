"""A call from XLA that needs no Python: the frame's facts are looked up, addresses go into a chain of jobs, and it runs.

A function that XLA calls gets the address of a frame and nothing else, so where its table is stands in a variable of the
compiled code. The host fills the table: a call that is not in it is answered by the host's function, which may add it.
Exceptions of Python end there: what that function leaves behind says whether it came to its end.
"""

from llvmlite import ir
from numba.core import types

from lngrad.cpu.jobs import BATCH, NEXT, Prepared, XlaTable
from lngrad.cpu.kernels.functions import inlined, lowered, plain
from lngrad.cpu.kernels.pool import call_c, fetch_add, join, read, run_chain, swap_if, word, work

_I64 = ir.IntType(64)
# Places of fields in words, from the frame on; XLA's c_api.h has them (lngrad.jax.calls reads the same ones).
EXTENSION, API, ARGS, RETS, ATTRIBUTES = 1, 2, 5, 10, 20
COUNT, BUFFERS = 2, 4  # of the arguments' and results' part
DTYPE, DATA, RANK, DIMS = 2, 3, 4, 5  # of a buffer
VERSION, ERROR_CREATE = 4, 6  # of the API: major and minor version in one word; a function
METADATA, METADATA_VERSION, METADATA_TRAITS = 3, 3, 4  # of XLA_FFI_Metadata_Extension and XLA_FFI_Metadata
_VARIABLE = "lngrad_xla_table"
PAGE, HUGE_PAGES = 1 << 16, 14  # bytes that are a multiple of every system's pages; MADV_HUGEPAGE
NOT_DONE = -1  # what the host's function has not overwritten


@lowered(types.int64)
def table_word(builder):
    """The address of the variable that holds the table's."""
    variable = builder.module.globals.get(_VARIABLE)
    if variable is None:
        variable = ir.GlobalVariable(builder.module, _I64, _VARIABLE)
        variable.linkage, variable.initializer = "internal", ir.Constant(_I64, 0)
    return builder.ptrtoint(variable, _I64)


@lowered(types.int64)
def call_1(builder, function, a):
    """Call the C function at an address, which returns an address."""
    return builder.call(builder.inttoptr(function, ir.FunctionType(_I64, [_I64]).as_pointer()), [a])


@lowered(types.int64)
def call_2(builder, function, a, b):
    """The same with two integers or addresses."""
    return builder.call(builder.inttoptr(function, ir.FunctionType(_I64, [_I64] * 2).as_pointer()), [a, b])


@lowered(types.int64)
def ask_host(builder, function, frame):
    """Call the host's function of a frame and of a word for what it returns. That word; NOT_DONE if it did not write it."""
    place = builder.alloca(_I64)
    builder.store(ir.Constant(_I64, NOT_DONE), place)
    kind = ir.FunctionType(ir.VoidType(), [_I64] * 2)
    builder.call(builder.inttoptr(function, kind.as_pointer()), [frame, builder.ptrtoint(place, _I64)])
    return builder.load(place)


@lowered(types.int64)
def swap(builder, address, new):
    """Write new to the int64 at an address, atomically. What was there."""
    return builder.atomic_rmw("xchg", builder.inttoptr(address, _I64.as_pointer()), new, "seq_cst")


@lowered(types.void)
def put(builder, address, value):
    """Write the int64 at an address."""
    builder.store(value, builder.inttoptr(address, _I64.as_pointer()))


@lowered(types.void)
def put_32(builder, address, value):
    """Write the int32 at an address."""
    kind = ir.IntType(32)
    builder.store(builder.trunc(value, kind), builder.inttoptr(address, kind.as_pointer()))


@inlined
def mixed(hash, value):
    return (hash ^ value) * -7046029254386353131 + (hash >> 29)


@inlined
def attribute_of(frame):
    """The address of the one attribute, an XLA_FFI_Array: dtype, size, data."""
    return word(word(frame, ATTRIBUTES), 0)


@inlined
def part_of(frame, part):
    """The addresses of the arguments' or results' buffers, and how many they are."""
    return word(frame, part + BUFFERS), word(frame, part + COUNT)


@plain
def hash_of(frame, threads):
    """A hash of what a call is, but for its addresses."""
    attribute = attribute_of(frame)
    hash = mixed(threads, word(attribute, 1))
    for k in range(word(attribute, 1)):
        hash = mixed(hash, word(word(attribute, 2), k))
    for part in (ARGS, RETS):
        buffers, count = part_of(frame, part)
        for number in range(count):
            buffer = word(buffers, number)
            hash = mixed(hash, word(buffer, DTYPE) & 0xFFFFFFFF)
            for k in range(word(buffer, RANK)):
                hash = mixed(hash, word(word(buffer, DIMS), k))
    return hash


@plain
def is_call(frame, threads, facts):
    """Whether a frame has these facts: threads; the attribute's size and words; and for both parts how many buffers there
    are, each with its dtype, rank and dimensions."""
    attribute = attribute_of(frame)
    if word(facts, 0) != threads or word(facts, 1) != word(attribute, 1):
        return False
    for k in range(word(attribute, 1)):
        if word(facts, 2 + k) != word(word(attribute, 2), k):
            return False
    facts += 8 * (2 + word(attribute, 1))
    for part in (ARGS, RETS):
        buffers, count = part_of(frame, part)
        if word(facts, 0) != count:
            return False
        facts += 8
        for number in range(count):
            buffer = word(buffers, number)
            rank = word(buffer, RANK)
            if word(facts, 0) != word(buffer, DTYPE) & 0xFFFFFFFF or word(facts, 1) != rank:
                return False
            for k in range(rank):
                if word(facts, 2 + k) != word(word(buffer, DIMS), k):
                    return False
            facts += 8 * (2 + rank)
    return True


@plain
def found(frame, table):
    """The address of the prepared call that a frame is; 0 if there is none."""
    t = read(XlaTable, table)
    threads = word(t.threads, 0)
    hash = hash_of(frame, threads)
    call = word(t.heads, hash & (t.size - 1))
    while call != 0:
        c = read(Prepared, call)
        if c.hash == hash and is_call(frame, threads, c.facts):
            return call
        call = word(call, 0)
    return 0


@plain
def memory_for(call, table):
    """Memory with the chain and the workspace of a call, all in it but addresses of arguments; 0 if there is none to be had."""
    memory = swap(call + 8, 0)
    if memory != 0:
        return memory
    c, t = read(Prepared, call), read(XlaTable, table)
    memory = call_2(t.allocate, 64, c.nbytes)
    if memory != 0:
        for k in range(c.image_words):
            put(memory + 8 * k, word(c.image, k))
        for k in range(c.regions_count):
            put(memory + 8 * word(c.regions, 2 * k), memory + word(c.regions, 2 * k + 1))
    return memory


@plain
def run_prepared(frame, call, table):
    """Run a prepared call. Whether it could."""
    c, t = read(Prepared, call), read(XlaTable, table)
    arguments, count = part_of(frame, ARGS)
    results, _ = part_of(frame, RETS)
    memory = memory_for(call, table)
    if memory == 0:
        return False
    for k in range(c.places_count):
        number, place = word(c.places, 2 * k), word(c.places, 2 * k + 1)
        buffer = word(arguments, number) if number < count else word(results, number - count)
        put(memory + 8 * place, word(buffer, DATA))
    for k in range(c.huge_count):
        number, nbytes = word(c.huge, 2 * k), word(c.huge, 2 * k + 1)
        start = word(word(results, number - count), DATA)
        first = (start + PAGE - 1) & -PAGE
        call_c(t.advise, first, (start + nbytes - first) & -PAGE, HUGE_PAGES)  # a refusal costs speed alone
    if c.streams != 0:
        put(memory + 8 * c.streams, int(word(memory, c.streamed) % 64 == 0))
    job = run_chain(memory, t.slots, c.helpers)
    while job != 0:
        while not work(job, 0, word(job, BATCH)):
            pass
        while not join(job, t.slots, c.helpers):
            pass
        job = run_chain(job + 8 * word(job, NEXT), t.slots, c.helpers) if word(job, NEXT) != 0 else 0
    if c.keeps == 0 or not swap_if(call + 8, 0, memory):
        call_1(t.free, memory)
    return True


@inlined
def introduce(frame):
    """Answer XLA's question which version the function knows: any minor one, which only adds fields, of major version 0."""
    metadata = word(word(frame, EXTENSION), METADATA)
    put(metadata + 8 * METADATA_VERSION, word(word(frame, API), VERSION) >> 32 << 32)
    put_32(metadata + 8 * METADATA_TRAITS, 0)


@plain
def xla_call(frame):
    """Answer a call of XLA's. Returns an XLA_FFI_Error, or 0. An odd number is no frame, but a table's address and 1."""
    if frame & 1:
        fetch_add(table_word(), frame - 1 - word(table_word(), 0))
        return 0
    table = word(table_word(), 0)
    fetch_add(table + 8, 1)
    error = 0
    if word(frame, EXTENSION) != 0:
        introduce(frame)
    else:
        call = found(frame, table)
        if call == 0 or not run_prepared(frame, call, table):
            error = ask_host(word(table, 0), frame)
    if error == NOT_DONE:
        t = read(XlaTable, table)
        error = call_1(word(word(frame, API), ERROR_CREATE), t.interrupted)
    fetch_add(table + 16, 1)
    return error


@plain
def xla_keep(frame, call, table):
    """Let calls like a frame be run as prepared. The host calls it, once at a time."""
    t = read(XlaTable, table)
    hash = hash_of(frame, word(t.threads, 0))
    head = t.heads + 8 * (hash & (t.size - 1))
    put(call + 16, hash)
    put(call, word(head, 0))
    fetch_add(head, call - word(head, 0))
