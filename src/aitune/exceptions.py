"""The errors that aitune raises.

::

    AITuneError
    ├── AITuneUserInputError        an argument, a dataset or a setting is not usable
    │   └── UnsupportedCallError    a call of the module that cannot be captured (a generator argument, say)
    ├── AITuneEnvironmentError      this machine lacks something: a package, a compiler, a device
    │   └── BackendUnavailableError ... that a given backend needs
    ├── BackendError                one backend failed on one graph
    │   ├── ExportError             torch.export (or another exporter) refused the module
    │   │   └── ControlFlowError    ... because what it does depends on values or sizes
    │   ├── BuildError              the backend's compiler or converter failed
    │   ├── BackendStateError       a backend was used out of order
    │   └── InferenceError          a built backend failed while it ran
    ├── CorrectnessError            a backend's answers differ from the original module's
    ├── ProfilingError              nothing could be measured
    ├── TuningError                 no candidate was left to choose from
    └── ArtifactError               a file or folder that holds a tuned module is not usable

Every message says what was at fault, what was expected and what to do. The cause, where there is one, is chained.
"""

from __future__ import annotations

from os import PathLike


class AITuneError(Exception):
    """Base of every error raised by aitune.

    Args:
        message: What happened, what was expected, what to do about it.
        log_path: File that holds more, where there is one.
    """

    def __init__(self, message: str, log_path: str | PathLike[str] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.log_path = log_path

    def __str__(self) -> str:
        if self.log_path is None:
            return self.message
        return f"{self.message} (log: {self.log_path})"


class AITuneUserInputError(AITuneError):
    """An argument, a dataset or a setting that the user gave is not usable."""


class UnsupportedCallError(AITuneUserInputError):
    """A call of the module cannot be captured, so it cannot be tuned."""


class AITuneEnvironmentError(AITuneError):
    """This machine or this installation lacks something that is needed."""


class BackendUnavailableError(AITuneEnvironmentError):
    """A backend cannot run here; the message names what is missing and the command that installs it."""


class BackendError(AITuneError):
    """One backend failed on one graph.

    Args:
        message: What happened.
        backend: Description of the backend.
        graph: Name of the graph that it was asked to run.
        log_path: File that holds more, where there is one.
    """

    def __init__(
        self,
        message: str,
        *,
        backend: str | None = None,
        graph: str | None = None,
        log_path: str | PathLike[str] | None = None,
    ) -> None:
        super().__init__(message, log_path)
        self.backend = backend
        self.graph = graph


class ExportError(BackendError):
    """An exporter refused the module."""


class ControlFlowError(ExportError):
    """What the module does depends on values or sizes of its inputs; a trace would keep what one run did."""


class BuildError(BackendError):
    """The compiler or converter of a backend failed."""


class BackendStateError(BackendError):
    """A backend was used out of order, for example run before it was built."""


class InferenceError(BackendError):
    """A built backend failed while it ran."""


class CorrectnessError(AITuneError):
    """A backend's answers differ from the original module's by more than is allowed."""


class ProfilingError(AITuneError):
    """Nothing could be measured; the first cause is chained."""


class TuningError(AITuneError):
    """No candidate was left to choose from; the message lists every candidate with its reason."""


class ArtifactError(AITuneError):
    """A stored tuned module is missing, damaged, or does not fit this machine."""
