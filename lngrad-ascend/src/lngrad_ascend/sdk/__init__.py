"""The C and C++ interfaces: a folder with which CANN's host programs compile, link and run on any machine.

A C function of the folder's library packs its arguments into words, and calls one Python function, which unpacks them,
calls ``lngrad_ascend.acl`` or ``lngrad_ascend.aclnn``, and packs what comes back::

    program ─► entry_points.c   (generated)  arguments into a frame of words
               interpreter.c    (by hand)    finds or starts Python, once; a state for each thread
            ─► attach.py                     frame ─► words
               marshal.py                    words ─► Python values ─► acl, aclnn ─► words
               pointers.py                   numbers in the place of objects; the program's memory

A Python without a shared library can't be loaded: `lngrad sdk --run` then loads the program into it (hosted.py).

Headers, entry points and conversions follow from one table, ``lngrad_ascend.prototypes``. There is no rule of an
interface here, and no arithmetic. Reasons and limits: docs/decisions/0022-c-interfaces.md, docs/ascend-sdk.md.
"""

from lngrad_ascend.sdk.toolkit import cflags, is_toolkit, libs, write_toolkit
from lngrad_ascend.soc import Settings

__all__ = ["Settings", "cflags", "is_toolkit", "libs", "write_toolkit"]
