"""The code of user functions that stored answers come from: noticed when it changes, failed calls put back when asked."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .rdb import hide_password
from .spec import UserObjectiveSpec
from .storage import StorageError, Stored, StudyStore

if TYPE_CHECKING:
    from .opening import RunLog
    from .study import RunOptions

CODE = "code"  # of the header: entry -> [file, SHA-256 of its bytes]
RETRIED = "retried"  # of the header: answers stored before failed calls were last put back
_DIGITS = 12  # of a hash, in messages


def module_file(module: str, folders: Sequence[str]) -> Path | None:
    """The source file a module is imported from, found without importing anything; None where there is none."""
    import sys

    path: Sequence[str] | None = [*folders, *sys.path]
    found: ModuleSpec | None = None
    for part in module.split("."):
        found = PathFinder.find_spec(part, path)  # by its last name: a dotted one needs its package imported
        if found is None:
            return None
        path = list(found.submodule_search_locations or ())
    return Path(found.origin) if found is not None and found.has_location and found.origin else None


def code_of(users: Sequence[UserObjectiveSpec], folders: Sequence[str]) -> dict[str, list[str]]:
    """Each user function's ``module:function`` with its module's file name and the SHA-256 of its bytes.

    A module that only a cluster's workers can read is left out.
    """
    code: dict[str, list[str]] = {}
    for user in users:
        file = module_file(user.entry.split(":")[0], folders)
        try:
            if file is not None:
                code[user.entry] = [file.name, hashlib.sha256(file.read_bytes()).hexdigest()]
        except OSError:
            pass
    return code


def changes(stored: Mapping[str, Any], code: Mapping[str, Sequence[str]]) -> list[str]:
    """What differs between the code in a stored header and today's, one line a function."""
    lines = []
    for entry, (name, digest) in code.items():
        old = dict(stored.get(CODE) or {}).get(entry)
        if old and old[1] != digest:
            lines.append(f"objective file {name} ({entry}): SHA-256 {old[1][:_DIGITS]}… → {digest[:_DIGITS]}…")
    return lines


def refuse(where: str, lines: Sequence[str]) -> StorageError:
    """What is said where code changed."""
    text = "\n  ".join(lines)
    return StorageError(
        f"{hide_password(where)}: the code changed since the study was begun, so that old and new answers would mix:\n  {text}\n"
        "put it back, start anew (another --out or --storage, or --overwrite), or accept it with --accept-changed-code"
    )


def reconcile(
    store: StudyStore,
    stored: Stored | None,
    metadata: dict[str, Any],
    code: Mapping[str, Sequence[str]],
    options: RunOptions,
    names: Sequence[str],
    log: RunLog,
) -> Stored | None:
    """Compare the code with the stored one, put failed calls back if asked, and write what the header lacks.

    Args:
        store: the open storage.
        stored: what it holds; None for a new study.
        metadata: the run's header; ``code`` and ``retried`` are added.
        code: see :func:`code_of`.
        options: ``accept_changed_code`` and ``retry_failed``.
        names: of the objectives.
        log: told of what differs.

    Returns:
        What the run shall take from the storage.

    Raises:
        StorageError: the code changed and the answers of the earlier one would be mixed with new ones.
    """
    old: Mapping[str, Any] = stored.metadata if stored else {}
    answers = dict(stored.evaluations) if stored else {}
    good = {key: answer for key, answer in answers.items() if not math.isnan(answer[0])}
    if answers and code and CODE not in old:
        log.note("the storage does not say which code its answers come from (it is of an earlier version): taken to be today's")
    lines = changes(old, code) if answers else []
    again = options.retry_failed and len(good) < len(answers)
    if lines and not options.accept_changed_code and not (again and not good):
        raise refuse(str(options.out or store.where), lines)
    if lines and good:
        log.note(f"{'; '.join(lines)}: accepted, {len(good)} answers of the earlier code stay")
    added: dict[str, Any] = {CODE: {entry: list(row) for entry, row in code.items()}} if code else {}
    added |= {RETRIED: old[RETRIED]} if RETRIED in old else {}
    if again:
        added[RETRIED] = store.answers
        log(f"{len(answers) - len(good)} failed calls are made again; {len(good)} answers stay")
    metadata |= added
    if again:
        store.restart(metadata, names)
        return Stored(metadata, [], good)
    if any(old.get(key) != value for key, value in added.items()):
        store.write_header({**metadata, "finished": True} if stored and stored.finished else metadata)
    return stored
