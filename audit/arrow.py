"""pyarrow's compute functions, typed as Any for type checkers.

pyarrow creates most of them (`any`, `equal`, `invert`) on import, so its source files do not define
them.
"""

from typing import Any, Final

import pyarrow.compute

compute: Final[Any] = pyarrow.compute
