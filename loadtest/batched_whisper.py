"""What does faster-whisper's batched pipeline make of a recording? Its text on standard output; for comparisons.

``python -m loadtest.batched_whisper FILE MODEL_FOLDER BEAM THREADS``
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

BATCH = 8
"""Its own default, and ours."""


def main(arguments: Sequence[str]) -> int:
    """The command; fails with the pipeline's own error."""
    from faster_whisper import BatchedInferencePipeline, WhisperModel

    path, folder, beam, threads = arguments
    model = WhisperModel(folder, device="cpu", compute_type="int8", cpu_threads=int(threads))
    segments, _ = BatchedInferencePipeline(model).transcribe(path, beam_size=int(beam), batch_size=BATCH)
    for segment in segments:
        print(segment.text.strip())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
