"""HOST. The experts of a mixture as one frozen record.

Does not know how families spell it: their files in `models/` do.
"""

from dataclasses import dataclass

from jaxinfer.errors import CheckpointError

MAX_EXPERTS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertConfig:
    """Layers whose mlp is a choice of experts.

    num_experts: X. num_chosen: experts of a token. mlp_size: F of one expert.
    renormalizes: the shares of the chosen experts add up to 1; otherwise they are what the softmax
    over all experts gives them.
    is_sparse: of each layer, whether its mlp has experts; the others have the model's dense one.
    """

    num_experts: int
    num_chosen: int
    mlp_size: int
    renormalizes: bool
    is_sparse: tuple[bool, ...]

    def __post_init__(self) -> None:
        for name in ("num_experts", "num_chosen", "mlp_size"):
            if getattr(self, name) < 1:
                raise CheckpointError(
                    f"experts: {name}={getattr(self, name)} must be at least 1; mend the config"
                )
        if self.num_experts > MAX_EXPERTS:
            raise CheckpointError(
                f"experts: num_experts={self.num_experts} is over {MAX_EXPERTS}, the most a layer "
                "may have; mend the config"
            )
        if self.num_chosen > self.num_experts:
            raise CheckpointError(
                f"num_experts_per_tok={self.num_chosen} is more than the {self.num_experts} "
                "experts that there are; mend the config"
            )
        if not any(self.is_sparse):
            raise CheckpointError(
                f"a mixture of {self.num_experts} experts without a layer that has them; mend the "
                "config's list of dense layers"
            )
