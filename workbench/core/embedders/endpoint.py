"""One JSON endpoint over HTTP: bounded retries, bounded answers, and errors that give nothing away (BL-17).

No exception of the HTTP library leaves this module or hangs on one that does: what goes wrong is first turned into a
:class:`Failure`, a plain value, so that neither a message nor a chained traceback holds a key, an address's secrets or the
provider's words.
"""

import json
import os
import re
import ssl
import threading
import weakref
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from workbench.core.embedders.failure import LATE, Failure, judge, transport_failure
from workbench.core.errors import EmbeddingFailed, InvalidRequest

if TYPE_CHECKING:
    import httpx
    import tenacity

_ANSWER_LIMIT = 256 * 1024 * 1024
_LONGEST_BACKOFF = 32.0


@dataclass(frozen=True, slots=True)
class Budget:
    """How much patience a call has: attempts, seconds for each, and seconds in all, waits included, up to ``until``."""

    attempts: int
    timeout: float
    seconds: float
    until: float


class Endpoint:
    """POST JSON to one address, from any number of threads. Redirects and proxies of the environment are not followed.

    :param base_url: the API's address; it may hold a user name, a password and a query string, which no message shows.
    :param path: what to add to the address's path, unless it ends so already.
    :param api_key: sent as a bearer token.
    :param headers: further headers to send.
    :param ssl_context: how to check the server's certificate; None: the public authorities.
    :param sleep: how to wait between attempts.
    :param clock: seconds that never step back.
    :raises InvalidRequest: if the address is no http or https URL, or a header can not be sent.
    """

    def __init__(
        self,
        base_url: str,
        path: str,
        *,
        api_key: str | None,
        headers: Mapping[str, str] | None,
        ssl_context: ssl.SSLContext | None,
        sleep: Callable[[float], None],
        clock: Callable[[], float],
    ) -> None:
        parts = _checked_url(base_url)
        host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else str(parts.hostname)
        self.origin = f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port else "")
        folder = parts.path.rstrip("/").removesuffix(path)
        self.safe_url = self.origin + folder
        self._url = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], folder + path, parts.query, ""))
        self._headers = _checked_headers(api_key, headers, parts)
        self._ssl_context = ssl_context
        self._sleep = sleep
        self._clock = clock
        self._lock = threading.Lock()
        self._opened: tuple[int, httpx.Client, weakref.finalize[..., Endpoint]] | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"Endpoint({self.safe_url!r})"

    def budget(self, *, attempts: int, timeout: float, seconds: float) -> Budget:
        """Return a budget that begins to run now."""
        return Budget(attempts, timeout, seconds, self._clock() + seconds)

    def post(self, payload: Mapping[str, object], *, budget: Budget, what: str) -> dict[str, Any]:
        """Return the JSON object that the endpoint answers.

        :param payload: the JSON object to send.
        :param budget: attempts and seconds that this call may take.
        :param what: what the payload is, for the error message; never its content.
        :return: the answer; it holds no ``error``.
        :raises EmbeddingFailed: if there is none within the budget; ``retryable`` says whether waiting may help.
        """
        body = json.dumps(payload, ensure_ascii=False).encode()
        outcome = self._retrying(budget)(self._attempt, body, budget)
        if not isinstance(outcome, Failure):
            return outcome
        times = f" ({outcome.attempts} attempts)" if outcome.attempts > 1 else ""
        message = f"the embedding endpoint {self.origin} {outcome.reason} for {what}{times}; nothing was embedded. {outcome.advice}"
        raise EmbeddingFailed(message, retryable=outcome.transient)

    def close(self) -> None:
        """Close every connection. A second call does nothing; a request after it is refused."""
        with self._lock:
            self._closed = True
            if self._opened is not None:
                self._opened[2]()
            self._opened = None

    def _retrying(self, budget: Budget) -> "tenacity.Retrying":
        import tenacity

        first = min(1.0, budget.seconds / 16)
        backoff = tenacity.wait_exponential(multiplier=first, max=_LONGEST_BACKOFF) + tenacity.wait_random(0, first)
        return tenacity.Retrying(
            sleep=self._sleep,
            retry=tenacity.retry_if_result(lambda outcome: isinstance(outcome, Failure) and outcome.transient),
            wait=lambda state: max(backoff(state), _outcome(state).hint or 0.0),
            stop=lambda state: state.attempt_number >= budget.attempts or self._clock() + state.upcoming_sleep > budget.until,
            retry_error_callback=lambda state: self._given_up(_outcome(state), state.attempt_number, budget),
        )

    def _given_up(self, failure: Failure, attempts: int, budget: Budget) -> Failure:
        left = max(budget.until - self._clock(), 0.0)
        if failure.hint is not None and failure.hint > left and attempts < budget.attempts:
            advice = f"It asked to wait {failure.hint:.0f} s, but only {left:.0f} s of the {budget.seconds:g} s allowed are left."
            failure = replace(failure, advice=f"{advice} Retry after that time.")
        return replace(failure, attempts=attempts)

    def _attempt(self, body: bytes, budget: Budget) -> dict[str, Any] | Failure:
        left = budget.until - self._clock()
        if left <= 0:
            return Failure(f"was not asked within the {budget.seconds:g} s allowed", transient=True)
        client = self._client()
        try:
            return self._exchange(client, body, min(budget.timeout, left))
        except Exception as error:
            return transport_failure(error)

    def _exchange(self, client: "httpx.Client", body: bytes, timeout: float) -> dict[str, Any] | Failure:
        deadline = self._clock() + timeout
        content = bytearray()
        with client.stream("POST", self._url, content=body, timeout=timeout) as response:
            for chunk in response.iter_bytes():
                content += chunk
                if len(content) > _ANSWER_LIMIT:
                    return Failure(f"sent more than {_ANSWER_LIMIT} bytes", "Check base_url.")
                if self._clock() > deadline:  # the client's own limit is for each piece
                    return LATE
        return judge(response.status_code, response.headers, bytes(content))

    def _client(self) -> "httpx.Client":
        """Return this process's client: connections must not be shared across a fork."""
        import httpx

        with self._lock:
            if self._closed:
                raise EmbeddingFailed("this embedder is closed; make a new one.", retryable=False)
            if self._opened is None or self._opened[0] != os.getpid():
                # Loading the authorities takes a while, and an http address never gets to use them.
                verify = self._ssl_context or self._url.startswith("https:")
                client = httpx.Client(headers=self._headers, trust_env=False, follow_redirects=False, verify=verify)
                self._opened = (os.getpid(), client, weakref.finalize(self, client.close))
            return self._opened[1]


def _outcome(state: "tenacity.RetryCallState") -> Failure:
    assert state.outcome is not None
    failure = state.outcome.result()
    assert isinstance(failure, Failure)
    return failure


def _checked_url(base_url: str) -> SplitResult:
    parts = None
    if isinstance(base_url, str) and not re.search(r"[\s\x00-\x1f\x7f]", base_url):
        try:
            parts = urlsplit(base_url)
            parts.port  # noqa: B018  (raises where the port is no number)
        except ValueError:
            parts = None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidRequest("base_url is no http or https address; give one such as http://localhost:8000/v1.")
    return parts


def _checked_headers(api_key: str | None, headers: Mapping[str, str] | None, parts: SplitResult) -> dict[str, str]:
    sent = {"content-type": "application/json", "accept": "application/json"}
    if api_key is not None and parts.username is not None:
        raise InvalidRequest("both api_key and a user name in base_url are given; give one of them.")
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        sent["authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
    if api_key is not None:
        if not isinstance(api_key, str) or not re.fullmatch(r"[!-~]+", api_key):
            raise InvalidRequest("api_key is no string of visible ASCII characters; strip white space and line ends around it.")
        sent["authorization"] = f"Bearer {api_key}"
    for name, value in (headers or {}).items():
        if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", str(name)) or not re.fullmatch(r"[ -~]*", str(value)):
            raise InvalidRequest("headers holds a name or value that HTTP can not carry; use visible ASCII characters.")
        sent[str(name).lower()] = str(value)
    return sent
