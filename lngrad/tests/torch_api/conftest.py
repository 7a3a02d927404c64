"""The two ways of a torch call: through Python, and through the native code where it can be built."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import pytest


@cache
def built():
    """The library of native code, built now if no earlier run has, which takes a minute; or why it can't be."""
    from lngrad.torch.native import building

    try:
        return building.build()
    except building.BuildError as reason:
        return str(reason)


def pytest_collection_finish(session):
    """Build before the first test, so that the build does not count against a test's time limit."""
    needed = any("library" in getattr(item, "fixturenames", ()) for item in session.items)
    if needed and find_spec("torch") is not None and not session.config.option.collectonly:
        built()


@pytest.fixture(scope="session")
def library():
    """The library of native code."""
    pytest.importorskip("torch")
    path = built()
    if isinstance(path, str):
        pytest.skip(path)
    return path


@pytest.fixture
def native_code(library):
    """The native code, loaded."""
    from lngrad.torch import native

    return native.module or native.load()


@pytest.fixture(params=["python", "native"])
def way(request):
    """A test's calls go through Python, and then through the native code."""
    from native_ways import python_alone

    from lngrad.torch import native

    if request.param == "python":
        with python_alone():
            yield
    else:
        assert request.getfixturevalue("native_code") is native.module is not None
        yield


@pytest.fixture
def seen(native_code):
    """The names of the Python functions that the native code calls, as it calls them."""
    from lngrad.torch import native

    names = []
    for name, function in native._functions.items():

        def heard(*arguments, name=name, function=function):
            names.append(name)
            return function(*arguments)

        native.module.register(name, heard)
    native.module.forget()
    yield names
    for name, function in native._functions.items():
        native.module.register(name, function)
