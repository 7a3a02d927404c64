"""What kernels of a few lines share: tensors in the Unified Buffer, global memory, flags."""

from __future__ import annotations

import numpy as np

from lngrad_ascend import ascendc as asc

F, HALF = np.float32, np.float16
E, P = asc.HardEvent, asc.TPosition


def bind(memory, count=None, dtype=F):
    """A GlobalTensor over the memory of an argument."""
    tensor = asc.GlobalTensor(dtype)
    tensor.SetGlobalBuffer(memory, count)
    return tensor


def flag(event, number=0):
    """One pipe waits for another."""
    asc.SetFlag(event, number)
    asc.WaitFlag(event, number)


def buffer(nbytes=256, name="buf", dtype=F, pipe=None):
    """A tensor of a TBuf, in a pipe of its own if there is none."""
    buf = asc.TBuf(name=name)
    (asc.TPipe() if pipe is None else pipe).InitBuffer(buf, nbytes)
    return buf.Get(dtype)


def buffers(count, nbytes=256):
    """Tensors of one pipe."""
    pipe = asc.TPipe()
    return [buffer(nbytes, f"buf{i}", pipe=pipe) for i in range(count)]


def queue(position=P.VECIN, num=1, nbytes=256, depth=1, name="q", pipe=None):
    """A TQue with memory, in a pipe of its own if there is none."""
    que = asc.TQue(position, depth, name=name)
    (asc.TPipe() if pipe is None else pipe).InitBuffer(que, num, nbytes)
    return que


def tensor(pipe, values=None, count=None, dtype=F):
    """A tensor that holds these values, or so many elements that were never written."""
    values = None if values is None else np.asarray(values, dtype)
    size = count if values is None else values.size
    buf = asc.TBuf()
    pipe.InitBuffer(buf, size * np.dtype(dtype).itemsize)
    return fill(buf.Get(dtype, size), values)


def fill(local, values):
    """Write the first elements."""
    if values is not None:
        local.write("test", "dst", len(values))[:] = values
    return local


def content(local, count=None):
    return local.read("test", "src", local.GetSize() if count is None else count).copy()
