"""A training run on a terminal, as a picture: the log, and the bar below it.

python -m tests.terminal_page options/vrt/000_train_vrt_sample_rgbspike.json docs/images/bar.png
"""

import html
import sys
import tempfile
from pathlib import Path

from tests.headless import headless_browser
from tests.terminal import in_terminal, screen

STEPS, SHOWN = 40, 26  # of the run; the picture shows its terminal after step SHOWN
STYLE = "body{margin:0;background:#1e1e1e;color:#ddd} pre{margin:0;padding:10px;font:13px/1.4 monospace}"


def picture(options: str, out: Path) -> None:
    """Train STEPS steps in a pseudo-terminal, and write what it shows after step SHOWN as a PNG."""
    with tempfile.TemporaryDirectory() as folder:
        code, written = in_terminal(
            "main_train_vrt.py", "--opt", options, f"path.root={folder}", f"train.total_iter={STEPS}",
            "train.checkpoint_test=20", limit_s=600,
        )  # fmt: skip
        if code:
            raise SystemExit(written.decode())
        bar = written.index(f"| {SHOWN}/{STEPS},".encode())
        rows = screen(written[: written.index(b"\r", bar)])
        page = Path(folder, "terminal.html")
        text = "\n".join(html.escape(row).replace(folder, "experiments") for row in rows)
        page.write_text(f"<meta charset=utf-8><style>{STYLE}</style><pre>{text}</pre>", encoding="utf-8")
        with headless_browser(1640, 200) as driver:
            driver.get(page.as_uri())
            height = driver.execute_script("return document.querySelector('pre').offsetHeight")
            driver.set_window_size(1640, height + 150)  # the window's own frame
            driver.find_element("tag name", "pre").screenshot(str(out))


if __name__ == "__main__":
    picture(sys.argv[1], Path(sys.argv[2]))
