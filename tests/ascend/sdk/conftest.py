"""One toolkit folder for all tests of this folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lngrad.ascend.sdk import write_toolkit


@pytest.fixture(scope="session")
def toolkit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as `lngrad sdk` writes it, built without a warning."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("sdk") / "toolkit"
    write_toolkit(folder, flags=["-Werror"])
    return folder
