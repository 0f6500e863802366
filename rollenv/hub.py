"""One question to the Hugging Face Hub before a large download, so that a machine without access fails at once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from rollenv.errors import HubUnreachable, NotOnHub, UsageError
from rollenv.needs import require_extra

#: Seconds in which the hub answers, if it does.
TIMEOUT = 5.0

#: Names of the files of tokenizers.
_TOKENIZERS = ("*token*", "vocab.*", "*.model", "tekken.json")


def ask(name: str, kind: str = "model", timeout: float | None = None) -> None:
    """Ask the hub once whether it has something. Retries nothing and downloads nothing.

    Args:
        name: its name on the hub, as in ``OWNER/NAME``.
        kind: kind of repository: ``model`` or ``dataset``.
        timeout: seconds for all of it, name resolution included; :data:`TIMEOUT` by default.

    Raises:
        HubUnreachable: it cannot be asked: there is no connection, or ``HF_HUB_OFFLINE`` is set.
        NotOnHub: it has none of that name, or a private one.
        MissingExtra: the hub's client is not installed.
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
    """Ask, and return the error; in a thread, because a client's timeout counts for each address and not for names."""
    from huggingface_hub import HfApi

    answer: list[Exception | None] = []

    def question() -> None:
        try:
            HfApi().repo_info(name, repo_type=kind, timeout=seconds)
            answer.append(None)
        except Exception as error:  # whichever HTTP library it uses
            answer.append(error)

    thread = threading.Thread(target=question, daemon=True, name="rollenv-hub")
    thread.start()
    thread.join(seconds)
    return answer[0] if answer else TimeoutError()


def check_model(path: str) -> None:
    """Raise UsageError if a text is neither a folder with a tokenizer nor of the form ``OWNER/NAME``.

    Nothing is asked or imported.
    """
    folder = Path(path)
    if folder.is_file():
        raise UsageError(f"cannot load a model: {path!r} is a file; name the model's folder, or a file NAME.gguf")
    if folder.is_dir():
        if not any(file for pattern in _TOKENIZERS for file in folder.glob(pattern)):
            raise UsageError(
                f"cannot load a model: the folder {path!r} holds no tokenizer (tokenizer.json); save it there too"
            )
        return
    if path.count("/") != 1 or path.startswith((".", "/", "~")) or path.endswith("/"):
        raise UsageError(f"cannot load a model: there is no folder {path!r}, and a hub name reads OWNER/NAME")


def loading(path: str) -> dict[str, Any]:
    """Arguments for ``from_pretrained``: without the hub, only its cache is looked at.

    Args:
        path: a folder, which the hub is not asked about, or a name as in ``OWNER/NAME``.

    Raises:
        UsageError: it is neither a folder nor of that form; NotOnHub if the hub has no such model either.
        HubUnreachable: the hub cannot be reached, and its cache has no such model.
    """
    check_model(path)
    if Path(path).exists():
        return {}
    try:
        ask(path)
    except (HubUnreachable, NotOnHub) as error:
        from huggingface_hub import try_to_load_from_cache

        if isinstance(try_to_load_from_cache(path, "config.json"), str):
            return {"local_files_only": True}
        raise type(error)(f"cannot load a model: there is no folder {path!r}, and {error}") from error
    return {}
