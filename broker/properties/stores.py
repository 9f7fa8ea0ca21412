"""Properties of the metadata store etcd: its prefix, user and TLS files.

The password is read from a file. As the value of a property it would be visible in the list of
processes, and in the output of `minibroker config show`.
"""
# ruff: noqa: RUF009 -- `setting` makes a field, which is what that rule asks for.

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from types import MappingProxyType
from typing import Final

from minibroker.broker.config_property import Kind, Value, setting

# A lease in etcd is renewed over a network, and its own leader may have to be elected first.
ETCD_DEFAULTS: Final[Mapping[str, Value]] = MappingProxyType(
    {"broker.session.timeout.ms": 6_000, "broker.heartbeat.interval.ms": 1_500}
)


@dataclass(frozen=True)
class Stores:
    """The metadata in etcd: how it is reached, where metadata.store names it."""

    metadata_store_prefix: str = setting(
        "metadata.store.prefix",
        Kind.TEXT,
        "minibroker",
        "The first part of all keys in etcd; clusters that share an etcd need one each.",
    )
    metadata_store_user: str | None = setting(
        "metadata.store.user", Kind.TEXT, None, "The user of etcd; without one, nobody."
    )
    metadata_store_password_file: PurePath | None = setting(
        "metadata.store.password.file",
        Kind.FILE,
        None,
        "A file with that user's password; the end of its last line is left out.",
    )
    metadata_store_ca_file: PurePath | None = setting(
        "metadata.store.ca.file",
        Kind.FILE,
        None,
        "The certificates (PEM) that etcd's must come from; without it, whom the system trusts.",
    )
    metadata_store_cert_file: PurePath | None = setting(
        "metadata.store.cert.file",
        Kind.FILE,
        None,
        "The certificate (PEM) that the broker shows to etcd.",
    )
    metadata_store_key_file: PurePath | None = setting(
        "metadata.store.key.file",
        Kind.FILE,
        None,
        "Its private key (PEM); without it, the certificate's file has it.",
    )
