"""What tests of every package share: hypothesis' profile, Triton's interpreter, two fixtures. conftest.py loads it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Triton reads this as it is imported, which torch may do in any test. A run on a GPU sets it: TRITON_INTERPRET=0 pytest -m gpu
os.environ.setdefault("TRITON_INTERPRET", "1")

import lngrad
from lngrad.support.cache_folder import trusted_folder

settings.register_profile(
    "lngrad",
    deadline=None,  # the first example of a dtype compiles a kernel
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("lngrad")


@pytest.fixture
def threads() -> Iterator[None]:
    """Gives the number of threads back as it was."""
    before = lngrad.get_num_threads()
    yield
    lngrad.set_num_threads(before)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """As pytest's; in a module with SAME_PATHS, of a path that is the same in every run, by which compiled kernels are kept."""
    kept = trusted_folder() if getattr(request.module, "SAME_PATHS", False) else None
    if kept is None:
        yield tmp_path
        return
    name = hashlib.sha256(f"{request.config.rootpath} {request.node.nodeid}".encode()).hexdigest()[:16]
    folder = kept.with_name("lngrad-tests") / name
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another run of this checkout
            yield tmp_path
            return
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
        folder.mkdir()
        yield folder
        shutil.rmtree(folder)
