"""The Python half of the library's second form: a process that runs the calls of another one over sockets.

The other process has a connection for each of its threads, and gets a thread here for each. A call is a frame's number
and words; while it runs, the program's memory is read and written through the same connection.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
from contextlib import suppress
from typing import Any

import numpy as np

from lngrad.support.addresses import address_of
from lngrad_ascend import acl
from lngrad_ascend.sdk.marshal import (
    AT_EXIT,
    CALL,
    KERNEL_FAULT,
    LIST_WORDS,
    RESULT_WORDS,
    Dispatcher,
    Reply,
    Threads,
    pack,
    packed_text,
)
from lngrad_ascend.sdk.pointers import HostMemory, NoSuchMemory, check_range
from lngrad_ascend.soc import Settings

DONE, READ, WRITE, CHECK, ALLOCATE, FREE = range(6)  # the words of server.c
NO_KERNELS = "lngrad: kernels need a Python with a shared library (libpython), in the program's own process"
_REQUEST = struct.Struct("=3q")
_WORD = struct.Struct("=q")


def serve(control: int, settings: Settings) -> None:
    """Reply until the program ends; over the socket `control` it sends a connection for each of its threads."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the program's
    channel = socket.socket(fileno=control)
    if settings.unified:
        text = b"lngrad: --unified needs a Python with a shared library (libpython), in the program's own process"
        channel.sendall(_WORD.pack(len(text)) + text)
        return
    dispatcher, threads = Dispatcher(), Threads(settings)
    channel.sendall(_WORD.pack(0))
    while True:
        _, connections, _, _ = socket.recv_fds(channel, 1, 1)
        if not connections:
            break
        client = _Thread(socket.socket(fileno=connections[0]))
        with suppress(RuntimeError):  # a limit on threads: the connection closes, and that thread's calls fail
            threading.Thread(target=client.run, args=(dispatcher, threads), daemon=True).start()
    os._exit(0)  # the program has ended: nobody waits for what is in streams


class _Thread(HostMemory):
    """A thread of the program behind a connection: its calls, and its memory."""

    at_once = True  # buffers are copies: what a stream would fill later has nowhere to go

    def __init__(self, connection: socket.socket):
        self._connection = connection
        self._lent: dict[int, Any] = {}

    def read(self, address: int, nbytes: int) -> bytes:
        self._check(READ, address, nbytes)
        return self._receive(nbytes)

    def view(self, address: int, nbytes: int, touched: int, writable: bool) -> Any:
        check_range(address, nbytes)
        buffer = np.empty(nbytes, np.uint8)  # the system gives pages only to what is touched
        used = min(touched, nbytes)
        if writable:
            self._check(CHECK, address, used)
        else:
            buffer[:used] = np.frombuffer(self.read(address, used), np.uint8)
        return buffer

    def put(self, address: int, view: Any, touched: int) -> None:
        self._ask(WRITE, address, touched)
        self._connection.sendall(memoryview(view)[:touched])

    def lend(self, buffer: Any) -> int:
        self._ask(ALLOCATE, 0, buffer.nbytes)
        address = self._word()
        self._lent[address] = buffer
        return address

    def take_back(self, address: int) -> int:
        buffer = self._lent.pop(address, None)
        if buffer is None:
            return address
        self._ask(FREE, address, 0)
        return address_of(buffer)

    def _check(self, what: int, address: int, nbytes: int) -> None:
        check_range(address, nbytes)
        self._ask(what, address, nbytes)
        if not self._word():
            raise NoSuchMemory

    def _receive(self, nbytes: int) -> bytes:
        """Exactly this many bytes. Raises EOFError: the program has ended."""
        parts = bytearray(nbytes)
        view, got = memoryview(parts), 0
        while got < nbytes:
            count = self._connection.recv_into(view[got:])
            if count == 0:
                raise EOFError
            got += count
        return bytes(parts)

    def _ask(self, what: int, address: int, nbytes: int) -> None:
        self._connection.sendall(_REQUEST.pack(what, address, nbytes))

    def _word(self) -> int:
        return int(_WORD.unpack(self._receive(_WORD.size))[0])

    def run(self, dispatcher: Dispatcher, threads: Threads) -> None:
        """Reply its calls until it ends."""
        threads.welcome()
        try:
            while True:
                number, *words = CALL.unpack(self._receive(CALL.size))
                self._call(dispatcher, number, words)
        except (EOFError, OSError):
            self._connection.close()

    def _call(self, dispatcher: Dispatcher, number: int, words: list[int]) -> None:
        reply = Reply([0])
        if number == AT_EXIT:
            acl.aclrtSynchronizeDevice()
        elif number == KERNEL_FAULT:
            reply = Reply([1], text=NO_KERNELS)
        elif number >= 0:
            reply = dispatcher.call(number, words, self)
        text = packed_text(reply.text)
        results = pack(reply.results).ljust(8 * RESULT_WORDS, b"\0")
        values = pack(reply.values).ljust(8 * LIST_WORDS, b"\0")
        self._connection.sendall(_REQUEST.pack(DONE, 0, len(text)) + results + values + text)
