"""Expressions are interpreted for as long as a small audit checks, in a session of anyone."""

from types import SimpleNamespace
from typing import Any

import pytest

from minibroker.audit.session import interpreted

WHOLE_STAGE, FACTORY = "spark.sql.codegen.wholeStage", "spark.sql.codegen.factoryMode"


class Settings:
    """Those of a session that Spark would have started."""

    def __init__(self, **found: str) -> None:
        self.found = found

    def get(self, name: str) -> str:
        """The present value."""
        return self.found[name]

    def set(self, name: str, value: str) -> None:
        """Another value."""
        self.found[name] = value


@pytest.mark.parametrize("fails", [False, True])
def test_a_session_has_its_own_settings_again(fails: bool) -> None:
    """The caller's session goes on after the audit, whether that failed or not."""
    settings = Settings(**{WHOLE_STAGE: "true", FACTORY: "FALLBACK"})
    spark: Any = SimpleNamespace(conf=settings)
    try:
        with interpreted(spark):
            assert settings.found == {WHOLE_STAGE: "false", FACTORY: "NO_CODEGEN"}
            if fails:
                raise ValueError
    except ValueError:
        assert fails
    assert settings.found == {WHOLE_STAGE: "true", FACTORY: "FALLBACK"}
