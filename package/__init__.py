"""minibroker: a replicated log broker. Programs use `minibroker.client`.

This folder holds the files of the package itself. It is not called `minibroker`: a folder of that
name at the top of the repository would be imported in place of the installed package, which has
the other folders (`broker/`, `client/`, ...) in it.

PYTEST_DONT_REWRITE: pytest rewrites the assertions of whole distributions that have a plugin, and
warns where such a package was imported before. The ones here are not those of tests.
"""

from typing import Final

__version__: Final = "0.1.0"
