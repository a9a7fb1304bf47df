"""Every error a user can meet.

TidegateError
├── UsageError             the command line or a call is wrong                     exit 2
├── ConfigError            a config file is wrong                                  exit 2
├── ConnectError           a server cannot be reached                              exit 5
│   └── LoginRefused       it was reached and does not let us in                   exit 5
│       ├── NotAllowed     it knows us, and does not allow this one thing          exit 5
│       ├── TlsRefused     it cannot be talked to as `tls` demands                 exit 5
│       └── TunnelRefused  the bastion does not let us through, or is not trusted  exit 5
├── LeaseHeld              another run holds the stream                            exit 3
├── VerificationFailed     source, staging and target disagree                     exit 4
├── Interrupted            a signal or a timeout stopped the run at a safe point   exit 1
├── StateError             a store cannot do what was asked
│   ├── Conflict           somebody else wrote first: nothing was written
│   ├── LeaseLost          this run's lease was taken over: nothing was written
│   └── DamagedRecord      a record cannot be understood: it is left as it is
├── SourceError            the source cannot be read as configured
│   ├── SourceBusy         a read was cut short by what else goes on there
│   ├── SchemaChanged      its columns changed in a way that somebody has to decide about
│   ├── NullCursor         rows without a cursor value, and the policy says stop
│   └── LossyValue         a value that no declared type can hold
├── QualityFailed          rows break the table's rules, and the policy says stop
├── StagingError           a segment cannot be written, found or trusted
├── TargetError            the target refused the rows
│   └── IncompatibleTable  the table at the target does not fit the rows
├── DownloadFailed         the command that fills a job's table did not do it
├── ArchiveError           a file cannot be packed, or a shard cannot be written or read
│   └── DamagedShard       a shard is not what was once written                    exit 4
├── InvariantBroken        the receipts do not prove the window: a defect, never a user's mistake
└── OutcomeUnknown         a commit's answer was lost: ask the ledger or the store, never guess

Each error says what happened, `where` it happened and, as `hint`, what to do about it.
"""

from __future__ import annotations

from tidegate.core.secrecy import hidden


class TidegateError(Exception):
    """The root: `message` says what happened, `where` says where, `hint` says what to do."""

    exit_code = 1
    transient = False
    """Whether trying again a little later may help."""

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text} ({self.hint})" if self.hint else text

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross from Spark's Python workers to the driver; keyword-only fields need help.
        return _rebuild, (type(self), self.message, self.where, self.hint)


def _rebuild(kind: type[TidegateError], message: str, where: str | None, hint: str | None) -> TidegateError:
    return kind(message, where=where, hint=hint)


class UsageError(TidegateError):
    exit_code = 2


class ConfigError(TidegateError):
    exit_code = 2


class ConnectError(TidegateError):
    exit_code = 5
    transient = True


class LoginRefused(ConnectError):
    transient = False


class NotAllowed(LoginRefused):
    pass


class TlsRefused(LoginRefused):
    pass


class TunnelRefused(LoginRefused):
    pass


class LeaseHeld(TidegateError):
    exit_code = 3


class VerificationFailed(TidegateError):
    exit_code = 4


class Interrupted(TidegateError):
    pass


class StateError(TidegateError):
    pass


class Conflict(StateError):
    pass


class LeaseLost(StateError):
    pass


class DamagedRecord(StateError):
    pass


class SourceError(TidegateError):
    pass


class SourceBusy(SourceError):
    transient = True


class SchemaChanged(SourceError):
    pass


class NullCursor(SourceError):
    pass


class LossyValue(SourceError):
    pass


class QualityFailed(TidegateError):
    pass


class StagingError(TidegateError):
    pass


class TargetError(TidegateError):
    pass


class IncompatibleTable(TargetError):
    pass


class DownloadFailed(TidegateError):
    pass


class ArchiveError(TidegateError):
    pass


class DamagedShard(ArchiveError):
    exit_code = 4


class InvariantBroken(TidegateError):
    pass


class OutcomeUnknown(TidegateError):
    transient = True


def told(error: TidegateError) -> dict[str, str | None]:
    """An error as plain values, for a way on which only those travel."""
    return {
        "kind": type(error).__name__,
        "message": hidden(error.message),
        "where": error.where,
        "hint": error.hint,
    }


def retold(parts: dict[str, str | None]) -> TidegateError:
    """The error that `told` made these of."""
    kind = globals().get(str(parts["kind"]), TidegateError)
    known = kind if isinstance(kind, type) and issubclass(kind, TidegateError) else TidegateError
    return known(parts["message"] or "", where=parts["where"], hint=parts["hint"])
