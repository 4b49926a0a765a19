"""The checks of ``python -m loadtest webrtc``, each in a file of its own."""
