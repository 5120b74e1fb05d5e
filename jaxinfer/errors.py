"""HOST. The error types of jaxinfer. Every message says what was given, the rule, and the way out.

Knows nothing of where an error is raised or shown.
"""


class JaxInferError(Exception):
    """Base of every error that jaxinfer raises on purpose."""


class ConfigError(JaxInferError, ValueError):
    """An option or a combination of options that cannot be used."""


class CheckpointError(JaxInferError):
    """A checkpoint that is missing, damaged or incomplete."""


class UnsupportedError(JaxInferError):
    """A known thing that jaxinfer does not do (yet): refused by name, never dropped in silence."""


class RequestError(JaxInferError, ValueError):
    """One request's fault; the other requests of the batch go on."""


class CapacityError(JaxInferError):
    """Something does not fit in memory; carries what was needed and what there is."""
