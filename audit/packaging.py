"""A zip of minibroker for Spark's workers, which have Python and the native wheels but not us.

It is made from the files of the packages as they are imported here, so that driver and workers run
the same code, whether it was installed from a wheel or stands in a working tree (where the folders
have other names: `audit/` is `minibroker.audit`). Only what the audit imports goes in. An archive
must list its directories, or `minibroker`, which has no `__init__.py`, is not found in it; and its
name must end in `.zip`, or Spark's workers do not look into it.
"""

import importlib
import zipfile
from pathlib import Path
from typing import Final

# What minibroker.audit may import, with all that lies below.
_PACKAGES: Final = ("audit", "client", "protocol")


def write_package(path: Path) -> Path:
    """Write the zip, replacing a file of that name; returns its path."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.mkdir("minibroker")
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
