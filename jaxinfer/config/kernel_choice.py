"""HOST. What is asked of the ops' implementations: one name for all of them, or one an op.

Knows names only: which of them serve a model on a device is `engine/kernels.py`'s to decide.
"""

import difflib
from collections.abc import Collection, Iterable, Mapping

from jaxinfer.errors import ConfigError

_NAMES = ("auto", "reference", "mosaic", "triton", "simulated")
# Of each op of `pallas_kernels`, what may be asked for.
OPS: Mapping[str, tuple[str, ...]] = {
    "paged_attention": (*_NAMES, "row_groups"),
    "quant_matmul": _NAMES,
    "plain_matmul_parts": ("auto", "reference", "mosaic", "simulated"),
    "coded_matmul_parts": ("auto", "reference", "xla", "mosaic", "simulated"),
    "grouped_matmul": ("auto", "reference", "mosaic", "simulated"),
    "rms_norm": (*_NAMES, "xla"),
    "rotate_write": ("auto", "reference", "mosaic", "simulated"),
}


def kernel_choice(given: object) -> str:
    """What was asked, in its one form: a name for all ops, or "op=name,op=name" by op.

    Example: {"rms_norm": "xla", "paged_attention": "auto"} is "rms_norm=xla"; so is that text.

    Args:
        given: such a text, or a mapping of ops to names. Ops that are not named are "auto".

    Raises:
        ConfigError: an op or an implementation that there is not.
    """
    if isinstance(given, Mapping):
        return _by_op(given, given.items())
    if isinstance(given, str) and "=" in given:
        pairs = [entry.partition("=") for entry in given.split(",")]
        return _by_op(given, [(op.strip(), name.strip()) for op, _, name in pairs])
    if not isinstance(given, str) or given not in _NAMES:
        raise ConfigError(
            f"kernels={given!r} must be one of {', '.join(map(repr, _NAMES))}, or name ops with "
            "theirs: paged_attention=reference,rms_norm=xla"
        )
    return given


def named_ops(choice: str) -> dict[str, str]:
    """The ops that are named one by one, with what is asked of them; none where all are at once.

    Args:
        choice: as `kernel_choice` gives it.
    """
    if "=" not in choice:
        return {}
    pairs = (entry.partition("=") for entry in choice.split(","))
    return {op: name for op, _, name in pairs}


def asked_of(choice: str, op: str) -> str:
    """What is asked of one op; "auto" leaves it open."""
    return named_ops(choice).get(op, "auto") if "=" in choice else choice


def _by_op(given: object, pairs: Iterable[tuple[object, object]]) -> str:
    found: dict[str, str] = {}
    for op, name in pairs:
        if not isinstance(op, str) or op not in OPS:
            raise ConfigError(_unknown(given, "op", op, OPS))
        if not isinstance(name, str) or name not in OPS[op]:
            raise ConfigError(_unknown(given, f"implementation of {op}", name, OPS[op]))
        if op in found:
            raise ConfigError(f"kernels={given!r} must name each op once: {op} is there twice")
        found[op] = name
    named = [f"{op}={found[op]}" for op in sorted(found) if found[op] != "auto"]
    return ",".join(named) or "auto"


def _unknown(given: object, what: str, name: object, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1) if isinstance(name, str) else []
    hint = f"did you mean {near[0]!r}? " if near else ""
    return (
        f"kernels={given!r} must be made of ops and their implementations: unknown {what} "
        f"{name!r}; {hint}known: {', '.join(known)}"
    )
