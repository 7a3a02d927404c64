from __future__ import annotations

import threading

import pytest

from lngrad_ascend import soc
from lngrad_ascend.faults import UnknownSoc


def test_default_is_ascend910b1_strict_and_nearest_even():
    target = soc.current()
    assert (target.soc.name, target.mode, target.rounding, target.cann) == ("Ascend910B1", "strict", "even", "8.3")


def test_use_holds_for_a_block_and_is_undone_even_after_an_error():
    def fail():
        with soc.use("Ascend950", mode="compat", rounding="device", cann="9.0") as target:
            assert soc.current() is target
            assert (target.soc.arch, target.mode, target.rounding, target.cann) == (3510, "compat", "device", "9.0")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert soc.current().soc.name == "Ascend910B1"


def test_use_without_a_block_holds_until_the_next_use():
    try:
        soc.use("Ascend310P")
        assert soc.current().soc.arch == 2002
    finally:
        soc.use(soc.DEFAULT)
    assert soc.current().soc.name == soc.DEFAULT


def test_use_is_for_this_thread_only():
    seen = []
    with soc.use("Ascend950"):
        thread = threading.Thread(target=lambda: seen.append(soc.current().soc.name))
        thread.start()
        thread.join()
    assert seen == ["Ascend910B1"]


def test_an_unknown_soc_is_refused_with_the_known_ones():
    with pytest.raises(UnknownSoc, match=r"expected one of Ascend310P, .*Ascend350, got 'Ascend1000'"):
        soc.use("Ascend1000")
    assert soc.current().soc.name == "Ascend910B1"


@pytest.mark.parametrize(("argument", "value"), [("mode", "loose"), ("rounding", "odd")])
def test_a_wrong_word_is_refused(argument, value):
    with pytest.raises(ValueError, match=rf"{argument}: expected .* got '{value}'"):
        soc.use("Ascend950", **{argument: value})


def test_a_release_or_master_is_what_cann_is():
    with pytest.raises(
        ValueError, match=r"cann: expected a release such as '8\.3', from 8\.0\.RC1 on, or 'master', got 'newest'"
    ):
        soc.use("Ascend950", cann="newest")
    with pytest.raises(ValueError, match=r"got '7\.0'"):
        soc.use("Ascend950", cann="7.0")
    assert soc.current().soc.name == "Ascend910B1"
    for cann, documents in (
        ("8.0.RC1.beta1", "8.0.RC1"),
        ("8.0.RC3", "8.3"),
        ("8.0.RC10", "8.3"),
        ("9.1", "8.3"),
        ("master", "master"),
    ):
        with soc.use("Ascend950", cann=cann) as target:
            assert target.documents == documents


def test_every_row_says_where_it_comes_from():
    assert len(soc.names()) == len(set(soc.names())) >= 8
    for name in soc.names():
        row = soc.get(name)
        assert row.source, name
        assert row.ub_bytes % row.block_bytes == 0, name
        assert row.regbase == (row.arch == 3510), name


def test_a_device_s_own_name_finds_its_family():
    assert soc.get("Ascend910_9392").name == "Ascend910_93"
    assert soc.get("Ascend310P3") is soc.get("Ascend310P")


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("Ascend950PR_9589", "Ascend950"), ("Ascend950DT_95A2", "Ascend950"), ("ascend950dt_9582", "Ascend950"),
        ("Ascend910_9382", "Ascend910_93"), ("Ascend910_9362", "Ascend910_93"), ("ascend910_93", "Ascend910_93"),
        ("Ascend910ProA", "Ascend910A"), ("Ascend910ProB", "Ascend910A"), ("Ascend310P5", "Ascend310P"),
        ("Ascend310P7", "Ascend310P"), ("ascend310p", "Ascend310P"), ("ascend950", "Ascend950"),
        ("Ascend910B", "Ascend910A"), ("ascend910b", "Ascend910B1"), ("ascend910b3", "Ascend910B3"),
        ("Ascend310B4", "Ascend310B"), ("ascend310b", "Ascend310B"),
    ],
)  # fmt: skip
def test_names_of_devices_and_build_files(name, row):
    assert soc.get(name).name == row
