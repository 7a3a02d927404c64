"""Known mistakes as they are planted: the case that each of them shows in, and the names that one result may have."""

from __future__ import annotations

import re

import numpy as np

FROM_X = {"mean": None, "statistic": None}
GIVEN = {"mean": (-1.0, 1.0), "statistic": (0.3, 2.0)}
SMALL = {"ranges": {**FROM_X, "x": (-0.006, 0.006)}, "third": "variance"}
LARGE = {"ranges": {**FROM_X, "x": (-200.0, 200.0)}}
CHUNKS, TILES = (16, 32, 64, 128, 256, 512, 1024), (8, 16, 32, 64, 128, 256, 1024)
STREAM = {"norm": "add_rms_norm"}
BRAIN = {"dtype": "bfloat16", "gamma_dtype": "bfloat16", "output_dtypes": {}, "standard": "stable"}
# The case that a mistake shows in: eps beside a small variance, recomputing where the given statistics are others.
CASE_OF = {
    "eps added twice": SMALL,
    "eps missing": SMALL,
    "eps 1e-12 for 1e-5": SMALL,
    "eps 1e-5 for 1e-12": {**SMALL, "eps": 1e-12},
    **{
        f"eps {eps:.3g}": {**SMALL, "eps": 3e-6, "norm": "rms_norm"}
        for eps in (1e-3, 1e-6, 1e-8, 2.0**-23, 2.0**-10, 2.0**-7)
    },
    "mean subtracted": {"norm": "rms_norm"},
    "variance about the mean": {"norm": "rms_norm"},
    "mean of dxhat subtracted": {"norm": "gemma_rms_norm"},
    "layer normalization for RMSNorm": STREAM,
    "layer normalization for RMSNorm, with its own statistics": {"norm": "rms_norm"},
    "offset forgotten": {"norm": "gemma_rms_norm"},
    "offset added twice": {"norm": "zero_centred_layer_norm"},
    "dtotal forgotten": STREAM,
    "dtotal added twice": {"norm": "deep_norm"},
    "dtotal times rstd": {"norm": "add_layer_norm"},
    "dtotal added to dy": STREAM,
    "residual forgotten": {"norm": "add_layer_norm"},
    "residual added after the norm": STREAM,
    "alpha forgotten": {"norm": "deep_norm"},
    "alpha on the residual": {"norm": "deep_norm"},
    "total not rounded": {
        "norm": "deep_norm", "dtype": "bfloat16", "gamma_dtype": "bfloat16", "output_dtypes": {}
    },
    "statistics recomputed": {"ranges": GIVEN},
    "mean recomputed": {"ranges": GIVEN},
    "extra term of the tile formula": {"ranges": GIVEN},
    "uncentred variance": {"ranges": {**FROM_X, "x": (0.5, 2.5)}},
    "variance by cancellation": {"ranges": {**FROM_X, "x": (1000.0, 1001.0)}},
    "eps outside the root": {"ranges": {**FROM_X, "x": (-0.006, 0.006)}},
    "variance over N - 1, in its derivative too": SMALL,
    "variance over N - 1 and eps outside the root, in its derivative too": SMALL,
    "rstd taken for a variance": {"ranges": {**FROM_X, "x": (-6.0, 6.0)}},
    "variance of a padded row": {"ranges": {**FROM_X, "x": (0.0, 2.0)}, "normalized": (37,)},
    "row means rounded to float16": {"standard": "stat"},
    "row means rounded to bfloat16": {"standard": "stat"},
    "products rounded to bfloat16": {"standard": "stat", "lead": (150,)},
    "products rounded to float16": {"standard": "exact", "lead": (150,)},
    **{
        f"{dtype} sums in blocks of {block} rows{rest}": {"lead": (2 * block + 9,)}
        for dtype in ("bfloat16", "float16")
        for block in (32, 64, 128, 256)
        for rest in ("", " of rounded products")
    },
    **{
        f"statistics of x rounded to {dtype}": {"standard": "exact"} for dtype in ("bfloat16", "float16")
    },
    **{
        f"{name}, recomputed from x": {"ranges": {**GIVEN, "x": (-0.006, 0.006)}}
        for name in ("variance over N - 1", "eps outside the root", "eps missing", "eps added twice")
    },
    **{
        f"{kind} averaged over chunks of {chunk}": {"normalized": (chunk + chunk // 2 + 3,)}
        for chunk in (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
        for kind in ("statistics", "variance")
    },
    **{
        f"row offset in {kind}{stores}": {"lead": (1300,), "normalized": (61,)}
        for kind in ("int16", "uint16")
        for stores in ("", " of loads and stores")
    },
    **{
        f"gamma broadcast along {axes}": {"normalized": (4, 5, 3)}
        for axes in ("axis 0", "axis 1", "axis 2", "axes 0 and 1", "axes 0 and 2", "axes 1 and 2")
    },
    **{
        f"xhat from y/{how} at {least:g}": {"ranges": {**FROM_X, "gamma": (-3 * least, 3 * least)}}
        for how in ("gamma clamped", "max(gamma)")
        for least in (0.1, 0.01, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8)
    },
    **{
        f"{dtype} sums of {groups} groups of rows": {"lead": (4 * groups + 9,)}
        for dtype in ("bfloat16", "float16")
        for groups in (64, 96, 128, 256)
    },
    **{
        f"{dtype} sums of blocks of {block} rows": {"lead": (9 * block + 5,)}
        for dtype in ("bfloat16", "float16")
        for block in (2, 4, 8, 16, 32, 64, 128, 256)
    },
    **{
        f"{dtype} sums after each block of {block} rows": {"lead": (9 * block + 5,)}
        for dtype in ("bfloat16", "float16")
        for block in (8, 16, 32, 64, 128, 256)
    },
    **{f"odd partial sum of {rows} rows lost in a tree": {"lead": (11 * rows + 1,)} for rows in (1, 8, 16, 32, 64, 128, 256)},
    **{  # of neighbours a power of two remains, so more than the last part must be lost
        f"odd partial sum of {rows} rows lost in a tree of neighbours": {"lead": ((50 if rows > 1 else 400) * rows,)}
        for rows in (1, 8, 16, 32, 64, 128, 256)
    },
    **{f"dtotal modulo {1 << bits}": {**STREAM, "normalized": ((1 << bits) + 9,)} for bits in range(5, 11)},
    **{f"gamma modulo {1 << bits}": {"lead": (3,), "normalized": (max(1 << bits, 1024) + 9,)} for bits in range(6, 17)},
    **{f"{what} read in x's dtype": {"dtype": "bfloat16"} for what in ("gamma", "mean and rstd")},
    **{f"row index in uint16{rest}": {"lead": (65600,), "normalized": (5,)} for rest in ("", " of loads and stores")},
    **{f"norm's part rounded to {dtype} before dtotal is added": STREAM for dtype in ("bfloat16", "float16")},
    **{f"column sums modulo {1 << bits}": {"normalized": ((1 << bits) + 9,), "lead": (5,)} for bits in range(5, 17)},
    "dx zero without gamma": {"gamma_dtype": None},
    "results flushed to zero": {"ranges": {**FROM_X, "dy": (-3e-38, 3e-38)}},
    "dx flushed to zero": {"ranges": {**FROM_X, "dy": (-3e-38, 3e-38)}},
    "inputs flushed to zero": {"ranges": {**FROM_X, "dy": (-3e-38, 3e-38)}},
    "dx truncated": BRAIN,
    "results truncated": BRAIN,
    **{f"{name} of the column's index": {"lead": (24,), "normalized": (24,)} for name in ("statistics", "mean", "rstd")},
    "dtotal added to dxhat": STREAM,
    "xhat by cancellation": {"ranges": {**FROM_X, "x": (1e6, 1.001e6)}, "normalized": (1,)},
    **{f"variance within chunks of {chunk}": {"normalized": (2 * chunk + chunk // 2,)} for chunk in CHUNKS},
    **{
        f"rstd of the first 1/{share} of the columns{rest}": {"norm": "rms_norm", "normalized": (61,)}
        for share in (2, 4, 8, 16) for rest in ("", ", in its derivative too")
    },
    **{
        f"row sums to the end of a tile of {tile}, x {of}": {"normalized": (tile + tile // 2 + 1,)}
        for tile in TILES for of in ("masked", "of the next row too")
    },
    **{f"tiles of dx of {tile} transposed": {"normalized": (tile + 5,), "lead": (2 * tile + 3,)} for tile in (4, 8, 16, 32)},
    **{name: {"zeros": ("gamma",)} for name in ("xhat from y/gamma", "dgamma divided by gamma")},
    **{f"squares rounded to {dtype} in the variance": LARGE for dtype in ("bfloat16", "float16")},
    **{name: {"norm": "deep_norm"} for name in ("dx times alpha", "alpha forgotten in the gradient of x")},
    "half-away rounding": {
        "lead": (3,), "dtype": "bfloat16", "gamma_dtype": "bfloat16", "output_dtypes": {},
        "normalized": (400,), "standard": "binary",
    },
}  # fmt: skip
# One result, two names: a variance of 1e-5 does not show whether 1e-12 is added to it.
ALIKE = {"eps 1e-12 for 1e-5": "eps missing"}


def family(name: str | None) -> str:
    """Parts of 16 rows and of 32 leave the same rest of most numbers of rows, and tiles of 16 and of 32 may be one."""
    return re.sub(r" of \d+ |tile \d+|(chunks|tile|dx) of \d+", " of K ", ALIKE.get(name or "", name or "none"))


def shape(name: str, seed: int) -> dict[str, object]:
    """A random shape that the mistake makes a difference to."""
    rng = np.random.default_rng(seed)
    lead = (int(rng.integers(3, 8)), int(rng.integers(9, 13)))
    normalized = (int(rng.integers(2, 5)), int(rng.integers(5, 8)))
    found = re.search(r"last (?:part|tile) of (\d+)", name)
    if found and "rows" in name:
        lead = (int(found[1]) + int(rng.integers(2, 7)),)
    elif parts := re.search(r"in (\d+) parts", name):
        lead = (int(parts[1]) * int(rng.integers(4, 8)) - 1,)
    elif found:
        lead, normalized = (int(rng.integers(3, 9)),), (int(found[1]) + int(rng.integers(2, 7)),)
    return {"lead": lead, "normalized": normalized}
