"""Files in and out: every format and dtype goes round, damaged files get one line, a failure leaves no output behind."""

from __future__ import annotations

import gc
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import time
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lngrad.errors import FileFormatError
from lngrad.files import formats, writing
from lngrad.files.boundary import read_text
from lngrad.files.formats import npy_header
from lngrad.files.reading import read_tensors
from lngrad.files.rowblocks import RowBlocks
from lngrad.files.writing import new_output, write_tensor
from lngrad.support.dtypes import DTYPES
from lngrad.testing import check_same_bits

SUFFIXES = (".npz", ".safetensors", "")
ANY_FILE = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)


def sample(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(DTYPES[dtype])


def write(path: Path, arrays: dict[str, np.ndarray], **options: bool) -> None:
    with new_output(path, {name: (a.shape, a.dtype.name) for name, a in arrays.items()}, **options) as output:
        for name, array in arrays.items():
            output.append(name, array)


def entries(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


@pytest.mark.property
@ANY_FILE
@given(
    suffix=st.sampled_from(SUFFIXES),
    dtypes=st.tuples(*[st.sampled_from(sorted(DTYPES))] * 2),
    shape=st.lists(st.integers(0, 5), max_size=4).map(tuple),
    cuts=st.lists(st.integers(0, 5), max_size=3).map(sorted),
)
def test_what_is_written_in_pieces_is_read_whole(tmp_path, suffix, dtypes, shape, cuts):
    rows, other = sample((5, *shape), dtypes[0]), sample(shape, dtypes[1], seed=1)
    path = tmp_path / f"some{suffix}"
    specs = {"rows": (rows.shape, dtypes[0]), "other": (shape, dtypes[1])}
    with new_output(path, specs, replace=True) as output:
        for start, stop in zip([0, *cuts], [*cuts, 5], strict=True):
            output.append("rows", rows[start:stop])
        output.append("other", other)
    tensors = read_tensors(path, ("rows", "absent"))
    assert tensors.others == ["other"]
    check_same_bits(tensors.arrays["rows"], rows)
    check_same_bits(read_tensors(path, ("other",)).arrays["other"], other)
    assert entries(tmp_path) <= {f"some{suffix}" for suffix in SUFFIXES}


def test_replace_takes_the_place_of_gradients_only(tmp_path):
    for suffix in SUFFIXES:
        path = tmp_path / f"grads{suffix}"
        write(path, {"dx": sample((3, 4), "float32")})
        with pytest.raises(FileFormatError, match=r"exists already; another name, or --force to replace it"):
            write(path, {"dx": sample((3, 4), "float32", seed=1)})
        check_same_bits(read_tensors(path, ("dx",)).arrays["dx"], sample((3, 4), "float32"))
        write(path, {"dx": sample((3, 4), "float32", seed=2)}, replace=True)
        check_same_bits(read_tensors(path, ("dx",)).arrays["dx"], sample((3, 4), "float32", seed=2))
    (tmp_path / "grads" / "notes.txt").write_text("mine")
    with pytest.raises(FileFormatError, match=r"holds more than gradients \(notes.txt\), and is not replaced"):
        write(tmp_path / "grads", {"dx": sample((3, 4), "float32")}, replace=True)
    assert entries(tmp_path) == {"grads", "grads.npz", "grads.safetensors"}


def test_equal_arrays_are_equal_files(tmp_path):
    for suffix in (".npz", ".safetensors"):
        paths = [tmp_path / f"{name}{suffix}" for name in "ab"]
        for path in paths:
            write(path, {"dx": sample((3, 4), "bfloat16")})
        assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_and_safetensors_agree_with_us(tmp_path, dtype):
    save_file = pytest.importorskip("safetensors.numpy").save_file
    array = sample((3, 5), dtype)
    np.save(tmp_path / "dy.npy", array)
    np.savez(tmp_path / "stored.npz", dy=array)
    np.savez_compressed(tmp_path / "compressed.npz", dy=array)
    save_file({"dy": array}, tmp_path / "theirs.safetensors", metadata={"by": "them"})
    for name in (".", "stored.npz", "compressed.npz", "theirs.safetensors"):
        check_same_bits(read_tensors(tmp_path / name, ("dy",)).arrays["dy"], array)

    for suffix in SUFFIXES:
        write(tmp_path / f"ours{suffix}", {"dx": array, "dgamma": array[0].astype(np.float64)})
    as_saved = DTYPES[dtype] if dtype != "bfloat16" else np.dtype("V2")
    for loaded in (np.load(tmp_path / "ours" / "dx.npy"), np.load(tmp_path / "ours.npz")["dx"]):
        assert loaded.dtype == as_saved
        check_same_bits(loaded.view(array.dtype), array)
    theirs = pytest.importorskip("safetensors.numpy").load_file(tmp_path / "ours.safetensors")
    check_same_bits(theirs["dx"].view(array.dtype), array)
    check_same_bits(theirs["dgamma"], array[0].astype(np.float64))


def test_mapped_where_it_can_be(tmp_path):
    array = sample((3, 5), "float32")
    np.save(tmp_path / "dy.npy", array)
    np.savez(tmp_path / "stored.npz", dy=array)
    for name in (".", "stored.npz"):
        read = read_tensors(tmp_path / name, ("dy",)).arrays["dy"]
        assert type(read.base).__name__ == "mmap"
        assert not read.flags.writeable


def test_fortran_order_and_other_versions(tmp_path):
    array = sample((3, 5), "float32")
    for version in ((1, 0), (2, 0), (3, 0)):
        with (tmp_path / "dy.npy").open("wb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # NumPy: "only available in NumPy 1.17+"
            np.lib.format.write_array(file, np.asfortranarray(array), version)
        read = read_tensors(tmp_path, ("dy",)).arrays["dy"]
        assert read.flags.f_contiguous
        check_same_bits(read, array)


class Trap:
    """Unpickling it would write a file."""

    def __init__(self, path: Path):
        self._path = path

    def __reduce__(self):
        return Path.touch, (self._path,)


def test_objects_are_refused_not_unpickled(tmp_path):
    trap = np.array([Trap(tmp_path / "sprung")], object)
    np.save(tmp_path / "dy.npy", trap, allow_pickle=True)
    np.savez(tmp_path / "in.npz", dy=trap)
    (tmp_path / "pickled.npz").write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    for name in (".", "in.npz"):
        with pytest.raises(FileFormatError, match=r"dy.*: contains Python objects; expected numbers"):
            read_tensors(tmp_path / name, ("dy",))
    with pytest.raises(FileFormatError, match=r"is no \.npz file"):
        read_tensors(tmp_path / "pickled.npz", ("dy",))
    assert not (tmp_path / "sprung").exists()


def saved(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def with_header(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + bytes(64)


NPY = saved(sample((4, 8), "float32"))
DAMAGED_NPY = {
    "empty": (b"", "is no .npy file"),
    "text": (b"1 2 3\n", "is no .npy file"),
    "magic alone": (NPY[:8], "header is cut off or damaged"),
    "header cut": (NPY[:40], "header is cut off or damaged"),
    "version": (NPY[:6] + b"\x09" + NPY[7:], "header is cut off or damaged"),
    "no literal": (with_header("{'descr': exit(), 'fortran_order': False, 'shape': (1,)}"), "header is damaged"),
    "no dict": (with_header("[1, 2]"), "header is damaged"),
    "no shape": (with_header("{'descr': '<f4', 'fortran_order': False}"), "header is damaged"),
    "negative shape": (
        with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -16)}"),
        "header is damaged",
    ),
    "no such dtype": (with_header("{'descr': 'what', 'fortran_order': False, 'shape': (1,)}"), "header is damaged"),
    "data cut": (NPY[:-1], r"expected 128 bytes of data for float32 of shape \(4, 8\), got 127; is the file truncated"),
    "too long": (NPY + b"\0", "got 129; is the file damaged"),
    "huge": (
        with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (1 << 50,)}".replace("1 << 50", str(1 << 50))),
        "truncated",
    ),
}


@pytest.mark.parametrize("kind", DAMAGED_NPY)
def test_damaged_npy(tmp_path, kind):
    content, text = DAMAGED_NPY[kind]
    (tmp_path / "dy.npy").write_bytes(content)
    with pytest.raises(FileFormatError, match=rf"dy\.npy: .*{text}"):
        read_tensors(tmp_path, ("dy",))
    with zipfile.ZipFile(tmp_path / "in.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("dy.npy", content)
    with pytest.raises(FileFormatError, match=rf"in\.npz: dy: .*{text}"):
        read_tensors(tmp_path / "in.npz", ("dy",))


def arrays_or_error(path: Path) -> dict[str, np.ndarray] | FileFormatError:
    try:
        return read_tensors(path, ("dy",)).arrays
    except FileFormatError as error:
        return error


@pytest.mark.property
@ANY_FILE
@given(data=st.data())
def test_any_cut_or_flipped_byte_is_an_error_or_another_number(tmp_path, data):
    """Whatever the damage, reading ends in FileFormatError or in an array; in the data of a .npz it never goes unseen."""
    array = sample((4, 8), "float32")
    suffix, compressed = data.draw(
        st.sampled_from([(".npz", False), (".npz", True), (".safetensors", False), ("", False)])
    )
    path = tmp_path / f"in{suffix}"
    if suffix == ".npz":
        (np.savez_compressed if compressed else np.savez)(path, dy=array)
        file = path
    else:
        write(path, {"dy": array}, replace=True)
        file = path / "dy.npy" if suffix == "" else path
    content = bytearray(file.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    cut = data.draw(st.booleans())
    file.write_bytes(content[:at] if cut else content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :])
    found = arrays_or_error(path)
    if isinstance(found, FileFormatError):
        assert str(found).startswith(str(path))
        assert "\n" not in str(found)
        return
    assert not cut
    if suffix == ".npz" and "dy" in found and found["dy"].shape == array.shape and found["dy"].dtype == array.dtype:
        check_same_bits(found["dy"], array)


def safetensors_file(header: object, data: bytes = bytes(64)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: object = "F32", shape: object = (4, 4), data_offsets: object = (0, 64)) -> dict[str, object]:
    return {"dy": {"dtype": dtype, "shape": shape, "data_offsets": data_offsets}}


DAMAGED_SAFETENSORS = {
    "empty": (b"", "is no .safetensors file"),
    "text": (b"hello, world", "is no .safetensors file"),
    "header cut": (safetensors_file(entry(), b"")[:-1], "truncated in its header"),
    "no json": (safetensors_file(b"{dy}"), "header is damaged"),
    "no text": (safetensors_file(b"\xff\xff"), "header is damaged"),
    "nested": (safetensors_file(b"[" * 100_000), "header is damaged"),
    "a list": (safetensors_file([1]), "header is damaged"),
    "no entry": (safetensors_file({"dy": 1}), "dy: its entry in the .safetensors header is damaged"),
    "negative": (safetensors_file(entry(shape=(-4, -4))), "entry .* is damaged"),
    "not whole": (safetensors_file(entry(shape=(4.0, 4))), "entry .* is damaged"),
    "before": (safetensors_file(entry(data_offsets=(-64, 0))), "entry .* is damaged"),
    "integers": (safetensors_file(entry(dtype="I32")), "dy: expected one of F16, BF16, F32, F64, got 'I32'"),
    "unlike": (safetensors_file(entry(shape=(4, 5))), r"expected 80 bytes for F32 of shape \(4, 5\), got 64"),
    "data cut": (
        safetensors_file(entry(), bytes(63)),
        r"expected data up to byte \d+, got a file of \d+; is it truncated",
    ),
}


@pytest.mark.parametrize("kind", DAMAGED_SAFETENSORS)
def test_damaged_safetensors(tmp_path, kind):
    content, text = DAMAGED_SAFETENSORS[kind]
    path = tmp_path / "in.safetensors"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=rf"in\.safetensors: .*{text}"):
        read_tensors(path, ("dy",))


def test_what_is_no_input(tmp_path):
    (tmp_path / "in.txt").write_text("1 2 3")
    with pytest.raises(FileFormatError, match=r"in\.txt: expected a \.npz, a \.safetensors or a folder of \.npy files"):
        read_tensors(tmp_path / "in.txt", ("dy",))
    for name in ("absent.npz", "absent", "absent.safetensors"):
        with pytest.raises(FileFormatError, match=rf"{name}: (no such file or folder|can't be read: No such file)"):
            read_tensors(tmp_path / name, ("dy",))


def test_outputs_that_can_not_be(tmp_path):
    arrays = {"dx": sample((2, 3), "float32")}
    with pytest.raises(
        FileFormatError, match=r"out\.txt: expected a \.npz, a \.safetensors or a folder .*, got '\.txt'"
    ):
        write(tmp_path / "out.txt", arrays)
    with pytest.raises(FileFormatError, match=r"out\.npz: can't be written: there is no folder .*nowhere"):
        write(tmp_path / "nowhere" / "out.npz", arrays)
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(FileFormatError, match=r"folder\.npz: is a folder, and is not replaced"):
        write(tmp_path / "folder.npz", arrays, replace=True)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileFormatError, match=r"file: is a file, and is not replaced"):
        write(tmp_path / "file", arrays, replace=True)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_pipe_and_a_symbolic_link_are_not_replaced(tmp_path, suffix, replace):
    arrays, pipe, link, dangling = {"dx": sample((2, 3), "float32")}, *(tmp_path / f"{n}{suffix}" for n in "plg")
    os.mkfifo(pipe)
    aim = tmp_path / f"aim{suffix}"
    write(aim, arrays)
    link.symlink_to(aim)
    dangling.symlink_to(tmp_path / "nowhere")
    before = entries(tmp_path)
    for path, kind in ((pipe, "pipe, socket or device"), (link, "symbolic link"), (dangling, "symbolic link")):
        with pytest.raises(FileFormatError, match=rf"{path.name}: is a {kind}, and is not replaced"):
            write(path, {"dx": sample((4, 3), "float32")}, replace=replace)
    assert entries(tmp_path) == before
    assert pipe.is_fifo()
    assert link.is_symlink()
    check_same_bits(read_tensors(aim, ("dx",)).arrays["dx"], arrays["dx"])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_names_the_file_of_one_array():
    with pytest.raises(FileFormatError, match=r"^/dev/full: can't be written: No space left on device$"):
        write_tensor(Path("/dev/full"), sample((4096, 3), "float32"))


def test_a_disk_that_is_full_while_an_archive_is_written_leaves_no_traceback(tmp_path, monkeypatch):
    ignored: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    monkeypatch.setattr(writing.secrets, "token_hex", lambda _: "x")
    (tmp_path / ".out.npz.x.tmp").symlink_to("/dev/full")
    with pytest.raises(FileFormatError, match=r"out\.npz: can't be written: "):
        write(tmp_path / "out.npz", {"dx": sample((1000, 1000), "float32")})
    gc.collect()
    assert ignored == []
    assert list(tmp_path.iterdir()) == []


def write_half(path: Path, failure: BaseException | type[BaseException]) -> None:
    with new_output(path, {"dx": ((4, 3), "float32")}, replace=True) as output:
        output.append("dx", sample((2, 3), "float32", seed=1))
        raise failure


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError(28, "No space left on device"), MemoryError])
def test_a_failure_leaves_nothing_behind(tmp_path, suffix, failure):
    path = tmp_path / f"out{suffix}"
    write(path, {"dx": sample((4, 3), "float32")})
    expected = FileFormatError if isinstance(failure, OSError) else failure
    with pytest.raises(expected, match="No space left" if isinstance(failure, OSError) else None):
        write_half(path, failure)
    assert entries(tmp_path) == {path.name}
    check_same_bits(read_tensors(path, ("dx",)).arrays["dx"], sample((4, 3), "float32"))


def test_bfloat16_is_saved_as_numpy_saves_it():
    array = sample((3, 5), "bfloat16")
    assert array.dtype == ml_dtypes.bfloat16
    assert npy_header(array.shape, "bfloat16") == saved(array)[: -array.nbytes]


def write_while(path: Path, dx: np.ndarray, meanwhile: Callable[[], object], **options: bool) -> None:
    with new_output(path, {"dx": (dx.shape, "float32")}, **options) as output:
        output.append("dx", dx)
        meanwhile()


def appear(path: Path, what: str) -> None:
    """Somebody else's file or folder of a name, while an output of that name is being written."""
    if what == "folder":
        path.mkdir()
        (path / "mine.txt").write_text("mine")
    else:
        path.write_text("mine")


@pytest.mark.parametrize("with_renameat2", [True, False])
@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_appears_meanwhile_is_not_replaced_and_the_results_are_kept(
    tmp_path, suffix, what, with_renameat2, replace, monkeypatch
):
    if not with_renameat2:
        monkeypatch.setattr("lngrad.files.writing.ctypes.CDLL", lambda *_, **__: object())
    path, array = tmp_path / f"out{suffix}", sample((4, 3), "float32")
    with pytest.raises(FileFormatError, match=rf"^{path}: .*; the content is in out\.\w{{8}}{suffix}$"):
        write_while(path, array, lambda: appear(path, what), replace=replace)
    assert (path / "mine.txt" if what == "folder" else path).read_text() == "mine"
    (kept,) = entries(tmp_path) - {path.name}
    check_same_bits(read_tensors(tmp_path / kept, ("dx",)).arrays["dx"], array)


@pytest.mark.parametrize("with_renameat2", [True, False])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_appears_in_the_last_moment_is_not_replaced(tmp_path, suffix, with_renameat2, monkeypatch):
    """After every check of ours: the renaming itself refuses."""
    if not with_renameat2:
        monkeypatch.setattr("lngrad.files.writing.ctypes.CDLL", lambda *_, **__: object())
    path, array, publish = tmp_path / f"out{suffix}", sample((4, 3), "float32"), writing._publish
    monkeypatch.setattr(
        writing, "_publish", lambda *arguments: (appear(path, "folder" if suffix else "file"), publish(*arguments))
    )
    with pytest.raises(FileFormatError, match="appeared meanwhile, and is not replaced; the content is in"):
        write(path, {"dx": array})
    assert (path / "mine.txt" if suffix else path).read_text() == "mine"


def test_a_folder_that_gets_more_than_gradients_meanwhile_comes_back(tmp_path):
    path, array = tmp_path / "out", sample((4, 3), "float32")
    write(path, {"dx": array})
    match = r"holds more than gradients \(mine\.txt\), and is not replaced; the content"
    with pytest.raises(FileFormatError, match=match):
        write_while(path, 2 * array, lambda: (path / "mine.txt").write_text("mine"), replace=True)
    assert (path / "mine.txt").read_text() == "mine"
    check_same_bits(read_tensors(path, ("dx",)).arrays["dx"], array)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_content_is_on_the_disk_before_its_name_and_the_name_before_success(tmp_path, suffix, monkeypatch):
    """As strace would show it: every file and the new folder, then the renaming, then the folder of the name."""
    steps: list[str] = []
    fsync, publish = os.fsync, writing._publish
    monkeypatch.setattr(
        os, "fsync", lambda place: (steps.append(os.readlink(f"/proc/self/fd/{place}")), fsync(place))[1]
    )
    monkeypatch.setattr(writing, "_publish", lambda *arguments: (steps.append("renamed"), publish(*arguments)))
    path = tmp_path / f"out{suffix}"
    write(path, {"dx": sample((4, 3), "float32"), "dgamma": sample((3,), "float32")})
    renamed = steps.index("renamed")
    files = [Path(step).name for step in steps[:renamed]]
    assert set(files) >= ({"dx.npy", "dgamma.npy"} if suffix == "" else set())
    assert files[-1].startswith(f".out{suffix}.")
    assert steps[renamed + 1 :] == [str(tmp_path)]
    steps.clear()
    write(path, {"dx": sample((4, 3), "float32"), "dgamma": sample((3,), "float32")}, replace=True, sync=False)
    assert steps == ["renamed"]


def mounted(image: Path, at: Path) -> bool:
    """Whether an image of a file system could be mounted."""
    at.mkdir(exist_ok=True)
    return subprocess.run(["mount", "-o", "loop", image, at], capture_output=True, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounts a file system")
@pytest.mark.parametrize("seconds", [0, 7])  # after which ext4 has written names, and nothing of their content
def test_a_copy_of_the_disk_after_success_has_everything(tmp_path, seconds):
    """As where the power goes then; what is not brought to the disk is not there, which shows that the copy is one."""
    image, copy, at = tmp_path / "image", tmp_path / "copy", tmp_path / "at"
    with image.open("wb") as file:
        file.truncate(64 << 20)
    if subprocess.run(["mkfs.ext4", "-q", image], check=False).returncode or not mounted(image, at):
        pytest.skip("no ext4 can be mounted here")
    arrays = {"dx": sample((400, 300), "float32"), "dgamma": sample((300,), "bfloat16")}
    try:
        write(at / "old.npz", arrays)
        for suffix in SUFFIXES:
            write(at / f"new{suffix}", arrays)
            write(at / f"late{suffix}", arrays, sync=False)
        write(at / "old.npz", {name: -array for name, array in arrays.items()}, replace=True)
        write_tensor(at / "one.npy", arrays["dx"])
        write(at / "last.npz", arrays, sync=False)
        time.sleep(seconds)
        shutil.copyfile(image, copy)
    finally:
        subprocess.run(["umount", at], check=True)
    assert mounted(copy, at)
    try:
        for suffix in SUFFIXES:
            found = read_tensors(at / f"new{suffix}", tuple(arrays)).arrays
            for name, array in arrays.items():
                check_same_bits(found[name], array)
        check_same_bits(read_tensors(at / "old.npz", ("dx",)).arrays["dx"], -arrays["dx"])
        check_same_bits(np.load(at / "one.npy"), arrays["dx"])
        assert not (at / "last.npz").exists() or not (at / "last.npz").stat().st_size
        assert not [name for name in entries(at) if name.endswith((".tmp", ".old"))]
    finally:
        subprocess.run(["umount", "-l", at], check=True)  # arrays are maps of its files


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
@pytest.mark.parametrize("name", ["in.npz", "in.safetensors", "in/dy.npy"])
def test_a_pipe_is_refused_where_reading_it_would_wait_for_ever(tmp_path, name):
    (tmp_path / "in").mkdir()
    os.mkfifo(tmp_path / name)
    with pytest.raises(FileFormatError, match=rf"{name}: expected a file, got a pipe"):
        read_tensors(tmp_path / name.removesuffix("/dy.npy"), ("dy",))
    with pytest.raises(FileFormatError, match="expected a file, got a pipe"):
        read_text(tmp_path / name)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_the_name_of_an_array_can_not_forge_a_line(tmp_path, suffix):
    name = "dx\nlngrad: all is well"
    write(tmp_path / f"in{suffix}", {name: sample((4, 3), "float32")})
    assert read_tensors(tmp_path / f"in{suffix}", ("dy",)).others == ["dx\\nlngrad: all is well"]


@pytest.mark.parametrize("name", ["dy", "x"])
def test_a_file_that_is_truncated_while_it_is_read_is_an_error_not_a_signal(tmp_path, name):
    arrays = {"dy": sample((256, 64), "float32"), "x": sample((256, 64), "float32", seed=1)}
    write(tmp_path / "in", arrays)
    blocks = RowBlocks(read_tensors(tmp_path / "in").arrays, block_bytes=1)
    with pytest.raises(
        FileFormatError, match=rf"^{name}: expected a file of 65664 bytes as before, got 100: it was trunc"
    ):
        blocks.run(lambda *_: None, advance=lambda _: os.truncate(tmp_path / "in" / f"{name}.npy", 100))


def test_a_small_archive_of_large_arrays_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    """A deflated .npz says how large its members become; the limit is on these."""
    path = tmp_path / "small.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as member:
        np.lib.format.write_array(member, np.zeros((1 << 12, 1 << 12), np.float32))
    assert path.stat().st_size < 1 << 20
    with pytest.raises(FileFormatError, match=r"small\.npz: 671\d+ bytes, more than --max-bytes 16777216 allows"):
        read_tensors(path, None, 1 << 24)
    assert read_tensors(path, None, 1 << 28).arrays["x"].shape == (1 << 12, 1 << 12)


def test_what_is_unpacked_into_memory_has_a_limit_and_what_is_mapped_has_none(tmp_path, monkeypatch):
    """Without --max-bytes; what is not wanted is not unpacked."""
    monkeypatch.setattr(formats, "MAX_UNPACKED_BYTES", 1000)
    large, small = sample((64, 64), "float32"), sample((2, 2), "float32")
    np.savez(tmp_path / "stored.npz", x=large)
    np.savez_compressed(tmp_path / "packed.npz", x=large, y=small)
    check_same_bits(read_tensors(tmp_path / "stored.npz").arrays["x"], large)
    check_same_bits(read_tensors(tmp_path / "packed.npz", ("y",)).arrays["y"], small)
    with pytest.raises(
        FileFormatError, match=r"packed\.npz: 16512 bytes to unpack .* more than 1000; --max-bytes allows"
    ):
        read_tensors(tmp_path / "packed.npz", ("x",))
    check_same_bits(read_tensors(tmp_path / "packed.npz", ("x",), 1 << 20).arrays["x"], large)
