"""The same picture with 256 colours: a third of the bytes in a notebook.

The colours that fill most of it stay exact, a rank's among them; those of smoothed edges become the
nearest of these. Pictures with hatches need it.
"""

from __future__ import annotations

import io
from dataclasses import replace

from course_lib.figures.colours import Picture

COLOURS = 256


def smaller(picture: Picture, colours: int = COLOURS) -> Picture:
    """The picture as a PNG with a palette of as many colours as that."""
    import numpy as np
    from PIL import Image  # both come with matplotlib

    pixels = np.asarray(Image.open(io.BytesIO(picture.png)).convert("RGB")).astype(np.int32)
    packed = (pixels[..., 0] << 16) | (pixels[..., 1] << 8) | pixels[..., 2]  # (high, wide)
    there, place, counts = np.unique(packed, return_inverse=True, return_counts=True)
    palette = there[np.argsort(-counts, kind="stable")[:colours]]
    apart = _channels(there)[:, None] - _channels(palette)[None]  # (colours, 256, 3)
    index = (apart**2).sum(-1).argmin(1).astype(np.uint8)[place].reshape(packed.shape)
    image = Image.fromarray(index, "P")
    image.putpalette(_channels(palette).astype(np.uint8).tobytes())
    page = io.BytesIO()
    image.save(page, "PNG", optimize=True)
    return replace(picture, png=page.getvalue())


def _channels(packed):
    """(n,) packed colours → (n, 3)."""
    import numpy as np

    return np.stack([packed >> 16, packed >> 8 & 255, packed & 255], -1).astype(np.int32)
