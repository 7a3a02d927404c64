"""Fork while one stream runs a task, and another one's thread sleeps: the child's streams run."""

import os
import threading
import warnings

from lngrad_ascend import acl
from lngrad_ascend.acl.streams import submit

warnings.simplefilter("ignore")
acl.aclInit(None)
acl.aclrtSetDevice(0)
(busy, _), (used, _) = acl.aclrtCreateStream(), acl.aclrtCreateStream()
gate, begun, first = threading.Event(), threading.Event(), threading.Event()
submit(busy, lambda: begun.set() or gate.wait(60))
submit(used, first.set)
assert begun.wait(60)
assert first.wait(60)
child = os.fork()
if child == 0:
    for stream in (busy, used, None):
        done = threading.Event()
        submit(stream, done.set)
        if not done.wait(30) or acl.aclrtSynchronizeStreamWithTimeout(stream, 30000) != 0:
            os._exit(1)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
gate.set()
assert acl.aclFinalize() == 0
print("ok")
