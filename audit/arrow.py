"""pyarrow's functions on columns, for type checkers, too.

pyarrow makes most of them (`any`, `equal`, `invert`) when it is imported, so its files do not name
them.
"""

from typing import Any, Final

import pyarrow.compute

compute: Final[Any] = pyarrow.compute
