"""A Neo4j server to play with: ``python -m tools.neo4j``, until Ctrl-C. Its data stays for the next time."""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.neo4j.choice import DEFAULT, RELEASES, choose, is_required
from tools.neo4j.errors import ServerFailed, Unavailable
from tools.neo4j.server import Neo4jServer, is_taken

FOLDER = Path("demo") / "neo4j"
USAGE = """Neo4j {version} answers at {address}, without a password; its data is kept in {folder}. Use it from another terminal:
  workbench import data/fixtures/memories.jsonl --library neo4j://127.0.0.1:{port}
  workbench search --library neo4j://127.0.0.1:{port} "a question"
Ctrl-C stops it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.neo4j", description=__doc__)
    parser.add_argument("--port", type=int, default=7687, help="port of the loopback (7687)")
    parser.add_argument("--release", choices=sorted(RELEASES), default=DEFAULT, help=f"which Neo4j ({DEFAULT})")
    parser.add_argument("--folder", type=Path, help=f"where the data is kept ({FOLDER}/RELEASE)")
    parser.add_argument("--fetch", action="store_true", help="only fetch what tests need, and say if a server can not be had")
    options = parser.parse_args(arguments)
    if options.fetch:
        return fetch()
    return play(options.release, options.port, options.folder or FOLDER / options.release)


def fetch() -> int:
    """Fetch each release, so that no test waits for a download; fail only where servers are required."""
    status = 0
    for series in RELEASES:
        try:
            choose(series)
        except Unavailable as reason:
            print(f"WARNING: tests that need it are left out. {reason}", file=sys.stderr)
            status = int(is_required())
    return status


def play(series: str, port: int, folder: Path) -> int:
    """Run a server until Ctrl-C or SIGTERM."""
    if is_taken(port):
        print(f"port {port} is taken; stop what listens there, or choose another with --port", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with Neo4jServer(choose(series), folder, port=port) as server:
            print(USAGE.format(version=server.version, address=server.address, folder=folder, port=port), flush=True)
            server.wait()
            print(f"the server ended by itself; {server.log} says more", file=sys.stderr)
    except KeyboardInterrupt:
        return 0
    except (Unavailable, ServerFailed) as error:
        print(error, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
