"""Every test begins on the default SoC, whichever one a test before it has chosen for this thread."""

from __future__ import annotations

import pytest

from lngrad_ascend import soc


@pytest.fixture(autouse=True)
def default_soc():
    with soc.use(soc.DEFAULT):
        yield
