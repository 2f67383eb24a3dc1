"""A control plane that runs for the length of a `with` block."""

import os
import ssl
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import httpx

from avactl.kube.client import ApiError, UnreachableError
from tools.controlplane import credentials, process
from tools.controlplane.build import build_binaries
from tools.controlplane.client import KubeClient
from tools.controlplane.components import API_SERVER, COMPONENTS, CONTROLLER_MANAGER, SCHEDULER, Layout
from tools.controlplane.folder import OwnedFolder
from tools.waiting import patience

ADMIN = "admin"
START_TIMEOUT = 120.0  # seconds until a component must be ready; 3 are usual, a loaded machine of 2 cores is not
HEALTH_TIMEOUT = 5.0  # seconds
POLL = 0.05  # seconds
PORT_ATTEMPTS = 5
LOG_LINES = 30
GOGC = "400"
"""Collect garbage at five times the live heap, not at twice: a tenth less CPU, 200 MB more for each API server."""


class StartError(Exception):
    """A component ended while it started, or was not ready in time; the message has the last lines of its log."""


class ControlPlane(process.Processes):
    """etcd and an API server on loopback, with the controller manager, the scheduler and kwok on request.

    `users` are further users with their groups, besides the administrator. `arguments` are further command-line
    arguments by component. All processes and data are removed after the block, and also if this process is killed.
    Entering raises UnavailableError or BuildError without binaries, and StartError.
    """

    def __init__(
        self,
        *,
        controller_manager: bool = False,
        scheduler: bool = False,
        kwok: bool = False,
        users: Mapping[str, Sequence[str]] | None = None,
        arguments: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        super().__init__()
        optional = {CONTROLLER_MANAGER: controller_manager, SCHEDULER: scheduler, "kwok": kwok}
        self._initial = ["etcd", API_SERVER, *(name for name, wanted in optional.items() if wanted)]
        self._arguments = {name: list((arguments or {}).get(name, ())) for name in COMPONENTS}
        if unknown := set(arguments or {}) - set(COMPONENTS):
            raise KeyError(f"no such component: {', '.join(sorted(unknown))}; known: {', '.join(COMPONENTS)}")
        groups = {ADMIN: ("system:masters",), **(users or {})}
        self._users = {user: (credentials.new_token(), names) for user, names in groups.items()}
        self._binaries: dict[str, Path] = {}
        self._ports: dict[str, int] = {}
        self._layout: Layout | None = None
        self._folder: OwnedFolder | None = None

    def __enter__(self) -> Self:
        if self._layout is not None:
            raise RuntimeError("this control plane runs already")
        self._binaries = build_binaries(self._initial)
        self._folder = OwnedFolder()
        self._layout = Layout(self._folder.path)
        try:
            credentials.write_tokens(self._layout.tokens, self._users)
            credentials.write_signing_key(self._layout.signing_key)
            for name in self._initial:
                self.start(name)
        except BaseException:
            self.close()
            raise
        return self

    @property
    def layout(self) -> Layout:
        """Where the plane's files are. Raises RuntimeError outside of the `with` block."""
        if self._layout is None:
            raise RuntimeError("the control plane is not running: use it in a `with` block")
        return self._layout

    @property
    def url(self) -> str:
        """The API server's address. It stays the same over restarts."""
        return f"https://127.0.0.1:{self._ports[API_SERVER]}"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, for kubectl, the Pulumi provider, or any client."""
        return self.layout.kubeconfig

    @property
    def ca_file(self) -> Path:
        """The certificates (PEM) that a client must trust."""
        return self.layout.ca_file

    def token(self, user: str = ADMIN) -> str:
        """The bearer token of the administrator or of one of the `users`. Raises KeyError for another name."""
        return self._users[user][0]

    def service_account_token(self, namespace: str, name: str, seconds: int = 3600) -> str:
        """A token of an existing ServiceAccount, from the TokenRequest API, good for `seconds` (600 at least)."""
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        with self.client() as client:
            reply = client.request("POST", path, body={**request, "spec": {"expirationSeconds": seconds}})
        return str(reply.body["status"]["token"])

    def client(self, token: str | None = None) -> KubeClient:
        """A new client with this token, or the administrator's; close it, or use it in a `with` block."""
        return KubeClient(self.url, token or self.token(), self.ca_file)

    def write_kubeconfig(self, path: Path, token: str) -> None:
        """Write a kubeconfig with this token, for instance a service account's."""
        credentials.write_kubeconfig(path, self.url, self.ca_file, token)

    def log(self, component: str) -> Path:
        """The file with a component's output, over all its restarts."""
        return self.layout.log(component)

    def port(self, component: str) -> int:
        """The loopback port of a component that was started (etcd's is not in use: it has a socket)."""
        return self._ports[component]

    def start(self, component: str, *arguments: str) -> None:
        """Start a component that does not run, with its data and port of before, and wait until it is ready.

        `arguments` are added to those it had. Raises StartError, and ValueError if it runs already.
        """
        if component in self._processes:
            raise ValueError(f"{component} runs already")
        self._arguments[component] += arguments
        known = component in self._ports
        for attempt in range(PORT_ATTEMPTS):
            port = self._ports[component] if known else process.free_port()
            try:
                self._launch(component, port)
                return
            except StartError as failure:
                # Another process can take the port between its choice and its use.
                if known or "address already in use" not in str(failure) or attempt == PORT_ATTEMPTS - 1:
                    raise

    def close(self) -> None:
        """End all components and remove all files. Closing twice is fine."""
        for name in reversed(COMPONENTS):
            # The data is discarded, so the API server and etcd need no orderly shutdown.
            self.kill(name)
        self._ports.clear()
        if self._folder is not None:
            self._folder.remove()
            self._folder = self._layout = None

    def _launch(self, component: str, port: int) -> None:
        binary = self._binaries.get(component) or build_binaries([component])[component]
        command: list[str | Path] = [
            binary,
            *COMPONENTS[component].arguments(self.layout, port),
            *self._arguments[component],
        ]
        # Proxies are for the world outside; HOME keeps kwok from reading the user's own configuration.
        environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self.layout.folder), "GOGC": GOGC}
        log = self.layout.log(component)
        written = log.stat().st_size if log.exists() else 0
        child = process.spawn(command, log, environment, cwd=self.layout.folder)
        self._processes[component], self._ports[component] = child, port
        try:
            self._wait(component, child)
        except BaseException as error:
            process.terminate(child, grace=0)
            del self._processes[component]
            if isinstance(error, StartError):
                output = log.read_bytes()[written:].decode(errors="replace").splitlines()[-LOG_LINES:]
                raise StartError("\n".join([f"{component} {error}; the end of its log:", *output])) from None
            raise

    def _wait(self, component: str, child: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + patience(START_TIMEOUT)
        while not self._ready(component):
            if child.poll() is not None:
                raise StartError(f"ended with status {child.returncode} while it started")
            if time.monotonic() > deadline:
                raise StartError(f"was not ready in {START_TIMEOUT:.0f} s")
            time.sleep(POLL)

    def _ready(self, component: str) -> bool:
        if component == "etcd":
            # An API server that starts later will do the waiting. One that runs is asked for something that it does
            # not have in a cache: its /readyz may speak of the etcd of a moment ago.
            return API_SERVER not in self._processes or self._exists("/api/v1/namespaces/default")
        if not self._healthy(component):
            return False
        if component == API_SERVER:
            if not self.kubeconfig.exists():
                self.write_kubeconfig(self.kubeconfig, self.token())
            # The hooks behind /readyz do not wait for the default namespace.
            return self._exists("/api/v1/namespaces/default")
        if component == CONTROLLER_MANAGER:
            # A healthy component serves; its first action shows that its controllers work.
            return self._exists("/api/v1/namespaces/default/serviceaccounts/default")
        return True

    def _healthy(self, component: str) -> bool:
        certificate = self.layout.certificate(component)
        url = COMPONENTS[component].health.format(port=self._ports[component])
        if url.startswith("https:") and not certificate.exists():
            return False
        # Trusting just the certificate in our own folder, no other process on this port can pass for the component.
        try:
            context = ssl.create_default_context(cafile=certificate) if url.startswith("https:") else False
            return httpx.get(url, verify=context, trust_env=False, timeout=HEALTH_TIMEOUT).status_code == 200
        except (httpx.TransportError, ssl.SSLError):
            # The component may be writing its certificate this moment.
            return False

    def _exists(self, path: str) -> bool:
        with self.client() as client:
            try:
                client.request("GET", path)
            except (ApiError, UnreachableError):
                return False
        return True
