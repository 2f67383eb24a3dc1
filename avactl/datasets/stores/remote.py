"""Objects of a bucket, by the `object_store` library."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from avactl.base.installation import install_command
from avactl.base.terminal import shorten_middle, visible_text
from avactl.datasets.errors import ArgumentError, ChangedError, DatasetError, ObjectStoreError
from avactl.datasets.stores.aws_profile import read_profile
from avactl.datasets.stores.locations import StoreLocation, key_problem
from avactl.datasets.stores.store import CHUNK, FoundObject

if TYPE_CHECKING:
    from obstore.store import ObjectStore

PART = 2 * CHUNK
"""Bytes of a part of an upload: S3 allows 10,000 parts, so 160 GB."""
_MAX_PARALLEL = 4
_HOSTED_SCHEMES = ("oss", "cos")
"""Stores that take the bucket in the host's name only."""
_RETRIES: Any = {"max_retries": 4, "retry_timeout": timedelta(minutes=3)}
_CLIENT: Any = {"timeout": "15m", "connect_timeout": "10s"}
_CREDENTIALS_HINT = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; AWS_SKIP_SIGNATURE=true: anonymous"
)


class RemoteStore:
    """A prefix of a bucket. See `Store`. Credentials come from the environment, a profile, or the machine."""

    def __init__(self, location: StoreLocation, endpoint: str = "") -> None:
        """Raises StoreError if the package obstore is not installed, ArgumentError for settings that it rejects."""
        try:
            import obstore
            from obstore import exceptions
        except ModuleNotFoundError:
            raise ObjectStoreError("object stores require the package obstore", install_command("dataset")) from None
        self.location = location
        self._prefix = f"{location.path}/" if location.path else ""
        self._obstore, self._exceptions = obstore, exceptions
        try:
            self._store = _open_store(location, endpoint)
        except exceptions.BaseError as error:
            raise ArgumentError(
                f"{location}: {_error_text(error)}", "check `--endpoint` and the AWS_ variables"
            ) from None

    def objects(self, below: str = "") -> Iterator[FoundObject]:
        """Yield all objects. Raises StoreError, DatasetError."""
        last, prefix = "", (self._prefix + below).rstrip("/")
        with self._convert_errors(below):
            pages = self._obstore.list(self._store, prefix or None, chunk_size=1000)
        while True:
            with self._convert_errors(below):
                page = next(iter(pages), None)
            if page is None:
                return
            for meta in page:
                key = meta["path"][len(self._prefix) :]
                if not meta["size"] and self.find(key) is None:
                    continue  # `directory/`, whose slash the library removes
                if not key.isascii() or not key.isprintable() or len(key) > 512:
                    self._want_key(key)
                if key <= last and last:
                    hint = "snapshot a smaller prefix; only stores that list in the order of keys are supported"
                    raise ObjectStoreError(
                        f"{self.location} lists `{visible_text(key)}` after `{visible_text(last)}`", hint
                    )
                last = key
                yield _as_found(key, meta)

    def directories(self, below: str = "") -> list[str]:
        """Return the names of the directories directly below a path. Raises StoreError."""
        prefix = (self._prefix + below).rstrip("/")
        with self._convert_errors(below):
            found = self._obstore.list_with_delimiter(self._store, prefix or None)
        return sorted(path.rstrip("/").rpartition("/")[2] for path in found["common_prefixes"])

    def find(self, key: str) -> FoundObject | None:
        """Return one object; None if it does not exist."""
        try:
            with self._convert_errors(key):
                return _as_found(key, self._obstore.head(self._store, self._prefix + key))
        except FileNotFoundError:
            return None

    def read(self, found: FoundObject) -> bytes:
        """Return the content of an object. Raises ChangedError, StoreError."""
        return b"".join(self.stream(found))

    def stream(self, found: FoundObject) -> Iterator[bytes]:
        """Yield the content of an object in chunks. Raises ChangedError, StoreError."""
        name, size = self._name(found.key), 0
        options: Any = {"if_match": f'"{found.etag}"'} if found.etag else None
        try:
            with self._convert_errors(found.key):
                answer = self._obstore.get(self._store, self._prefix + found.key, options=options)
                chunks = iter(answer.stream(min_chunk_size=CHUNK))
            while True:
                with self._convert_errors(found.key):
                    chunk = next(chunks, None)
                if chunk is None:
                    break
                size += len(chunk)
                yield bytes(chunk)
        except FileNotFoundError:
            raise ChangedError(name, "disappeared after it was listed") from None
        except self._exceptions.PreconditionError:
            raise ChangedError(name, "changed after it was listed") from None
        if size != found.size:
            raise ChangedError(name, f"changed: {found.size:,} bytes when listed, {size:,} when read")

    def write(self, key: str, content: bytes | Iterable[bytes]) -> None:
        """Upload an object; the store shows it when it is complete. Raises StoreError, and errors of the content."""
        failures: list[BaseException] = []

        def noted(chunks: Iterable[bytes]) -> Iterator[bytes]:
            try:
                yield from chunks
            except BaseException as error:
                failures.append(error)
                raise

        body = content if isinstance(content, bytes) else noted(content)
        try:
            with self._convert_errors(key):
                self._obstore.put(self._store, self._prefix + key, body, chunk_size=PART, max_concurrency=_MAX_PARALLEL)
        except Exception:
            if failures:  # the library wraps it
                raise failures[0] from None
            raise

    def remove(self, key: str) -> None:
        """Remove an object, if it exists. Raises StoreError."""
        with suppress(FileNotFoundError), self._convert_errors(key):
            self._obstore.delete(self._store, self._prefix + key)

    def _want_key(self, key: str) -> None:
        if problem := key_problem(key):
            raise DatasetError(f"the name of {self._name(key)} {problem}", "rename the object")

    def _name(self, key: str) -> str:
        return visible_text(shorten_middle(f"{self.location.url}/{key}" if key else str(self.location), 200))

    @contextmanager
    def _convert_errors(self, key: str) -> Iterator[None]:
        """Turn errors of the library into ones with a remedy; FileNotFoundError and PreconditionError pass."""
        errors, name, bucket = self._exceptions, self._name(key), f"{self.location.scheme}://{self.location.bucket}"
        try:
            yield
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise ObjectStoreError(
                    f"{bucket}: no such bucket", "check the name, `--endpoint` and the region"
                ) from None
            raise
        except errors.PreconditionError:
            raise
        except (errors.PermissionDeniedError, errors.UnauthenticatedError):
            hint = "the credentials need the right to list and read; to write for `pack`"
            raise ObjectStoreError(f"{name}: access denied", hint) from None
        except errors.BaseError as error:
            text = _error_text(error)
            if "contained empty path segment" in text or "invalid path" in text:
                raise DatasetError(f"{self.location}: {text}", "rename the object") from None
            if "NoSuchBucket" in str(error):
                raise ObjectStoreError(
                    f"{bucket}: no such bucket", "check the name, `--endpoint` and the region"
                ) from None
            if "credential" in text.lower() or "169.254" in text or "/latest/" in text:
                raise ObjectStoreError(f"{bucket}: no credentials", _CREDENTIALS_HINT) from None
            raise ObjectStoreError(
                f"{name}: {text}", "check `--endpoint` and the network; run the command again"
            ) from None


def _open_store(location: StoreLocation, endpoint: str) -> ObjectStore:
    from obstore.store import GCSStore, S3Store

    if location.scheme == "gs":
        return GCSStore(location.bucket, client_options=_CLIENT, retry_config=_RETRIES)
    given = endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")
    if not given and location.scheme != "s3":
        hint = f"name the S3 endpoint of the store: `--endpoint https://…`; {location.scheme} speaks the S3 protocol"
        raise ArgumentError(f"{location} needs an endpoint", hint)
    config: Any = read_profile(os.environ)
    if given:
        protocol, _, host = given.rstrip("/").partition("://")
        hosted = (
            os.environ.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", str(location.scheme in _HOSTED_SCHEMES)).lower()
            == "true"
        )
        config["endpoint"] = f"{protocol}://{location.bucket}.{host}" if hosted else given
        config["virtual_hosted_style_request"] = hosted
    client = _CLIENT | {"allow_http": given.startswith("http://")}
    return S3Store(location.bucket, config=config, client_options=client, retry_config=_RETRIES)


def _as_found(key: str, meta: Any) -> FoundObject:
    etag = (meta.get("e_tag") or "").strip('"')
    return FoundObject(key, meta["size"], etag, etag)


def _error_text(error: BaseException) -> str:
    """Return the first line of an error of the library, without the dump of its parts that follows."""
    return visible_text(shorten_middle(str(error).partition("\n")[0].strip(), 300))
