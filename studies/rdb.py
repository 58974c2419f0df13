"""Batched writes to an SQL storage of Optuna: a whole generation in one transaction.

Optuna's ``add_trial`` makes several round trips a trial; a generation written row set by row set costs a fraction
and is either stored whole or not at all.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from .journal import StorageError

if TYPE_CHECKING:
    from optuna.storages import RDBStorage
    from optuna.trial import FrozenTrial

T = TypeVar("T")
_LOST = ("OperationalError", "InterfaceError", "PendingRollbackError")  # of SQLAlchemy: the connection or its transaction is gone
LOCK_KEY = 0x73686170656672  # "shapefr", our advisory lock
RETRY_SECONDS = 60.0  # how long a database may be away before a run gives up


def hide_password(url: str) -> str:
    """The URL without its password, for messages."""
    start, separator, rest = url.partition("://")
    place, question, query = rest.partition("?")
    user, at, host = place.rpartition("@")
    if at and ":" in user:
        place = f"{user.partition(':')[0]}:***@{host}"
    query = re.sub(r"([^=&]*passw[^=&]*)=[^&]*", r"\1=***", query, flags=re.IGNORECASE)
    return f"{start}{separator}{place}{question}{query}"[:200]


def with_retries(
    action: Callable[[], T], url: str, *, recover: Callable[[], None] | None = None, seconds: float = RETRY_SECONDS
) -> T:
    """Run ``action``, again while the database is away (restart, network), up to ``seconds``.

    Args:
        action: what to do; must bear being done twice.
        url: for messages.
        recover: called before each new try, to drop a session that is stuck in a broken transaction.
        seconds: how long to try.

    Raises:
        StorageError: the database stayed away.
    """
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    deadline, pause = time.monotonic() + seconds, 0.1
    while True:
        try:
            return action()
        except (SQLAlchemyError, StorageInternalError) as error:
            cause: Any = error.__cause__ if isinstance(error, StorageInternalError) else error
            lost = getattr(cause, "connection_invalidated", False) or type(cause).__name__ in _LOST
            if not lost or time.monotonic() + pause > deadline:
                reason = str(getattr(cause, "orig", cause)).strip().splitlines()
                raise StorageError(
                    f"{hide_password(url)}: the database failed ({reason[0][:200] if reason else 'no reason'})"
                ) from None
            if recover is not None:
                recover()
            time.sleep(pause)
            pause = min(pause * 2, 2.0)


@contextmanager
def one_at_a_time(url: str, connect: Mapping[str, Any]) -> Iterator[None]:
    """Hold a lock of the PostgreSQL database, for what only one process may do at a time (making the tables).

    The database releases it when the process dies.

    Args:
        url: SQLAlchemy URL.
        connect: arguments of the connection.
    """
    import sqlalchemy as sql

    engine = sql.create_engine(url, connect_args=dict(connect), poolclass=sql.pool.NullPool)
    with engine.begin() as connection:
        connection.execute(sql.select(sql.func.pg_advisory_xact_lock(LOCK_KEY)))
        yield


def add_trials(storage: RDBStorage, study_id: int, trials: Sequence[FrozenTrial], *, first_number: int) -> None:
    """Store finished trials in one transaction; trials that a lost commit already stored are not stored twice.

    Args:
        storage: an Optuna SQL storage.
        study_id: Optuna's id of the study.
        trials: finished trials in order.
        first_number: number of ``trials[0]``; must be the count of trials stored so far.

    Raises:
        StorageError: another process wrote to the study, or the database stayed away.
    """
    with_retries(lambda: _add_once(storage, study_id, trials, first_number), storage.url)


def _utc(moment: datetime | None) -> datetime:
    return (moment.astimezone(UTC) if moment else datetime.now(UTC)).replace(tzinfo=None)


def _add_once(storage: RDBStorage, study_id: int, trials: Sequence[FrozenTrial], first_number: int) -> None:
    import sqlalchemy as sql
    from optuna.distributions import distribution_to_json
    from optuna.storages._rdb import models

    tables = {
        name: getattr(models, name).__table__
        for name in ("TrialModel", "TrialParamModel", "TrialValueModel", "TrialUserAttributeModel", "TrialSystemAttributeModel")
    }
    trial_table = tables["TrialModel"]
    with storage.engine.begin() as connection:
        study = models.StudyModel.__table__
        connection.execute(sql.select(study.c.study_id).where(study.c.study_id == study_id).with_for_update())
        newest = (
            sql.select(trial_table.c.number).where(trial_table.c.study_id == study_id).order_by(trial_table.c.trial_id.desc())
        )
        last = connection.execute(newest.limit(1)).scalar_one_or_none()  # by the key: no count of 50,000 rows a batch
        stored = 0 if last is None else last + 1
        if stored == first_number + len(trials):
            return  # the commit of an earlier try went through, only its answer was lost
        if stored != first_number:
            raise StorageError(
                f"{hide_password(storage.url)}: another process added trials to this study ({stored} stored, "
                f"{first_number} known)"
            )
        rows = [
            {
                "number": first_number + i,
                "study_id": study_id,
                "state": trial.state,
                "datetime_start": _utc(trial.datetime_start),
                "datetime_complete": _utc(trial.datetime_complete),
            }
            for i, trial in enumerate(trials)
        ]
        statement = sql.insert(trial_table).returning(trial_table.c.trial_id, sort_by_parameter_order=True)
        ids = [row[0] for row in connection.execute(statement, rows)]
        parts: dict[str, list[dict[str, Any]]] = {name: [] for name in tables if name != "TrialModel"}
        distributions: dict[Any, str] = {}
        for trial_id, trial in zip(ids, trials, strict=True):
            for name, value in trial.params.items():
                distribution = trial.distributions[name]
                if distribution not in distributions:
                    distributions[distribution] = distribution_to_json(distribution)
                parts["TrialParamModel"].append(
                    {
                        "trial_id": trial_id,
                        "param_name": name,
                        "param_value": distribution.to_internal_repr(value),
                        "distribution_json": distributions[distribution],
                    }
                )
            for objective, value in enumerate(trial.values or []):
                stored_value, value_type = models.TrialValueModel.value_to_stored_repr(value)
                parts["TrialValueModel"].append(
                    {"trial_id": trial_id, "objective": objective, "value": stored_value, "value_type": value_type}
                )
            for part, attributes in (
                ("TrialUserAttributeModel", trial.user_attrs),
                ("TrialSystemAttributeModel", trial.system_attrs),
            ):
                parts[part] += [
                    {"trial_id": trial_id, "key": key, "value_json": json.dumps(value)} for key, value in attributes.items()
                ]
        for name, values in parts.items():
            if values and connection.dialect.driver == "psycopg":
                _copy(connection, tables[name].name, values)
            elif values:
                connection.execute(sql.insert(tables[name]), values)


def _copy(connection: Any, table: str, rows: Sequence[dict[str, Any]]) -> None:
    """PostgreSQL's COPY: rows without a statement each; inside the connection's transaction."""
    columns = list(rows[0])
    with connection.connection.driver_connection.cursor() as cursor:
        with cursor.copy(f"COPY {table} ({', '.join(columns)}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row([value.name if isinstance(value, Enum) else value for value in row.values()])
