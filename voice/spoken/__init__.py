"""Speech text: how what the model writes becomes speakable while it streams.

``markup`` reads the raw stream and leaves what is meant for the ear, ``splitter`` says where that may be cut,
``normalise`` spells out numbers, and ``segment`` maps every spoken word back to what was written.
"""

from voice.spoken.segment import Segment, Span, SpokenRange
from voice.spoken.stream import SpeechText, prepare

__all__ = ["Segment", "Span", "SpeechText", "SpokenRange", "prepare"]
