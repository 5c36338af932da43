#!/usr/bin/env python3
"""Serve a page that restores a clip from a blurry film or frames and their spikes.

    python app.py
    python app.py --port 7861

`make app` installs what it needs (requirements-app.txt) and starts it. The page is served to this
machine alone; what is uploaded and restored is in a temporary folder, which goes with the program.
Each clip is restored by main_test_vrt.py in a process of its own. See docs/python.md.
"""

import argparse
import importlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from data.cameras.spike_info import FILE_NAME
from data.reconstruct import METHODS
from models.restore.request import JOINT, SHIPPED
from scripts.demo import DEMO, RGB, SPIKES, make_sample
from scripts.parts.exit_codes import with_exit_code
from scripts.parts.uploaded_clip import MOST_FILE, NETWORK, WEIGHTS, Work, as_uploaded, start_work
from utils.dist import process
from utils.errors import DataError, OptionError, SpikeVRTError
from utils.image import imread_rgb
from utils.results import read_json

MOST_S = 3600  # that a restoration may take
LOOK_S = 0.3  # between two looks at the process
ABOUT = """# SpikeVRT
A blurry film or frames and the stream of a spike camera become sharp frames. Give your own files,
or take the demo clip. A `dataset.json` beside the spikes says their size and rate.
"""


@with_exit_code
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, help="port of this machine (from 7860 on, a free one)")
    command = parser.parse_args(arguments)
    # Taken as Ctrl-C, else it would leave the folder behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="spikevrt_app_") as name:
        folder = Path(name)
        os.environ["GRADIO_TEMP_DIR"] = str(folder / "uploads")
        os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
        page = build_page(gradio(), folder)
        page.queue(default_concurrency_limit=1, max_size=8)
        _, address, _ = page.launch(
            # A Space sets the variable; elsewhere the page is for this machine alone.
            server_name=os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1"),
            server_port=command.port,
            share=False,
            ssr_mode=False,
            max_file_size=MOST_FILE,
            footer_links=[],
            quiet=True,
            prevent_thread_lock=True,
        )
        print(f"open {address}", flush=True)
        try:
            page.block_thread()  # until Ctrl-C
        finally:
            process.kill_trees(process.children_of(os.getpid()))
    return 0


def gradio() -> Any:
    """Return the package. Raises OptionError if it is not installed."""
    try:
        return importlib.import_module("gradio")
    except ImportError as e:
        raise OptionError(
            what=f"cannot import gradio: {e}",
            where="app.py",
            expected="the package gradio, which only this page needs",
            do="make app, or pip install -r requirements-app.txt",
        ) from e


def build_page(gr: Any, folder: Path) -> Any:
    """Return the page. folder: for the files of all restorations."""
    with gr.Blocks(title="SpikeVRT", analytics_enabled=False, delete_cache=(600, 7200)) as page:
        work = gr.State(None, time_to_live=7200, delete_callback=forget)
        gr.Markdown(ABOUT)
        with gr.Row():
            files = partial(gr.File, file_count="multiple", height=160)
            frames = files(label="Blurry film, or frames", elem_id="frames")
            spikes = files(label="Spike file, or one for each frame", elem_id="spikes")
            sharp = files(label="Sharp film or frames, to score against", elem_id="sharp")
        with gr.Row():
            method = gr.Dropdown([NETWORK, JOINT, *METHODS], value=NETWORK, label="Method")
            weights = gr.Dropdown(
                [*WEIGHTS], value=SHIPPED.stem, label="Weights (of network and joint)"
            )
            sides = partial(gr.Number, 0, precision=0, minimum=0)
            height = sides(label="Height of a spike plane (0: found)", elem_id="height")
            width = sides(label="Width of a spike plane (0: found)", elem_id="width")
            rate = gr.Number(0, label="Spikes per plane at full light (0: found)", elem_id="rate")
            more = gr.Textbox(
                label="Options spike.key=value, method.key=value, one a line", lines=2
            )
        with gr.Row():
            demo = gr.Button("Take the demo clip", elem_id="demo")
            start = gr.Button("Restore", variant="primary", elem_id="restore")
            cancel = gr.Button("Cancel", variant="stop", elem_id="cancel")
        state = gr.HTML(elem_id="state")
        slider = gr.ImageSlider(label="Blurry | restored", format="png", elem_id="slider")
        number = gr.Slider(1, 2, step=1, label="Frame", elem_id="number")
        download = gr.File(label="Results", interactive=False, elem_id="download")
        said = gr.Textbox(label="What the program says", lines=8, max_lines=24, elem_id="said")

        asked = [frames, spikes, sharp, method, weights, height, width, rate, more]
        private = {"api_visibility": "private"}
        demo.click(partial(demo_clip, folder), None, [frames, spikes, sharp], **private)
        shown = [work, state, said, slider, number, download]
        private["show_progress"] = "hidden"  # it would cover what is shown
        running = start.click(partial(restore, gr, folder), [work, *asked], shown, **private)
        cancel.click(stop, work, state, cancels=[running], queue=False, **private)
        last = {"trigger_mode": "always_last"}
        number.release(compare, [work, number], slider, **private, **last)
    return page


# ---- What the buttons do ---------------------------------------------------------------------


def demo_clip(folder: Path) -> tuple[list[str], list[str], list[str]]:
    """Return frames, spikes and sharp frames of the clip of `make demo`, made at the first time."""
    make_sample(folder / "demo", DEMO)
    clip = sorted((folder / "demo" / RGB / "test").iterdir())[-1]
    spikes = folder / "demo" / SPIKES
    blurry, sharp = (sorted(map(str, (clip / name).iterdir())) for name in ("blur", "sharp"))
    recorded = sorted(map(str, (spikes / "test" / clip.name / "spike").iterdir()))
    return blurry, [*recorded, str(spikes / FILE_NAME)], sharp


def restore(gr: Any, folder: Path, former: Work | None, *asked: Any) -> Iterator[tuple[Any, ...]]:
    """Restore a clip; yield the work, the state, the messages, the slider, its frames, the results.

    former: the last restoration of this visitor, whose files go. asked: see `start_work`.
    """
    forget(former)
    folder = Path(tempfile.mkdtemp(prefix="clip_", dir=folder))
    empty = (None, gr.update(value=1), None)
    yield None, progress("looking at the files", 0, 1), "", *empty
    work = None
    try:
        work = start_work(folder, *asked)
        for done in follow(work):
            text = f"{done} of {len(work.frames)} frames restored"
            yield work, progress(text, done, len(work.frames)), work.messages(), *empty
    except SpikeVRTError as e:
        yield work, progress("refused"), as_uploaded(str(e), folder), *empty
        return
    except GeneratorExit:  # cancelled, or nobody asks any more
        if work is not None:
            work.remove()
        raise
    if work.is_cancelled:
        yield work, progress("cancelled"), work.messages(), *empty
    elif work.process.returncode:
        yield work, progress("refused"), work.messages(), *empty
    else:
        results = shutil.make_archive(str(folder / "restored"), "zip", work.results)
        count = len(work.restored())
        middle = count // 2 + 1
        frames = gr.update(maximum=max(count, 2), value=middle)
        scores = progress(scores_of(work.results))
        yield work, scores, work.messages(), compare(work, middle), frames, results


def follow(work: Work) -> Iterator[int]:
    """Yield the number of restored frames to the end. Raises DataError after MOST_S."""
    begin = time.monotonic()
    while work.process.poll() is None:
        if time.monotonic() - begin > MOST_S:
            work.cancel()
            raise DataError(
                what=f"{len(work.restored())} frames are restored after {MOST_S} s",
                where="the clip",
                expected="a clip that takes less",
                do="give a part of the clip, or use main_test_vrt.py, which has no such limit",
            )
        yield len(work.restored())
        time.sleep(LOOK_S)


def stop(work: Work | None) -> str:
    if work is not None:
        work.cancel()
    return progress("cancelled")


def forget(work: Work | None) -> None:
    if work is not None:
        work.remove()


def compare(work: Work | None, number: int | None) -> tuple[Any, Any] | None:
    """Return a blurry frame and its restored one, (H, W, 3) uint8 each. number: from 1."""
    restored = work.restored() if work is not None else []
    if work is None or not restored:
        return None
    index = min(number or 1, len(restored)) - 1
    return work.frames.read(index), imread_rgb(restored[index])


def progress(text: str, done: int = 0, total: int = 0) -> str:
    bar = f'<progress value="{done}" max="{total}"></progress> ' if total else ""
    return f"{bar}<b>{escape(text)}</b>"


def scores_of(results: Path) -> str:
    """Return the PSNR in words, where there are sharp frames. Frames in grey have that of luma."""
    averages = read_json(results / "metrics.json")["averages"]
    for key, name in (("psnr", "PSNR"), ("psnr_y", "PSNR-Y")):
        values = [averages.get(kind, {}).get(key) for kind in ("input", "restored")]
        if None not in values:
            return "{}: blurry {:.2f} dB, restored {:.2f} dB".format(name, *values)
    return "restored"


if __name__ == "__main__":
    process.end(main())
