"""Call the library beside Python's own acl, from several threads: an extension module is this, with more between."""

import ctypes
import sys
import threading

from lngrad_ascend import acl

library = ctypes.CDLL(sys.argv[1])
library.aclGetRecentErrMsg.restype = ctypes.c_char_p
assert library.aclInit(None) == 0
assert acl.aclrtSetDevice(0) == 0, "one interpreter, one device"
assert library.aclrtSetDevice(7) == 200002
assert b"got 7" in library.aclGetRecentErrMsg()
address = ctypes.c_void_p()
assert library.aclrtMalloc(ctypes.byref(address), 64, 0) == 0
threads = [threading.Thread(target=library.aclrtSynchronizeDevice) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert acl.aclrtFree(address.value) == 0
print("ok")
