"""Ask the hub about repositories, with the token of this machine. Arguments: ENDPOINT [REPO...].

Prints {"reachable": true, "seconds"} or {"reachable": false, "reason"}, then {"repos": {repo: HTTP
status}}. The token is sent to ENDPOINT alone (redirects are not followed) and is never printed.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path

TIMEOUT_S = 3.0
"""Of one connection or one answer."""


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Report a redirect as the answer."""

    def redirect_request(self, *_: object) -> None:
        """Follow nothing."""


def token() -> str:
    """Return this machine's hub token, empty where it has none."""
    for variable in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if value := os.environ.get(variable, "").strip():
            return value
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    path = Path(os.environ.get("HF_TOKEN_PATH", f"{home}/token")).expanduser()
    return path.read_text().strip() if path.is_file() else ""


def status(url: str, secret: str) -> int:
    """Return the HTTP status of a GET; raises OSError or HTTPException without an answer."""
    headers = {"Authorization": f"Bearer {secret}"} if secret else {}
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.build_opener(NoRedirect).open(request, timeout=TIMEOUT_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def main(endpoint: str, repos: list[str]) -> None:
    """Ask for the endpoint first, then for each repository."""
    began = time.perf_counter()
    try:
        status(endpoint, "")
    except (OSError, HTTPException) as error:
        reason = " ".join(str(getattr(error, "reason", error)).split())
        print(json.dumps({"reachable": False, "reason": reason}))
        return
    print(json.dumps({"reachable": True, "seconds": time.perf_counter() - began}), flush=True)
    secret = token()
    found = {repo: status(f"{endpoint}/api/models/{repo}", secret) for repo in repos}
    print(json.dumps({"repos": found}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
