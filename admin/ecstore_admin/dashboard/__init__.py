"""The live page at `/`: how safe the data is, what is being decoded, and what it costs."""
