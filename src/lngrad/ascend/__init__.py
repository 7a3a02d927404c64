"""Ascend CANN's LayerNorm-backward interfaces, on any machine. The only folder where CANN spelling is used."""
