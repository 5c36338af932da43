"""Two hosts on one machine: network namespaces with a cable between them, and a name of their own."""

import os
import shutil
import subprocess


def missing() -> str:
    """Why there can be no namespaces here, or ''."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare"))):
        return "needs root, ip and unshare"
    name = f"probe{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return "" if made.returncode == 0 else "network namespaces are not allowed"


class TwoHosts:
    """Hosts 0 and 1 at 10.77.0.1 and 10.77.0.2, joined by the devices cable0 and cable1."""

    def __init__(self) -> None:
        self.names = [f"svrt{os.getpid()}n{i}" for i in range(2)]

    def __enter__(self) -> "TwoHosts":
        for name in self.names:
            _ip("netns", "add", name)
        _ip(
            "link",
            "add",
            "cable0",
            "netns",
            self.names[0],
            "type",
            "veth",
            "peer",
            "cable1",
            "netns",
            self.names[1],
        )
        for i, name in enumerate(self.names):
            _ip("-n", name, "addr", "add", f"10.77.0.{i + 1}/24", "dev", f"cable{i}")
            for device in ("lo", f"cable{i}"):
                _ip("-n", name, "link", "set", device, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def command(self, host: int, *command: str) -> list[str]:
        inner = f'hostname host{host}; exec "$@"'
        return [
            "ip",
            "netns",
            "exec",
            self.names[host],
            "unshare",
            "--uts",
            "sh",
            "-c",
            inner,
            "sh",
            *command,
        ]

    def cut(self) -> None:
        """Swallow every packet, without a word to either side."""
        for i, name in enumerate(self.names):
            _ip("-n", name, "link", "set", f"cable{i}", "down")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
