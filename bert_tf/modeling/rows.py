"""Leaving padding out: a layer's arithmetic on rows of tokens, attention on the padded batch.

Letters in shape comments: B batch, T tokens, R rows that are computed, D numbers of a row.
"""

import dataclasses
from typing import Any

from keras import ops

from bert_tf.modeling.kernels import upstream_of

# Names in a batch, see `TokenRows`.
POSITIONS, PLACES, KEPT = "token_positions", "token_places", "token_kept"


@dataclasses.dataclass(frozen=True)
class TokenRows:
    """Which positions of a batch are computed: all its tokens, and as much padding as one likes.

    Attributes:
      positions: int32 [R], which of the B*T positions each row is.
      places: int32 [B*T], the row of each position; any row where it has none.
      kept: bool [B*T], whether a position has a row. Those that have none must be padding of
        examples with tokens, and read by nobody: what they get has no meaning, and no gradient
        comes from there.
    """

    positions: Any
    places: Any
    kept: Any

    @classmethod
    def of(cls, inputs: dict[str, Any]) -> "TokenRows | None":
        """Returns those of a batch, under the names of this module; None if it has none."""
        if POSITIONS not in inputs:
            return None
        return cls(inputs[POSITIONS], inputs[PLACES], inputs[KEPT])

    def pick(self, x: Any) -> Any:
        """Returns the rows that are computed: [B*T, D] -> [R, D]."""

        @ops.custom_gradient
        def function(x: Any, positions: Any, places: Any, kept: Any) -> Any:
            def gradient(*args: Any, upstream: Any = None) -> Any:
                change = ops.take(upstream_of(args, upstream), places, axis=0)
                zero = ops.zeros((), dtype=change.dtype)
                return ops.where(kept[:, None], change, zero), None, None, None

            return ops.take(x, positions, axis=0), gradient

        return function(x, self.positions, self.places, self.kept)

    def spread(self, x: Any) -> Any:
        """Returns rows at their positions: [R, D] -> [B*T, D]."""

        # Not the gradient of a gather, which adds up rows that are named twice: none is.
        @ops.custom_gradient
        def function(x: Any, positions: Any, places: Any) -> Any:
            def gradient(*args: Any, upstream: Any = None) -> Any:
                change = ops.take(upstream_of(args, upstream), positions, axis=0)
                return change, None, None

            return ops.take(x, places, axis=0), gradient

        return function(x, self.positions, self.places)
