"""Gloo, whose time-out the watchdog shares, lets ranks find each other on a busy machine."""

from hpcfl.runner import session

connect = session.connect
session.connect = lambda backend, device, timeout_s: connect(backend, device, 300.0)
