"""Places in object storage, and errors about these places, which show no secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from dbloader import LMDBDataset
from dbloader._places import is_remote, parse_place
from dbloader.errors import PlaceError, StoreAccessError, StoreError, StoreNotFoundError, StoreUnreachableError
from dbloader.ext.remote.errors import is_temporary, status_of, translate

PLACE = parse_place("s3://bucket/train.lmdb")


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("s3://bucket/a/b", ("s3", "bucket", "a/b")),
        ("s3://bucket/a//b/", ("s3", "bucket", "a/b")),
        ("GS://bucket", ("gs", "bucket", "")),
        ("az://container/a b/ü", ("az", "container", "a b/ü")),
        ("https://host:8080/files/", ("https", "host:8080", "files")),
        ("http://[::1]:80/a", ("http", "[::1]:80", "a")),
        ("s3://bucket/a@b/c:d", ("s3", "bucket", "a@b/c:d")),
    ],
)
def test_place_is_parsed_into_scheme_bucket_and_key(place: str, expected: tuple[str, str, str]) -> None:
    assert is_remote(place)
    assert parse_place(place) == expected
    assert parse_place(str(parse_place(place))) == expected


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("s3:///key", "s3:///key names no bucket: a place in object storage is s3://bucket/key"),
        ("S3:/bucket/key", "s3:/bucket/key is mistyped: a place in object storage is s3://bucket/key"),
        ("s3://my bucket/key", "'my bucket' is not the name of a bucket"),
        ("s3://KEY:hidden@bucket/a", "must not contain credentials"),
        ("s3://KEY:hidden/hidden@bucket/a", "must not contain credentials"),
        ("s3://KEY:hidden", "must not contain credentials"),
        ("s3:/KEY:hidden/hidden@bucket/a", "must not contain credentials"),
        ("s3:///KEY:hidden/hidden@bucket/a", "must not contain credentials"),
        (Path("gs://KEY:hidden/hidden@bucket/a"), "must not contain credentials"),
        ("https://user:12/hidden@host/a", "must not contain credentials"),
        ("https://user:hidden/a", "must not contain credentials"),
        ("https://host/a.jpg?X-Amz-Signature=hidden", "must not contain credentials"),
    ],
)
def test_invalid_place_is_refused_without_secrets(place: str | Path, message: str, tmp_path: Path) -> None:
    for use in (parse_place, LMDBDataset, lambda place: LMDBDataset(place, cache=tmp_path / "cache")):
        with pytest.raises(PlaceError, match=message) as caught:
            use(place)
        assert "hidden" not in str(caught.value)
    assert [*tmp_path.iterdir()] == []


def answer(status: int, code: str = "") -> str:
    url = "https://bucket.s3.amazonaws.com/train.lmdb?X-Amz-Signature=hidden"
    return (
        f"Generic S3 error: Error performing GET {url} in 1ms - Server returned non-2xx status code: {status} Words: "
        f"<Error><Code>{code}</Code><Message>hidden</Message></Error>\n\nDebug source:\nGeneric {{ hidden }}"
    )


def failed(kind: str) -> str:
    return f"Generic S3 error: Error performing GET https://hidden - HTTP error: error sending request\n\nkind: {kind}"


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (answer(404, "NoSuchBucket"), StoreError, r"there is no bucket s3://bucket \(404, NoSuchBucket\)"),
        (answer(404, "NoSuchKey"), StoreNotFoundError, r"train\.lmdb/key does not exist \(404, NoSuchKey\)"),
        (answer(403, "AccessDenied"), StoreAccessError, r"access is refused \(403, AccessDenied\)"),
        (answer(403, "RequestTimeTooSkewed"), StoreAccessError, "access is refused .*: set the clock of this machine"),
        (answer(401), StoreAccessError, r"access is refused \(401\)"),
        (answer(400, "ExpiredToken"), StoreAccessError, r"access is refused \(400, ExpiredToken\)"),
        (answer(503, "SlowDown"), StoreUnreachableError, r"is overloaded or fails \(503, SlowDown\)"),
        (answer(507, "XMinioStorageFull"), StoreError, r"refuses the request \(507, XMinioStorageFull\)"),
        (answer(409, "OperationAborted"), StoreError, r"refuses the request \(409, OperationAborted\)"),
        (answer(400, "AuthorizationHeaderMalformed"), StoreAccessError, "is in another region .*: set AWS_REGION"),
        (answer(403).replace("bucket.s3.amazonaws.com", "169.254.169.254"), StoreAccessError, "no valid credentials"),
        ("Generic GCS error: Unable to open service account file from /hidden", StoreAccessError, "no valid creden"),
        ("Generic MicrosoftAzure error: Invalid Access Key: symbol 33", StoreAccessError, "no valid credentials"),
        (failed("Connect, dns error"), StoreUnreachableError, r"AWS_REGION determines the server\): dns error"),
        (failed("Decode"), StoreUnreachableError, "no server answers"),
    ],
)
def test_error_of_the_server_is_translated(text: str, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        raise translate(Exception(text), PLACE, "key")
    assert "hidden" not in str(caught.value)


def test_only_temporary_errors_are_repeated() -> None:
    temporary = [answer(503), answer(500), answer(429), failed("Connect"), failed("Timeout")]
    final = [
        answer(501),
        answer(507),
        answer(403),
        answer(404),
        answer(412),
        answer(400, "ExpiredToken"),
        "Account must be specified",
    ]
    assert all(is_temporary(Exception(text)) for text in temporary)
    assert not any(is_temporary(Exception(text)) for text in final)
    assert [status_of(Exception(text)) for text in (temporary[0], temporary[3])] == [503, 0]
