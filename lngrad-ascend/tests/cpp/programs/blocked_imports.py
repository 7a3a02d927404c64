"""As sitecustomize: no module of BLOCKED can be imported."""

import os
import sys


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in os.environ["BLOCKED"].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}: a test has blocked it", name=name)


sys.meta_path.insert(0, Blocked())
