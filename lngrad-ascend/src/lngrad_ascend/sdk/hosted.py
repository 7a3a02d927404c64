"""A host program inside this Python, for one that has no shared library: `python -I hosted.py PROGRAM.so WORD…`."""

import ctypes
import os
import signal
import sys


def main(path: str) -> None:
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):  # which Python has changed, and a program has not
        signal.signal(number, signal.SIG_DFL)
    words = [ctypes.create_string_buffer(os.fsencode(word)) for word in sys.argv[1:]]
    arguments = (ctypes.c_void_p * (len(words) + 1))(*map(ctypes.addressof, words))
    libc = ctypes.CDLL(None)
    code = ctypes.CDLL(path).main(len(words), arguments, ctypes.c_void_p.in_dll(libc, "environ"))
    libc.exit(code)  # not Python's: streams and destructors of static objects come now, and may call


if __name__ == "__main__":
    main(sys.argv[1])
