"""The benchmark page: what it embeds, and what a browser makes of it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def line(N, date, **ratio):
    return {
        "date": date, "scope": "kernel", "M": 512, "N": N, "dtype": "float32", "op": "backward", "threads": 2,
        "time_us": {"lngrad": {"median": 123.0}}, "ratio": ratio, "of_roofline": 0.5, "commit": "abc</script>",
        "versions": {"torch": "2.13"}, "machine": {"cores": 2},
    }  # fmt: skip


@pytest.fixture
def text(monkeypatch):
    """The page of two machines; the first has two cases, one of them twice."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    sys.modules.pop("benchmark_page", None)
    import benchmark_page

    first = [line(384, "2026-01-01", torch=9.0), line(7, "2026-01-01", torch=2.0)]
    newest = line(384, "2026-02-01", torch=3.0, onednn=0.5)
    return str(benchmark_page.page({"here": [*first, newest], "there": [line(64, "2026-01-01", torch=4.0)]}))


def test_it_embeds_every_record_and_loads_nothing(text):
    embedded = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert embedded is not None
    data = json.loads(embedded[1])
    assert [(each["machine"], each["N"]) for each in data["records"]] == [(0, 384), (0, 7), (0, 384), (1, 64)]
    assert not re.search(r"https?://|src=|href=|fetch\(|import ", text)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium (apt-get install chromium)")
def test_a_browser_shows_the_newest_record_and_its_history(text, tmp_path):
    press = '<script>document.querySelector("tbody button").click();</script></body>'
    (tmp_path / "page.html").write_text(text.replace("</body>", press), encoding="utf-8")
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile",
        "--dump-dom", (tmp_path / "page.html").as_uri(),
    ]  # fmt: skip
    page = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    words = " ".join(re.sub(r"<script.*?</script>|<style.*?</style>|<[^>]+>", " ", page, flags=re.DOTALL).split())
    assert "1 of 2 cases at least as fast" in words
    assert "Against the best of torch 2.13, oneDNN" in words
    assert "512 × 384 float32 123 µs 0.50× oneDNN" in words
    assert "512 × 7 float32 123 µs 2.00× torch" in words
    assert "2026-02-01 abc</script> 123 µs torch 3.00×, oneDNN 0.50×" in words.replace("&lt;", "<").replace("&gt;", ">")
    assert "2026-01-01" in words
    assert "512 × 64" not in words  # of the other machine
