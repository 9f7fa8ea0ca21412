"""A zip of minibroker for Spark's workers, which have Python and the native wheels, but not it.

It is made from the files of the imported packages, so driver and workers run the same code, whether
it was installed from a wheel or lies in a working tree (where the folders have other names:
`audit/` is `minibroker.audit`). It contains only what the audit imports. It starts with the
`__init__.py` of `minibroker` itself: without that, a minibroker that is installed on the worker
would be imported instead. The name must end in `.zip`, or Spark's workers do not read it.

`python -m minibroker.audit.packaging DIR` writes the zip and `submit.py`, for `spark-submit`.
"""

import importlib
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Final

# The packages that minibroker.audit may import, with their subpackages.
_PACKAGES: Final = ("audit", "client", "protocol")


def write_package(path: Path) -> Path:
    """Write the zip, replacing a file of that name, and return its path."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.mkdir("minibroker")
        top = Path(importlib.import_module("minibroker").__path__[0])
        archive.write(top / "__init__.py", "minibroker/__init__.py")
        for package in _PACKAGES:
            module = importlib.import_module(f"minibroker.{package}")
            folder = Path(module.__path__[0])
            archive.mkdir(f"minibroker/{package}")
            for file in sorted(folder.rglob("*")):
                name = f"minibroker/{package}/{file.relative_to(folder).as_posix()}"
                if "__pycache__" in file.parts:
                    continue
                if file.is_dir():
                    archive.mkdir(name)
                else:
                    archive.write(file, name)
    return path


def main() -> None:
    """Write the files that `spark-submit` needs into the directory given as argument."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m minibroker.audit.packaging DIR")
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    package = write_package(directory / "minibroker.zip")
    submit = shutil.copy(Path(__file__).with_name("submit.py"), directory)
    print(f"spark-submit --py-files {package} {submit} DATA_DIR... --out OUT")


if __name__ == "__main__":
    main()
