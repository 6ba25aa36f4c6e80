"""The protocol without I/O: messages, codec and one state machine per role and phase.

A machine takes an event and the time and returns effects. Nothing here opens a socket, reads a
clock or draws a random number.
"""
