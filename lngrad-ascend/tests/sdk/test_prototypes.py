"""The table of prototypes: what its types say, and that it has the functions of the documents."""

from __future__ import annotations

import re

import pytest

from lngrad_ascend import acl, aclnn
from lngrad_ascend.prototypes import FUNCTIONS, HANDLES, HEADERS, Kind, parse
from lngrad_ascend.sdk import graph_engine
from lngrad_ascend.sdk.marshal import implementation


def kinds(prototype: str) -> list[Kind]:
    return [parameter.kind for parameter in parse(prototype).parameters]


def test_types_say_what_a_parameter_is() -> None:
    assert kinds("aclError f(void)") == []
    assert kinds("aclError f(aclrtStream stream, aclrtStream *made)") == [Kind.HANDLE, Kind.OUT_HANDLE]
    assert kinds("aclnnStatus f(const aclTensor *t, aclOpExecutor **e)") == [Kind.HANDLE, Kind.OUT_HANDLE]
    assert kinds("aclError f(void **at, const void *from, double eps)") == [Kind.OUT_ADDRESS, Kind.ADDRESS, Kind.REAL]
    assert kinds("aclnnStatus f(const char *path, uint64_t *n)") == [Kind.TEXT, Kind.OUT_NUMBER]
    assert kinds("aclnnStatus f(int64_t **dims, uint64_t *dimsNum)") == [Kind.OUT_LIST, Kind.OUT_LENGTH]


def test_lists_know_their_length() -> None:
    parsed = parse("aclTensor *f(const int64_t *viewDims, uint64_t viewDimsNum, const int64_t *stride, void *data)")
    assert [parameter.kind for parameter in parsed.parameters] == [Kind.LIST, Kind.LENGTH, Kind.LIST, Kind.ADDRESS]
    assert [parameter.length for parameter in parsed.parameters] == [1, -1, 1, -1]
    assert parsed.result == "aclTensor *"
    assert not parsed.has_status


@pytest.mark.parametrize("text", ["aclError f", "aclError f(int)", "aclError f(const int64_t *values)"])
def test_what_is_no_prototype(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse(text)


def test_names_are_unique() -> None:
    names = [function.name for functions in HEADERS.values() for function in functions]
    assert len(set(names)) == len(names)


def test_every_function_has_an_answer() -> None:
    assert all(implementation(function) is not None for function in FUNCTIONS.values())


def test_every_public_function_of_acl_and_aclnn_has_a_prototype() -> None:
    named = {
        name
        for module in (acl, aclnn, graph_engine)
        for name, value in vars(module).items()
        if re.match("[aA]cl|lngradGraph", name) and callable(value) and not isinstance(value, type)
    }
    assert named == set(FUNCTIONS)  # and so all are public, but for other names
    cann = {name for name in FUNCTIONS if not name.startswith("lngrad")}
    assert {*acl.__all__, *aclnn.__all__} >= {*cann, "not_supported", *HANDLES}
