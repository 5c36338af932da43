"""Secrets in options: what is saved, shown or logged passes through `redact`.

A value is a secret if its key says so (`wandb_api_key`), if its own form says so (`ghp_...`, the
password of a URL), or if the author of a part marked the key with pydantic's SecretStr.
"""

import difflib
import re
from collections.abc import Mapping
from typing import Any

MASK = "***"
# The last words of a key that holds a secret: "wandb_api_key", "db_pwd", but not "token_dim".
_NAME = (
    r"(?i:(?:api|access|secret|private|ssh|signing|encryption|license|account|shared)[_-]?keys?|"
    r"(?:auth|access|bearer|refresh)?[_-]?tokens?|passwords?|passwd|passphrases?|pwd|secrets?|"
    r"auth|authorization|bearer|credentials?|webhooks?(?:[_-]?url)?|dsn|cookies?|session(?:[_-]?id)?|"
    r"pat|jwt|sas|otp|connection[_-]?string)"
)
# After a blank, a sign, a digit, or at a capital letter: "hfToken", but not "compat".
KEY = re.compile(rf"(?:^|[\W_\d]|[a-z](?=[A-Z])){_NAME}$")
# What a person may have misspelt; compared in messages only.
SPELLED = (
    "wandb_api_key", "api_key", "access_key", "secret_key", "private_key", "token", "auth_token",
    "password", "passphrase", "secret", "credentials",
)  # fmt: skip
# A number under such a key is a count if one of these words precedes it ("num_tokens"), or if it is
# shorter than any secret.
COUNTS = {"num", "n", "max", "min", "count", "total", "size", "len", "per"}
LEAST_SECRET = 100_000

# ---- Forms of secrets in any text ---------------------------------------------------------------

# Every repetition has an upper bound, so that a long text takes time in proportion to its length.
_URL_PASSWORD = re.compile(r"(\b[\w+.-]{2,20}://[^\s:/@]{0,200}:)[^\s/@]{1,500}(?=@)")
_URL_PARAMETER = re.compile(
    rf"([?&](?:[\w-]{{0,40}}[_-])?(?:{_NAME}|sig|signature)=)[^\s&#]{{1,2000}}"
)
_BEARER = re.compile(r"(?i)\b((?:bearer|basic|token)\s+)[A-Za-z0-9._~+/=-]{12,2000}")
_TOKEN = re.compile(
    r"\b(?:gh[opsur]_\w{20,255}|github_pat_\w{20,255}|glpat-[\w-]{16,64}|hf_[A-Za-z0-9]{20,64}|"
    r"sk-[\w-]{16,200}|xox[abeoprs]-[\w-]{10,200}|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[\w-]{30,40}|"
    r"eyJ[\w-]{10,2000}\.[\w-]{10,4000}\.[\w-]{0,1000}|pypi-[\w-]{16,300}|dckr_pat_[\w-]{16,64})"
)
_PEM = re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[\s\S]{0,20000}?(?:-----END|$)")
# "token: value" in text that is no JSON, or "--token value" on a command line; for messages.
_IN_TEXT = re.compile(
    rf"""(?<![^\W_])({_NAME}["']?\s{{0,9}}[:=]\s{{0,9}}|"""
    rf"""--(?:[\w-]{{0,40}}(?:[_-]|[a-z](?=[A-Z])))?{_NAME}[ =])"""
    r"""("(?:\\.|[^"\\])*"?|'[^']*'?|[^\s,;&}\]]+)"""
)


def redact(value: Any, key: str = "", shown: str | None = None) -> Any:
    """Return a copy of `value`, the value of option `key`, without secrets, however deep they lie.

    shown: text in place of a secret under a key that says so; None for what is saved. With `shown`,
    for a message, misspelt keys and "name: value" in a text count too. A secret that its own form
    tells becomes MASK in either case.
    """
    is_secret = is_secret_key(key) or (shown is not None and _resembles(key))
    if isinstance(value, Mapping):
        return {k: redact(v, key if is_secret else str(k), shown) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact(v, key, shown) for v in value]
    if isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        return (
            shown if is_secret and (shown is not None or _is_secret_number(value, key)) else value
        )
    if not isinstance(value, str):
        return value
    # pydantic prints a SecretStr as stars.
    if is_secret or (len(value) == 10 and set(value) == {"*"}):
        return shown
    text = without_tokens(value)
    return text if shown is None else _IN_TEXT.sub(rf"\1{shown}", text)


def is_secret_key(key: str) -> bool:
    """Return whether the last words of a key say that its value is a secret."""
    return KEY.search(key[-200:]) is not None


def without_tokens(text: str) -> str:
    """Return `text` with MASK for passwords in URLs and for tokens that their form tells."""
    text = _PEM.sub(MASK, text)
    for form in (_URL_PASSWORD, _URL_PARAMETER, _BEARER):
        text = form.sub(rf"\g<1>{MASK}", text)
    return _TOKEN.sub(MASK, text)


def _resembles(key: str) -> bool:
    words = re.split(r"[\W_]+", key[-200:].lower())[-4:]
    tails = ["_".join(words[first:]) for first in range(len(words))]
    return any(difflib.get_close_matches(tail, SPELLED, n=1, cutoff=0.8) for tail in tails)


def _is_secret_number(value: float, key: str) -> bool:
    words = re.split(r"[\W_]+", key[-200:].lower())
    return abs(value) >= LEAST_SECRET and COUNTS.isdisjoint(words)
