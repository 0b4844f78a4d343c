"""For tests of code that uses or extends aitune: tiny models, fakes, and suites that a new backend's tests inherit.

``backend_conformance`` needs pytest; nothing else here does.
"""
