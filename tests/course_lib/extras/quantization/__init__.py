"""Weights in 8 and 4 bits: by formula, beside bitsandbytes, and cut over real ranks."""
