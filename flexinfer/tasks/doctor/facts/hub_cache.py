"""Where the Hugging Face hub's files lie on this machine, read without its library."""

from __future__ import annotations

from pathlib import Path

from flexinfer.tasks.doctor.environment import Environment

ENDPOINT = "https://huggingface.co"
TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")


def endpoint(environment: Environment) -> str:
    """Return the hub's address."""
    return environment.variables.get("HF_ENDPOINT", ENDPOINT).rstrip("/")


def hub_home(environment: Environment) -> Path:
    """Return the folder that holds the hub's cache and token."""
    if home := environment.variables.get("HF_HOME"):
        return Path(home).expanduser()
    cache = environment.variables.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else environment.home / ".cache") / "huggingface"


def cache_folder(environment: Environment) -> Path:
    """Return the folder that holds cached repositories."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if folder := environment.variables.get(variable):
            return Path(folder).expanduser()
    return hub_home(environment) / "hub"


def snapshot(environment: Environment, repo: str) -> Path | None:
    """Return the newest cached snapshot of `repo` that holds a config.json."""
    folder = cache_folder(environment) / f"models--{repo.replace('/', '--')}" / "snapshots"
    found = [path.parent for path in folder.glob("*/config.json") if path.exists()]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def has_weights(folder: Path) -> bool:
    """Whether a checkpoint folder holds weights, not the config alone."""
    return any(path.exists() for path in folder.glob("*.safetensors"))


def cached_models(environment: Environment) -> list[str]:
    """Return the ids of the repositories whose weights are cached, sorted."""
    repos = [
        path.name.removeprefix("models--").replace("--", "/")
        for path in cache_folder(environment).glob("models--*")
    ]
    snapshots = ((repo, snapshot(environment, repo)) for repo in sorted(repos))
    return [repo for repo, folder in snapshots if folder is not None and has_weights(folder)]


def token_source(environment: Environment) -> str | None:
    """Return where a hub token was found, never the token."""
    for variable in TOKEN_VARIABLES:
        if environment.variables.get(variable, "").strip():
            return variable
    given = environment.variables.get("HF_TOKEN_PATH")
    path = Path(given).expanduser() if given else hub_home(environment) / "token"
    return str(path) if path.is_file() and path.read_text().strip() else None


def offline_variable(environment: Environment) -> str | None:
    """Return the variable that keeps the hub's library off the network, None where none does."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return next((name for name in names if environment.switched_on(name)), None)
