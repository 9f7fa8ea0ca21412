"""minibroker: a replicated log broker. Programs use `minibroker.client`.

This folder holds the files of the package itself. It is not called `minibroker`: a folder of that
name at the top of the repository would be imported in place of the installed package, which has
the other folders (`broker/`, `client/`, ...) in it.
"""

from typing import Final

__version__: Final = "0.1.0"
