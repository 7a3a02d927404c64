"""Fork while another thread is inside aclInit, and inside an allocation: the child finds the locks free."""

import os
import signal
import threading
import time
import warnings

from lngrad_ascend import acl
from lngrad_ascend.acl import device, memory

warnings.simplefilter("ignore")
acl.aclInit(None)
acl.aclrtSetDevice(0)
begun = threading.Event()


def busy():
    with device._state.lock, memory.heap._lock:
        begun.set()
        time.sleep(0.2)


threading.Thread(target=busy).start()
assert begun.wait(60)
child = os.fork()
if child == 0:
    signal.alarm(30)
    os._exit(acl.aclrtMalloc(64, 0)[1] + acl.aclrtSetDevice(0))
assert os.waitpid(child, 0)[1] == 0
print("ok")
