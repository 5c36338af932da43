"""Two hosts on one machine: namespaces of Linux with a network, a name and processes of their own.

A host must not see the processes of the other host. Otherwise a rank could end a rank of the other
host, and this is impossible on real hosts.
"""

import os
import shutil
import subprocess


def reason_to_skip() -> str:
    """Return why no namespaces can be made here, or "" if they can be made."""
    has_programs = shutil.which("ip") and shutil.which("unshare")
    if os.geteuid() != 0 or not has_programs:
        return "needs root, ip and unshare"
    name = f"probe{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True)
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return "" if made.returncode == 0 else "network namespaces are not allowed"


class TwoHosts:
    """Hosts 0 and 1 at the addresses 10.77.0.1 and 10.77.0.2, for a `with` statement.

    A virtual cable connects the hosts. Its ends are the devices cable0 and cable1.
    """

    def __init__(self) -> None:
        self.names = [f"svrt{os.getpid()}n{i}" for i in range(2)]

    def __enter__(self) -> "TwoHosts":
        for name in self.names:
            _ip("netns", "add", name)
        # ip link add cable0 netns HOST0 type veth peer cable1 netns HOST1: a virtual cable ("veth")
        # with an end in each namespace.
        host_0, host_1 = self.names
        end_0 = ("cable0", "netns", host_0)
        end_1 = ("cable1", "netns", host_1)
        _ip("link", "add", *end_0, "type", "veth", "peer", *end_1)
        # Give each end of the cable its address, and switch the end on. "lo" is the network of a
        # host to itself.
        for i, name in enumerate(self.names):
            _ip("-n", name, "addr", "add", f"10.77.0.{i + 1}/24", "dev", f"cable{i}")
            for device in ("lo", f"cable{i}"):
                _ip("-n", name, "link", "set", device, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def command(self, host: int, *command: str) -> list[str]:
        """Return the words of a shell command that runs `command` on host 0 or 1."""
        into_network = ["ip", "netns", "exec", self.names[host]]
        # --uts gives the command a host name of its own. With --pid, --fork and --mount-proc it
        # sees only its own processes. --kill-child ends all of them together with `unshare`.
        own_host = ["unshare", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        # sh -c TEXT NAME ARGUMENTS...: the name is "sh", and "$@" in the text stands for the
        # arguments. So `exec "$@"` becomes the command.
        shell = ["sh", "-c", f'hostname host{host}; exec "$@"', "sh"]
        return [*into_network, *own_host, *shell, *command]

    def cut(self) -> None:
        """Cut the cable. No connection is closed, but the hosts receive nothing any more."""
        for i, name in enumerate(self.names):
            _ip("-n", name, "link", "set", f"cable{i}", "down")


def _ip(*arguments: str) -> None:
    """Run the program `ip`, which makes and changes network devices."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
