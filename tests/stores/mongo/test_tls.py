"""Stores on a server that uses TLS."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dbloader import open_store
from dbloader.errors import StoreUnreachableError
from tests.contracts.records import documents_of, make_records, stored, write
from tests.support.mongo import Mongod
from tests.support.servers import needing_a_server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a key and a self-signed certificate for this machine."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl, to make a certificate")
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(path), "-out", f"{path}.crt"]
    subprocess.run(command, check=True, capture_output=True)
    with path.open("ab") as file:
        file.write(path.with_name("server.pem.crt").read_bytes())
    return path


@pytest.fixture(scope="module")
def server(certificate: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mongod]:
    # TLS is preferred and not required, because the tests' own client does not use TLS.
    options = ["--tlsMode", "preferTLS", "--tlsCertificateKeyFile", str(certificate)]
    with needing_a_server(), Mongod(tmp_path_factory.mktemp("server") / "mongod", options=options) as server:
        yield server


def test_store_is_written_and_read_with_certificate_file(server: Mongod, certificate: Path) -> None:
    place = f"{server.place('tls')}?tls=true&tlsCAFile={certificate}"
    records = make_records(3)
    write(place, records)
    with open_store(place) as store:
        assert stored(store, range(3)) == documents_of(records)


def test_error_about_untrusted_certificate_names_the_option(server: Mongod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dbloader.stores.mongo.connection.SELECTION_SECONDS", 1.0)
    message = r"^no server answers at .* certificate verify failed: self-signed .* does it use TLS \(tls=true, "
    with open_store(f"{server.place('tls')}?tls=true") as store, pytest.raises(StoreUnreachableError, match=message):
        len(store)
