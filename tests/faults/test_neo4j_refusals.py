"""What a Neo4j server or a library on it refuses, and how it says so: faults.md part F, and the locks of BL-28."""

import secrets
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import neo4j
import pytest

import workbench
from tests.children import assert_whole, fill, made, numbered_model, snapshot
from tests.neo4j_servers import do_without, own_server
from tests.proxy import Proxy
from tests.support import START, Clock, TableEmbedder, ids, numbered
from tools.neo4j.choice import DEFAULT, RELEASES
from tools.neo4j.errors import Unavailable
from tools.neo4j.jars import Jars, jars_of
from tools.neo4j.server import Endpoint, Neo4jServer
from workbench import CursorInvalid, Event, InvalidRequest, Memory, NotFound, StoreUnavailable, WorkbenchError
from workbench.core.stores import neo4j_queries

PASSWORD = "correct horse battery"
WRONG = "wrong horse battery"
INJECTIONS = [
    "`x`) DETACH DELETE n //",
    "x' OR true OR '",
    'x"}) MATCH (n) DETACH DELETE n //',
    "\\u0060) MATCH (n) DETACH DELETE n //",
    "$namespace",
    "}) RETURN 1 //\n// MATCH (n) DETACH DELETE n",
    "%",
    "_",
    ".*",
    "'; DROP TABLE event; --",
    "neo4j\r\nDETACH DELETE n",
]


def opened(server: Endpoint | Neo4jServer, address: str = "", **options: Any) -> Memory:
    settings = {"embedder": numbered_model(0), "auth": server.auth} | options
    return workbench.open_memory(address or server.address, **settings)


def run(server: Endpoint | Neo4jServer, query: str, auth: tuple[str, str] | None = None, **more: Any) -> list[list[Any]]:
    """Ask the server without the workbench."""
    with neo4j.GraphDatabase.driver(server.address, auth=auth or server.auth) as driver:
        return [record.values() for record in driver.execute_query(query, **more).records]


def refused(call: Callable[[], object], words: str, kind: type[WorkbenchError] = StoreUnavailable) -> WorkbenchError:
    """Assert that a call fails in our words and that nothing in them, or in the traceback, is a secret; return the error."""
    with pytest.raises(kind, match=words) as caught:
        call()
    shown = "".join(traceback.format_exception(caught.value))
    for secret in (PASSWORD, WRONG):
        assert repr(secret) not in shown.replace(f'"{secret}"', repr(secret))
        assert secret not in str(caught.value)
    return caught.value


# -- text that looks like a query ----------------------------------------------------------------------------------------


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the texts of all queries that are sent from now on."""
    texts: set[str] = set()
    for kind in (neo4j.Session, neo4j.ManagedTransaction):

        def noted(self: Any, query: Any, *rest: Any, run: Any = kind.run, **more: Any) -> Any:
            texts.add(str(query))
            return run(self, query, *rest, **more)

        monkeypatch.setattr(kind, "run", noted)
    return texts


def constants() -> set[str]:
    """Return all queries that the store has."""
    found: set[str] = set()
    for name, value in vars(neo4j_queries).items():
        if name.isupper():
            several = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else (value,)
            found |= {each for each in several if isinstance(each, str)}
    return found


@pytest.mark.parametrize("text", INJECTIONS, ids=ascii)
def test_no_argument_is_taken_for_a_query(neo4j_server: Endpoint, sent: set[str], text: str) -> None:
    """faults BL-41: namespace, ids, names, titles, filters, cursors, tool arguments: values, or refused; nobody else is touched."""
    own = f"refusals-{secrets.token_hex(6)}"
    with opened(neo4j_server, namespace=own) as bystander, opened(neo4j_server, namespace=f"{own} {text}") as memory:
        for each in (bystander, memory):
            fill(each)
        before = snapshot(bystander), snapshot(memory)
        found = memory.search("summary", session="chain")
        cursor, concept = found.cursor or "", found.concepts[0].id
        calls: list[Callable[[], object]] = [
            lambda: memory.get(text),
            lambda: memory.read(text),
            lambda: memory.forget(text),
            lambda: memory.archive(text),
            lambda: memory.revoke(text),
            lambda: memory.restore(text),
            lambda: memory.supersede(text, by="e1"),
            lambda: memory.supersede("e1", by=text),
            lambda: memory.expand(text, concept),
            lambda: memory.expand(cursor, text, session="chain"),
            lambda: memory.nearby(text, "e1"),
            lambda: memory.nearby(cursor, text, session="chain"),
            lambda: memory.search(text, label=text),
            lambda: memory.search(written_from=text),
            lambda: memory.search("x", written_to=text),
            lambda: memory.tools.call("memory_database_search", {"operation": text}),
            lambda: memory.tools.call("memory_database_search", {"operation": "read", "event_id": text}),
            lambda: memory.tools.call("memory_database_search", {"operation": "expand", "cursor": text, "concept_id": text}),
            lambda: memory.tools.call(text, {}),
            lambda: memory.tools.call("memory_database_search", {text: text}),
        ]
        for call in calls:
            with pytest.raises((NotFound, InvalidRequest, CursorInvalid)):
                call()
        assert memory.search(entity=text, session="1").results == ()
        assert memory.search(entity=[text, "shared"], session="2").results == ()
        assert len(memory.search(text, session=text).results) == 3
        assert {each.id for each in memory.search(text, label="Concept").results} <= {f"concept_{number}" for number in range(1, 5)}
        assert (snapshot(bystander), snapshot(memory)) == before
        event = Event(id=text, title=text, summary=text, content=text, concepts=(text,), persons=(text,), written_at=START)
        memory.save(event)
        assert memory.get(text).event == event
        assert ids(memory.search(entity=text, session="3").results) == [text]
        assert memory.read(text).text == text
        memory.forget(text)
        assert memory.search(entity=text, session="4").results == ()
        assert snapshot(bystander) == before[0]
        assert memory.verify() == bystander.verify() == []
    assert sent <= constants()
    assert len(sent) > 10


# -- the life of a library -----------------------------------------------------------------------------------------------


def test_a_closed_library_says_so_whatever_is_asked(neo4j_server: Endpoint) -> None:
    """faults BL-44: closing twice does nothing; any use afterwards is one clear error that no retry mends."""
    namespace = f"refusals-{secrets.token_hex(6)}"
    with opened(neo4j_server, namespace=namespace) as memory:
        fill(memory)
        found = memory.search("summary")
    memory.close()
    memory.close()
    calls: list[Callable[[], object]] = [
        lambda: memory.save(made("new", 2)),
        lambda: memory.reembed(numbered_model(1)),
        lambda: memory.forget("e1"),
        lambda: memory.search("summary"),
        lambda: memory.expand(found.cursor or "", found.concepts[0].id),
        lambda: memory.read("e0"),
        lambda: memory.get("e0"),
        memory.events,
        memory.stats,
        memory.verify,
        lambda: memory.store.dump(),
    ]
    for call in calls:
        error = refused(call, "closed")
        assert not error.retryable
    (failed, *_) = memory.save_many([made("new", 2)]).failed
    assert isinstance(failed[1], StoreUnavailable)
    assert not failed[1].retryable
    with opened(neo4j_server, namespace=namespace) as again:
        assert set(assert_whole(again, numbered_model(0))) == {"e0", "e1", "e2"}


def test_an_exception_inside_the_block_closes_the_library_and_comes_through(neo4j_server: Endpoint) -> None:
    """faults BL-44: the context manager hides nothing and leaves nothing open."""
    namespace = f"refusals-{secrets.token_hex(6)}"
    memory = opened(neo4j_server, namespace=namespace)

    def fail() -> None:
        with memory:
            fill(memory)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    refused(memory.stats, "closed")


def test_closing_while_others_work_ends_in_clear_errors(neo4j_server: Endpoint) -> None:
    """faults BL-44 and BL-25: a call that meets a library being closed succeeds or says so; what was acknowledged is there."""
    namespace = f"refusals-{secrets.token_hex(6)}"
    memory, saved, strange = opened(neo4j_server, namespace=namespace), list[str](), list[BaseException]()

    def save(number: int) -> None:
        for turn in range(1000):
            try:
                saved.append(str(memory.save(made(f"e{number}-{turn}", turn)).id))
                memory.search("summary", session=str(number), reset_seen=True)
            except StoreUnavailable as error:
                if error.retryable:
                    strange.append(error)
                return
            except BaseException as error:
                strange.append(error)
                return

    threads = [threading.Thread(target=save, args=(number,), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 60
    while len(saved) < 8 and not strange and time.monotonic() < deadline:
        time.sleep(0.001)
    memory.close()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert strange == []
    assert len(saved) >= 8
    with opened(neo4j_server, namespace=namespace) as again:
        assert set(saved) <= set(assert_whole(again, numbered_model(0)))


def test_a_write_waits_for_another_program_that_holds_the_lock_and_a_read_does_not(neo4j_server: Endpoint) -> None:
    """faults BL-28: a transaction that holds the library's lock for 2 s delays a save, fails none, and delays no search."""
    namespace = f"refusals-{secrets.token_hex(6)}"
    with (
        opened(neo4j_server, namespace=namespace) as memory,
        neo4j.GraphDatabase.driver(neo4j_server.address, auth=neo4j_server.auth) as driver,
        driver.session() as session,
        ThreadPoolExecutor(1) as threads,
    ):
        fill(memory)
        holding = session.begin_transaction()
        holding.run("MATCH (l:Library {namespace: $namespace}) SET l.held = true", namespace=namespace).consume()
        saving = threads.submit(memory.save, made("new", 2))
        begin = time.monotonic()
        assert len(memory.search("summary").results) == 3
        assert memory.read("e0").text
        assert memory.verify() == []
        assert not saving.done()
        time.sleep(max(0.0, 2.0 - (time.monotonic() - begin)))
        assert not saving.done()
        holding.rollback()
        assert saving.result(30) == made("new", 2)
        assert set(assert_whole(memory, numbered_model(0))) == {"e0", "e1", "e2", "new"}


# -- who may come in -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Neo4jServer]:
    """Return a server with a password that takes two wrong ones of a user, and then none for a minute."""
    settings = {"dbms.security.auth_max_failed_attempts": "2", "dbms.security.auth_lock_time": "60s"}
    with own_server(tmp_path_factory.mktemp("locked"), password=PASSWORD, settings=settings) as server:
        yield server


@pytest.fixture
def user(locked: Neo4jServer) -> tuple[str, str]:
    """Return a user of the test's own, whose wrong passwords count for nobody else."""
    name = f"user{secrets.token_hex(6)}"
    run(locked, f"CREATE USER {name} SET PASSWORD $password CHANGE NOT REQUIRED", password=PASSWORD, database_="system")
    return name, PASSWORD


@pytest.mark.slow
def test_a_wrong_password_costs_one_attempt(locked: Neo4jServer, user: tuple[str, str]) -> None:
    """faults BL-47: one log-in per opening, so that the right password works at once; two wrong ones do lock the user out."""
    wrong = user[0], WRONG
    with Proxy(locked.address) as proxy:
        error = refused(lambda: opened(locked, proxy.address, auth=wrong), "check the user and password")
        assert proxy.connections == 1
    assert not error.retryable
    assert user[0] not in str(error)
    with opened(locked, auth=user, namespace=user[0]) as memory:
        fill(memory)
    for _ in range(2):
        refused(lambda: opened(locked, auth=wrong), "check the user and password")
    error = refused(lambda: opened(locked, auth=user), "no log-in of this user for some seconds")
    assert error.retryable


@pytest.mark.slow
def test_a_password_changed_under_an_open_library_is_not_tried_again_and_again(locked: Neo4jServer, user: tuple[str, str]) -> None:
    """faults BL-47: when connections must be made anew each call tries once and says what is wrong."""
    with Proxy(locked.address) as proxy, opened(locked, proxy.address, auth=user, namespace=user[0]) as memory:
        fill(memory)
        run(locked, f"ALTER USER {user[0]} SET PASSWORD $password CHANGE NOT REQUIRED", password=WRONG, database_="system")
        proxy.cut()
        made_so_far = proxy.connections
        error = refused(lambda: memory.search("summary"), "check the user and password")
        assert not error.retryable
        assert proxy.connections - made_so_far <= 2, "one that was cut, and one attempt"
        with opened(locked, auth=(user[0], WRONG), namespace=user[0]) as again:
            assert len(again.search("summary").results) == 3


@pytest.mark.slow
def test_an_expired_password_is_named_and_works_once_changed(locked: Neo4jServer, user: tuple[str, str]) -> None:
    """faults BL-47: expired-credential state: one attempt, and the message says what to do."""
    run(locked, f"ALTER USER {user[0]} SET PASSWORD CHANGE REQUIRED", database_="system")
    with Proxy(locked.address) as proxy:
        for read_only in (False, True):
            error = refused(partial(opened, locked, proxy.address, auth=user, read_only=read_only), "password has expired")
            assert not error.retryable
        assert proxy.connections == 2
    run(locked, "ALTER CURRENT USER SET PASSWORD FROM $old TO $new", auth=user, old=PASSWORD, new=WRONG, database_="system")
    with opened(locked, auth=(user[0], WRONG), namespace=user[0]) as memory:
        fill(memory)
        assert memory.verify() == []


@pytest.mark.slow
def test_a_server_that_wants_a_log_in_says_so_to_who_gives_none(locked: Neo4jServer) -> None:
    """faults BL-47: no credentials at all are a refused log-in too, not an outage."""
    error = refused(lambda: opened(locked, auth=None), "check the user and password")
    assert not error.retryable


@pytest.mark.slow
@pytest.mark.parametrize("database", ["nowhere", "neo4j2", "系统", "a`b", "system"])
def test_a_database_that_can_not_be_used_is_one_clear_error(locked: Neo4jServer, database: str) -> None:
    """faults BL-46: a name that does not exist, can not exist, or belongs to the server itself; nothing is waited for."""
    begin = time.monotonic()
    error = refused(lambda: opened(locked, database=database), "check database=")
    assert time.monotonic() - begin < 10
    assert not error.retryable


# -- encryption ----------------------------------------------------------------------------------------------------------


class EncryptedServer(Neo4jServer):
    """A server that takes encrypted connections only, with a certificate of its own."""

    @property
    def address(self) -> str:
        return super().address.replace("bolt://", "bolt+ssc://")


def make_certificate(folder: Path) -> None:
    """Make a key and a certificate that it signs itself, for the loopback."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(START - timedelta(days=900)).not_valid_after(START + timedelta(days=9000))
    certificate = builder.sign(key, hashes.SHA256())
    folder.mkdir(parents=True)
    pem = serialization.Encoding.PEM
    (folder / "public.crt").write_bytes(certificate.public_bytes(pem))
    (folder / "private.key").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))


def own_jars() -> Jars:
    """Return a way to run a server that sees the files of this machine."""
    try:
        release = RELEASES[DEFAULT]
        return jars_of(release.version, release.java)
    except Unavailable as reason:
        do_without(reason)


@pytest.mark.slow
def test_a_server_that_wants_encryption_is_told_from_one_that_is_down(tmp_path: Path) -> None:
    """faults BL-47: TLS and plain do not match: a distinct message with the remedy, soon; `+ssc` takes its own certificate."""
    folder = tmp_path / "neo4j"
    make_certificate(folder / "certificates" / "bolt")
    settings = {
        "server.bolt.tls_level": "REQUIRED",
        "dbms.ssl.policy.bolt.enabled": "true",
        "dbms.ssl.policy.bolt.base_directory": str(folder / "certificates" / "bolt"),
        "dbms.ssl.policy.bolt.client_auth": "NONE",
    }
    with EncryptedServer(own_jars(), folder, settings=settings) as server:
        port = server.address.rpartition(":")[2]
        for scheme in ("bolt", "neo4j"):
            begin = time.monotonic()
            refused(partial(opened, server, f"{scheme}://127.0.0.1:{port}"), "wants encryption has bolt")
            assert time.monotonic() - begin < 20
        for scheme in ("bolt+s", "neo4j+s"):
            error = refused(partial(opened, server, f"{scheme}://127.0.0.1:{port}"), "its certificate is not trusted")
            assert not error.retryable
        with opened(server, f"bolt+ssc://127.0.0.1:{port}") as memory:
            fill(memory)
            assert set(assert_whole(memory, numbered_model(0))) == {"e0", "e1", "e2"}


# -- a server that may not or can not write ------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_transaction_beyond_the_servers_memory_is_refused_whole(tmp_path: Path) -> None:
    """retrieval.md S3, S5: nothing of it is written, the message says what to do, and fewer events at once are saved."""
    embedder = TableEmbedder(dimension=384)
    events = numbered(400, content="long " * 200)
    with (
        own_server(tmp_path / "neo4j", settings={"db.memory.transaction.max": "2m"}) as server,
        opened(server, embedder=embedder, clock=Clock()) as memory,
    ):
        begin = time.monotonic()
        report = memory.save_many(events, batch_size=400)
        assert time.monotonic() - begin < 25, "the same transaction was tried again"
        assert report.saved == ()
        assert len(report.failed) == 400
        error = report.failed[0][1]
        assert isinstance(error, StoreUnavailable)
        assert "not enough memory for so large a transaction; nothing was written" in str(error)
        assert memory.stats().events == 0
        assert memory.save_many(events, batch_size=10).failed == ()
        assert memory.stats().events == 400
        assert memory.verify() == []
