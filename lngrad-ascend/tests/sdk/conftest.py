"""One toolkit folder for all tests of this folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lngrad_ascend.sdk import toolkit as toolkit_module
from lngrad_ascend.sdk import write_toolkit


@pytest.fixture(scope="session")
def toolkit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as `lngrad sdk` writes it, built without a warning."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("sdk") / "toolkit"
    write_toolkit(folder, flags=["-Werror"])
    return folder


@pytest.fixture(scope="session")
def static_toolkit(toolkit: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of a Python without a shared library."""
    folder = tmp_path_factory.mktemp("sdk") / "static"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(toolkit_module, "_libpython", lambda: "")
        write_toolkit(folder, flags=["-Werror"])
    return folder


@pytest.fixture(params=["toolkit", "static_toolkit"])
def any_toolkit(request: pytest.FixtureRequest) -> Path:
    """For `lngrad sdk --run`: Python inside the program, and the program inside Python."""
    return request.getfixturevalue(request.param)
