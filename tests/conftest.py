"""Settings that hold for every test."""

from hypothesis import HealthCheck, settings

# Fixed examples, so that a red run is red again; `make soak` draws new ones.
settings.register_profile(
    "ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ci")
