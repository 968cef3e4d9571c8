"""Neo4j's image in a container that ends with the process that started it."""

import contextlib
import os
import subprocess
from dataclasses import dataclass

from tools.neo4j.errors import Unavailable
from tools.neo4j.server import USER, Plan

ANSWER = 20.0
"""Seconds that an engine has to answer."""
DOWNLOAD = 900.0
LIFELINE = "exec 3<&0; { cat <&3 >/dev/null; kill 1; } & exec tini -g -- /startup/docker-entrypoint.sh neo4j"
"""Stops the server when the standard input ends, which is when the client that started the container is gone."""


@dataclass(frozen=True)
class Docker:
    """Runs an image; the container's name follows from the port, which only one server can have."""

    image: str
    sign: str = "Started."

    def command(self, plan: Plan) -> list[str]:
        """Return the client's command: the container is of the calling user, so that the data is, too."""
        published = f"127.0.0.1:{plan.port}:7687"
        run = ["docker", "run", "--rm", "--interactive", "--name", _name(plan), "--publish", published]
        owner = ["--user", f"{os.getuid()}:{os.getgid()}", "--volume", f"{plan.folder}:/data"]
        variables = [argument for name in self.environment(plan) for argument in ("--env", name)]
        return [*run, *owner, *variables, "--entrypoint", "sh", self.image, "-c", LIFELINE]

    def environment(self, plan: Plan) -> dict[str, str]:
        """Return the image's variables: the command names them only, so that no list of processes shows the password."""
        settings = dict(plan.settings) | {"server.bolt.advertised_address": f"127.0.0.1:{plan.port}"}
        auth = "none" if plan.password is None else f"{USER}/{plan.password}"
        return {"NEO4J_AUTH": auth} | {_variable(setting): value for setting, value in settings.items()}

    def kill(self, plan: Plan, process: subprocess.Popen[bytes]) -> None:
        """Kill the container, then the client, should it not follow."""
        subprocess.run(["docker", "kill", _name(plan)], capture_output=True, timeout=ANSWER, check=False)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(ANSWER)  # the client ends when the name is free again
        process.kill()


def docker_of(version: str) -> Docker:
    """Return a way to run a version in a container; its image is pulled if it is not there yet.

    :raises Unavailable: if no engine answers or the image can not be pulled.
    """
    image = f"neo4j:{version}-community"
    if not _succeeds("version", "--format", "{{.Server.Version}}", seconds=ANSWER):
        raise Unavailable("no Docker engine answers")
    if not _succeeds("image", "inspect", image, seconds=ANSWER) and not _succeeds("pull", image, seconds=DOWNLOAD):
        raise Unavailable(f"Docker can not pull {image}")
    return Docker(image)


def _succeeds(*arguments: str, seconds: float) -> bool:
    try:
        done = subprocess.run(["docker", *arguments], stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _name(plan: Plan) -> str:
    return f"workbench-neo4j-{plan.port}"


def _variable(setting: str) -> str:
    """Return the image's name for a setting: a dot becomes ``_``, and ``_`` is doubled."""
    return "NEO4J_" + setting.replace("_", "__").replace(".", "_")
