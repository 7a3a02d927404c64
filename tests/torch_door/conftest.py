"""The two ways of a torch call: through Python, and through the compiled glue where it can be built."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def library():
    """The glue's library, built now if no earlier run has; a minute."""
    pytest.importorskip("torch")
    from lngrad.torch.native import building

    try:
        return building.build()
    except building.BuildError as reason:
        pytest.skip(str(reason))


@pytest.fixture
def glue(library):
    """The glue, loaded."""
    from lngrad.torch import compiled

    return compiled.glue or compiled.load()


@pytest.fixture(params=["python", "glue"])
def way(request, monkeypatch):
    """A test's calls go through Python, and then through the glue."""
    from lngrad.torch import compiled

    if request.param == "python":
        monkeypatch.setattr(compiled, "glue", None)
    else:
        assert request.getfixturevalue("glue") is compiled.glue is not None
