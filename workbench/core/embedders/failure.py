"""What can go wrong with an HTTP call, in our own words: whether it may pass, how long to wait, what to check (BL-17)."""

import json
import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504, 529})
_ADVICE = {
    400: "Check model; if a text may be too long, lower input_tokens.",
    401: "Check api_key.",
    402: "Check the account behind api_key.",
    403: "Check that api_key may use this model.",
    404: "Check model, and that base_url ends in the API's path, such as /v1.",
    405: "Check that base_url ends in the API's path, such as /v1.",
    413: "Lower input_tokens, batch_size or batch_tokens.",
    422: "Check model; lower batch_size or input_tokens.",
    429: "Wait and retry, or lower batch_size and batch_tokens.",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a call gave no answer, in our own words. ``hint`` is how long the endpoint asked to wait, in seconds."""

    reason: str
    advice: str = "Retry later."
    transient: bool = False
    hint: float | None = None
    attempts: int = 1


LATE = Failure("did not answer in time", "Check that it is running, or raise the time allowed.", transient=True)


def transport_failure(error: Exception) -> Failure:
    """Return what an exception of the HTTP library means; nothing of its text is kept."""
    import httpx

    if isinstance(error, httpx.TimeoutException):
        return LATE
    if _has_cause(error, ssl.SSLCertVerificationError):
        return Failure("has a certificate that is not trusted", "Give its authority with ssl_context.")
    if isinstance(error, httpx.ConnectError):
        return Failure("can not be reached", "Check base_url and that the server is running.", transient=True)
    if isinstance(error, httpx.TransportError) and not isinstance(error, httpx.LocalProtocolError | httpx.UnsupportedProtocol):
        return Failure("broke off the connection", transient=True)
    return Failure(f"could not be asked or understood ({type(error).__name__})", "Check base_url.")


def _has_cause(error: BaseException | None, kind: type[BaseException]) -> bool:
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error is not None


def judge(status: int, headers: Mapping[str, str], content: bytes) -> dict[str, Any] | Failure:
    """Return the JSON object of a successful answer, a failure for any other.

    :param status: the HTTP status; an answer of 200 with an error that names a transient status counts as that status.
    :param headers: the answer's headers, by any case.
    :param content: the answer's body.
    :return: the answer, without ``error``, or why there is none.
    """
    answer = _json(content)
    if 200 <= status < 300:
        if not isinstance(answer, dict):
            return Failure("answered something that is no JSON object", "Check base_url.")
        if answer.get("error") is None:
            return answer
        code = _code(answer)
        status = code if isinstance(code, int) and code in _TRANSIENT else status
    if 300 <= status < 400:
        return Failure(f"answered a redirect ({status})", "Redirects are not followed: give the final address as base_url.")
    if status < 300:
        return Failure(f"answered {status} with an error in place of vectors", "Check model and api_key.")
    if _code(answer) == "insufficient_quota":
        return Failure(f"answered {status}: the quota is used up", "Check the plan of the account behind api_key.")
    transient = status in _TRANSIENT
    advice = _ADVICE.get(status, "Retry later." if transient else "Check base_url and model.")
    return Failure(f"answered {status}", advice, transient, hint=_retry_after(headers) if transient else None)


def _json(content: bytes) -> object:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def _code(answer: object) -> object:
    error = answer.get("error") if isinstance(answer, dict) else None
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int | str) else None


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that ``Retry-After`` asks for, as a number or as a date; None where it makes no sense."""
    value = headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]+(\.[0-9]*)?", value):
        return float(value)
    moment = _http_date(value)
    if moment is None:
        return None
    now = _http_date(headers.get("date", "")) or datetime.fromtimestamp(time.time(), UTC)
    return max((moment - now).total_seconds(), 0.0)


def _http_date(value: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
