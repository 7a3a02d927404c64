"""Mutated files of every format: each ends in what it says or in the one clear error, never in another exception."""

from __future__ import annotations

import io
import json
import random
import shutil
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lngrad.check.formats.reading import dump_of, read_cases
from lngrad.check.golden import write_goldens
from lngrad.check.inputs import draw
from lngrad.check.judge import Options, check_case
from lngrad.check.reports.journal import line_of, read_journal
from lngrad.errors import FileFormatError, LngradError
from lngrad.files.boundary import parse_json, read_text
from lngrad.files.reading import read_tensor, read_tensors

CASES = Path(__file__).parents[3] / "cases"
MOST = 1 << 20  # bytes of an array that a mutated file may ask for
PIECES = (
    b"", b"\0", b"\xff" * 8, b"\x80", b"((((((((", b"[[[[[[[[", b"{}", b"1e999", b"-9" * 30, b"9" * 400, b"None", b"nan",
    b"&a ", b"*a", b"!!x ", b"<<: 3\n", b"? ", b"\n", b"'", b'"', b"\\", b"::", b"../", b"O", b"|b1", b">f4", b"inf",
    b"PK\x03\x04", b"\xed\xa0\x80",
)  # fmt: skip


def mutated(content: bytes, rng: random.Random) -> bytes:
    """A few bytes flipped, cut, doubled, moved, or replaced by something that a parser does not like."""
    data = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at, kind = rng.randrange(len(data) + 1), rng.randrange(7)
        length = rng.choice((1, 2, 4, 8, 30))
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[at : at + length]
        elif kind == 2:
            data[at:at] = rng.choice(PIECES) * rng.choice((1, 1, 3))
        elif kind == 3:
            data[at : at + length] = rng.choice(PIECES)
        elif kind == 4:
            data[at:at] = data[rng.randrange(len(data) + 1) :][:length]
        elif kind == 5:
            data[at : at + length] = struct.pack("<Q", rng.choice((0, 1, 99, 1 << 31, (1 << 63) - 1, (1 << 64) - 1)))[
                :length
            ]
        elif rng.random() < 0.2:
            del data[at:]
    return bytes(data)


def zipped(compression: int) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name in ("dy", "x"):
            inner = io.BytesIO()
            np.save(inner, np.arange(12, dtype=np.float32).reshape(3, 4))
            archive.writestr(f"{name}.npy", inner.getvalue())
    return stream.getvalue()


def text_of(name: str) -> bytes:
    """The first cases of a file, so that a mutation is likely to change what matters."""
    text = (CASES / name).read_text("utf-8")
    if name == "atk.json":
        return json.dumps(json.loads(text)[:2]).encode()
    return ("\n".join(text.splitlines()[:5]) + "\n").encode()


def cases_of(path: Path) -> None:
    for case in read_cases([path], MOST):
        if case.nbytes < 1 << 14:
            draw(case, 0, 0, case.M, MOST)


def every_array(path: Path) -> None:
    for names in (None, ("x",)):
        for array in read_tensors(path, names, MOST).arrays.values():
            array.sum(dtype=None if array.dtype.kind in "biufc" else object)


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Callable[[Path], object]]]:
    """A sound file of every format, and what reads it."""
    folder = tmp_path_factory.mktemp("sound")
    found: dict[str, tuple[Path, Callable[[Path], object]]] = {}

    def add(name: str, content: bytes, read: Callable[[Path], object]) -> None:
        (folder / name).write_bytes(content)
        found[name] = (folder / name, read)

    saved = io.BytesIO()
    np.save(saved, np.arange(12, dtype=np.float32).reshape(3, 4))
    add("one.npy", saved.getvalue(), lambda path: read_tensor(path, "float32", (3, 4), MOST))
    add("raw.bin", bytes(48), lambda path: read_tensor(path, "float32", (3, 4), MOST))
    kinds = {
        "stored": zipfile.ZIP_STORED,
        "deflated": zipfile.ZIP_DEFLATED,
        "lzma": zipfile.ZIP_LZMA,
        "bzip2": zipfile.ZIP_BZIP2,
    }
    for kind, compression in kinds.items():
        add(f"{kind}.npz", zipped(compression), every_array)
    header = json.dumps(
        {"__metadata__": {"by": "us"}, "x": {"dtype": "F32", "shape": [3, 4], "data_offsets": [0, 48]}}
    ).encode()
    add("one.safetensors", struct.pack("<Q", len(header)) + header + bytes(48), every_array)
    for name in ("ttk_kernel.csv", "ttk_aclnn.csv", "atk.json", "lngrad.yaml"):
        add(name, text_of(name), cases_of)
    cases = read_cases([CASES / "lngrad.yaml"], MOST)[:3]
    write_goldens(cases, folder / "golden", "npz", 0, MOST, lambda: None)
    found["manifest.json"] = (folder / "golden" / "manifest.json", lambda path: cases_of(path.parent))
    journal = "".join(line_of(check_case(case, Options(impl="numpy_cpu"))) for case in cases)
    add("journal.jsonl", journal.encode(), read_journal)
    return found


@pytest.mark.parametrize("share", range(4))
def test_ten_thousand_mutated_files_a_run_raise_our_own_error_or_none(starts, share, tmp_path):
    """2,600 files here, four times: 13 formats, 200 of each."""
    refused = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of parsers, about what is about to be refused
        for kind, (sound, read) in starts.items():
            rng = random.Random(f"{kind} {share}")
            place = tmp_path / kind
            shutil.copytree(sound.parent, place) if kind == "manifest.json" else place.mkdir()
            path, content = place / sound.name, sound.read_bytes()
            for number in range(200):
                path.write_bytes(mutated(content, rng))
                try:
                    read(path)
                except LngradError as error:
                    refused += 1
                    text = str(error)
                    assert "\n" not in text, text
                    assert str(place) in text, text
                except Exception as error:
                    raise AssertionError(
                        f"{kind}, share {share}, file {number}: {type(error).__name__}: {error}"
                    ) from error
    assert refused > 1000, refused


def test_every_sound_file_is_read(starts):
    for sound, read in starts.values():
        read(sound)


def encrypted(tmp_path: Path) -> Path:
    data = bytearray(zipped(zipfile.ZIP_STORED))
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + offset] |= 1
    (tmp_path / "a.npz").write_bytes(data)
    return tmp_path / "a.npz"


def test_an_encrypted_member_is_refused(tmp_path):
    with pytest.raises(FileFormatError, match=r"a\.npz: dy: can't be unpacked; the \.npz is damaged or encrypted"):
        read_tensors(encrypted(tmp_path))


def with_header(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1e999,)}",  # OverflowError
        "{'descr': '<f4', 'fortran_order': False, 'shape': (",  # SyntaxError, TokenError in NumPy's own reader
        "{'descr': '<f4', 'fortran_order': False, 'shape': " + "(" * 5000,  # MemoryError, RecursionError
        "{'descr': '<f4', 'fortran_order': False, 'shape': (0, " + "9" * 30 + ")}",
        "{'descr': [('a', '<f4'), ('a', '<f4')], 'fortran_order': False, 'shape': ()}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1," * 70 + ")}",
    ],
)
def test_headers_of_npy_that_no_parser_likes(tmp_path, header):
    (tmp_path / "a.npy").write_bytes(with_header(header) + bytes(4))
    with pytest.raises(FileFormatError, match=r"a\.npy: its \.npy header is damaged|a\.npy: expected "):
        read_tensor(tmp_path / "a.npy", "float32", None)


def test_merge_keys_of_yaml_are_refused_with_their_place(tmp_path):
    (tmp_path / "a.yaml").write_text("lngrad: 1\ncases:\n  - {<<: 3, shape: [2]}\n")
    with pytest.raises(FileFormatError, match=r"a\.yaml:3:6: '<<' can't be read|a\.yaml:3:.*expected"):
        read_cases([tmp_path / "a.yaml"], MOST)


def test_text_that_is_not_utf_8_is_refused_with_the_byte(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"a": "\xff"}\n')
    with pytest.raises(FileFormatError, match=r"a\.jsonl: is not UTF-8 at byte 7"):
        read_journal(tmp_path / "a.jsonl")
    with pytest.raises(FileFormatError, match=r"expected at most 3 bytes, got 11"):
        read_text(tmp_path / "a.jsonl", 3)


def test_json_says_where_it_ends():
    with pytest.raises(FileFormatError, match=r"^f: line 2, column 1: "):
        parse_json("[\n", "f")
    with pytest.raises(FileFormatError, match=r"^f: too many brackets"):
        parse_json("[" * 100_000, "f")
    assert parse_json("9" * 400, "f") == float("inf")


def test_a_dump_that_is_damaged_is_refused(tmp_path):
    (tmp_path / "outputs.npz").write_bytes(zipped(zipfile.ZIP_DEFLATED)[:-9])
    with pytest.raises(FileFormatError, match=r"outputs\.npz: is no \.npz file"):
        dump_of(read_cases([CASES / "lngrad.yaml"], MOST)[0], str(tmp_path), 0, 77, MOST)
