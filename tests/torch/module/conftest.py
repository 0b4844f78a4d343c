"""No example of a property test fails for being slow: this machine may be busy."""

import hypothesis

hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")
