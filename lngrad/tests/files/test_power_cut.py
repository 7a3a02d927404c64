"""A copy of a disk, made the moment after an output was announced, has the output whole: what a power cut would leave."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from lngrad.files.reading import read_tensor, read_tensors
from lngrad.files.writing import write_tensor, write_tensors
from lngrad.testing import check_same_bits

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        getattr(os, "geteuid", lambda: 1)() != 0 or not shutil.which("mkfs.ext4"),
        reason="mounts a file system: needs root",
    ),
]


@contextmanager
def mounted(image: Path, place: Path) -> Iterator[Path]:
    place.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-o", "loop", image, place], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no loop devices here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", "", ".npy"])
def test_a_copy_of_the_disk_has_the_output_whole(tmp_path, suffix):
    image, array = tmp_path / "image", np.random.default_rng(0).standard_normal((512, 512), dtype=np.float32)
    with image.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    with mounted(image, tmp_path / "disk") as disk:
        if suffix == ".npy":
            write_tensor(disk / "out.npy", array)
        else:
            write_tensors(disk / f"out{suffix}", {"dx": array})
        shutil.copyfile(image, tmp_path / "copy")
    with mounted(tmp_path / "copy", tmp_path / "after") as disk:
        if suffix == ".npy":
            got = read_tensor(disk / "out.npy", "float32", array.shape)
        else:
            got = read_tensors(disk / f"out{suffix}").arrays["dx"]
        check_same_bits(got.copy(), array)
        del got
