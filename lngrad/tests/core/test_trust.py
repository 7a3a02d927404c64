"""What another user, without privileges, can't do to us: each way is tried by such a user, in a child of root."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from lngrad.core import fallbacks
from lngrad.cpu import cache
from lngrad.errors import FileFormatError
from lngrad.files.writing import write_text
from lngrad.support.cache_folder import trusted_folder, write_whole
from lngrad.support.trust import distrust

STRANGER = 12345

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no owners of files")
needs_root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="a child of another user: needs root"
)


def by_stranger(folder: Path, action: Callable[[], None]) -> None:
    """Run an action in a folder, as a user who has no rights in it but those of its mode."""
    process = os.fork()
    if not process:
        try:
            os.chdir(folder)
            os.setgroups([])
            os.setgid(STRANGER)
            os.setuid(STRANGER)
            action()
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(process, 0)[1] == 0


@pytest.fixture(params=[0o777, 0o1777], ids=["everybody's", "sticky"])
def shared(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which everybody can make files, which is where caches are to be."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(request.param)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@needs_root
@pytest.mark.parametrize("is_link", [True, False])
def test_a_cache_that_another_user_can_turn_is_neither_read_nor_written(shared, tmp_path, monkeypatch, is_link):
    ours = tmp_path / "ours"
    ours.mkdir(mode=0o700)
    by_stranger(shared, lambda: os.symlink(ours, "lngrad") if is_link else os.mkdir("lngrad"))
    with pytest.warns(UserWarning, match=f"belongs to user {STRANGER}|every user can write"):
        assert trusted_folder() is None
    folder = shared / "lngrad"
    monkeypatch.setattr(fallbacks, "_counts", fallbacks.Counter({"layer_norm: x is nested": 1}))
    fallbacks._keep(os.getpid())
    assert list(folder.iterdir()) == []
    os.mkfifo(folder / "fallbacks.json")  # a read would wait
    assert fallbacks.last_run() is None


@needs_root
def test_a_cache_below_a_sticky_folder_is_made_before_anybody_else_can(shared):
    if not shared.stat().st_mode & stat.S_ISVTX:
        with pytest.warns(UserWarning, match=f"{shared}: every user can write there"):
            assert trusted_folder() is None
        assert list(shared.iterdir()) == []
        return
    assert trusted_folder() == shared / "lngrad"
    assert stat.S_IMODE((shared / "lngrad").stat().st_mode) == 0o700
    with pytest.raises(AssertionError):
        by_stranger(shared, lambda: os.rename("lngrad", "theirs"))


def test_every_part_of_the_path_counts(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to(Path("a", "..", "a", "b"))
    (tmp_path / "circle").symlink_to("circle")
    assert distrust(tmp_path / "link") is distrust(tmp_path / "link" / "new") is distrust(tmp_path / "circle") is None
    (tmp_path / "a").chmod(0o777)
    for path in ("a/b", "link", "link/new"):
        assert distrust(tmp_path / path) == f"{tmp_path / 'a'}: every user can write there"


def test_folders_are_made_for_this_user_alone_and_none_for_a_home_that_is_not_there(tmp_path, monkeypatch):
    umask = os.umask(0)
    try:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a" / "b"))
        assert trusted_folder() == tmp_path / "a" / "b" / "lngrad"
        assert not (tmp_path / "a").exists()
        write_whole(tmp_path / "a" / "b" / "lngrad" / "file", b"")
    finally:
        os.umask(umask)
    assert {stat.S_IMODE(place.stat().st_mode) for place in (tmp_path / "a").rglob("*") if place.is_dir()} == {0o700}
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700
    monkeypatch.delenv("XDG_CACHE_HOME")
    for home in ("", str(tmp_path / "nobody")):
        monkeypatch.setenv("HOME", home)
        assert trusted_folder() is None
    assert not (tmp_path / "nobody").exists()


def test_a_draft_follows_no_link(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("ours")
    secret.chmod(0o600)
    (tmp_path / f"file.{os.getpid()}-{threading.get_ident()}").symlink_to(secret)
    write_whole(tmp_path / "file", b"theirs")
    assert secret.read_text() == "ours"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


@needs_root
def test_a_report_does_not_go_where_another_user_s_link_leads(shared, tmp_path):
    ours = tmp_path / "ours"
    ours.write_text("ours")
    by_stranger(shared, lambda: os.symlink(ours, "report.html"))
    with pytest.raises(FileFormatError, match=rf"report.html is a link of user {STRANGER}, and is not followed$"):
        write_text(shared / "report.html", "a report")
    assert ours.read_text() == "ours"
    (tmp_path / "own.html").symlink_to(ours)
    write_text(tmp_path / "own.html", "a report")
    assert ours.read_text() == "a report"


def test_settings_that_are_no_file_are_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = Path(".numba_config.yaml")
    for make in (lambda: os.mkfifo(settings), lambda: settings.symlink_to("/dev/zero")):
        make()
        assert cache._settings_file() == ""
        settings.unlink()
    settings.write_text("opt: 2")
    assert cache._settings_file() == "opt: 2"


SHADOW = "open({!r}, 'a').write(__name__)\nraise ImportError('of the current folder')\n"
COMMAND = """
import sys
sys.argv[1:] = ["check", "--impl", "numpy_cpu", "cases.yaml", "--seed", "1"]
from lngrad.support.compilers import run_compiler
assert run_compiler(["true"]).returncode == 0
from lngrad.cli.main import main
if __name__ == "__main__":
    main()
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 puts the current folder first in spawned children")
def test_nothing_of_the_current_folder_is_imported(tmp_path):
    folder, ran = tmp_path / "cases", tmp_path / "ran"
    folder.mkdir()
    (folder / "cases.yaml").write_text("lngrad: 1\ncases:\n  - {name: a, shape: [65, 64]}\n")
    for name in ("signal", "subprocess", "multiprocessing", "importlib", "numpy", "lngrad"):
        (folder / f"{name}.py").write_text(SHADOW.format(str(ran)))
    (tmp_path / "command.py").write_text(COMMAND)
    done = subprocess.run([sys.executable, str(tmp_path / "command.py")], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "PASS: 1 passed" in done.stdout
    assert not ran.exists(), ran.read_text()
