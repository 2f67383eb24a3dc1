"""Models of Hugging Face's hub → an init container that copies one commit, with the library in the server's image.

huggingface_hub goes on where a connection broke, and knows the hub's storage and mirrors; the images of both servers
that take models of the hub have it.
The server starts afterwards, and stays offline (`HF_HUB_OFFLINE`).

Sources, of huggingface_hub 2.4 (the same since 0.23): `_snapshot_download.py`, `errors.py`, `utils/_paths.py`.
"""

from __future__ import annotations

from avactl.base.quantity import parse_quantity
from avactl.kinds.serving.parts.models import Files
from avactl.kinds.serving.spec import ServingDeploymentSpec
from avactl.program.dataset_access import DatasetAccess
from avactl.program.lowering import pods
from avactl.program.lowering.k8s import json_line
from avactl.program.manifest import Body
from avactl.spec.schema.values import HUB

COPY_SCRIPT = r"""import errno, json, os, pathlib, re, sys
from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.utils import filter_repo_objects

# Other forms of the same weights, which no server of safetensors reads.
OTHER = ["*.bin", "*.pt", "*.pth", "*.gguf", "*.h5", "*.msgpack", "*.ot", "*.onnx", "*.tflite", "original/*", "onnx/*"]
repo, _, commit = os.environ["SOURCE"].partition("://")[2].partition("@")
target, size, wanted = os.environ["TARGET"], int(os.environ["SIZE"]), json.loads(os.environ["FILES"])
token = os.environ.get("HF_TOKEN") or None
at = f"{repo} on {constants.ENDPOINT}"


def fail(why):
    # It becomes the pod's message: without passwords of a mirror, and signatures of the storage.
    why = re.sub(r"(?<=://)[^/@\s]+@", "", re.sub(r"[?]\S*", "?…", why))
    print(f"error: {why}"[:2000], file=sys.stderr)
    sys.exit(1)


def gib(count):
    return f"{count / 2**30:.1f} GiB"


def copy():
    info = HfApi(token=token).model_info(repo, revision=commit, files_metadata=True)
    files = {each.rfilename: each.size or 0 for each in info.siblings or ()}
    weights = any(name.endswith(".safetensors") and "/" not in name for name in files)
    skipped = None if wanted else OTHER if weights else ["original/*"]
    chosen = list(filter_repo_objects(files, allow_patterns=wanted or None, ignore_patterns=skipped))
    if not chosen:
        fail(f"{at}: none of {len(files)} files matches {wanted}")
    total = sum(files[name] for name in chosen)
    if total > size:
        fail(f"{at}: {len(chosen)} files have {gib(total)}, and `size` of the model is {gib(size)}")
    # Parts of files that a killed container has left, and which recent versions of the library do not use again.
    for path in pathlib.Path(target, ".cache").rglob("*.incomplete"):
        if re.search(r"[.][0-9a-f]{8}[.]incomplete$", path.name):
            path.unlink()
    snapshot_download(
        repo, revision=commit, local_dir=target, token=token, allow_patterns=wanted or None, ignore_patterns=skipped
    )
    for name in chosen:
        path = os.path.join(target, name)
        if not os.path.isfile(path) or (files[name] and os.path.getsize(path) != files[name]):
            fail(f"{at}: {name} is not complete")


try:
    copy()
except GatedRepoError:
    why = "its account has not accepted the conditions" if token else "there is no key `token` in `secret` of the model"
    fail(f"{at} is gated: {why}")
except RevisionNotFoundError:
    fail(f"{at} has no commit {commit}")
except RepositoryNotFoundError:
    fail(f"{at} does not exist, or the token may not read it" if token else f"{at} does not exist, or needs a token")
except HfHubHTTPError as error:
    status = getattr(error.response, "status_code", 0)
    fail(f"{at}: the token is not valid" if status == 401 and token else f"{at}: {error}")
except Exception as error:
    # Storage backends of the library raise errors of their own.
    full = getattr(error, "errno", 0) == errno.ENOSPC or "no space left" in str(error).lower()
    fail(f"{at}: no space left on the volume or the machine" if full else f"{at}: {type(error).__name__}: {error}")
"""
_ENV = {
    "HF_HUB_OFFLINE": "0",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DOWNLOAD_TIMEOUT": "60",
    "HF_HUB_ETAG_TIMEOUT": "60",
    # The files are on the volume: a cache of their parts would need as much again.
    "HF_XET_CHUNK_CACHE_SIZE_BYTES": "0",
}


def is_of_hub(url: str | None) -> bool:
    """Return True if a URL is one of Hugging Face's hub."""
    return url is not None and url.startswith(f"{HUB}://")


def hub_container(spec: ServingDeploymentSpec, name: str, access: DatasetAccess, model: Files, where: str) -> Body:
    """Return the init container that copies a model or adapter of the hub.

    It has the variables of the server: a mirror (HF_ENDPOINT), proxies and certificates hold for it, too.
    """
    own = {
        **_ENV,
        "HF_HOME": f"{pods.TMP}/huggingface",
        "SOURCE": access.url,
        "TARGET": where,
        "SIZE": str(int(parse_quantity(access.size or "0"))),
        "FILES": json_line(model.files),
    }
    env = pods.merge_env(pods.env_list(spec.env), pods.env_list(own))
    if access.secret:
        env = pods.merge_env(env, pods.secret_env(access.secret, {"HF_TOKEN": "token"}))
    container = pods.build_helper(
        name,
        spec.runtime.image,
        "",
        env,
        pods.build_resources("500m", "2Gi"),
        [{"name": name, "mountPath": where}],
    )
    return {**container, "command": ["python3", "-c", COPY_SCRIPT]}
