"""Reading, checking and keeping options."""

import json
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import SecretStr

from tests.dist.launching import run_command
from tests.helpers.checked import of_part
from utils.errors import OptionError
from utils.options.load import load_options, parse_command_line
from utils.options.models import LoaderOptions, Options, TrainOptions
from utils.options.secrets import KEY, redact
from utils.options.section import Registry

NETWORKS, FUSIONS = Registry("network", "net_type"), Registry("fusion operator")
DATASETS = Registry("dataset", "dataset_type", base=LoaderOptions)
LOSSES = Registry("loss", "G_lossfn_type", base=TrainOptions)
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
def file(tmp_path: Path) -> Path:
    path = tmp_path / "trial.json"
    path.write_text(TEXT)
    return path


def load(path: Path, *overrides: str) -> Options:
    return load_options(path, overrides, PARTS)


def refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(OptionError) as error:
        load(path, *overrides)
    return str(error.value)


def test_comments_go_urls_stay_and_defaults_are_filled_in(file):
    opt = load(file)
    assert opt.path.root == "http://host//runs"
    assert opt.path.resume == "auto"
    data, train = of_part(opt.datasets.train), of_part(opt.train)
    assert data.gt_size == 16
    assert data.dataloader_persistent_workers is False
    assert opt.netG.plain() == {
        "net_type": "small", "width": 4, "upscale": 1, "fusion": {"type": "gated", "features": 16},
    }  # fmt: skip
    assert (train.G_charbonnier_eps, train.G_optimizer_betas) == (1e-6, [0.9, 0.99])
    assert opt.folder == Path("http://host//runs") / "trial"
    assert opt.opt_path == str(file)


def test_overrides_are_json_or_text_and_may_name_a_part(file):
    opt = load(
        file,
        "netG.fusion=none",
        "train.G_optimizer_betas=[0.5, 0.6]",
        "path.root=x",
        "train.amp.enable=true",
    )
    assert opt.netG.plain()["fusion"] == {"type": "none"}
    assert opt.path.root == "x"
    assert opt.train.G_optimizer_betas == [0.5, 0.6] and opt.train.amp.plain() == {
        "enable": True,
        "dtype": "auto",
    }
    net = load(file, "netG.fusion=gated", "netG.fusion.features=3").netG
    assert net.plain()["fusion"]["features"] == 3
    assert load(file, "netG.fusion.type=none").netG.plain()["fusion"] == {"type": "none"}


def test_choosing_another_part_drops_the_keys_it_does_not_have(file):
    assert not hasattr(load(file, "train.G_lossfn_type=l1").train, "G_charbonnier_eps")
    train = of_part(load(file, "datasets.train.dataset_type=rgb").datasets.train)
    assert not hasattr(train, "spike")
    assert (train.dataroot_gt, train.dataloader_batch_size) == ("there", 2)
    # What is said of the new part itself is not dropped in silence.
    assert "datasets.train.spike" in refusal(
        file, "datasets.train.dataset_type=rgb", "datasets.train.spike={}"
    )


@pytest.mark.parametrize(("before", "after", "texts"), [
    ('"checkpoint_print": 5', '"checkpoint_prnt": 5',
     ["unknown option train.checkpoint_prnt", "line 18",
      "the nearest is checkpoint_print (int >= 1)"]),
    ('"checkpoint_print": 5', '"checkpoint_print": "5"',
     ["train.checkpoint_print is '5'", "line 18", "expected  int >= 1"]),
    ('"checkpoint_print": 5', '"checkpoint_print": 0',
     ["train.checkpoint_print is 0", "expected  int >= 1"]),
    ('"checkpoint_print": 5', '"amp": { "enabled": true }',
     ["unknown option train.amp.enabled", "line 18"]),
    ('"checkpoint_print": 5', '"amp": true', ["train.amp is True", "expected  an object"]),
    ('"checkpoint_print": 5', '"G_optimizer_lr": 1',
     ["G_optimizer_lr is given twice", "line 18", "line 17"]),
    ('"checkpoint_print": 5', '"G_optimizer_type": "sgd"', ['expected  "adam" | "adamw"']),
    ('"features": 16', '"feature": 16',
     ["unknown option netG.fusion.feature", "line 13", "nearest is features"]),
    ('"dataloader_batch_size": 2', '"dataloader_batch_siz": 2',
     ["nearest is dataloader_batch_size (int >= 1)"]),
    ('"dataloader_batch_size": 2', '"dataloader_batch_size": 0',
     ["batch_size is 0", "line 10", "int >= 1"]),
    ('"dataroot_gt": "there",', "", ["datasets.train.dataroot_gt is missing", "line 6"]),
    ('"task": "trial",', "", ["task is missing", "trial.json"]),
    ('"net_type": "small"', '"net_type": "smal"',
     ["a registered network: small; the nearest is small"]),
    ('"train": {\n    "G_l', '"trian": {\n    "G_l',
     ["unknown option trian", "the nearest is train"]),
    ('"spike": { "h": 2 },', '"spike": { "h": 2 , "h": 3},',
     ["datasets.train.spike.h is given twice"]),
    ('"checkpoint_print": 5', '"checkpoint_print": ,', ["no valid JSON", "line 18"]),
    ('"checkpoint_print": 5', f'"fix_keys": {"[" * 3000}', ["no valid JSON", "fewer brackets"]),
])  # fmt: skip
def test_a_wrong_file_is_refused_with_place_key_and_nearest(file, before, after, texts):
    assert TEXT.count(before) == 1
    file.write_text(TEXT.replace(before, after))
    message = refusal(file)
    for text in [*texts, "trial.json"]:
        assert text in message


@pytest.mark.parametrize(("overrides", "texts"), [
    (["train.G_optimiser_lr=1"],
     ["unknown option train.G_optimiser_lr", "command line (train.G_optimiser_lr=1)",
      "nearest is G_optimizer_lr (float > 0)"]),
    (["bla"], ["cannot read 'bla'", "section.key=value"]),
    ([f"train.fix_keys={'[' * 3000}"], ["train.fix_keys is '[[[", "expected  list of str"]),
    (["scale.x=1"], ["scale is {'x': 1}", "command line (scale.x=1)", "int >= 1"]),
    (["use_static_graph=true", "find_unused_parameters=true"], ["are both true"]),
    (["use_static_graph=true", "train.accumulation_steps=2"],
     ["accumulation_steps is 2 and use_static_graph"]),
    (["scale=2"], ["netG.upscale is 1, scale is 2"]),
    (["train.G_scheduler_type=MultiStepLR"], ["G_scheduler_milestones is []"]),
    (["train.G_scheduler_type=MultiStepLR", "train.G_scheduler_milestones=[20,10]"],
     ["G_scheduler_milestones is [20, 10]", "rising steps"]),
    (["train.total_iter=0", "val.saveimg=1"],
     ["unknown option val.saveimg", "then also: train.total_iter"]),
])  # fmt: skip
def test_a_wrong_override_is_refused(file, overrides, texts):
    message = refusal(file, *overrides)
    for text in texts:
        assert text in message


def test_a_base_gives_what_the_file_does_not(file, tmp_path):
    child = tmp_path / "child.json"
    child.write_text(
        '{"base": "trial.json", "task": "child", '
        '"netG": {"fusion": "none"}, "train": {"total_iter": 7}}'
    )
    opt = load(child)
    assert (opt.task, opt.train.total_iter, opt.train.checkpoint_print) == ("child", 7, 5)
    assert opt.netG.plain()["fusion"] == {"type": "none"}

    grandchild = tmp_path / "grandchild.json"
    grandchild.write_text('{"base": "child.json", "task": "x"}')
    assert "a base has a base" in refusal(grandchild)
    grandchild.write_text('{"base": "trail.json", "task": "x"}')
    assert "the nearest is " + str(file) in refusal(grandchild)
    assert str(file) in refusal(tmp_path / "trail.json")


def test_checks_of_the_caller_get_the_place_added(file):
    def check(opt: Options) -> None:
        raise OptionError("too wide", "netG.width", "4", "do")

    with pytest.raises(OptionError, match=r"trial\.json, line 13 \(netG\.width\)"):
        load_options(file, [], PARTS, [check])


def test_secrets_reach_neither_the_saved_options_nor_a_message(file, tmp_path):
    opt = load(file, "logging.wandb_api_key=canary0123")
    assert opt.logging.wandb_api_key == "canary0123"
    saved = opt.save(tmp_path / "options")
    assert "canary" not in saved.read_text()
    assert redact({"a": [{"WANDB_API_KEY": "x"}]}) == {"a": [{"WANDB_API_KEY": None}]}
    for override in (
        "logging.wandb_api_key=123456", "logging.wandb_api_kye=123456",
        'logging={"wandb_tokne": "123456"}',
    ):  # fmt: skip
        message = refusal(file, override, "train.total_iter=1")
        assert "123456" not in message and "***" in message and "wandb_" in message


KEYS_OF_SECRETS = (
    "private_key", "ssh_key", "auth", "authorization", "bearer", "pwd", "db_passwd", "passphrase",
    "credentials", "slack_webhook", "webhook_url", "sentry_dsn", "cookie", "session_id", "pat",
    "github_pat", "jwt", "hf_token", "hfToken", "refresh_token", "connection_string", "sas",
    "API-KEY", "aws_secret_access_key",
)  # fmt: skip
# Made up for this test, in the forms that such services use.
TEXTS = (
    "https://bob:canary123@host/x", "s3://AK:canary123@bucket",
    "Authorization: Bearer canary123canary123", "ghp_canary123canary123canary123",
    "https://h/x?sig=canary123&a=1", "hf_canary123canary123canary123",
    "-----BEGIN RSA PRIVATE KEY-----\ncanary123\n-----END RSA PRIVATE KEY-----",
    "eyJhbGciOiJIUzI1.eyJjYW5hcnkxMjMi.canary123", "sk-canary123canary123canary",
)  # fmt: skip


@pytest.mark.parametrize("key", KEYS_OF_SECRETS)
def test_a_key_that_says_secret_keeps_its_value_to_itself(key):
    assert redact({"writer": {key: "canary"}}) == {"writer": {key: None}}
    assert redact({key: 12345678}) == {key: None}
    assert "canary" not in redact(f"--{key} canary", shown="***")


@pytest.mark.parametrize("text", TEXTS)
def test_a_secret_is_known_by_its_form_under_any_key(text):
    found = redact({"note": [text]})["note"][0]
    assert "canary" not in found.lower() and "***" in found


@pytest.mark.parametrize(
    "text", ["git@host:a/b.git", "https://host:8080/a@b", "tokens are 3", "/data/auth/x", "a:b"]
)
def test_other_texts_stay_as_they_are(text):
    assert redact({"note": text}) == {"note": text}


def test_counts_of_tokens_are_no_secrets_nor_is_any_option_of_ours(file):
    assert redact({"num_tokens": 400_000, "token": 7, "pass": 3, "path": "p"}) == {
        "num_tokens": 400_000, "token": 7, "pass": 3, "path": "p"
    }  # fmt: skip
    options = Path("docs/options.md").read_text(encoding="utf-8")
    keys = re.findall(r"`((?:\w+\.)*\w+)`", options)
    assert len(keys) > 100
    assert {key for key in keys if KEY.search(key)} == {"wandb_api_key"}


def test_long_texts_are_searched_in_proportion_to_their_length():
    for text in (
        "a_" * 100_000,
        "--" + "a-" * 100_000 + "token x",
        "https://" * 30_000,
        "token " * 40_000,
    ):
        redact({text: text, "b": text}, shown="***")


def test_saved_options_can_be_run_again_and_have_the_same_digest(file, tmp_path):
    opt = load(file)
    again = load(opt.save(tmp_path / "options"))
    assert again.plain() == opt.plain()
    assert json.dumps(opt.plain())  # plain types only
    assert opt.digest() == load(file, "logging.wandb_api_key=k").digest()
    assert opt.digest() != load(file, "train.total_iter=3").digest()


def test_a_task_that_the_locale_cannot_write_is_refused(file):
    file.write_text(TEXT.replace('"trial"', '"d\u00e9fi"'), encoding="utf-8")
    program = "import sys; from tests.parts.utils.test_option import refusal; "
    program += "print(ascii(refusal(sys.argv[1])))"
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    said = run_command([sys.executable, "-c", program, file], env=ascii_only)

    assert said.exit_codes == [0] and "in the locale's encoding, ascii" in said.text, said.text
    assert load(file).task == "d\u00e9fi"


def test_the_command_line_has_short_flags_for_the_commonest_options():
    path, overrides = parse_command_line(
        ["--opt", "f.json", "a.b=1", "--use_amp", "--batch_size", "4", "--learning_rate=1e-3",
         "--epochs", "2", "c=2", "--num_workers", "0", "--resume", "none"]
    )  # fmt: skip
    assert path == "f.json" and overrides == [
        "a.b=1", "c=2", "train.amp.enable=true", "datasets.train.dataloader_batch_size=4",
        "train.G_optimizer_lr=1e-3", "train.epochs=2", "datasets.train.dataloader_num_workers=0",
        "path.resume=null", "train.total_iter=null",
    ]  # fmt: skip
    both = parse_command_line(["--opt", "f.json", "--epochs", "2", "train.total_iter=9"])
    assert both[1] == ["train.total_iter=9", "train.epochs=2"]
    with pytest.raises(OptionError, match="--optt"):
        parse_command_line(["--opt", "f", "--optt", "3"])
    with pytest.raises(OptionError, match="required"):
        parse_command_line([])


PARTS_OF_CODE = Registry("part", "kind")


@PARTS_OF_CODE.register("box", given=("channels",))
class Box:
    def __init__(
        self,
        width: int,
        fusion: Annotated[dict[str, Any] | str, FUSIONS] = "gated",
        channels: int = 1,
    ):
        self.width, self.fusion, self.channels = width, fusion, channels


def test_a_part_is_built_with_its_options_and_what_code_supplies():
    resolved = PARTS_OF_CODE.resolve({"kind": "box", "width": 2}, "x")
    assert resolved.plain() == {
        "kind": "box",
        "width": 2,
        "fusion": {"type": "gated", "features": 8},
    }
    assert PARTS_OF_CODE.keys("box") == ["width", "fusion"]
    box = PARTS_OF_CODE.build({"kind": "box", "width": 2}, "x", channels=5, other=7)
    assert (box.width, box.fusion.features, box.channels) == (2, 8, 5)
    with pytest.raises(OptionError, match=r"unknown option x\.channels"):  # of the code alone
        PARTS_OF_CODE.resolve({"kind": "box", "width": 1, "channels": 2}, "x")
    with pytest.raises(OptionError, match=r"x\.kind is \['box'\]"):
        PARTS_OF_CODE.resolve({"kind": ["box"], "width": 1}, "x")
    with pytest.raises(ValueError, match="twice"):
        PARTS_OF_CODE.register("box")(Box)


SENDERS = Registry("sender")


@SENDERS.register("mailer")
class Mailer:
    def __init__(self, mailbox: SecretStr, subject: str = "done"):
        self.mailbox, self.subject = mailbox, subject


def test_a_key_that_its_class_marks_as_a_secret_is_shown_and_saved_nowhere():
    section = SENDERS.resolve({"type": "mailer", "mailbox": "canary"}, "logging.mail")
    assert SENDERS.build(section, "logging.mail").mailbox.get_secret_value() == "canary"
    assert redact(section.plain())["mailbox"] is None and "canary" not in repr(section)
    with pytest.raises(OptionError) as error:
        SENDERS.resolve({"type": "mailer", "mailbox": ["canary"]}, "logging.mail")
    assert "canary" not in str(error.value)


@pytest.mark.parametrize("character", ["\0", "\\u0000"], ids=["itself", "escaped"])
def test_a_file_with_the_character_nul_is_refused(file, character):
    file.write_text(TEXT.replace('"trial"', f'"tri{character}al"'))

    assert "holds the character NUL" in refusal(file)


@pytest.mark.parametrize("content", ["[1]", "3", "null"])
def test_a_file_that_holds_no_object_is_refused(file, content):
    file.write_text(content)

    assert "the option file holds no object" in refusal(file)
