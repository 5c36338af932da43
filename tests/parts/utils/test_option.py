"""Option files: how they are read, checked, saved, and kept free of secrets.

The tests read TEXT, a small option file. A section of an option file chooses a "part" by its name,
e.g. a network. The other keys of the section are the constructor arguments of the part. This file
does not use the real parts. It registers its own parts: a network `small`, two fusion operators,
two data sets and two losses.
"""

import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
from pydantic import SecretStr

from tests.dist.launching import run_command
from tests.helpers.checked import options_of_part
from utils.errors import OptionError
from utils.options.command_line import parse_command_line
from utils.options.load import load_options
from utils.options.loader_options import LoaderOptions
from utils.options.models import Options
from utils.options.registry import Registry
from utils.options.train_options import TrainOptions
from utils.secrets import KEY, redact, without_secrets

# ---- Parts that an option file may choose ----

# The arguments of a registry are the word for its parts in messages, the key that chooses a part
# ("type" by default), and the options that every section of such a part has.
NETWORKS = Registry("network", "net_type")
FUSIONS = Registry("fusion operator")
DATASETS = Registry("dataset", "dataset_type", base=LoaderOptions)
LOSSES = Registry("loss", "G_lossfn_type", base=TrainOptions)
# Section of an option file -> the registry of the parts that the section may choose.
PARTS = {"netG": NETWORKS, "datasets": DATASETS, "train": LOSSES}


@FUSIONS.register("none")
def no_fusion() -> None: ...


@FUSIONS.register("gated")
def gated(features: int = 8) -> None: ...


@NETWORKS.register("small")
def small(
    width: int = 4, upscale: int = 1, fusion: Annotated[dict[str, Any] | str, FUSIONS] = "none"
) -> None: ...


@DATASETS.register("clips")
def clips(dataroot_gt: str, gt_size: int = 16, spike: dict[str, Any] | None = None) -> None: ...


@DATASETS.register("rgb")
def rgb(dataroot_gt: str, gt_size: int = 16) -> None: ...


@LOSSES.register("charbonnier")
def charbonnier(G_charbonnier_eps: float = 1e-9) -> None: ...


@LOSSES.register("l1")
def l1() -> None: ...


# ---- The option file ----

# Tests use the numbers of its lines: "task" is in line 3, and "checkpoint_print" is in line 18.
TEXT = """{
  // A comment; the URL below survives.
  "task": "trial",
  "path": { "root": "http://host//runs" /* a block */ },
  "datasets": {
    "train": {
      "dataset_type": "clips",
      "dataroot_gt": "there",
      "spike": { "h": 2 },
      "dataloader_batch_size": 2
    }
  },
  "netG": { "net_type": "small", "fusion": { "type": "gated", "features": 16 } },
  "train": {
    "G_lossfn_type": "charbonnier",
    "G_charbonnier_eps": 1e-6,
    "G_optimizer_lr": 1e-4,
    "checkpoint_print": 5
  }
}
"""


@pytest.fixture
def option_file(tmp_path: Path) -> Path:
    """Give the path of an option file with TEXT. The test may change the file."""
    path = tmp_path / "trial.json"
    path.write_text(TEXT)
    return path


def load(path: Path, *overrides: str) -> Options:
    """Return the options of a file. overrides: "section.key=value", as on the command line."""
    return load_options(path, overrides, PARTS)


def error_text(path: Path, *overrides: str) -> str:
    """Return the text of the error with which the options of a file are refused.

    overrides: "section.key=value", as on the command line.
    """
    with pytest.raises(OptionError) as error:
        load(path, *overrides)
    return str(error.value)


# ---- Reading ----


def test_a_url_is_no_comment(option_file):
    opt = load(option_file)

    # "//" begins a comment, but not within a text. This text has "//" twice.
    assert opt.path.root == "http://host//runs"


def test_keys_that_the_file_leaves_out_have_their_defaults(option_file):
    opt = load(option_file)

    # The class of this section is made when the file is read, so the type checker does not know its
    # keys. `options_of_part` returns the same section with the type Any.
    data = options_of_part(opt.datasets.train)
    assert opt.path.resume == "auto"
    assert data.gt_size == 16  # the default of `clips`
    assert data.dataloader_persistent_workers is False
    assert opt.train.G_optimizer_betas == [0.9, 0.99]


def test_the_keys_of_a_chosen_part_are_read(option_file):
    opt = load(option_file)

    train = options_of_part(opt.train)
    assert train.G_charbonnier_eps == 1e-6
    # The keys width and upscale are not in TEXT. They have the defaults of `small`.
    assert opt.netG.plain() == {
        "net_type": "small",
        "width": 4,
        "upscale": 1,
        "fusion": {"type": "gated", "features": 16},
    }


def test_the_folder_of_a_run_has_the_name_of_its_task(option_file):
    opt = load(option_file)

    assert opt.folder == Path("http://host//runs") / "trial"


def test_options_know_their_file(option_file):
    assert load(option_file).opt_path == str(option_file)


def test_an_override_is_json_if_it_can_be(option_file):
    opt = load(option_file, "train.G_optimizer_betas=[0.5, 0.6]", "train.amp.enable=true")

    assert opt.train.G_optimizer_betas == [0.5, 0.6]
    assert opt.train.amp.plain() == {"enable": True, "dtype": "auto"}


def test_another_override_is_a_text(option_file):
    assert load(option_file, "path.root=x").path.root == "x"


@pytest.mark.parametrize("override", ["netG.fusion=none", "netG.fusion.type=none"])
def test_an_override_may_name_a_part(option_file, override):
    assert load(option_file, override).netG.plain()["fusion"] == {"type": "none"}


def test_an_override_may_set_a_key_of_a_part_that_another_override_names(option_file):
    # The first override names the fusion operator "gated", and the second one sets its key
    # "features".
    net = load(option_file, "netG.fusion=gated", "netG.fusion.features=3").netG

    assert net.plain()["fusion"]["features"] == 3


def test_a_loss_chosen_by_an_override_drops_the_keys_of_the_former_loss(option_file):
    train = load(option_file, "train.G_lossfn_type=l1").train

    assert not hasattr(train, "G_charbonnier_eps")


def test_if_an_override_chooses_a_data_set_only_keys_that_it_does_not_have_are_dropped(option_file):
    # The file chooses "clips". Its keys are dataroot_gt, gt_size and spike. The override chooses
    # "rgb". It has no key "spike".
    train = options_of_part(load(option_file, "datasets.train.dataset_type=rgb").datasets.train)

    assert not hasattr(train, "spike")
    assert train.dataroot_gt == "there"
    assert train.dataloader_batch_size == 2


def test_a_key_that_an_override_gives_the_new_part_is_not_dropped_silently(option_file):
    # The new data set "rgb" has no key "spike". What happens to a key "spike":
    #
    #     in the option file         dropped, because it was for the former data set
    #     on the command line        an error, because the user has just given it
    message = error_text(option_file, "datasets.train.dataset_type=rgb", "datasets.train.spike={}")

    assert "datasets.train.spike" in message


# ---- Refusals ----

# A case: its name, a text of TEXT, the text that replaces it, and words of the error. Most cases
# change "checkpoint_print" in line 18 of TEXT.
WRONG_FILES = [
    (
        "an unknown key",
        '"checkpoint_print": 5',
        '"checkpoint_prnt": 5',
        [
            "unknown option train.checkpoint_prnt",
            "line 18",
            "the nearest is checkpoint_print (int >= 1)",
        ],
    ),
    (
        "a text in place of a number",
        '"checkpoint_print": 5',
        '"checkpoint_print": "5"',
        ["train.checkpoint_print is '5'", "line 18", "expected  int >= 1"],
    ),
    (
        "a number below its limit",
        '"checkpoint_print": 5',
        '"checkpoint_print": 0',
        ["train.checkpoint_print is 0", "expected  int >= 1"],
    ),
    (
        "an unknown key of a nested section",
        '"checkpoint_print": 5',
        '"amp": { "enabled": true }',
        ["unknown option train.amp.enabled", "line 18"],
    ),
    (
        "a value in place of a section",
        '"checkpoint_print": 5',
        '"amp": true',
        ["train.amp is True", "expected  an object"],
    ),
    (
        "a key given twice",
        '"checkpoint_print": 5',
        '"G_optimizer_lr": 1',
        ["G_optimizer_lr is given twice", "line 18", "line 17"],
    ),
    (
        "an unknown choice",
        '"checkpoint_print": 5',
        '"G_optimizer_type": "sgd"',
        ['expected  "adam" | "adamw"'],
    ),
    (
        "an unknown key of a part",
        '"features": 16',
        '"feature": 16',
        ["unknown option netG.fusion.feature", "line 13", "nearest is features"],
    ),
    (
        "an unknown key of a loader",
        '"dataloader_batch_size": 2',
        '"dataloader_batch_siz": 2',
        ["nearest is dataloader_batch_size (int >= 1)"],
    ),
    (
        "a number of a loader below its limit",
        '"dataloader_batch_size": 2',
        '"dataloader_batch_size": 0',
        ["batch_size is 0", "line 10", "int >= 1"],
    ),
    (
        "a missing key of a part",
        '"dataroot_gt": "there",',
        "",
        ["datasets.train.dataroot_gt is missing", "line 6"],
    ),
    (
        "a missing key of the file",
        '"task": "trial",',
        "",
        ["task is missing", "trial.json"],
    ),
    (
        "an unknown part",
        '"net_type": "small"',
        '"net_type": "smal"',
        ["a registered network: small; the nearest is small"],
    ),
    (
        "an unknown section",
        # TEXT has "train" twice: for the data and for the training. Only the second "train" is
        # followed by "G_lossfn_type".
        '"train": {\n    "G_l',
        '"trian": {\n    "G_l',
        ["unknown option trian", "the nearest is train"],
    ),
    (
        "a nested key given twice",
        '"spike": { "h": 2 },',
        '"spike": { "h": 2 , "h": 3},',
        ["datasets.train.spike.h is given twice"],
    ),
    (
        "no JSON",
        '"checkpoint_print": 5',
        '"checkpoint_print": ,',
        ["no valid JSON", "line 18"],
    ),
    (
        "more brackets than Python's stack holds",
        '"checkpoint_print": 5',
        f'"fix_keys": {"[" * 3000}',
        ["no valid JSON", "fewer brackets"],
    ),
]


@pytest.mark.parametrize(
    ("before", "after", "texts"),
    [pytest.param(*case, id=name) for name, *case in WRONG_FILES],
)
def test_a_wrong_file_is_refused_with_place_key_and_nearest(option_file, before, after, texts):
    assert TEXT.count(before) == 1
    option_file.write_text(TEXT.replace(before, after))

    message = error_text(option_file)

    for text in [*texts, "trial.json"]:
        assert text in message


# A text that replaces the last "}" of TEXT. The text has a list of four writers. The keys "type"
# and "n" occur several times. This is allowed, because no object has the same key twice.
OBJECTS_IN_LISTS = """,
  "logging": { "writers": [
    { "type": "table", "columns": [{ "n": 1 }, { "n": 1 }] },
    { "type": "table", "columns": [[{ "n": 1 }], [{ "n": 1 }]] },
    { "type": "table", "more": { "n": 1 } },
    { "type": "table" }
  ] }
}
"""


def text_with(end: str) -> str:
    """Return TEXT with `end` in place of its last "}"."""
    return TEXT.rstrip().removesuffix("}").rstrip() + end


def test_objects_in_a_list_may_have_the_same_keys(option_file):
    option_file.write_text(text_with(OBJECTS_IN_LISTS))

    assert len(load(option_file).logging.writers) == 4


def test_a_key_given_twice_in_an_object_of_a_list_is_refused(option_file):
    twice = OBJECTS_IN_LISTS.replace('"more": { "n": 1 }', '"more": { "n": 1, "n": 2 }')
    option_file.write_text(text_with(twice))

    assert "logging.writers.2.more.n is given twice" in error_text(option_file)


@pytest.mark.parametrize("index", range(4))
def test_an_error_in_an_object_of_a_list_names_its_own_line(option_file, index):
    option_file.write_text(text_with(OBJECTS_IN_LISTS))
    key = f"logging.writers.{index}.type"
    # TEXT has 20 lines, each with a line break at its end. In line 20, "logging" replaces the last
    # "}". Writer 0 is in line 20 + 1, writer 1 in line 20 + 2, and so on.
    line = TEXT.count("\n") + 1 + index

    def check(opt: Options) -> None:
        raise OptionError("no such writer", key, "a writer", "do")

    with pytest.raises(OptionError, match=rf"line {line}\n"):
        load_options(option_file, [], PARTS, [check])


# A case: its name, the overrides, and words of the error.
WRONG_OVERRIDES = [
    (
        "an unknown key",
        ["train.G_optimiser_lr=1"],
        [
            "unknown option train.G_optimiser_lr",
            "command line (train.G_optimiser_lr=1)",
            "nearest is G_optimizer_lr (float > 0)",
        ],
    ),
    (
        "no equals sign",
        ["bla"],
        ["cannot read 'bla'", "section.key=value"],
    ),
    (
        "more brackets than Python's stack holds",
        [f"train.fix_keys={'[' * 3000}"],
        ["train.fix_keys is '[[[", "expected  list of str"],
    ),
    (
        "a section in place of a number",
        ["scale.x=1"],
        ["scale is {'x': 1}", "command line (scale.x=1)", "int >= 1"],
    ),
    (
        "two options of DDP that exclude each other",
        ["use_static_graph=true", "find_unused_parameters=true"],
        ["are both true"],
    ),
    (
        "a static graph with accumulated gradients",
        ["use_static_graph=true", "train.accumulation_steps=2"],
        ["accumulation_steps is 2 and use_static_graph"],
    ),
    (
        "another scale than the network has",
        ["scale=2"],
        ["netG.upscale is 1, scale is 2"],
    ),
    (
        "a schedule without its steps",
        ["train.G_scheduler_type=MultiStepLR"],
        ["G_scheduler_milestones is []"],
    ),
    (
        "a schedule whose steps fall",
        ["train.G_scheduler_type=MultiStepLR", "train.G_scheduler_milestones=[20,10]"],
        ["G_scheduler_milestones is [20, 10]", "rising steps"],
    ),
    (
        "an empty name of a folder",
        ["path.root="],
        ["path.root is ''", "str that is not empty"],
    ),
    (
        "two faults, of which the second is named too",
        ["train.total_iter=0", "val.saveimg=1"],
        ["unknown option val.saveimg", "then also: train.total_iter"],
    ),
]


@pytest.mark.parametrize(
    ("overrides", "texts"),
    [pytest.param(*case, id=name) for name, *case in WRONG_OVERRIDES],
)
def test_a_wrong_override_is_refused(option_file, overrides, texts):
    message = error_text(option_file, *overrides)

    for text in texts:
        assert text in message


def test_an_error_of_a_check_of_the_caller_gets_the_line_of_its_key(option_file):
    def check(opt: Options) -> None:
        raise OptionError("too wide", "netG.width", "4", "do")

    # The file does not give the key `width`, so this key has its default. The error names the line
    # of its section netG, line 13.
    with pytest.raises(OptionError, match=r"trial\.json, line 13 \(netG\.width\)"):
        load_options(option_file, [], PARTS, [check])


@pytest.mark.parametrize("character", ["\0", "\\u0000"], ids=["itself", "escaped"])
def test_a_file_with_the_character_nul_is_refused(option_file, character):
    option_file.write_text(TEXT.replace('"trial"', f'"tri{character}al"'))

    assert "holds the character NUL" in error_text(option_file)


@pytest.mark.parametrize("content", ["[1]", "3", "null"])
def test_a_file_that_holds_no_object_is_refused(option_file, content):
    option_file.write_text(content)

    assert "the option file holds no object" in error_text(option_file)


# A program whose argument is an option file. It prints the error with which the file is refused.
PRINT_REFUSAL = """
import sys
from tests.parts.utils.test_option import error_text
print(ascii(error_text(sys.argv[1])))
"""


def test_a_task_that_the_locale_cannot_write_is_refused(option_file):
    # The task becomes the name of a folder, so the locale must have its characters. Here the task
    # is "défi", and ASCII has no é.
    option_file.write_text(TEXT.replace('"trial"', '"d\u00e9fi"'), encoding="utf-8")
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    ended = run_command([sys.executable, "-c", PRINT_REFUSAL, option_file], env=ascii_only)

    # `run_command` returns a list of exit codes, as for several ranks. Here it has one item.
    assert ended.exit_codes == [0], ended.text
    assert "in the locale's encoding, ascii" in ended.text


def test_a_task_that_the_locale_can_write_is_taken(option_file):
    option_file.write_text(TEXT.replace('"trial"', '"d\u00e9fi"'), encoding="utf-8")

    assert load(option_file).task == "d\u00e9fi"


# ---- A file that is based on another ----


def test_keys_that_a_file_lacks_are_taken_from_its_base(option_file, tmp_path):
    child = tmp_path / "child.json"
    child.write_text(
        '{"base": "trial.json", "task": "child", '
        '"netG": {"fusion": "none"}, "train": {"total_iter": 7}}'
    )

    opt = load(child)

    # These values are in child.json. `plain` returns a section as JSON. A part that is given by its
    # name becomes an object with its type.
    assert opt.task == "child"
    assert opt.train.total_iter == 7
    assert opt.netG.plain()["fusion"] == {"type": "none"}
    # This value is in the base, TEXT.
    assert opt.train.checkpoint_print == 5


@pytest.mark.usefixtures("option_file")
def test_a_base_that_has_a_base_is_refused(tmp_path):
    (tmp_path / "child.json").write_text('{"base": "trial.json", "task": "child"}')
    grandchild = tmp_path / "grandchild.json"
    grandchild.write_text('{"base": "child.json", "task": "x"}')

    assert "a base has a base" in error_text(grandchild)


def test_a_missing_base_is_refused_with_the_nearest_file(option_file, tmp_path):
    child = tmp_path / "child.json"
    # "trail" is "trial" with a typing error.
    child.write_text('{"base": "trail.json", "task": "x"}')

    assert f"the nearest is {option_file}" in error_text(child)


def test_a_missing_option_file_is_refused_with_the_nearest_file(option_file, tmp_path):
    # `option_file` is trial.json. "trail" is a typing error.
    assert str(option_file) in error_text(tmp_path / "trail.json")


# ---- Secrets ----


def test_the_program_itself_gets_a_secret(option_file):
    opt = load(option_file, "logging.wandb_api_key=canary0123")

    assert opt.logging.wandb_api_key == "canary0123"


def test_saved_options_hold_no_secret(option_file, tmp_path):
    opt = load(option_file, "logging.wandb_api_key=canary0123")

    saved = opt.save(tmp_path / "options")

    assert "canary" not in saved.read_text()


def test_a_secret_is_found_in_a_nested_list():
    assert redact({"a": [{"WANDB_API_KEY": "x"}]}) == {"a": [{"WANDB_API_KEY": None}]}


@pytest.mark.parametrize(
    "override",
    [
        pytest.param("logging.wandb_api_key=123456", id="a number in place of a text"),
        pytest.param("logging.wandb_api_kye=123456", id="a key with a typing error"),
        pytest.param('logging={"wandb_tokne": "123456"}', id="a key within JSON"),
    ],
)
def test_a_message_hides_a_secret_but_names_its_key(option_file, override):
    # The second override is correct. The message lists all overrides, so it must hide the secret in
    # this list, too.
    message = error_text(option_file, override, "train.total_iter=1")

    assert "123456" not in message
    assert "***" in message
    assert "wandb_" in message


# Names of options or flags whose values are secrets.
KEYS_OF_SECRETS = [
    "private_key",
    "ssh_key",
    "auth",
    "authorization",
    "bearer",
    "pwd",
    "db_passwd",
    "passphrase",
    "credentials",
    "slack_webhook",
    "webhook_url",
    "sentry_dsn",
    "cookie",
    "session_id",
    "pat",
    "github_pat",
    "jwt",
    "hf_token",
    "hfToken",
    "hf2token",
    "refresh_token",
    "connection_string",
    "sas",
    "API-KEY",
    "aws_secret_access_key",
]


@pytest.mark.parametrize("key", KEYS_OF_SECRETS)
def test_the_value_of_a_key_that_says_secret_is_hidden(key):
    assert redact({"writer": {key: "canary"}}) == {"writer": {key: None}}
    assert redact({key: 12345678}) == {key: None}


@pytest.mark.parametrize("key", KEYS_OF_SECRETS)
def test_the_value_of_a_flag_that_says_secret_is_hidden(key):
    assert "canary" not in redact(f"--{key} canary", replacement="***")


@pytest.mark.parametrize("key", KEYS_OF_SECRETS)
def test_the_value_of_a_key_in_the_middle_of_a_message_is_hidden(key):
    assert "canary" not in redact(f"cannot read {{{key}: canary}}", replacement="***")


@pytest.mark.parametrize("key", KEYS_OF_SECRETS)
def test_the_value_behind_a_name_within_a_text_is_not_saved(key):
    saved = redact({"path": f"/data/{key}: canary", "note": [f"x --{key} canary y"]})

    assert saved == {"path": f"/data/{key}: ***", "note": [f"x --{key} *** y"]}
    # A resumed run reads saved options, in which the secrets are already hidden, and saves them
    # again. So hiding secrets a second time must change nothing.
    assert redact(saved) == saved


# Text of a message -> the text that a user sees, in which secrets are hidden.
SEEN_TEXTS = {
    "tokens: 4096, num_tokens=400000": "tokens: 4096, num_tokens=400000",  # counts
    "use_auth: false": "use_auth: false",
    "(token=canary, 3)": "(token=***, 3)",
    # Here the secret is already hidden. The signs after it must stay.
    "the command line (a.token=***)": "the command line (a.token=***)",
    "cannot read 'a.token=***'": "cannot read 'a.token=***'",
    "Authorization: Bearer canary x": "Authorization: *** x",
    "otp: 123456": "otp: ***",
    # The beginning of the next line is no value.
    "unknown token:\n  in        a.json": "unknown token:\n  in        a.json",
}


@pytest.mark.parametrize("text", SEEN_TEXTS)
def test_people_see_a_text_without_secrets(text):
    assert without_secrets(text) == SEEN_TEXTS[text]
    assert str(OptionError(text)) == f"OptionError: {SEEN_TEXTS[text]}"


def test_shipped_option_files_have_no_secret():
    files = sorted(Path("options").rglob("*.json"))

    # If the pattern found no files, the loop would check nothing.
    assert len(files) > 5
    for path in files:
        text = path.read_text(encoding="utf-8")
        # The schema is left out: it describes all options, so it has the name wandb_api_key.
        assert path.name == "schema.json" or redact({"text": text}) == {"text": text}, path


# These secrets are made up. They have the forms of real secrets, and must be recognised by these
# forms.
TEXTS_WITH_SECRETS = [
    pytest.param("https://bob:canary123@host/x", id="password in a URL"),
    pytest.param("s3://AK:canary123@bucket", id="password of a bucket"),
    pytest.param("Authorization: Bearer canary123canary123", id="header of HTTP"),
    pytest.param("ghp_canary123canary123canary123", id="token of GitHub"),
    pytest.param("https://h/x?sig=canary123&a=1", id="signature in a URL"),
    pytest.param("hf_canary123canary123canary123", id="token of Hugging Face"),
    pytest.param(
        "-----BEGIN RSA PRIVATE KEY-----\ncanary123\n-----END RSA PRIVATE KEY-----",
        id="private key",
    ),
    pytest.param("eyJhbGciOiJIUzI1.eyJjYW5hcnkxMjMi.canary123", id="JSON web token"),
    pytest.param("sk-canary123canary123canary", id="key of an API"),
]


@pytest.mark.parametrize("text", TEXTS_WITH_SECRETS)
def test_a_secret_is_known_by_its_form_under_any_key(text):
    found = redact({"note": [text]})["note"][0]

    assert "canary" not in found.lower()
    assert "***" in found


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("git@host:a/b.git", id="address of a repository"),
        pytest.param("https://host:8080/a@b", id="URL with a port"),
        pytest.param("tokens are 3", id="sentence"),
        pytest.param("/data/auth/x", id="path"),
        pytest.param("a:b", id="colon"),
    ],
)
def test_other_texts_stay_as_they_are(text):
    assert redact({"note": text}) == {"note": text}


def test_counts_of_tokens_are_no_secrets():
    values = {"num_tokens": 400_000, "token": 7, "pass": 3, "path": "p"}

    assert redact(values) == values


def test_of_all_documented_options_only_one_is_a_secret():
    page = Path("docs/options.md").read_text(encoding="utf-8")
    # A key stands between backquotes, e.g. `train.amp.enable`.
    keys = re.findall(r"`((?:\w+\.)*\w+)`", page)

    secrets = {key for key in keys if KEY.search(key)}

    # If there were fewer keys, the pattern above would no longer fit the page.
    assert len(keys) > 100
    assert secrets == {"wandb_api_key"}


# If the search took quadratic time, this test would run for hours. Its time limit would end it.
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a_" * 100_000, id="parts of a key"),
        pytest.param("--" + "a-" * 100_000 + "token x", id="a long flag"),
        pytest.param("https://" * 30_000, id="beginnings of URLs"),
        pytest.param("token " * 40_000, id="keys without a value"),
    ],
)
def test_long_texts_are_searched_in_proportion_to_their_length(text):
    redact({text: text, "b": text}, replacement="***")


SENDERS = Registry("sender")


@SENDERS.register("mailer")
class Mailer:
    """A part with a secret. The annotation SecretStr marks the secret."""

    def __init__(self, mailbox: SecretStr, subject: str = "done"):
        self.mailbox = mailbox
        self.subject = subject


def test_a_part_gets_the_secret_that_its_class_marks():
    section = SENDERS.resolve({"type": "mailer", "mailbox": "canary"}, "logging.mail")

    mailer = SENDERS.build(section, "logging.mail")

    assert mailer.mailbox.get_secret_value() == "canary"


def test_a_secret_that_a_class_marks_is_not_shown():
    section = SENDERS.resolve({"type": "mailer", "mailbox": "canary"}, "logging.mail")

    assert redact(section.plain())["mailbox"] is None
    assert "canary" not in repr(section)


def test_a_wrong_value_of_a_marked_secret_is_refused_without_the_value():
    with pytest.raises(OptionError) as error:
        SENDERS.resolve({"type": "mailer", "mailbox": ["canary"]}, "logging.mail")

    assert "canary" not in str(error.value)


# ---- Saved options ----


def test_saved_options_can_be_run_again(option_file, tmp_path):
    opt = load(option_file)

    again = load(opt.save(tmp_path / "options"))

    assert again.plain() == opt.plain()


def test_saved_options_with_global_batch_size_can_be_run_on_another_number_of_ranks(
    option_file, tmp_path
):
    opt = load(option_file, "train.global_batch_size=8").for_ranks(1)

    again = load(opt.save(tmp_path / "options"))

    # The batches of the file have 2 samples.
    # One rank:   8 samples = 1 rank x 2 samples x 4 batches.
    # Four ranks: 8 samples = 4 ranks x 2 samples x 1 batch.
    assert opt.train.accumulation_steps == 4
    assert again.for_ranks(4).train.accumulation_steps == 1


def test_plain_options_can_be_written_as_json(option_file):
    assert json.dumps(load(option_file).plain())


def test_a_secret_does_not_change_the_digest_of_options(option_file):
    assert load(option_file).digest() == load(option_file, "logging.wandb_api_key=k").digest()


def test_another_value_changes_the_digest_of_options(option_file):
    assert load(option_file).digest() != load(option_file, "train.total_iter=3").digest()


# ---- The samples of a step on any number of ranks ----


# A step takes ranks x batch x accumulation_steps samples. `wanted` is global_batch_size, the number
# of samples that the user wants. E.g. the user wants 8 samples: 3 ranks x 1 sample x 3 batches = 9
# samples are nearer than 3 x 1 x 2 = 6.
@pytest.mark.parametrize(
    ("ranks", "batch", "wanted", "accumulation_steps"),
    [
        pytest.param(1, 1, 8, 8, id="one rank"),
        pytest.param(4, 2, 8, 1, id="the ranks take all samples at once"),
        pytest.param(3, 1, 8, 3, id="9 samples are nearer than 6"),
        pytest.param(6, 1, 8, 1, id="6 samples are nearer than 12"),
        pytest.param(8, 1, 20, 2, id="16 samples, as near as 24"),
        pytest.param(64, 1, 8, 1, id="more ranks than samples"),
    ],
)
def test_global_batch_size_chooses_the_nearest_number_of_batches(
    option_file, ranks, batch, wanted, accumulation_steps
):
    opt = load(
        option_file,
        f"train.global_batch_size={wanted}",
        f"datasets.train.dataloader_batch_size={batch}",
    )

    assert opt.for_ranks(ranks).train.accumulation_steps == accumulation_steps


def test_without_global_batch_size_the_options_are_the_same_on_any_number_of_ranks(option_file):
    opt = load(option_file, "train.accumulation_steps=3")

    assert opt.for_ranks(4) == opt


def test_a_written_accumulation_that_fits_global_batch_size_is_accepted(option_file):
    opt = load(option_file, "train.global_batch_size=8", "train.accumulation_steps=2")

    # The batches of the file have 2 samples: 2 ranks x 2 samples x 2 batches = 8.
    assert opt.for_ranks(2).train.accumulation_steps == 2


def test_a_written_accumulation_that_contradicts_global_batch_size_is_refused(option_file):
    opt = load(option_file, "train.global_batch_size=8", "train.accumulation_steps=1")

    # 2 ranks x 2 samples x 1 batch are only 4 samples.
    with pytest.raises(OptionError, match=r"accumulation_steps is 1, but .* 8 needs 2") as error:
        opt.for_ranks(2)
    assert "train.global_batch_size=null" in error.value.do


def test_global_batch_size_may_not_accumulate_with_a_static_graph(option_file):
    opt = load(option_file, "train.global_batch_size=8", "use_static_graph=true")

    # 4 ranks x 2 samples x 1 batch = 8 samples. Two ranks would need two batches per step. A static
    # graph forbids this.
    assert opt.for_ranks(4).train.accumulation_steps == 1
    # The user has not written accumulation_steps, so the message says where the 2 comes from.
    origin = r"\(because of train.global_batch_size 8\)"
    with pytest.raises(OptionError, match=f"accumulation_steps is 2 {origin} and use_static_graph"):
        opt.for_ranks(2)


# ---- The command line ----


def test_the_command_line_has_short_flags_for_the_commonest_options():
    flags = ["--use_amp", "--batch_size", "4", "--learning_rate=1e-3", "--epochs", "2"]
    more_flags = ["--num_workers", "0", "--resume", "none"]

    path, overrides = parse_command_line(["--opt", "f.json", "a.b=1", *flags, "c=2", *more_flags])

    assert path == "f.json"
    assert overrides == [
        # The given overrides come first.
        "a.b=1",
        "c=2",
        # The overrides of the flags follow.
        "train.amp.enable=true",
        "datasets.train.dataloader_batch_size=4",
        "train.G_optimizer_lr=1e-3",
        "train.epochs=2",
        "datasets.train.dataloader_num_workers=0",
        "path.resume=null",
        # --epochs sets the length of the run, so a number of steps in the file no longer counts.
        "train.total_iter=null",
    ]


def test_a_number_of_steps_beside_a_number_of_epochs_is_kept():
    _, overrides = parse_command_line(["--opt", "f.json", "--epochs", "2", "train.total_iter=9"])

    assert overrides == ["train.total_iter=9", "train.epochs=2"]


def test_an_unknown_flag_is_refused():
    with pytest.raises(OptionError, match="--optt"):
        parse_command_line(["--opt", "f", "--optt", "3"])


def test_a_command_line_without_an_option_file_is_refused():
    with pytest.raises(OptionError, match="required"):
        parse_command_line([])


# ---- Registered parts ----

BOXES = Registry("part", "kind")


@BOXES.register("box", given=("channels",))
class Box:
    """A part whose argument `channels` is given by code, not by an option file."""

    # A key of a former version -> its only allowed value. With this value, an option file may still
    # have the key.
    GONE: ClassVar[dict[str, Any]] = {"lid": "shut"}

    def __init__(
        self,
        width: int,
        fusion: Annotated[dict[str, Any] | str, FUSIONS] = "gated",
        channels: int = 1,
    ):
        self.width = width
        self.fusion = fusion
        self.channels = channels


def test_a_part_within_a_part_has_its_defaults():
    resolved = BOXES.resolve({"kind": "box", "width": 2}, "x")

    assert resolved.plain() == {
        "kind": "box",
        "width": 2,
        "fusion": {"type": "gated", "features": 8},
    }


def test_the_error_of_a_misplaced_key_of_a_part_names_the_right_place():
    with pytest.raises(OptionError) as caught:
        BOXES.resolve({"kind": "box", "width": 2, "features": 4}, "x")

    assert caught.value.what == "unknown option x.features"
    assert caught.value.do == "move it into the object x.fusion, as x.fusion.features"


def test_the_error_of_a_misplaced_key_type_names_no_place_because_each_part_has_it():
    with pytest.raises(OptionError) as caught:
        BOXES.resolve({"kind": "box", "width": 2, "type": "box"}, "x")

    assert "x.fusion" not in caught.value.do


def test_the_right_place_of_a_key_may_be_two_sections_deeper(option_file):
    message = error_text(option_file, "features=4")

    assert "move it into the object netG.fusion, as netG.fusion.features" in message


def test_arguments_that_code_gives_are_no_keys_of_a_part():
    assert BOXES.keys("box") == ["width", "fusion"]


def test_a_part_is_built_with_its_options():
    box = BOXES.build({"kind": "box", "width": 2}, "x")

    assert box.width == 2
    assert box.fusion.features == 8


def test_a_part_gets_only_the_values_of_the_code_that_it_takes():
    # A Box has no argument `other`.
    box = BOXES.build({"kind": "box", "width": 2}, "x", channels=5, other=7)

    assert box.channels == 5


def test_an_argument_that_code_gives_is_refused_in_an_option_file():
    with pytest.raises(OptionError, match=r"unknown option x\.channels"):
        BOXES.resolve({"kind": "box", "width": 1, "channels": 2}, "x")


def test_a_key_of_a_former_version_is_taken_with_the_value_that_has_no_effect():
    assert "lid" not in BOXES.resolve({"kind": "box", "width": 1, "lid": "shut"}, "x").plain()


def test_a_key_of_a_former_version_is_refused_with_another_value():
    with pytest.raises(OptionError, match=r"unknown option x\.lid"):
        BOXES.resolve({"kind": "box", "width": 1, "lid": "open"}, "x")


def test_the_name_of_a_part_must_be_a_text():
    with pytest.raises(OptionError, match=r"x\.kind is \['box'\]"):
        BOXES.resolve({"kind": ["box"], "width": 1}, "x")


@BOXES.register("pair")
class Pair:
    """A part whose parameters are tuples."""

    def __init__(
        self,
        window: tuple[int, int] = (2, 2),
        steps: list[tuple[int, float]] | None = None,
        sides: tuple[int, ...] = (),
    ):
        self.window = window
        self.steps = steps
        self.sides = sides


def test_a_list_of_a_file_is_the_tuple_that_a_part_takes():
    values = {"kind": "pair", "window": [3, 4], "steps": [[1, 0.5]], "sides": [1, 2, 3]}

    pair = BOXES.build(values, "x")

    assert pair.window == (3, 4)
    assert pair.steps == [(1, 0.5)]
    assert pair.sides == (1, 2, 3)
    assert BOXES.resolve(values, "x").plain() == values


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param([3], "list of 2 int", id="too few"),
        pytest.param([3, "4"], "list of 2 int", id="a text"),
        pytest.param(3, "list of 2 int", id="no list"),
    ],
)
def test_a_list_that_is_not_the_tuple_of_a_part_is_refused(value, expected):
    with pytest.raises(OptionError) as error:
        BOXES.resolve({"kind": "pair", "window": value}, "x")

    assert error.value.expected == expected


@pytest.mark.parametrize("name", ["plain", "constructor", "model_fields", "_width"])
def test_a_parameter_that_cannot_be_an_option_is_refused_in_words(name):
    # `exec` defines a function whose parameter has this name, because the name comes from the case.
    namespace: dict[str, Any] = {}
    exec(f"def part({name}: int = 1): ...", namespace)
    boxes = Registry("part", "kind")
    boxes.register("odd")(namespace["part"])

    with pytest.raises(OptionError, match=f'the part "odd" has a parameter {name}'):
        boxes.resolve("odd", "x")


def test_a_name_can_be_registered_only_once():
    with pytest.raises(ValueError, match="twice"):
        BOXES.register("box")(Box)
