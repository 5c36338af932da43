#!/usr/bin/env python3
"""Serve a page that restores a clip from a blurry film or frames and their spikes.

    python app.py
    python app.py --port 7861

`make app` installs what it needs (requirements-app.txt) and starts it. Only this machine reaches
the page. Uploaded files and results are in a temporary folder. The folder is removed when the
program ends. Each clip is restored by main_test_vrt.py in a process of its own. See docs/python.md.
"""

# How a clip passes through this program:
#
#   1. The button "Restore" calls `restore`.
#   2. `restore` calls `start_work` (scripts/parts/uploaded_clip.py), which checks the files and
#      starts main_test_vrt.py.
#   3. `restore` calls `follow`, which counts the restored frames until the process ends.
#   4. `restore` shows the result.
#
# The page is built with the package gradio. A handler is a function that gradio calls when a button
# is pressed. `build_page` names fields of the page as inputs and outputs of the handler. Gradio
# gives the values of the inputs to the handler. The outputs show the values that the handler
# returns. A generator, such as `restore`, yields new values several times.
#
# What must stay: the limits below, because in a Hugging Face Space (a public host of such pages)
# strangers use the page. Outside of a Space, no other machine can reach the page
# (test_other_machines_cannot_reach_the_page). A stopped restoration leaves no file
# (test_a_stop_ends_the_work_and_leaves_no_file).
# Free to change: the fields and texts of the page. The test finds the fields by their elem_id.
#
# Tests: tests/stories/test_app.py opens the page in a browser.

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
from typing import Any, NamedTuple

from data.cameras.dataset_info import FILE_NAME
from data.reconstruct import METHODS
from models.restore.flags import JOINT
from models.restore.request import SHIPPED_WEIGHTS
from scripts.demo import DEMO, RGB, SPIKES, make_sample
from scripts.parts.exit_codes import with_exit_code
from scripts.parts.uploaded_clip import (
    MOST_BYTES_OF_FILE,
    NETWORK,
    WEIGHTS,
    Work,
    as_uploaded,
    start_work,
)
from utils.dist import process
from utils.errors import DataError, OptionError, SpikeVRTError
from utils.image import imread_rgb
from utils.results import read_json

# Seconds after which a restoration is ended, so that the next visitor gets a turn. Chosen by hand.
LONGEST_RESTORATION_S = 3600
POLL_S = 0.3  # seconds between two looks at the number of restored frames, chosen by hand
# Seconds after which gradio removes uploaded files, and forgets the restoration of a visitor. The
# 7200 s are 1 h in the queue and 1 h of restoration (LONGEST_RESTORATION_S). A visitor who waits
# longer has to upload the files again.
VISITOR_S = 7200
# The two numbers below are chosen by hand.
CLEAN_EVERY_S = 600  # seconds between two searches of gradio for files to remove
MOST_WAITING = 8  # requests that may wait in the queue. Gradio refuses further requests

ABOUT = """# SpikeVRT
A blurry film or frames and the stream of a spike camera become sharp frames. Give your own files,
or take the demo clip. A `dataset.json` beside the spikes says their size and rate.
"""


@with_exit_code
def main(arguments: list[str] | None = None) -> int:
    """Serve the page until Ctrl-C. Returns the exit code 0. `with_exit_code` handles errors."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, help="port of this machine (from 7860 on, a free one)")
    command = parser.parse_args(arguments)

    # Treat SIGTERM as Ctrl-C: `default_int_handler` raises KeyboardInterrupt. By default SIGTERM
    # would end the program immediately, and leave the temporary folder behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    with tempfile.TemporaryDirectory(prefix="spikevrt_app_") as name:
        folder = Path(name)
        # Gradio takes these settings from environment variables.
        os.environ["GRADIO_TEMP_DIR"] = str(folder / "uploads")
        os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # send nothing to the makers of gradio
        page = build_page(gradio(), folder)
        # Run one restoration at a time. Other visitors wait for its end.
        page.queue(default_concurrency_limit=1, max_size=MOST_WAITING)
        # `launch` returns three values: the app of gradio, its local address, e.g.
        # http://127.0.0.1:7860/, and its public address. Without `share`, the public address is
        # None.
        _, address, _ = page.launch(
            # With the default 127.0.0.1, only this machine can reach the page. A Hugging Face Space
            # sets this variable, e.g. to 0.0.0.0. With 0.0.0.0 every machine can reach the page.
            server_name=os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1"),
            server_port=command.port,
            share=False,  # no public address at the makers of gradio
            ssr_mode=False,  # no second server, which would need Node.js
            max_file_size=MOST_BYTES_OF_FILE,
            footer_links=[],  # no links of gradio at the bottom of the page
            quiet=True,  # we print the address ourselves
            prevent_thread_lock=True,  # return immediately. `block_thread` waits below
        )
        print(f"open {address}", flush=True)
        try:
            page.block_thread()  # until Ctrl-C
        finally:
            # A restoration may still be running, and write into the temporary folder. So end the
            # restoration before the folder is removed.
            process.kill_trees(process.descendants_of(os.getpid()))
    return 0


def gradio() -> Any:
    """Return the package gradio. Raises OptionError if it is not installed."""
    try:
        return importlib.import_module("gradio")
    except ImportError as e:
        raise OptionError(
            what=f"cannot import gradio: {e}",
            where="app.py",
            expected="the package gradio, which only this page needs",
            do="make app, or pip install -r requirements-app.txt",
        ) from e


# ---- The page --------------------------------------------------------------------------------


def build_page(gr: Any, folder: Path) -> Any:
    """Return the page, an object of gradio.

    Gradio adds each field that is made inside of `with gr.Blocks` to the page. The fields stand on
    the page in the order of these lines.

    gr: the package gradio.
    folder: the folder in which each restoration makes a folder of its own.
    """
    # Gradio looks for old uploads every CLEAN_EVERY_S seconds. It removes an upload that is older
    # than VISITOR_S seconds.
    cleaning = (CLEAN_EVERY_S, VISITOR_S)
    with gr.Blocks(title="SpikeVRT", analytics_enabled=False, delete_cache=cleaning) as page:
        # The last restoration of the visitor (`Work`). Gradio keeps one value for each visitor.
        work = gr.State(value=None, time_to_live=VISITOR_S, delete_callback=forget)

        gr.Markdown(ABOUT)
        fields = fields_of_visitor(gr)
        with gr.Row():
            demo = gr.Button("Take the demo clip", elem_id="demo")
            start = gr.Button("Restore", variant="primary", elem_id="restore")
            cancel = gr.Button("Cancel", variant="stop", elem_id="cancel")

        # What the program shows.
        state = gr.HTML(elem_id="state")
        slider = gr.ImageSlider(label="Blurry | restored", format="png", elem_id="slider")
        # gr.Slider needs a maximum from the beginning. `restore` sets it to the number of frames.
        number = gr.Slider(minimum=1, maximum=2, step=1, label="Frame", elem_id="number")
        download = gr.File(label="Results", interactive=False, elem_id="download")
        messages = gr.Textbox(label="What the program says", lines=8, max_lines=24, elem_id="said")

        # What the buttons do: `click` gets a handler (the function that gradio calls), its inputs
        # and its outputs. `partial` gives a handler its first arguments, which are no fields.
        for_page_only = {"api_visibility": "private"}  # other programs cannot call the handler
        # The fields that "Take the demo clip" fills in.
        clip = [fields.frames, fields.spikes, fields.sharp]
        demo.click(partial(demo_clip, folder), inputs=None, outputs=clip, **for_page_only)
        # Gradio's own progress bar would cover the fields that show the progress here.
        without_bar = {**for_page_only, "show_progress": "hidden"}
        outputs = [work, state, messages, slider, number, download]  # in the order of `PageState`
        # The handler is `restore`, its inputs are `work` and all fields. `running` stands for this
        # call, so that "Cancel" can name it.
        running = start.click(partial(restore, gr, folder), [work, *fields], outputs, **without_bar)
        # After "Cancel", gradio calls `stop`, which kills the process of the restoration. At the
        # same time, gradio closes the generator `restore` (`cancels`). The order is not fixed:
        #
        #     the process ends first         `restore` shows "cancelled", and keeps the files
        #     the generator is closed first  `restore` removes the files
        #
        # queue=False, because in the queue `stop` would wait until the restoration has ended.
        cancel.click(stop, work, state, cancels=[running], queue=False, **without_bar)
        # If the visitor moves the slider again while `compare` reads a frame, gradio calls
        # `compare` once more, with the last position only ("always_last").
        number.release(compare, [work, number], slider, **without_bar, trigger_mode="always_last")
    return page


class Fields(NamedTuple):
    """The fields of the page that a visitor fills in, objects of gradio.

    `restore` hands their values on to `start_work`. So their order must stay: it is the order of
    the arguments of `start_work` after the folder. Test:
    test_a_clip_of_a_visitor_is_restored_as_by_the_command_line.
    """

    frames: Any  # the blurry film, or blurry frames
    spikes: Any  # the spike file, or one file for each frame, and perhaps dataset.json
    sharp: Any  # the sharp film or frames to score against, or none
    method: Any  # what restores the frames, e.g. a network
    weights: Any  # the name of the weights, for a network
    height: Any  # height of a spike plane in pixels, 0: automatic
    width: Any  # width of a spike plane in pixels, 0: automatic
    rate: Any  # spikes per plane of a pixel at full light, 0: automatic
    more: Any  # further options, a line for each


def fields_of_visitor(gr: Any) -> Fields:
    """Make the fields that a visitor fills in, and return them.

    Call this inside of `with gr.Blocks`, so that gradio adds the fields to the page.
    tests/stories/test_app.py finds the fields by their elem_id.

    gr: the package gradio.
    """
    with gr.Row():
        file_field = partial(gr.File, file_count="multiple", height=160)
        frames = file_field(label="Blurry film, or frames", elem_id="frames")
        spikes = file_field(label="Spike file, or one for each frame", elem_id="spikes")
        sharp = file_field(label="Sharp film or frames, to score against", elem_id="sharp")
    with gr.Row():
        # NETWORK is a network with the chosen weights. JOINT restores each frame with this network,
        # and then improves the frame by equations of the blurry frame and its spikes. METHODS are
        # formulas without weights.
        method = gr.Dropdown([NETWORK, JOINT, *METHODS], value=NETWORK, label="Method")
        weights = gr.Dropdown(
            list(WEIGHTS), value=SHIPPED_WEIGHTS.stem, label="Weights (of network and joint)"
        )
        # With the value 0, main_test_vrt.py finds the height, the width or the rate itself: in
        # dataset.json, or else from the spikes.
        side_field = partial(gr.Number, value=0, precision=0, minimum=0)
        height = side_field(label="Height of a spike plane (0: automatic)", elem_id="height")
        width = side_field(label="Width of a spike plane (0: automatic)", elem_id="width")
        rate = gr.Number(
            value=0,
            label="Spikes per plane of a pixel at full light (0: automatic)",
            elem_id="rate",
        )
        more = gr.Textbox(
            label="Options such as spike.key=value, each in a line of its own", lines=2
        )
    return Fields(
        frames=frames,
        spikes=spikes,
        sharp=sharp,
        method=method,
        weights=weights,
        height=height,
        width=width,
        rate=rate,
        more=more,
    )


# ---- What the buttons do ---------------------------------------------------------------------


def demo_clip(folder: Path) -> tuple[list[str], list[str], list[str]]:
    """Return the files of the clip of `make demo`: blurry frames, spikes, sharp frames.

    The order is the order of `clip` in `build_page`.

    folder: the folder of all clips of the page. The first call makes the demo clips in its folder
        "demo".
    """
    demo_folder = folder / "demo"
    make_sample(demo_folder, DEMO)  # DEMO has the number, length and size of the clips
    clips = sorted((demo_folder / RGB / "test").iterdir())  # RGB is the name of a folder
    clip = clips[-1]  # made from a photograph. The clip before it shows a computed scene
    blurry = paths_in(clip / "blur")
    sharp = paths_in(clip / "sharp")
    spikes = paths_in(demo_folder / SPIKES / "test" / clip.name / "spike")
    # dataset.json has the size and the rate of the spikes.
    spikes.append(str(demo_folder / SPIKES / FILE_NAME))
    return blurry, spikes, sharp


def paths_in(folder: Path) -> list[str]:
    """Return the paths of all files in a folder, in the order of their names."""
    return sorted(str(path) for path in folder.iterdir())


class PageState(NamedTuple):
    """What `restore` shows: the values of the outputs in `build_page`, in their order."""

    work: Work | None  # the restoration of this visitor, or None before it is started
    state: str  # HTML, see `state_html`
    messages: str  # what main_test_vrt.py prints
    slider: Any  # (blurry frame, restored frame), or None without a result
    number: Any  # the new state of the slider that chooses the frame, from `gr.update`
    results: str | None  # the archive to download, or None without a result


def restore(gr: Any, folder: Path, former: Work | None, *fields: Any) -> Iterator[PageState]:
    """Restore a clip, and yield what the page shows at each step.

    `restore` is a generator. Gradio shows each state that the generator yields, and may close the
    generator before its end.

    gr: the package gradio, an argument, because only `main` imports gradio.
    folder: the folder in which this restoration makes a folder of its own.
    former: the last restoration of this visitor, or None. Its files are removed.
    fields: the values that the visitor gave, in the order of the class `Fields`: frames, spikes,
        sharp, method, ...
    """
    without_result = partial(page_without_result, gr)  # `page_without_result` with its argument gr
    forget(former)  # ends the former restoration and removes its files
    folder = Path(tempfile.mkdtemp(prefix="clip_", dir=folder))
    yield without_result(None, state_html("looking at the files", done=0, total=1), messages="")

    work = None
    try:
        work = start_work(folder, *fields)
        total = len(work.frames)
        for done in follow(work):
            state = state_html(f"{done} of {total} frames restored", done, total)
            yield without_result(work, state, work.messages())
    except SpikeVRTError as e:
        # The files or options are wrong, or the restoration took too long. `as_uploaded` turns the
        # paths of this machine in the message into the names that the visitor uploaded.
        yield without_result(work, state_html("refused"), as_uploaded(str(e), folder))
        return
    except GeneratorExit:
        # Gradio has closed this generator before the process ended. Either the visitor has closed
        # the page, or "Cancel" was pressed and the process was not yet killed (see `build_page`).
        # Nobody sees the result any more, so the files are removed.
        if work is not None:
            work.remove()
        raise

    # The process has ended: it has finished, or `stop` has killed it after "Cancel" was pressed.
    if work.is_cancelled:
        yield without_result(work, state_html("cancelled"), work.messages())
    elif work.process.returncode != 0:
        yield without_result(work, state_html("refused"), work.messages())
    else:
        archive = shutil.make_archive(str(folder / "restored"), "zip", work.results)
        yield page_with_result(gr, work, archive)


def page_without_result(gr: Any, work: Work | None, state: str, messages: str) -> PageState:
    """Return a state of the page that shows no frame.

    gr: the package gradio.
    state: HTML from `state_html`.
    messages: what main_test_vrt.py has printed, or the text of an error.
    """
    # The slider that chooses the frame goes back to 1, because it may still stand at a frame of the
    # last clip, e.g. 8.
    number = gr.update(value=1)
    return PageState(work, state, messages, slider=None, number=number, results=None)


def page_with_result(gr: Any, work: Work, archive: str) -> PageState:
    """Return the state of the page after a restoration: the middle frame, the scores, the archive.

    gr: the package gradio.
    archive: path of the zip file with all results.
    """
    count = len(work.restored())
    middle = count // 2 + 1  # the middle frame, counted from 1: number 2 of 3 frames
    return PageState(
        work=work,
        state=state_html(scores_of(work.results)),
        messages=work.messages(),
        slider=compare(work, middle),
        # A slider of gradio needs two positions, also for a clip of one frame.
        number=gr.update(maximum=max(count, 2), value=middle),
        results=archive,
    )


def follow(work: Work) -> Iterator[int]:
    """Yield the number of restored frames every POLL_S seconds until the process ends.

    After LONGEST_RESTORATION_S, ends the process and raises DataError.
    """
    begin = time.monotonic()
    while work.process.poll() is None:
        if time.monotonic() - begin > LONGEST_RESTORATION_S:
            work.cancel()
            raise DataError(
                what=f"{len(work.restored())} frames are restored after {LONGEST_RESTORATION_S} s",
                where="the clip",
                expected="a clip that takes less",
                do="give a part of the clip, or use main_test_vrt.py, which has no such limit",
            )
        yield len(work.restored())
        time.sleep(POLL_S)


def stop(work: Work | None) -> str:
    """End a restoration, if there is one. Returns the new state of the page, "cancelled".

    The files stay, because `restore` may still read the restored frames. The next restoration of
    the visitor removes them, or gradio removes them after VISITOR_S.
    """
    if work is not None:
        work.cancel()
    return state_html("cancelled")


def forget(work: Work | None) -> None:
    """End a restoration, if there is one, and remove its files."""
    if work is not None:
        work.remove()


def compare(work: Work | None, number: int | None) -> tuple[Any, Any] | None:
    """Return a blurry frame and its restored frame, (H, W, 3) uint8 each, for the image slider.

    If the chosen frame is not restored yet, the last restored frame takes its place.

    number: number of the frame, from 1. None (an empty field) stands for the first frame.

    Returns None if no frame is restored yet.
    """
    if work is None:
        return None
    restored = work.restored()
    if not restored:
        return None
    number = number or 1
    number = min(number, len(restored))
    index = number - 1  # frames are counted from 0 in `work`
    return work.frames.read(index), imread_rgb(restored[index])


# ---- Texts of the page -----------------------------------------------------------------------


def state_html(text: str, done: int = 0, total: int = 0) -> str:
    """Return the state as HTML: a text in bold, with a progress bar before it if total is not 0."""
    bar = ""
    if total:
        bar = f'<progress value="{done}" max="{total}"></progress> '
    return f"{bar}<b>{escape(text)}</b>"


def scores_of(results: Path) -> str:
    """Return the scores in words, e.g. "PSNR: blurry 25.10 dB, restored 31.20 dB".

    Returns "restored" if there are no scores, because there are no sharp frames.

    results: a results folder of main_test_vrt.py.
    """
    averages = read_json(results / "metrics.json")["averages"]
    # Grey restored frames have no PSNR of colours. Their score is the PSNR of luma.
    for key, name in (("psnr", "PSNR"), ("psnr_y", "PSNR-Y")):
        blurry = averages.get("input", {}).get(key)
        restored = averages.get("restored", {}).get(key)
        if blurry is not None and restored is not None:
            return f"{name}: blurry {blurry:.2f} dB, restored {restored:.2f} dB"
    return "restored"


if __name__ == "__main__":
    process.end(main())
