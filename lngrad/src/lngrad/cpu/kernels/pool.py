"""A job and the threads that share it, without the GIL: tickets, offers in slots, and a short active wait.

A *job* is an int64 array: the address of a task function, the number of tasks, the next ticket of each range of them, the
arguments. Whoever works on it draws tickets until none is left, from a range of its own and then from the others'. A *slot*
is one worker's int64: IDLE while it waits actively, ASLEEP when it gave up waiting, the address of a job that is offered to
it, or minus the address of the job it works on. Only a worker that changed an offer's sign touches a job, so a caller that
has taken the unclaimed offers back and has seen the others finish may free everything.
"""

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from lngrad.cpu.jobs import (
    ARGUMENTS,
    ASLEEP,
    BATCH,
    FUNCTION,
    IDLE,
    MASK_BYTES,
    MAX_RANGES,
    NEXT,
    PAUSES,
    RANGES,
    SLOT_BYTES,
    TASKS,
    THREADS,
    TICKET_WORDS,
    TICKETS,
    TO_WAKE,
    WAKES,
    WORKER,
    Worker,
)
from lngrad.cpu.kernels.functions import inlined, lowered, plain
from lngrad.cpu.processors import ARCHITECTURE

_I64 = ir.IntType(64)
# ARM's yield takes no time on a core that runs one thread; isb empties the pipeline, which takes about as long as x86's pause.
_PAUSE = {"x86_64": ("llvm.x86.sse2.pause", ()), "aarch64": ("llvm.aarch64.isb", (15,))}.get(ARCHITECTURE)


@lowered(types.int64)
def word(builder, address, index):
    """The int64 at address + 8·index, read afresh."""
    pointer = builder.gep(builder.inttoptr(address, _I64.as_pointer()), [index])
    return builder.load_atomic(pointer, "acquire", 8)


@intrinsic
def read(typingctx, kind, address):
    """The record of int64 at an address, as the named tuple `kind`."""
    number = len(kind.instance_class._fields)

    def codegen(context, builder, signature, args):
        base = builder.inttoptr(args[1], _I64.as_pointer())
        values = [builder.load(builder.gep(base, [ir.Constant(_I64, k)])) for k in range(number)]
        return context.make_tuple(builder, signature.return_type, values)

    return types.NamedUniTuple(types.int64, number, kind.instance_class)(kind, types.int64), codegen


@lowered(types.int64)
def fetch_add(builder, address, amount):
    """Add to the int64 at address and return what was there, atomically. On x86 its lock also drains streamed stores."""
    return builder.atomic_rmw("add", builder.inttoptr(address, _I64.as_pointer()), amount, "seq_cst")


@lowered(types.boolean)
def swap_if(builder, address, expected, new):
    """Write new to the int64 at address if that is expected. Return whether it was."""
    pointer = builder.inttoptr(address, _I64.as_pointer())
    return builder.extract_value(builder.cmpxchg(pointer, expected, new, "seq_cst", "seq_cst"), 1)


@lowered(types.void)
def pause(builder):
    """Tell the core that this is a waiting loop."""
    if _PAUSE is not None:
        name, operands = _PAUSE
        _intrinsic(builder, name, ir.VoidType(), *(ir.Constant(ir.IntType(32), operand) for operand in operands))


# The control register of the processor's floating-point unit: what tasks are promised (rounding to nearest, subnormals kept,
# no traps), and which of its bits say so. x86's others are flags that operations leave behind.
_CONTROL = {"x86_64": (0x1F80, 0xFFC0), "aarch64": (0, 0xFFFF_FFFF)}.get(ARCHITECTURE)


@lowered(types.int64)
def promised_mode(builder):
    """Give this thread the floating-point mode that results are promised in. Return the mode that it had, for `mode_again`.

    torch.set_flush_denormal, fesetround and libraries built with -ffast-math change the mode of one thread alone.
    """
    if _CONTROL is None:
        return ir.Constant(_I64, 0)
    had = _control(builder)
    with _if_other_than_promised(builder, had):
        _set_control(builder, ir.Constant(_I64, _CONTROL[0]))
    return had


@lowered(types.void)
def mode_again(builder, had):
    """Give this thread back the floating-point mode that it had."""
    if _CONTROL is not None:
        with _if_other_than_promised(builder, had):
            _set_control(builder, had)


def _if_other_than_promised(builder, mode):
    promised, bits = (ir.Constant(_I64, number) for number in _CONTROL)
    return builder.if_then(builder.icmp_unsigned("!=", builder.and_(mode, bits), promised))


def _control(builder):
    if ARCHITECTURE == "aarch64":
        return _intrinsic(builder, "llvm.aarch64.get.fpcr", _I64)
    place = cgutils.alloca_once(builder, ir.IntType(32))
    _intrinsic(builder, "llvm.x86.sse.stmxcsr", ir.VoidType(), builder.bitcast(place, ir.IntType(8).as_pointer()))
    return builder.zext(builder.load(place), _I64)


def _set_control(builder, value):
    if ARCHITECTURE == "aarch64":
        _intrinsic(builder, "llvm.aarch64.set.fpcr", ir.VoidType(), value)
    else:
        place = cgutils.alloca_once(builder, ir.IntType(32))
        builder.store(builder.trunc(value, ir.IntType(32)), place)
        _intrinsic(builder, "llvm.x86.sse.ldmxcsr", ir.VoidType(), builder.bitcast(place, ir.IntType(8).as_pointer()))


def _intrinsic(builder, name, result, *values):
    kind = ir.FunctionType(result, [value.type for value in values])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), values)


def _call(builder, result, function, *arguments):
    """Call the function at an address with int64 arguments."""
    kind = ir.FunctionType(result, [_I64] * len(arguments))
    return builder.call(builder.inttoptr(function, kind.as_pointer()), arguments)


@lowered(types.void)
def call_task(builder, function, arguments, task, thread):
    """Call the task function at an address."""
    _call(builder, ir.VoidType(), function, arguments, task, thread)


@lowered(types.int64)
def call_c(builder, function, a, b, c):
    """Call the C function at an address, which returns an int and takes up to three integers or addresses."""
    return builder.sext(_call(builder, ir.IntType(32), function, a, b, c), _I64)


@lowered(types.void)
def copy_rows(builder, function, base, table, first, rows, N, packed):
    """Call strided.move_rows, compiled for a pair of storages and a direction, by its address."""
    _call(builder, ir.VoidType(), function, base, table, first, rows, N, packed)


@inlined
def copies_of(table, N):
    """Where a table has the functions that gather its tensor's rows of N columns, and scatter them, and whether its columns
    follow each other."""
    return table + 8 * (1 + 2 * word(table, 0) + N)


@inlined
def packed_rows(record, address, stride, table, start, block, place, scratch):
    """Where rows from `start` on lie, `stride` bytes apart: if they have a table in the scratch, `place` rows from its begin,
    where it gets a new block."""
    if table == 0:
        return address + start * stride
    if place == 0:
        copy_rows(word(copies_of(table, record.N), 0), address, table, start, block, record.N, scratch)
    return scratch + place * stride


@inlined
def place_of(address, stride, table, start, place, scratch):
    """The address of the results of rows from `start` on; 0 where there are none."""
    if table != 0:
        return scratch + place * stride
    return address if address == 0 else address + start * stride


@plain
def ticket_of(job, number):
    """The address of the ticket of a range."""
    return job + 8 * (TICKETS + number * TICKET_WORDS)


@plain
def work(job, thread, most):
    """Run up to `most` tasks of a job, those of the thread's own range first. Return whether all tickets are used up.

    So a thread meets the same rows from call to call, and finds them in its own caches.
    """
    function, tasks, ranges = word(job, FUNCTION), word(job, TASKS), word(job, RANGES)
    done, mode, is_over = 0, promised_mode(), True
    for k in range(ranges):
        number = (thread + k) % ranges
        first, stop = tasks * number // ranges, tasks * (number + 1) // ranges
        while is_over:
            if done == most:
                is_over = False
                break
            task = first + fetch_add(ticket_of(job, number), 1)
            if task >= stop:
                break
            call_task(function, job + 8 * ARGUMENTS, task, thread)
            done += 1
    mode_again(mode)
    return is_over


@plain
def begin(job, threads):
    """Cut a job that nobody works on into a range for each of so many threads, and let their first tickets be drawn next."""
    ranges = min(threads, MAX_RANGES)
    fetch_add(job + 8 * RANGES, ranges - word(job, RANGES))
    for number in range(ranges):
        fetch_add(ticket_of(job, number), -word(ticket_of(job, number), 0))


@plain
def share(first, stop, job):
    """Somebody else's threads first … stop-1 work on a job."""
    for thread in range(first, stop):
        work(job, thread, 1 << 62)


@plain
def cancel(job):
    """Let nobody draw another ticket."""
    for number in range(word(job, RANGES)):
        fetch_add(ticket_of(job, number), word(job, TASKS))


@plain
def wake_worker(worker):
    """Wake a worker that sleeps in `worker_main`, on another processor than this one if it may run there.

    A system may wake it here, where both would take turns for milliseconds while another processor is idle.
    """
    w = read(Worker, worker)
    steered, busy = False, w.masks + 2 * MASK_BYTES
    alone = w.getcpu != 0 and w.native_id != 0 and swap_if(busy, 0, 1)  # two at once would restore each other's masks
    if alone:
        here, before, elsewhere = call_c(w.getcpu, 0, 0, 0), w.masks, w.masks + MASK_BYTES
        if 0 <= here < 8 * MASK_BYTES and call_c(w.getaffinity, w.native_id, MASK_BYTES, before) == 0:
            for k in range(MASK_BYTES // 8):
                bits = word(before, k)
                if here // 64 == k:
                    bits &= ~(1 << (here % 64))
                fetch_add(elsewhere + 8 * k, bits - word(elsewhere, k))
            steered = call_c(w.setaffinity, w.native_id, MASK_BYTES, elsewhere) == 0  # refused if it may run only here
    call_c(w.post, w.semaphore, 0, 0)
    if steered:
        call_c(w.setaffinity, w.native_id, MASK_BYTES, w.masks)
    if alone:
        swap_if(busy, 1, 0)


@plain
def post(job, slots, workers, wanted):
    """Offer a job to all waiting workers, if `wanted` wake those asleep. Return the bits of those that the caller must wake."""
    to_wake = 0
    for number in range(workers):
        slot = slots + number * SLOT_BYTES
        if not swap_if(slot, IDLE, job) and wanted and swap_if(slot, ASLEEP, job):
            worker = word(slot, WORKER)
            if worker != 0:
                wake_worker(worker)
            else:
                to_wake |= 1 << number
    return to_wake


@plain
def join(job, slots, workers):
    """Take the unclaimed offers of a job back and wait a while for its workers. Return whether none works on it any more."""
    done = True
    for worker in range(workers):
        slot = slots + worker * SLOT_BYTES
        swap_if(slot, job, IDLE)
        waited = 0
        while word(slot, 0) == -job and waited < word(slot, PAUSES):
            pause()
            waited += 1
        done = done and word(slot, 0) != -job
    return done


@plain
def submit(job, slots, helpers):
    """Begin a job, post it to the helpers and, where nobody else must wake one, run a batch of its tasks. Return whether all
    is done; else the rest is left to the caller, and TO_WAKE has the bits of the workers that it must wake."""
    begin(job, helpers + 1)
    to_wake = post(job, slots, helpers, word(job, WAKES))
    fetch_add(job + 8 * TO_WAKE, to_wake - word(job, TO_WAKE))
    return to_wake == 0 and work(job, 0, word(job, BATCH)) and join(job, slots, helpers)


@plain
def run_chain(job, slots, workers):
    """Run a chain of jobs, one after the other. A job of one thread and one batch has no tickets: nobody else knows of it.

    Returns:
        0: all is done. Else the address of a job that others work on, which the caller must finish, and run what follows it.
    """
    while True:
        helpers = min(word(job, THREADS) - 1, workers)
        if helpers == 0 and word(job, TASKS) <= word(job, BATCH):
            mode = promised_mode()
            for task in range(word(job, TASKS)):
                call_task(word(job, FUNCTION), job + 8 * ARGUMENTS, task, 0)
            mode_again(mode)
        elif not submit(job, slots, helpers):
            return job
        if word(job, NEXT) == 0:
            return 0
        job += 8 * word(job, NEXT)


@plain
def wait_pauses(pauses):
    """Wait actively."""
    for _ in range(pauses):
        pause()


@plain
def run_worker(slot, thread):
    """Run the jobs that are posted in a slot, until none was for PAUSES pauses."""
    waited = 0
    while True:
        job = word(slot, 0)
        if job > ASLEEP:
            if swap_if(slot, job, -job):
                work(job, thread, 1 << 62)
                swap_if(slot, -job, IDLE)
            waited = 0
        elif waited < word(slot, PAUSES):
            pause()
            waited += 1
        # Asleep already: its semaphore was posted once too often.
        elif word(slot, 0) == ASLEEP or swap_if(slot, IDLE, ASLEEP):
            return


@plain
def worker_main(worker):
    """What a worker's thread runs for ever, without the GIL: sleep until its semaphore is posted, then serve its slot."""
    w = read(Worker, worker)
    while True:
        if call_c(w.wait, w.semaphore, 0, 0) == 0:  # else a signal has interrupted it
            run_worker(w.slot, w.thread)
