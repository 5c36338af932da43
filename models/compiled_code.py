"""Choose where torch's compiler keeps its code.

model_state.py calls `keep_compiled_code_at_home` before it compiles a network (the option
train.compile).

What must stay: no other user can write to the folder, because torch runs the code in it. Free to
change: the folder, if only the user can write to the new folder.
"""

import os
from contextlib import suppress
from pathlib import Path


def keep_compiled_code_at_home() -> None:
    """Let torch's compiler keep its code below the user's home.

    By default the compiler uses a folder in /tmp with a predictable name. Another user may have put
    code into this folder, and our process would run this code.
    """
    if "TORCHINDUCTOR_CACHE_DIR" in os.environ:  # the user's choice
        return
    folder = Path.home() / ".cache" / "spikevrt" / "inductor"
    with suppress(OSError):  # if the home cannot be written, torch's default stays
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
