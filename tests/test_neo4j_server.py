"""Where a Neo4j server comes from, and that it lives as long as it should and no longer."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from neo4j import GraphDatabase
from neo4j.exceptions import AuthError, ClientError

from tests import neo4j_servers
from tests.neo4j_servers import own_server
from tools.neo4j import __main__ as command
from tools.neo4j import choice, docker
from tools.neo4j.docker import Docker
from tools.neo4j.errors import ServerFailed, Unavailable
from tools.neo4j.jars import Jars, fetched
from tools.neo4j.java import Java, find_java
from tools.neo4j.server import SETTINGS, Endpoint, Neo4jServer, Plan, free_port, is_taken

ROOT = Path(__file__).parents[1]
JAVA = Java(17, Path("/somewhere"))
PLAN = Plan(Path("/data"), 20_001, "a password", SETTINGS)


def first_value(endpoint: Endpoint | Neo4jServer, query: str, auth: tuple[str, str] | None = None) -> object:
    with GraphDatabase.driver(endpoint.address, auth=auth or endpoint.auth) as driver:
        return driver.execute_query(query).records[0].value()


def ends(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Return whether a condition ceases to hold in time."""
    deadline = time.monotonic() + seconds
    while condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return not condition()


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def program(folder: Path, name: str, script: str) -> Path:
    """Make a program of a shell script, to be found on a path that begins with the folder."""
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return file


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that is the whole path, so that a machine has only the programs that a test puts there."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("sh", "sleep", "touch", "mkdir", "cat"):
        (folder / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("tools.neo4j.java.FOLDERS", ())
    monkeypatch.setattr("tools.neo4j.java.importlib.util.find_spec", lambda name: None)
    return folder


# -- servers that run ----------------------------------------------------------------------------------------------------


def test_the_shared_server_answers(neo4j_server: Endpoint) -> None:
    assert first_value(neo4j_server, "RETURN 1") == 1
    assert first_value(neo4j_server, "CALL dbms.components() YIELD versions RETURN versions[0]") == neo4j_server.version


def test_the_shared_server_is_of_the_release_that_was_asked_for(neo4j_server: Endpoint) -> None:
    assert neo4j_server.version.startswith("5.26.") or choice.given() == neo4j_server


def test_the_newest_release_answers_beside_it(neo4j_server: Endpoint, neo4j_server_2026: Endpoint) -> None:
    assert first_value(neo4j_server_2026, "RETURN 1") == 1
    assert neo4j_server_2026.version.startswith("2026.")
    assert neo4j_server_2026.address != neo4j_server.address


def test_a_routing_address_leads_to_the_same_server(neo4j_server_2026: Endpoint) -> None:
    """The workbench is given ``neo4j://`` addresses, and the server must name itself as the caller can reach it."""
    with GraphDatabase.driver(neo4j_server_2026.address.replace("bolt:", "neo4j:"), auth=neo4j_server_2026.auth) as driver:
        assert driver.execute_query("RETURN 1").records[0].value() == 1


@pytest.mark.slow
def test_a_server_of_ones_own_keeps_its_data_address_and_password(tmp_path: Path) -> None:
    """Stopped, killed and started again; a wrong password is refused from the first moment on."""
    with own_server(tmp_path / "neo4j", password="right password") as server:
        address = server.address
        with pytest.raises(AuthError):
            first_value(server, "RETURN 1", ("neo4j", "wrong password"))
        assert first_value(server, "CREATE (n:Kept {name: 'stop'}) RETURN n.name") == "stop"
        server.restart()
        assert first_value(server, "CREATE (n:Kept {name: 'kill'}) RETURN n.name") == "kill"
        server.kill()
        assert not is_taken(port_of(address))
        server.start()
        assert server.address == address
        assert first_value(server, "MATCH (n:Kept) WITH n ORDER BY n.name RETURN collect(n.name)") == ["kill", "stop"]
        with pytest.raises(ServerFailed, match="is running already"):
            server.start()
    assert not is_taken(port_of(address))


@pytest.mark.slow
def test_a_server_takes_other_settings_when_it_is_started_again(tmp_path: Path) -> None:
    with own_server(tmp_path / "neo4j") as server:
        assert first_value(server, "CREATE (n) RETURN 1") == 1
        server.restart(settings={"server.databases.default_to_read_only": "true"})
        assert first_value(server, "MATCH (n) RETURN count(n)") == 1
        with pytest.raises(ClientError, match="read"):
            first_value(server, "CREATE (n) RETURN 1")


@pytest.mark.slow
def test_a_server_that_can_not_start_says_why(tmp_path: Path) -> None:
    """The message ends with the server's own words, and nothing is left running."""
    wrong = own_server(tmp_path / "neo4j", settings={"server.memory.pagecache.size": "nonsense"})
    with pytest.raises(ServerFailed, match=r"ended while it started .*\n(.*\n)*.*nonsense"), wrong:
        raise AssertionError("it started")


RUN = """
import pathlib, time
def test_both_workers_use_the_server(neo4j_server, worker_id):
    folder = pathlib.Path({folder!r})
    (folder / worker_id).write_text(neo4j_server.address)
    deadline = time.monotonic() + 60
    while not (folder / "go on").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
test_it_in_another_process = test_both_workers_use_the_server
"""


@contextlib.contextmanager
def run_of_two_workers(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Yield a run of pytest, both of whose workers are in a test with the shared server, and that server's port."""
    tests = folder / "test_workers.py"
    tests.write_text(RUN.format(folder=str(folder)))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", choice.ADDRESS))}
    options = ["-p", "tests.neo4j_servers", "-p", "no:cacheprovider", "-n", "2", "--basetemp", str(folder / "base")]
    arguments = [sys.executable, "-m", "pytest", "--rootdir", str(folder), "-c", os.devnull, *options, str(tests)]
    with subprocess.Popen(
        arguments, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as run:
        try:
            addresses = [folder / "gw0", folder / "gw1"]
            assert ends(lambda: not all(each.exists() and each.read_text() for each in addresses), 120)
            (port,) = {port_of(each.read_text()) for each in addresses}
            assert is_taken(port)
            yield run, port
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["done", "SIGINT", "SIGKILL"])
def test_workers_share_a_server_that_ends_with_the_run(tmp_path: Path, ending: str) -> None:
    """However the controlling process ends, and whatever its workers still do."""
    try:
        choice.choose()
    except Unavailable as reason:
        neo4j_servers.do_without(reason)
    with run_of_two_workers(tmp_path) as (run, port):
        if ending == "done":
            (tmp_path / "go on").touch()
        else:
            run.send_signal(signal.Signals[ending])
        assert ends(lambda: is_taken(port), 60)
        assert ends(lambda: run.poll() is None, 60)
    assert run.returncode == {"done": 0, "SIGINT": 2, "SIGKILL": -9}[ending]


@pytest.mark.slow
def test_a_server_to_play_with_keeps_its_data_and_stops_on_ctrl_c(tmp_path: Path) -> None:
    port = free_port()
    arguments = [sys.executable, "-m", "tools.neo4j", "--port", str(port), "--folder", str(tmp_path / "data")]
    try:
        choice.choose()
    except Unavailable as reason:
        neo4j_servers.do_without(reason)
    for earlier in range(2):
        with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            assert f"answers at bolt://127.0.0.1:{port}" in running.stdout.readline()
            server = Endpoint(f"bolt://127.0.0.1:{port}", None, "")
            assert first_value(server, "CREATE (:Kept) WITH 1 AS one MATCH (n:Kept) RETURN count(n)") == earlier + 1
            running.send_signal(signal.SIGINT)
            assert running.wait(60) == 0
        assert not is_taken(port)


def test_a_taken_port_is_said_to_be_taken(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert command.main(["--port", str(port), "--folder", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"port {port} is taken; stop what listens there, or choose another with --port\n"
    assert list(tmp_path.iterdir()) == []


def test_a_child_that_ends_or_says_nothing_is_no_server(tmp_path: Path) -> None:
    class Script:
        sign = "READY"

        def __init__(self, script: str) -> None:
            self.script = script

        def command(self, plan: Plan) -> list[str]:
            return ["sh", "-c", self.script]

        def environment(self, plan: Plan) -> dict[str, str]:
            return {}

        def kill(self, plan: Plan, process: subprocess.Popen[bytes]) -> None:
            process.kill()

    with pytest.raises(ServerFailed, match=r"\(status 3\); the end of .*\nno luck$"):
        Neo4jServer(Script("echo no luck; exit 3"), tmp_path).start()
    silent = Neo4jServer(Script("exec cat"), tmp_path, patience=0.3)
    with pytest.raises(ServerFailed, match=r"not ready after 0\.3 seconds; .*server\.log is empty"):
        silent.start()
    assert silent.pid is None


# -- where a server comes from -------------------------------------------------------------------------------------------


def answering_docker(folder: Path, *, images: str = "true", pull: str = "true") -> None:
    program(folder, "docker", f'case "$1" in version) echo 28;; image) {images};; pull) {pull};; *) exit 9;; esac')


def test_docker_is_chosen_when_its_engine_answers(programs: Path) -> None:
    answering_docker(programs)
    assert choice.choose("5.26") == Docker("neo4j:5.26.30-community")
    assert choice.choose("2026") == Docker("neo4j:2026.09.0-community")


def test_an_image_that_is_missing_is_pulled(programs: Path, tmp_path: Path) -> None:
    answering_docker(programs, images="false", pull=f"touch '{tmp_path}/pulled'")
    assert choice.choose() == Docker("neo4j:5.26.30-community")
    assert (tmp_path / "pulled").exists()


@pytest.mark.parametrize("script", ["exit 1", "exec sleep 60"])
def test_without_an_answer_of_the_engine_the_jars_are_chosen(programs: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A client without an engine is common, and one whose engine hangs must not hang the tests."""
    program(programs, "docker", script)
    monkeypatch.setattr(docker, "ANSWER", 0.5)
    monkeypatch.setattr(choice, "jars_of", lambda version, java: Jars(JAVA, Path(f"/{version}/{java}")))
    assert choice.choose("5.26") == Jars(JAVA, Path("/5.26.30/17"))
    assert choice.choose("2026") == Jars(JAVA, Path("/2026.09.0/21"))


def test_the_reasons_and_the_remedy_stand_in_one_line(programs: Path) -> None:
    with pytest.raises(Unavailable) as bare:
        choice.choose()
    assert str(bare.value) == (
        "Neo4j 5.26 is not to be had here: no Docker engine answers, and there is no Java 17 or newer. "
        "Start Docker, or install Maven and a JDK 17 or newer, or set WORKBENCH_NEO4J_URL to a server that tests may fill."
    )
    answering_docker(programs, images="false", pull="false")
    with pytest.raises(Unavailable, match=r"Docker can not pull neo4j:2026\.09\.0-community, and there is no Java 21 or newer\."):
        choice.choose("2026")


def test_a_container_shows_no_password_and_listens_on_the_loopback_only() -> None:
    container = Docker("neo4j:5.26.30-community")
    line = " ".join(container.command(PLAN))
    assert "a password" not in line
    assert "--rm --interactive" in line, "it ends with its client, and leaves nothing behind"
    assert "--publish 127.0.0.1:20001:7687" in line
    assert "--volume /data:/data" in line
    environment = container.environment(PLAN)
    assert environment["NEO4J_AUTH"] == "neo4j/a password"
    assert environment["NEO4J_server_memory_heap_max__size"] == "512m"
    assert environment["NEO4J_server_bolt_advertised__address"] == "127.0.0.1:20001"
    assert all(f"--env {name} " in line for name in environment)
    assert container.environment(Plan(Path("/data"), 20_001, None, {}))["NEO4J_AUTH"] == "none"


def test_the_jars_show_no_password() -> None:
    found = Jars(JAVA, Path("/jars"))
    assert "a password" not in " ".join(found.command(PLAN))
    assert found.environment(PLAN) == {"WORKBENCH_LAUNCHER_PASSWORD": "a password"}


def test_a_container_is_started_stopped_and_killed_through_its_client(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's standard input is the lifeline; a kill is the engine's, since the client's end would be a clean stop."""
    heard = tmp_path / "heard"
    heard.touch()
    program(programs, "docker", f"echo $1 >> '{heard}'; case $1 in run) echo Started.; cat; echo end >> '{heard}';; esac")
    monkeypatch.setattr("tools.neo4j.server.version_at", lambda address, auth: "5.26.30")
    monkeypatch.setattr(docker, "ANSWER", 0.5)
    server = Neo4jServer(Docker("neo4j:5.26.30-community"), tmp_path / "data")
    server.start().stop()
    assert heard.read_text().split() == ["run", "end"]
    server.start().kill()
    assert heard.read_text().split() == ["run", "end", "run", "kill"]
    assert server.pid is None


def test_an_address_that_is_given_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(choice, "version_at", lambda address, auth: f"of {address} for {auth}")
    assert choice.given({}) is None
    address, auth = "neo4j+s://somewhere:7687", ("someone", "a:password")
    assert choice.given({choice.ADDRESS: address}) == Endpoint(address, None, f"of {address} for None")
    monkeypatch.setenv(choice.ADDRESS, address)
    monkeypatch.setenv(choice.AUTH, "someone:a:password")
    assert neo4j_servers.Desk().ask("5.26", tmp_path) == Endpoint(address, auth, f"of {address} for {auth}")


def test_an_address_where_nobody_answers_is_a_failure_not_a_skip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    address = f"bolt://127.0.0.1:{free_port()}"
    monkeypatch.setenv(choice.ADDRESS, address)
    answer = neo4j_servers.Desk().ask("5.26", tmp_path)
    assert isinstance(answer, ServerFailed)
    assert str(answer) == f"no Neo4j server can be used at {address} (ServiceUnavailable)"


# -- Java and the jars ---------------------------------------------------------------------------------------------------


def fake_java(home: Path, version: str) -> Path:
    (home / "bin").mkdir(parents=True)
    said = f"Property settings:\\n    java.home = {home}\\n    java.specification.version = {version}\\n"
    program(home / "bin", "java", f"printf '{said}' >&2")
    return home


def test_a_java_is_looked_for_until_one_is_new_enough(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, middle, new = (fake_java(tmp_path / version, version) for version in ("1.8", "17", "25"))
    monkeypatch.setattr("tools.neo4j.java.FOLDERS", (str(tmp_path / "[0-9]*"), str(tmp_path / "empty" / "*")))
    assert find_java(17) == Java(17, middle)
    assert find_java(21) == Java(25, new)
    assert find_java(26) is None
    assert find_java(17, {"JAVA_HOME": str(new), "PATH": str(programs)}) == Java(25, new)
    assert find_java(17, {"JAVA_HOME": str(old), "PATH": str(middle / "bin")}) == Java(17, middle)


MAVEN = """set -e
for each; do case "$each" in -DoutputDirectory=*) folder="${each#*=}";; esac; done
mkdir -p "$folder"; echo jar > "$folder/server.jar"
echo "$JAVA_HOME $*" >> "$RUNS"
"""


@pytest.fixture
def maven(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file in which a Maven that makes one jar notes its runs; the compiler is a Java that does nothing."""
    program(programs, "mvn", MAVEN)
    monkeypatch.setenv("RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def test_jars_are_fetched_once(maven: Path, tmp_path: Path) -> None:
    java = Java(17, fake_java(tmp_path / "jdk", "17"))
    place = fetched("5.26.30", java, tmp_path / "cache")
    assert fetched("5.26.30", java, tmp_path / "cache") == place
    assert (place / "server.jar").exists()
    (run,) = maven.read_text().splitlines()
    assert run.startswith(f"{java.home} ")
    assert "-Dneo4j.version=5.26.30" in run
    assert fetched("2026.09.0", java, tmp_path / "cache") != place


def test_half_a_download_is_not_taken_for_a_whole_one(maven: Path, programs: Path, tmp_path: Path) -> None:
    java = Java(17, fake_java(tmp_path / "jdk", "17"))
    program(programs, "mvn", MAVEN + "echo '[INFO] so far'; echo '[ERROR] the network went away'; exit 1")
    with pytest.raises(Unavailable, match=r"mvn can not fetch Neo4j 5\.26\.30 \(\[ERROR\] the network went away\)"):
        fetched("5.26.30", java, tmp_path / "cache")
    program(programs, "mvn", MAVEN.replace("server.jar", "whole.jar"))
    place = fetched("5.26.30", java, tmp_path / "cache")
    assert [each.name for each in place.iterdir()] == ["whole.jar"]


def test_two_processes_fetch_the_same_jars_once(maven: Path, programs: Path, tmp_path: Path) -> None:
    java = fake_java(tmp_path / "jdk", "17")
    program(programs, "mvn", "sleep 1\n" + MAVEN)
    code = (
        "import pathlib, sys; from tools.neo4j.jars import fetched; from tools.neo4j.java import Java; "
        f"print(fetched('5.26.30', Java(17, pathlib.Path({str(java)!r})), pathlib.Path({str(tmp_path / 'cache')!r})))"
    )
    both = [subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = {each.communicate(timeout=60)[0] for each in both}
    assert [each.returncode for each in both] == [0, 0]
    assert len(printed) == 1
    assert len(maven.read_text().splitlines()) == 1


def test_without_maven_there_are_no_jars(programs: Path, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="there is no mvn"):
        fetched("5.26.30", JAVA, tmp_path / "cache")


# -- doing without -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "required"), [(None, False), ("", False), ("0", False), ("1", True)])
def test_doing_without_is_a_skip_unless_servers_are_required(
    monkeypatch: pytest.MonkeyPatch, value: str | None, required: bool
) -> None:
    monkeypatch.delenv(choice.REQUIRE, raising=False)
    if value is not None:
        monkeypatch.setenv(choice.REQUIRE, value)
    outcome = pytest.fail.Exception if required else pytest.skip.Exception
    with pytest.raises(outcome, match="there is none; install one"):
        neo4j_servers.do_without(Unavailable("there is none; install one"))


def test_fetching_warns_of_what_will_be_left_out_and_fails_where_it_is_required(
    programs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(choice.REQUIRE, "0")
    assert command.main(["--fetch"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" is not")[0] for line in lines] == [
        "WARNING: tests that need it are left out. Neo4j 5.26",
        "WARNING: tests that need it are left out. Neo4j 2026",
    ]
    monkeypatch.setenv(choice.REQUIRE, "1")
    assert command.main(["--fetch"]) == 1


def test_a_desk_starts_nothing_twice_after_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A run with a thousand tests tries once, and all of them say the same."""
    tried: list[str] = []

    def none(series: str) -> Jars:
        tried.append(series)
        raise Unavailable("there is none; install one")

    monkeypatch.delenv(choice.ADDRESS, raising=False)
    monkeypatch.setattr(neo4j_servers, "choose", none)
    desk = neo4j_servers.Desk()
    window = neo4j_servers.Window(*desk.counter())
    answers = [window.ask("5.26", tmp_path), window.ask("5.26", tmp_path), desk.ask("5.26", tmp_path)]
    desk.close()
    assert [str(answer) for answer in answers] == ["there is none; install one"] * 3
    assert tried == ["5.26"]
    assert str(desk.ask("2026", tmp_path)) == "the run is over"
