"""Decides where a Neo4j server comes from on this machine."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from tools.neo4j.docker import docker_of
from tools.neo4j.errors import Unavailable
from tools.neo4j.jars import jars_of
from tools.neo4j.server import Endpoint, Recipe, version_at

ADDRESS, AUTH, REQUIRE = "WORKBENCH_NEO4J_URL", "WORKBENCH_NEO4J_AUTH", "WORKBENCH_REQUIRE_NEO4J"


@dataclass(frozen=True)
class Release:
    """A version that is offered, and the oldest Java that it runs on."""

    version: str
    java: int


DEFAULT = "5.26"
RELEASES = {DEFAULT: Release("5.26.30", 17), "2026": Release("2026.09.0", 21)}


def choose(series: str = DEFAULT) -> Recipe:
    """Return a way to run a server: by Docker if its engine answers, else from the jars, by Maven and a Java.

    :param series: a key of ``RELEASES``.
    :raises Unavailable: if neither can be had; the message is one line with the reasons and the remedy.
    """
    release = RELEASES[series]
    try:
        return docker_of(release.version)
    except Unavailable as reason:
        without_docker = reason
    try:
        return jars_of(release.version, release.java)
    except Unavailable as reason:
        remedy = f"Start Docker, or install Maven and a JDK {release.java} or newer"
        remedy += f", or set {ADDRESS} to a server that tests may fill." if series == DEFAULT else "."
        raise Unavailable(f"Neo4j {series} is not to be had here: {without_docker}, and {reason}. {remedy}") from None


def given(environment: Mapping[str, str] = os.environ) -> Endpoint | None:
    """Return the server that WORKBENCH_NEO4J_URL names, with the ``user:password`` of WORKBENCH_NEO4J_AUTH; None if unset.

    :raises ServerFailed: if no server answers there.
    """
    address = environment.get(ADDRESS)
    if not address:
        return None
    user, colon, password = environment.get(AUTH, "").partition(":")
    auth = (user, password) if colon else None
    return Endpoint(address, auth, version_at(address, auth))


def is_required(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether to do without a server is a failure: WORKBENCH_REQUIRE_NEO4J is set, and not to 0."""
    return environment.get(REQUIRE, "0") not in ("", "0")
