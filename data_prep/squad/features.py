"""Windows as the examples of a training run, or of a part of a prediction.

Letters: N windows, B batch, T padded length.
"""

import zlib
from collections.abc import Sequence

import numpy as np

from data_prep.input_pipeline import TEXT
from data_prep.squad.windows import Window, batch


class WindowFeatures:
    """What `data_prep.input_pipeline` makes batches of.

    Args:
      windows: N of them.
      max_seq_length: the longest that one may be.

    Attributes:
      labels: int32 [N, 2], start and end of the answer; zeros in prediction.
    """

    example_weights: np.ndarray | None = None
    signature = TEXT

    def __init__(self, windows: Sequence[Window], max_seq_length: int):
        self.windows = windows
        self.max_seq_length = max_seq_length
        self.lengths = np.array([window.length for window in windows], np.int32)
        self.labels = np.array(
            [(window.start_position or 0, window.end_position or 0) for window in windows],
            np.int32,
        ).reshape(-1, 2)

    def __len__(self) -> int:
        return len(self.windows)

    def fingerprint(self) -> int:
        """Returns a number that tells these windows and answers from others."""
        crc = zlib.crc32(self.labels.tobytes())
        for window in self.windows:
            crc = zlib.crc32(window.input_ids.tobytes(), crc)
        return crc

    def dense(self, indices: np.ndarray, length: int) -> dict[str, np.ndarray]:
        """Returns input_ids, input_mask, segment_ids, int32 [B, T]; -1 is a row of padding."""
        names = ("input_ids", "input_mask", "segment_ids")
        result = {name: np.zeros((len(indices), length), np.int32) for name in names}
        real = np.flatnonzero(indices >= 0)
        if len(real):
            found = batch([self.windows[index] for index in indices[real].tolist()], length)
            for name in names:
                result[name][real] = found[name]
        return result
