"""A table of bounded size."""

from __future__ import annotations

from lngrad.support.bounded_cache import BoundedCache


def test_a_full_table_is_emptied():
    table = BoundedCache(3)
    for key in range(3):
        assert table.keep(key, str(key)) == str(key)
    assert table == {0: "0", 1: "1", 2: "2"}
    table.keep(3, "3")
    assert table == {3: "3"}


def test_an_entry_stays_until_then():
    table = BoundedCache(2)
    value = table.keep("key", object())
    assert table.get("key") is value
    assert table.get("other") is None
