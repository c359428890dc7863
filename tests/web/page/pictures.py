"""Pictures of a page and how they are compared.

The browser that takes them has one family of fonts, out of a package that is pinned, and none of
the system. Machines still differ in how they smooth the edges of letters. So a pixel counts as
different only where none of the nine around its place in the other picture has its colour, as near
as :data:`NEAR`: edges that are a little softer or a pixel aside do not, areas, lines and letters of
another colour or at another place do.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.web.conftest import ARGUMENTS

FONTS = ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSansMono")
ALIASES = {
    "DejaVu Sans": ("system-ui", "sans-serif", "serif", "Arial", "Times New Roman"),
    "DejaVu Sans Mono": ("ui-monospace", "monospace", "Courier New"),
}
NEAR = 24
"""How much two colours may differ in red, green or blue, of 255."""
SHARE_MAX = 0.0005
"""How many pixels of all may be different."""
STEP = 16
"""To which the colours of kept pictures are rounded: they are smaller then."""


def font_settings(directory: Path, fonts: Path, *, hinting: str) -> Path:
    """A configuration of fontconfig that knows these fonts alone."""
    families = "".join(
        f'<match target="pattern"><test name="family"><string>{name}</string></test>'
        f'<edit name="family" mode="assign" binding="strong"><string>{family}</string></edit>'
        "</match>"
        for family, names in ALIASES.items()
        for name in names
    )
    known = "".join(f"<glob>{fonts / font}.ttf</glob>" for font in FONTS)
    path = directory / "fonts.conf"
    path.write_text(
        f"<fontconfig><dir>{fonts}</dir><cachedir>{directory / 'cache'}</cachedir>{families}"
        f"<selectfont><acceptfont>{known}</acceptfont><rejectfont><glob>*</glob></rejectfont>"
        '</selectfont><match target="font">'
        '<edit name="antialias" mode="assign"><bool>true</bool></edit>'
        '<edit name="rgba" mode="assign"><const>none</const></edit>'
        f'<edit name="hinting" mode="assign"><bool>{str(hinting != "none").lower()}</bool></edit>'
        f'<edit name="hintstyle" mode="assign"><const>hint{hinting}</const></edit>'
        "</match></fontconfig>"
    )
    return path


@contextmanager
def painting_browser(
    browser: Any, directory: Path, fonts: Path, *, hinting: str = "none"
) -> Iterator[Any]:
    """A second one of this kind that has only our fonts, and no profile of colours."""
    settings = font_settings(directory, fonts, hinting=hinting)
    flags = [*ARGUMENTS, "--disable-lcd-text", "--force-color-profile=srgb", "--hide-scrollbars"]
    launched = browser.browser_type.launch(
        executable_path=os.environ.get("BARRAGE_CHROMIUM") or shutil.which("chromium"),
        args=[*flags, f"--font-render-hinting={hinting}"],
        env={**os.environ, "FONTCONFIG_FILE": str(settings)},
    )
    yield launched
    launched.close()


def pixels(png: bytes) -> np.ndarray[Any, Any]:
    """Red, green and blue of each, as numbers that may be subtracted."""
    with Image.open(BytesIO(png)) as image:
        return np.asarray(image.convert("RGB"), dtype=np.int16)


def smaller(png: bytes) -> bytes:
    """The picture with colours that are rounded, as it is kept."""
    rounded = pixels(png) // STEP * STEP + STEP // 2
    image = Image.fromarray(rounded.astype(np.uint8), "RGB")
    if image.getcolors(256) is not None:
        image = image.quantize(256, dither=Image.Dither.NONE)
    out = BytesIO()
    image.save(out, "PNG", optimize=True)
    return out.getvalue()


def differing(kept: np.ndarray[Any, Any], seen: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Which pixels are different, in the one or the other direction."""
    return _without_like(kept, seen) | _without_like(seen, kept)


def _without_like(some: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Which pixels of ``some`` have none like them around their place in ``other``."""
    height, width, _ = some.shape
    around = np.pad(other, ((1, 1), (1, 1), (0, 0)), mode="edge")
    missing = np.ones((height, width), dtype=bool)
    for down in range(3):
        for right in range(3):
            there = around[down : down + height, right : right + width]
            missing &= np.abs(some - there).max(axis=2) > NEAR
    return missing


def problem_of(kept: bytes, seen: bytes) -> str:
    """What is wrong with a picture; empty when it is as it was."""
    before, now = pixels(kept), pixels(seen)
    if before.shape != now.shape:
        return f"its size is {now.shape}, not {before.shape}"
    wrong = differing(before, now)
    share = float(wrong.mean())
    if share <= SHARE_MAX:
        return ""
    rows, columns = np.nonzero(wrong)
    return (
        f"{share:.2%} of its pixels differ, between ({columns.min()}, {rows.min()}) and "
        f"({columns.max()}, {rows.max()})"
    )
