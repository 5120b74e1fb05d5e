"""Logits of a checkpoint through the forward function alone."""

from tests.support.forward_logits import forward_logits as forward_logits
