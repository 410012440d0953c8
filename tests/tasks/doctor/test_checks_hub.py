"""The way to weights: reachable or not, offline, gated, cached, and a token that is never shown."""

from pathlib import Path

import pytest

from tests.tasks.doctor.fakes import GIB, look, machine, says

REPO = "Qwen/Qwen3-0.6B"
DOWN = {"hub": says({"reachable": False, "reason": "Name or service not known"})}


def up(**repos):
    return {"hub": says({"reachable": True, "seconds": 0.2}, {"repos": repos})}


def cached(home: Path, repo: str = REPO, weights: bool = True) -> None:
    name = "models--" + repo.replace("/", "--")
    folder = home / ".cache" / "huggingface" / "hub" / name / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "qwen3"}')
    if weights:
        (folder / "model.safetensors").touch()


@pytest.mark.parametrize(
    ("answers", "variables", "status"),
    [
        (up(**{REPO: 200}), {}, "ok"),
        (up(**{REPO: 404, "unsloth/Qwen3-0.6B": 200}), {}, "ok"),
        (up(**{REPO: 404}), {}, "fail"),
        (up(**{REPO: 401}), {}, "fail"),
        (DOWN, {}, "fail"),
        (DOWN, {"HF_HUB_OFFLINE": "1"}, "fail"),
        (up(**{REPO: 200}), {"TRANSFORMERS_OFFLINE": "yes"}, "fail"),
        ({"hub": says({"reachable": True, "seconds": 1}, error="TimeoutError: timed out")}, {},
         "fail"),
    ],
)  # fmt: skip
def test_a_model_that_must_be_fetched(tmp_path, answers, variables, status):
    here = machine(tmp_path, answers, variables=variables)
    line = look(here, "hub", model="qwen3-0.6b")
    assert line.status == status
    assert status == "ok" or line.fix


def test_a_gated_model_asks_for_a_login(tmp_path):
    line = look(machine(tmp_path, up(**{REPO: 403})), "hub", model="qwen3-0.6b")
    assert "hf auth login" in line.fix


@pytest.mark.parametrize("variables", [{}, {"HF_HUB_OFFLINE": "1"}])
def test_a_cached_model_needs_no_hub(tmp_path, variables):
    cached(tmp_path)
    here = machine(tmp_path, DOWN, variables=variables)
    assert look(here, "hub", model="qwen3-0.6b").status == "skip"
    assert look(here, "env-offline", model="qwen3-0.6b").status == "ok"


def test_a_cached_config_is_not_a_cached_model(tmp_path):
    cached(tmp_path, weights=False)
    assert look(machine(tmp_path, DOWN), "hub", model="qwen3-0.6b").status == "fail"


def test_the_default_model_of_a_laptop_needs_no_hub(tmp_path):
    assert look(machine(tmp_path, DOWN), "hub").status == "skip"


def test_the_hub_is_where_the_variable_says(tmp_path):
    here = machine(tmp_path, up(), variables={"HF_ENDPOINT": "http://mirror.test/"})
    look(here, "hub")
    assert here.run.asked[-1][4:] == ["http://mirror.test"]


@pytest.mark.parametrize("place", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "home"])
def test_a_token_is_found_and_never_shown(tmp_path, place):
    secret, variables = "hf_S3cretS3cret", {}
    file = tmp_path / ".cache" / "huggingface" / "token"
    if place == "home":
        file.parent.mkdir(parents=True)
        file.write_text(secret)
    elif place == "HF_TOKEN_PATH":
        (tmp_path / "mine").write_text(secret)
        variables = {place: str(tmp_path / "mine")}
    else:
        variables = {place: secret}
    line = look(machine(tmp_path, variables=variables), "token")
    assert line.status == "ok"
    assert secret not in repr(line)


def test_no_token(tmp_path):
    line = look(machine(tmp_path, variables={"HF_TOKEN": " "}), "token")
    assert (line.status, line.fix) == ("skip", "hf auth login")


def test_cached_models_are_listed_where_the_variables_say(tmp_path):
    cached(tmp_path)
    cached(tmp_path, "org/half", weights=False)
    assert "1 cached: Qwen/Qwen3-0.6B" in look(machine(tmp_path), "cache").found
    home = {"HF_HOME": str(tmp_path / ".cache" / "huggingface")}
    assert "1 cached" in look(machine(tmp_path, variables=home), "cache").found
    elsewhere = {"HF_HUB_CACHE": str(tmp_path / "none")}
    assert "0 cached" in look(machine(tmp_path, variables=elsewhere), "cache").found


@pytest.mark.parametrize(
    ("answers", "model", "status"),
    [
        (up(**{REPO: 200}), "qwen3-0.6b", "ok"),
        (up(**{REPO: 404}), "qwen3-0.6b", "fail"),
        (DOWN, "qwen3-0.6b", "fail"),
        (DOWN, None, "ok"),
    ],
)
def test_a_download_is_promised_only_where_the_hub_offers_one(tmp_path, answers, model, status):
    line = look(machine(tmp_path, answers), "cache", model=model)
    assert line.status == status
    assert ("will be downloaded" in line.found) is (status == "ok" and model is not None)
    assert status == "ok" or line.fix


def test_a_folder_without_weights_is_never_downloaded(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    line = look(machine(tmp_path, DOWN), "cache", model=str(tmp_path))
    assert (line.status, "holds no weights" in line.found) == ("fail", True)
    assert look(machine(tmp_path, DOWN), "hub", model=str(tmp_path)).status == "skip"


@pytest.mark.parametrize(("model", "status"), [("qwen3-0.6b", "fail"), (None, "warn")])
def test_a_cache_that_cannot_be_written(tmp_path, model, status):
    asked = []
    here = machine(tmp_path, writable=lambda path: bool(asked.append(path)))
    line = look(here, "disk", model=model)
    assert line.status == status
    assert "cannot be written" in line.found
    assert "HF_HOME" in line.fix
    assert asked == [tmp_path / ".cache" / "huggingface" / "hub"]


@pytest.mark.parametrize(
    ("free", "model", "status"),
    [(100, "qwen3-4b", "ok"), (6, "qwen3-4b", "fail"), (6, None, "ok"), (2, None, "warn")],
)
def test_disk(tmp_path, free, model, status):
    here = machine(tmp_path, disk_free=lambda path: free * GIB)
    line = look(here, "disk", model=model)
    assert line.status == status
    assert status != "fail" or "8.0 GB" in line.why
