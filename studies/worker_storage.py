"""What independent workers share: the storage with its heartbeats, the study's header, a heart that beats for a trial."""

from __future__ import annotations

import threading
import time
import warnings
from typing import TYPE_CHECKING, Any

from ..costmodel import InvalidValueError
from ..search.record import create_study
from .preflight import check_problem
from .problem import study_profile
from .rdb import hide_password
from .record import check_same, make_metadata
from .storage import FORMAT_VERSION, METADATA, StorageError, StudyStore, open_postgresql, storage_kind

if TYPE_CHECKING:
    import optuna

    from .study import Study

HEARTBEAT_SECONDS = 15
GRACE_FACTOR = 3  # heartbeats that may be missed before a trial counts as orphaned
MAX_RETRY = 5  # times one trial is put back into the queue
IDLE_SECONDS = 0.5
CALLS = "calls"  # trial attribute with the answers of user functions


def open_shared(url: str, *, heartbeat: int = HEARTBEAT_SECONDS) -> optuna.storages.RDBStorage:
    """A PostgreSQL storage with heartbeats on and orphaned trials put back into the queue.

    Raises:
        StorageError: not PostgreSQL, or it cannot be reached.
    """
    if storage_kind(url) != "postgresql":
        raise StorageError(
            f"{hide_password(url)}: independent workers share a PostgreSQL database; give postgresql://USER@HOST/DATABASE"
        )
    if not 1 <= heartbeat <= 3600:
        raise InvalidValueError(f"heartbeat must be between 1 and 3600 s, got {heartbeat}")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        retry = optuna.storages.RetryHeartbeatStaleTrialCallback(max_retry=MAX_RETRY)
    options = {"heartbeat_interval": heartbeat, "grace_period": GRACE_FACTOR * heartbeat, "heartbeat_stale_trial_callback": retry}
    return open_postgresql(url, heartbeat=options)


def close_storage(storage: optuna.storages.RDBStorage) -> None:
    """Give a storage's connections back."""
    storage.remove_session()
    storage.engine.dispose()


def join_study(url: str, name: str, study: Study | None, storage: optuna.storages.RDBStorage) -> dict[str, Any]:
    """Header of the stored study; created from ``study`` where there is none.

    Raises:
        StorageError: no such study and none given, another kind of study, or another spec.
    """
    for _ in range(2):
        stored = StudyStore(name, url, "postgresql", storage, None).read()
        if stored is not None:
            header = dict(stored.metadata)
            if header.get("mode") != "workers":
                raise StorageError(
                    f"{hide_password(url)}: '{name}' belongs to a coordinator; continue it with 'shapefront run "
                    "--resume --storage …'"
                )
            if study is not None:
                check_same(
                    header,
                    make_metadata(study.spec, study.problem(), study_profile(study.spec, study.folder)),
                    hide_password(url),
                )
            return header
        if study is None:
            names = sorted(s.study_name for s in storage.get_all_studies() if not s.study_name.endswith(".evaluations"))
            known = ", ".join(names[:10]) or "none"
            raise StorageError(
                f"{hide_password(url)}: no study '{name[:60]}' (studies there: {known}); create it with --spec STUDY.toml"
            )
        _create(name, study, storage)
    raise StorageError(f"{hide_password(url)}: the study '{name}' was created and removed at the same time; try again")


def _create(name: str, study: Study, storage: optuna.storages.RDBStorage) -> None:
    import optuna

    problem = study.problem()
    check_problem(problem)
    header = make_metadata(study.spec, problem, study_profile(study.spec, study.folder))
    header |= {"format": FORMAT_VERSION, "mode": "workers"}
    try:
        created = create_study(problem, name, storage)
    except optuna.exceptions.DuplicatedStudyError:
        # another worker was first; give it the moment it needs to write the header
        for _ in range(20):
            if METADATA in storage.get_study_user_attrs(storage.get_study_id_from_name(name)):
                return
            time.sleep(IDLE_SECONDS)
        created = optuna.load_study(study_name=name, storage=storage)
    created.set_user_attr(METADATA, header)


class Heart:
    """Beats for one trial until it is told; a database that is away for a while does not stop it."""

    def __init__(self, storage: optuna.storages.RDBStorage, trial_id: int, seconds: float) -> None:
        self._storage, self._trial_id, self._seconds = storage, trial_id, seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while True:
            try:
                self._storage.record_heartbeat(self._trial_id)
            except Exception:
                self._storage.remove_session()  # the next beat tries again, on a new connection
            if self._stop.wait(self._seconds):
                return

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
