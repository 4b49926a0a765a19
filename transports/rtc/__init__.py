"""The media of a WebRTC call: what lies between aiortc's packets and a session's audio.

:mod:`~transports.rtc.jitter` puts incoming packets in order, :mod:`~transports.rtc.opus` turns packets into
samples and back, :mod:`~transports.rtc.receiver` and :mod:`~transports.rtc.track` are the two ends that aiortc
sees, :mod:`~transports.rtc.channel` carries events, :mod:`~transports.rtc.description` reads offers, and
:mod:`~transports.rtc.health` watches the peer.
:mod:`transports.webrtc` makes calls of them.
"""
