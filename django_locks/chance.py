"""Random numbers from the system: no fork repeats them, and nobody's ``random.seed()`` is disturbed by our threads."""

from random import SystemRandom

_system = SystemRandom()

uniform = _system.uniform
randrange = _system.randrange
