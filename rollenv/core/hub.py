"""One request to the Hugging Face Hub before a large download, so that a machine without access fails at once."""

from __future__ import annotations

import threading

from rollenv.core.errors import HubUnreachable, NotOnHub
from rollenv.core.needs import require_extra

#: Timeout of a request to the hub, in seconds.
TIMEOUT = 5.0


def ask(name: str, kind: str = "model", timeout: float | None = None) -> None:
    """Raise an error unless the hub has a repository. One request; no retries, no downloads.

    Args:
        name: ``OWNER/NAME`` of the repository.
        timeout: seconds in total, including name resolution; :data:`TIMEOUT` by default.

    Raises:
        HubUnreachable: there is no connection, or ``HF_HUB_OFFLINE`` is set.
        NotOnHub: there is no repository of that name, or it is private.
    """
    require_extra("huggingface_hub", "train" if kind == "model" else "data", "Asking the hub")
    from huggingface_hub.errors import OfflineModeIsEnabled, RepositoryNotFoundError

    seconds = TIMEOUT if timeout is None else timeout
    error = _error(name, kind, seconds)
    if isinstance(error, RepositoryNotFoundError):
        raise NotOnHub(f"the hub has no {kind} {name}, or it is private") from error
    if isinstance(error, OfflineModeIsEnabled):
        raise HubUnreachable("the hub is not asked because HF_HUB_OFFLINE is set") from error
    if error is not None:
        why = f"no answer in {seconds:g} s" if isinstance(error, TimeoutError) else type(error).__name__
        raise HubUnreachable(f"the hub cannot be reached: {why}") from error


def _error(name: str, kind: str, seconds: float) -> Exception | None:
    """Send the request and return its error. In a thread, because the client's timeout excludes name resolution."""
    from huggingface_hub import HfApi

    answer: list[Exception | None] = []

    def question() -> None:
        try:
            HfApi().repo_info(name, repo_type=kind, timeout=seconds)
            answer.append(None)
        except Exception as error:  # depends on the HTTP library
            answer.append(error)

    thread = threading.Thread(target=question, daemon=True, name="rollenv-hub")
    thread.start()
    thread.join(seconds)
    return answer[0] if answer else TimeoutError()
