"""JOINT. jax's profiler behind two verbs: one profile at a time, none left open.

What the programs' parts are called, their named scopes say; the host's part is in `trace.py`.
"""

from pathlib import Path

import jax

from jaxinfer.errors import ConfigError, JaxInferError


class Profiler:
    """A profile that is under way, or none."""

    def __init__(self) -> None:
        self._is_running = False

    def start(self, folder: str | Path) -> None:
        """Starts a profile that will be written into `folder`, which is made where it is missing.

        Raises:
            JaxInferError: this one, or another of the process, is under way. ConfigError: the
                folder cannot be made.
        """
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)  # jax would find out at the end
        except OSError as error:
            raise ConfigError(
                f"start_profile({str(folder)!r}): {error}; give a folder that can be made"
            ) from error
        try:
            jax.profiler.start_trace(str(folder))
        except RuntimeError as error:
            raise JaxInferError(
                f"start_profile({str(folder)!r}): {error}; call stop_profile first"
            ) from error
        self._is_running = True

    def stop(self) -> None:
        """Ends the profile and writes it.

        Raises:
            JaxInferError: none is under way.
        """
        if not self._is_running:
            raise JaxInferError("no profile is under way; call start_profile first")
        self._is_running = False
        jax.profiler.stop_trace()

    def close(self) -> None:
        """Ends a profile that was left open."""
        if self._is_running:
            self.stop()
