"""Pages of one HTML file that holds its images and styles: a browser opens them without a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from utils.image import data_uri


def render(template: str, **values: Any) -> str:
    """The text of a page: utils/templates/<template>.html filled with `values`; text in them is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(Path(__file__).with_name("templates"))
    pages = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    pages.filters["data_uri"] = data_uri
    return pages.get_template(f"{template}.html").render(**values)
