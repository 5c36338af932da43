"""Hide secrets in options and texts before they are saved, shown or logged.

A value is a secret in four cases:

* its key says so, e.g. `wandb_api_key`,
* a name in front of it says so, within a text such as "hfToken: abc",
* its own form says so, e.g. "ghp_..." or the password of a URL,
* its type says so: the author of a new network, loss or writer has given the option the type
  SecretStr of pydantic.

    redact            a value or a whole section, for a file or a message
    without_secrets   any text of several lines, e.g. of the log or of an error

What must stay: every name and every form of a secret. Logs and saved options are published, so a
secret that this module misses is published with them. Tests:
test_a_secret_is_known_by_its_form_under_any_key,
test_the_value_of_a_key_that_says_secret_is_hidden,
test_a_secret_within_the_value_of_an_option_is_in_no_message_and_no_file.
Free to change: a name or a form may be added if usual options stay readable
(test_other_texts_stay_as_they_are).

Tests: tests/parts/utils/test_option.py
"""

import difflib
import re
from collections.abc import Mapping
from typing import Any

MASK = "***"  # what stands in place of a secret that is recognised by its form

# ---- Keys of secrets ----------------------------------------------------------------------------

# The last words of a key that holds a secret, as regular expressions. What KEY (below) says:
#
#     wandb_api_key, wandb-apikey    secret: the last words are "api_key" and "apikey"
#     hfToken, hf2token, db_pwd      secret: the last words are "Token", "token" and "pwd"
#     token_dim                      not secret: "token" is not at the end
#     compat                         not secret: "pat" is only a part of the last word
#
# In these expressions:
#     s?            allows "token" and "tokens"
#     [_-]?         allows "apikey", "api_key" and "api-key"
#     (?:api|ssh)   allows "api" or "ssh"
_LAST_WORDS = (
    r"(?:api|access|secret|private|ssh|signing|encryption|license|account|shared)[_-]?keys?",
    r"(?:auth|access|bearer|refresh)?[_-]?tokens?",
    r"passwords?", r"passwd", r"passphrases?", r"pwd", r"secrets?", r"auth", r"authorization",
    r"bearer", r"credentials?", r"webhooks?(?:[_-]?url)?", r"dsn", r"cookies?",
    r"session(?:[_-]?id)?", r"pat", r"jwt", r"sas", r"otp", r"connection[_-]?string",
)  # fmt: skip
# Matches any of these words, because "|" (or) joins them. (?i: ...) ignores upper and lower case.
_NAME = f"(?i:{'|'.join(_LAST_WORDS)})"
# A key is secret if it ends with such a name, and the name begins a word. What may stand in front
# of the name:
#     ^                nothing: the key "token"
#     [\W_\d]          a sign or a digit: "wandb_token", "hf2token"
#     [a-z](?=[A-Z])   a small letter before a capital letter: "hfToken"
_BEFORE_NAME = r"(?:^|[\W_\d]|[a-z](?=[A-Z]))"
KEY = re.compile(rf"{_BEFORE_NAME}{_NAME}$")
# Names that a person may misspell, e.g. "wandb_api_kye". A misspelt key is refused, and a message
# may show its value. So in messages, a key that resembles one of these names counts as secret. The
# names are chosen by hand among the names that _LAST_WORDS allows.
SPELLED = (
    "wandb_api_key", "api_key", "access_key", "secret_key", "private_key", "token", "auth_token",
    "password", "passphrase", "secret", "credentials",
)  # fmt: skip
# A number under the key of a secret is shown if the key has one of these words, e.g. "num_tokens",
# because such a number is a count and no secret.
COUNT_WORDS = {"num", "n", "max", "min", "count", "total", "size", "len", "per"}
# A number below this limit is shown under any key, because no service gives out secrets of five
# digits. A password such as 123456 is above the limit, and is hidden.
LEAST_SECRET_NUMBER = 100_000

# ---- Forms of secrets in any text ---------------------------------------------------------------

# What `without_tokens` makes of a text:
#
#     text                                   becomes
#     https://me:abc@host/x                  https://me:***@host/x
#     https://host/x?a=1&token=abc           https://host/x?a=1&token=***
#     Authorization: Bearer 0123456789ab     Authorization: Bearer ***
#     pushed with ghp_ab12cd34ef56gh78ij90   pushed with ***
#
# Above each pattern stands an example of a match, with the secret in capital letters. Group 1 of a
# pattern is the text in its first "(...)". This text stays, and MASK replaces the rest of the
# match. If a pattern has no group 1, MASK replaces the whole match. "(?:...)" is no group, and
# "(?=@)" only looks whether "@" follows: the "@" does not belong to the match.
#
# Nearly every repetition has an upper bound, e.g. {1,500}. Without bounds, the time of a search
# could grow with the square of the length of the text, and a long text would take minutes. A new
# form needs such bounds, too (test_long_texts_are_searched_in_proportion_to_their_length).

# "https://user:PASSWORD@host"
_URL_PASSWORD = re.compile(
    r"(\b[\w+.-]{2,20}://[^\s:/@]{0,200}:)"  # group 1: "https://user:"
    r"[^\s/@]{1,500}(?=@)"  # the password. An "@" follows it
)
# "https://host/file?token=VALUE", "https://host/file?a=1&X-Amz-Signature=VALUE". In front of the
# name there may be other words, such as "X-Amz-".
_WORDS_BEFORE_NAME = r"(?:[\w-]{0,40}[_-])?"
_URL_PARAMETER = re.compile(
    rf"([?&]{_WORDS_BEFORE_NAME}(?:{_NAME}|sig|signature)=)"  # group 1: "?token="
    r"[^\s&#]{1,2000}"  # the value, up to the next parameter
)
# "Authorization: Bearer VALUE". A value has 12 characters at least, so "token of the run" stays.
_BEARER = re.compile(
    r"(?i)\b((?:bearer|basic|token)\s+)"  # group 1: "Bearer "
    r"[A-Za-z0-9._~+/=-]{12,2000}"  # the value
)
# The name of a service -> the form of its tokens. The beginning of a token, e.g. "ghp_", tells its
# service. These forms have no group 1, so MASK replaces the whole token.
_TOKEN_FORMS = {
    "GitHub": r"gh[opsur]_\w{20,255}|github_pat_\w{20,255}",
    "GitLab": r"glpat-[\w-]{16,64}",
    "Hugging Face": r"hf_[A-Za-z0-9]{20,64}",
    "OpenAI": r"sk-[\w-]{16,200}",
    "Slack": r"xox[abeoprs]-[\w-]{10,200}",
    "Amazon": r"(?:AKIA|ASIA)[0-9A-Z]{16}",
    "Google": r"AIza[\w-]{30,40}",
    "JSON web token": r"eyJ[\w-]{10,2000}\.[\w-]{10,4000}\.[\w-]{0,1000}",
    "PyPI": r"pypi-[\w-]{16,300}",
    "Docker": r"dckr_pat_[\w-]{16,64}",
}
_TOKEN = re.compile(rf"\b(?:{'|'.join(_TOKEN_FORMS.values())})")
# A private key as OpenSSL and SSH write it to a file:
#
#     -----BEGIN RSA PRIVATE KEY-----
#     VALUE, several lines
#     -----END RSA PRIVATE KEY-----
#
# The match goes from "-----BEGIN" to the first "-----END", or to the end of the text if the key was
# cut off. It reads at most 20,000 characters after the line BEGIN. [\s\S] is any character, also a
# line break.
_PEM = re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----[\s\S]{0,20000}?(?:-----END|$)")

# ---- Names of secrets in a text -----------------------------------------------------------------

# A name and its value may also stand in the middle of a text. What _IN_TEXT (below) finds:
#
#     text                                   becomes
#     cannot read "wandb: {api_key: abc}"    cannot read "wandb: {api_key: ***}"
#     unknown flag --wandb-api-key abc       unknown flag --wandb-api-key ***
#     hfToken="a b", next                    hfToken=***, next
#     mypwd: abc                             the same text: "pwd" does not begin a word
#
# What stands before the value has one of two forms. The first form is a name, perhaps with a quote
# after it, and then ":" or "=". It matches 'password = ' and '"pwd": ', but not "password ".
_SEPARATOR = r"\s{0,9}[:=]\s{0,9}"
_NAME_IN_TEXT = rf"""{_NAME}["']?{_SEPARATOR}"""
# The second form is a flag, and then "=" or a blank. Between "--" and the name there may be other
# words, of up to 40 characters. As in KEY, the name must begin a word. So the form matches
# "--token=", "--wandb-api-key=", "--hf2token " and "--hfToken ", but not "--compat ".
_WORDS_OF_FLAG = r"(?:[\w-]{0,40}(?:[_\d-]|[a-z](?=[A-Z])))?"
_FLAG = rf"--{_WORDS_OF_FLAG}{_NAME}[ =]"
# The value is a text in quotes or a word. The quote at the end is optional ("? and '?), because a
# message may cut a long text off. These repetitions need no upper bound, because the next search
# begins behind the match. So each character is read once.
_DOUBLE_QUOTED = r'"(?:\\.|[^"\\])*"?'  # perhaps with escapes: "a\"b"
_SINGLE_QUOTED = r"'[^']*'?"
# A word ends before a blank, one of ",;&", or one of "}]". In a header of HTTP, a word such as
# "Bearer" stands before the value: "Authorization: Bearer VALUE".
_WORD = r"(?i:(?:bearer|basic|token)\s{1,9})?[^\s,;&}\]]+"
_VALUE_IN_TEXT = f"{_DOUBLE_QUOTED}|{_SINGLE_QUOTED}|{_WORD}"
# Where a name may begin within a text. The cases are the same as in front of a key (_BEFORE_NAME):
#     (?<![^\W_])          not after a letter or digit: at the start of the text, or "db_pwd: "
#     (?<=\d)              after a digit: "hf2token: "
#     (?<=[a-z])(?=[A-Z])  after a small letter and before a capital letter: "hfToken: "
_BEGIN_OF_NAME = r"(?:(?<![^\W_])|(?<=\d)|(?<=[a-z])(?=[A-Z]))"
# Group 1 is the name with its sign, e.g. "token: ", and stays in the text. Group 2 is the value.
_IN_TEXT = re.compile(rf"{_BEGIN_OF_NAME}({_NAME_IN_TEXT}|{_FLAG})({_VALUE_IN_TEXT})")
# Characters around a value that do not belong to it, e.g. the bracket after "***" in "(token=***)".
_AROUND_VALUE = "\"'()[]{}<>:.\\"
# The letters, digits, "_" and "-" at the end of a text, e.g. "num_" at the end of "with num_".
_END_OF_WORD = re.compile(r"[\w-]+$")
# Values in a text that are no secrets. `redact` shows True, False and None under any key, too.
_PLAIN_VALUES = {"true", "false", "null", "none", ""}


def redact(value: Any, key: str = "", replacement: str | None = None) -> Any:
    """Return a copy of `value` without secrets. Sections and lists within it are searched as well.

    Options must pass through this function before they are saved, shown or logged. It has two uses:

        what is saved   redact(options)
                        {"wandb_api_key": "abc"} -> {"wandb_api_key": None}
        a message       redact(value, key, replacement="***")
                        {"wandb_api_key": "abc"} -> {"wandb_api_key": "***"}

    What is hidden depends on the kind of the value:

        kind                 hidden under the key of a secret   hidden under another key
        text                 all of it                          secrets within it: "hfToken: abc"
                                                                becomes "hfToken: ***"
        number               the number, unless it is a count   nothing
        True, False, None    nothing                            nothing

    Each item of a section or a list is treated by these rules.

    A message hides more, because it may quote what a user typed wrongly. It also hides the value of
    a misspelt key, and every number under the key of a secret or behind its name within a text.

    key: the name of the option that has this value.
    replacement: the text that stands for a secret in a message, or None for what is saved.
    """
    is_message = replacement is not None
    is_secret = is_secret_key(key) or (is_message and _resembles(key))
    # Everything below a secret key is secret. E.g. in {"token": {"a": 1}}, the number 1 is treated
    # as if its key were "token".
    if isinstance(value, Mapping):
        clean = {}
        for inner_key, inner in value.items():
            effective_key = key if is_secret else str(inner_key)
            clean[inner_key] = redact(inner, effective_key, replacement)
        return clean
    # The items of a list count as values of the key of the list.
    if isinstance(value, (list, tuple)):
        return [redact(item, key, replacement) for item in value]
    # A bool holds no secret, e.g. "use_auth": true. This test must stand before the test for int,
    # because a bool is an int, too.
    if isinstance(value, bool):
        return value
    # A number under a secret key may be a count, e.g. "num_tokens": 8. A message hides counts, too.
    # Saved options keep their counts, because a resumed run reads them.
    if isinstance(value, (int, float)):
        is_hidden = is_secret and (is_message or _is_secret_number(value, key))
        return replacement if is_hidden else value
    # Any other value that is not a text, such as None, holds no secret.
    if not isinstance(value, str):
        return value
    # pydantic prints a SecretStr as ten stars, so a text of ten stars was a secret.
    if is_secret or value == "*" * 10:
        return replacement
    return _without_named(without_tokens(value), shows_counts=not is_message)


def is_secret_key(key: str) -> bool:
    """Return whether the last words of a key say that its value is a secret."""
    # Only the last 200 characters, so that a long key takes little time. No name is so long.
    return KEY.search(key[-200:]) is not None


def without_secrets(text: str) -> str:
    """Return `text`, e.g. of the log or of an error, with MASK in place of secrets.

    Counts such as "tokens: 8" stay.
    """
    # Search each line by itself. In the whole text, after a line that ends with "token:", the first
    # word of the next line would be taken for the value.
    lines = without_tokens(text).split("\n")
    return "\n".join(_without_named(line, shows_counts=True) for line in lines)


def _without_named(text: str, shows_counts: bool) -> str:
    """Return `text` with MASK in place of each value that stands behind the name of a secret.

    shows_counts: whether numbers that are no secrets stay, and values such as "false".
    """

    def replacement_of(match: re.Match[str]) -> str:
        """Return what stands in the text in place of a match of _IN_TEXT.

        E.g. "token: ***" for the match "token: abc".
        """
        value = match[2].strip(_AROUND_VALUE)
        # Do not hide a value twice, because the second time would remove the characters behind it:
        # "(token=***)" would become "(token=***".
        if value == MASK:
            return match[0]
        if shows_counts and _holds_no_secret(value, _whole_name(match)):
            return match[0]
        return match[1] + MASK

    return _IN_TEXT.sub(replacement_of, text)


def _whole_name(match: re.Match[str]) -> str:
    """Return the name in a match of _IN_TEXT, with the words that "_" or "-" join to it in front.

    E.g. in "with num_tokens: 8", the match begins at "tokens: ", and the result is "num_tokens: ".
    `_is_secret_number` needs the word "num", because it says that 8 is a count.
    """
    # As in _FLAG, up to 40 characters in front of the match are searched.
    start = match.start()
    text_before = match.string[max(0, start - 40) : start]
    words_before = _END_OF_WORD.search(text_before)
    if words_before is None:
        return match[1]
    return words_before[0] + match[1]


def _holds_no_secret(value: str, name: str) -> bool:
    """Return whether a value within a text is no secret: a count, or a value such as "false".

    name: the name in front of the value, e.g. "num_tokens: ".
    """
    if value.lower() in _PLAIN_VALUES:
        return True
    try:
        number = float(value)
    except ValueError:
        return False
    return not _is_secret_number(number, name)


def without_tokens(text: str) -> str:
    """Return `text` with MASK in place of passwords in URLs and of tokens of a known form.

    For example "https://me:abc@host/x" becomes "https://me:***@host/x".
    """
    text = _PEM.sub(MASK, text)
    for form in (_URL_PASSWORD, _URL_PARAMETER, _BEARER):
        text = form.sub(rf"\g<1>{MASK}", text)  # \g<1> is group 1, e.g. "https://me:"
    return _TOKEN.sub(MASK, text)


def _resembles(key: str) -> bool:
    """Return whether the end of a key looks like a misspelt name of SPELLED.

    The ends are the last four words of the key, the last three, the last two, and the last word.
    E.g. for "run.wandb_api_kye": "run_wandb_api_kye", "wandb_api_kye", "api_kye" and "kye". The
    names of SPELLED have three words at most, so four words are enough.
    """
    last_words = _words_of(key)[-4:]
    for first in range(len(last_words)):
        tail = "_".join(last_words[first:])
        # The cutoff 0.8 means that about eight of ten letters agree. A lower cutoff would hide
        # harmless values in messages. A higher cutoff would show secrets under a key with two wrong
        # letters. Test:
        # test_a_message_hides_a_secret_but_names_its_key.
        if difflib.get_close_matches(tail, SPELLED, n=1, cutoff=0.8):
            return True
    return False


def _words_of(key: str) -> list[str]:
    """Return the words of a key in small letters, e.g. "run.wandb_Key" -> run, wandb, key."""
    # Only the last 200 characters, so that a long key takes little time.
    return re.split(r"[\W_]+", key[-200:].lower())


def _is_secret_number(value: float, key: str) -> bool:
    """Return whether a number under the key of a secret is a secret, and not a count.

    A number is taken for a count if it is below LEAST_SECRET_NUMBER, or if its key has one of
    COUNT_WORDS. E.g. the key "num_tokens" has "num".
    """
    has_count_word = not COUNT_WORDS.isdisjoint(_words_of(key))
    return abs(value) >= LEAST_SECRET_NUMBER and not has_count_word
