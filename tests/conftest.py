"""What all tests share."""

import os

import hypothesis

# No deadline: a loaded machine is slow, not wrong. The same examples every time, so that a failure is everybody's;
# HYPOTHESIS_PROFILE=explore looks further.
hypothesis.settings.register_profile("same", deadline=None, derandomize=True, database=None)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=1000, database=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
