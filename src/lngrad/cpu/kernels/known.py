"""Calls that came before: found by their arguments, and run, without a step through Python.

Arguments come as one tuple of Python's, results as another. What a call is known by are its *facts*, a list of words: the
number of threads; of an array its dtype, sizes and strides and whether it may be written; of a float its value, of an int its
first digit and how many it has; of a tuple, or results, the facts of its items; of anything else its identity. Whoever keeps a
call keeps these objects too, so that no other can come to have their identity, and ints have one digit.

`write_facts` and `find_call` read what Python may change, so the GIL must be held. `run_call` reads addresses alone.
"""

from lngrad.cpu.jobs import (
    MOST_DIMENSIONS,
    MOST_FACTS,
    SLOT_WORDS,
    TABLE_SLOTS,
    KnownCall,
    Objects,
    Place,
)
from lngrad.cpu.kernels.functions import plain
from lngrad.cpu.kernels.pool import read, run_chain, swap_if, word
from lngrad.cpu.kernels.simd import store_word

_TABLE = len(Objects._fields)  # the word that a table's slots begin at
_SCRATCH = _TABLE + TABLE_SLOTS * SLOT_WORDS  # and its room for the facts of a call
_PLACES = 8 * len(KnownCall._fields)  # bytes behind which a call has its places
_PLACE = 8 * len(Place._fields)  # bytes of each
_ADDRESS = Place._fields.index("address")
_DIMENSIONS, _SIZES, _STRIDES, _DTYPE, _FLAGS = 1, 2, 3, 5, 6  # words behind an array's data
_WRITABLE = 0x400  # of its flags
_INT = 0xFFFFFFFF  # an int of C, which has half a word
_MULTIPLIER = -0x61C8864680B583EB  # of the hash: 2⁶⁴ over the golden ratio


@plain
def _put(facts, count, fact):
    store_word(facts, count, fact)
    return count + 1


@plain
def _item_facts(o, item, facts, count):
    """Write the facts of one argument behind those that are there. Return how many there are then, beyond MOST_FACTS if too
    many."""
    kind = word(item + o.type_at, 0)
    if kind == o.ndarray:
        array = item + o.data_at
        dimensions = word(array, _DIMENSIONS) & _INT
        if dimensions > MOST_DIMENSIONS or count + 3 + 2 * MOST_DIMENSIONS > MOST_FACTS:
            return MOST_FACTS + 1
        count = _put(facts, count, kind)
        count = _put(facts, count, word(array, _DTYPE))
        count = _put(facts, count, dimensions | (word(array, _FLAGS) & _WRITABLE) << 32)
        for k in range(dimensions):
            count = _put(facts, count, word(word(array, _SIZES), k))
            count = _put(facts, count, word(word(array, _STRIDES), k))
        return count
    if count + 3 > MOST_FACTS:
        return MOST_FACTS + 1
    if kind == o.float:
        count = _put(facts, count, kind)
        return _put(facts, count, word(item + o.float_at, 0))
    if kind == o.int:
        count = _put(facts, count, kind)
        count = _put(facts, count, word(item + o.digit_at, -1))
        return _put(facts, count, word(item + o.digit_at, 0) & _INT)
    return _put(facts, count, item)


@plain
def write_facts(arguments, objects, facts):
    """Write the facts of a call to an array of MOST_FACTS words. Return how many there are, 0 if too many."""
    o = read(Objects, objects)
    chosen = word(o.chosen, 0)
    count = _put(facts, 0, chosen if chosen != 0 else o.granted)
    for k in range(word(arguments + o.size_at, 0)):
        item = word(arguments + o.items_at, k)
        kind = word(item + o.type_at, 0)
        if kind == o.tuple or kind == o.results or kind == o.results_too:
            size = word(item + o.size_at, 0)
            count = _put(facts, _put(facts, count, kind), size)
            for position in range(min(size, MOST_DIMENSIONS)):  # as many sizes as R has, or results
                count = _item_facts(o, word(item + o.items_at, position), facts, count)
        else:
            count = _item_facts(o, item, facts, count)
        if count > MOST_FACTS - 2:
            return 0
    return count


@plain
def hash_of(facts, count):
    """A number that calls with equal facts have in common."""
    mixed = count
    for k in range(count):
        mixed = (mixed ^ word(facts, k)) * _MULTIPLIER
        mixed ^= mixed >> 29
    return mixed


@plain
def find_call(arguments, table):
    """The number of the call in a table that has these facts, 0 if there is none."""
    facts = table + 8 * _SCRATCH
    count = write_facts(arguments, table, facts)
    if count == 0:
        return 0
    mixed = hash_of(facts, count)
    for probe in range(TABLE_SLOTS):
        slot = table + 8 * (_TABLE + SLOT_WORDS * ((mixed + probe) & (TABLE_SLOTS - 1)))
        number, known = word(slot, 1), word(slot, 2)
        if number == 0:
            return 0
        if word(slot, 0) == mixed and word(slot, 3) == count:
            k = 0
            while k < count and word(known, k) == word(facts, k):
                k += 1
            if k == count:
                return number
    return 0


@plain
def _place(o, place, owner):
    """Find where an argument or a result lies now. Return whether it lies somewhere, or is none of this call's."""
    p = read(Place, place)
    address = 0
    if p.span != 0:
        address = word(word(owner + o.items_at, p.position) + o.data_at, 0)
    store_word(place, _ADDRESS, address)
    return p.span == 0 or address != 0


@plain
def _apart(one, other):
    """Whether two arrays share no memory."""
    a, b = read(Place, one), read(Place, other)
    return a.address + a.span <= b.address or b.address + b.span <= a.address


@plain
def run_call(call, arguments, results, slots, workers):
    """Run a call that came before on the arrays that it has now.

    Returns:
        0: all is done. -1: nothing is, as another thread runs it, an array lies at address 0 or a result on another array. Else
        the address of a job, as from run_chain: the caller finishes it, and then writes 0 to `busy`.
    """
    if not swap_if(call, 0, arguments):
        return -1
    c = read(KnownCall, call)
    o = read(Objects, c.objects)
    places = call + _PLACES
    right = True
    for k in range(c.inputs + c.outputs):
        place = places + _PLACE * k
        right = right and _place(o, place, arguments if k < c.inputs else results)
        for other in range(k if k >= c.inputs else 0):
            right = right and _apart(place, places + _PLACE * other)
    job = -1
    if right:
        for k in range(c.inputs + c.outputs):
            p = read(Place, places + _PLACE * k)
            if p.word >= 0:
                store_word(c.chain, p.word, p.address)
        job = run_chain(c.chain, slots, workers)
    if job <= 0:
        swap_if(call, arguments, 0)
    return job
