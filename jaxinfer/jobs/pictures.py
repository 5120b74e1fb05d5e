"""HOST. Pictures as files, through matplotlib (extra `plot`), which is asked for only then.

Knows no numbers: `batch_plots` and `quality_plots` draw.
"""

from pathlib import Path
from typing import Any

from jaxinfer.errors import ConfigError


def import_pyplot() -> Any:
    """matplotlib.pyplot.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        from matplotlib import pyplot  # type: ignore[reportMissingImports]
    except ImportError as error:
        raise ConfigError(
            f"pictures need matplotlib ({error}); install it with: pip install 'jaxinfer[plot]'"
        ) from error
    return pyplot


def new_figure(*, columns: int, width: float = 5, height: float = 4) -> tuple[Any, Any]:
    """(a figure, its axes beside each other)."""
    pyplot = import_pyplot()
    figure, axes = pyplot.subplots(
        1, columns, figsize=(width * columns, height), layout="constrained", squeeze=False
    )
    pyplot.close(figure)  # a notebook shows what a cell returns, and would show it twice
    return figure, axes[0]


def check_picture(path: Path, *, option: str = "--plot") -> None:
    """Says before the work what would go wrong after it.

    Args:
        option: what the file is given by, for the message.

    Raises:
        ConfigError: matplotlib is not installed, or writes no such file.
    """
    pyplot = import_pyplot()
    known = pyplot.Figure().canvas.get_supported_filetypes()
    if path.suffix.lower().removeprefix(".") not in known:
        raise ConfigError(
            f"{option} {path}: the ending must be one of {', '.join(sorted(known))}; such as .png"
        )
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"{option} {path}: there is no such folder; make it or name another")


def save_picture(figure: Any, path: Path) -> None:
    """Writes a figure in the form that the file's ending says.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        figure.savefig(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error}); name another") from error
