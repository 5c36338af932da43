"""Pages of one HTML file that holds its pictures and styles: a browser opens them without a network."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from utils.image import MAX_WIDTH, data_uri

FRAME = Path(__file__).with_name("page.html")
# Smaller pictures are enlarged by repetition, by the largest whole factor within this width.
LEAST_WIDTH = 640


def page(title: str, body: str) -> str:
    """The text of the file. title: plain text; body: HTML."""
    fill = {"title": text(title), "body": body}
    return re.sub(r"\{\{(\w+)\}\}", lambda name: fill[name[1]], FRAME.read_text(encoding="utf-8"))


def text(value: Any) -> str:
    """Plain text as HTML."""
    return html.escape(str(value))


def facts(values: Mapping[str, Any]) -> str:
    """Names and values as a list of two columns."""
    return f"<dl>{''.join(f'<dt>{text(k)}</dt><dd>{text(v)}</dd>' for k, v in values.items())}</dl>"


def row(pictures: Iterable[tuple[str, np.ndarray]]) -> str:
    """Pictures (H, W, 3) uint8 side by side, each with its name below."""
    figures = (
        f'<figure><img alt="{text(name)}" src="{data_uri(picture)}"><figcaption>{text(name)}</figcaption></figure>'
        for name, picture in pictures
    )
    return f'<div class="row">{"".join(figures)}</div>'


def slider(name: str, pictures: Mapping[str, np.ndarray], max_width: int = MAX_WIDTH) -> str:
    """Two pictures of one size and a bar: "blurry" on its left; "restored", or another one by a button, on its right.

    pictures: name -> (H, W, 3) uint8, stored at most max_width wide.
    """
    stored = {key: data_uri(image, max_width) for key, image in pictures.items()}
    shown = ["restored", *(key for key in stored if key not in ("blurry", "restored"))]
    buttons = "".join(
        f'<button type="button" data-show="{key}" aria-pressed="{str(key == "restored").lower()}">{key}</button> '
        for key in shown
    )
    height, width = pictures["restored"].shape[:2]
    enlarged = max(1, LEAST_WIDTH // width)
    under = "".join(
        f'<img class="under" alt="{key}" data-store="{key}"{"" if key == "restored" else " hidden"} '
        f'width="{enlarged * width}" height="{enlarged * height}" style="height:auto" src="{stored[key]}">'
        for key in shown
    )
    label = f"{text(name)}: blurry left of the bar"
    return (
        f'<section id="clip-{text(name)}"><h3>{text(name)}</h3><p class="choose">left: blurry, right: {buttons}</p>'
        f'<span class="slider{" small" if enlarged > 1 else ""}">{under}'
        f'<span class="over"><img alt="blurry" style="height:100%" src="{stored["blurry"]}"></span>'
        f'<span class="bar"></span>'
        f'<input type="range" min="0" max="100" step="0.1" value="50" aria-label="{label}"></span></section>'
    )
