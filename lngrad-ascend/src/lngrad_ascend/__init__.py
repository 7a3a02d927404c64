"""Ascend CANN's LayerNorm-backward interfaces, on any machine. The only folder where CANN spelling is used."""

__version__ = "0.1.0"  # lngrad's: both are released together
