# The image of avactl's command line and daemons.
#
#   docker build --tag avactl .
#
# Everything is pinned: the base by digest (Renovate and Dependabot update it), Python packages by hash. Debian's git is
# signed by the distribution. `python -m tools.image` builds the same without a registry; the end-to-end tests run that.
ARG PYTHON=python:3.12.15-slim-bookworm@sha256:54c85f3c47607a77f32adec749d3c81d1348bf25833671f512b26a9b6d778cb3

FROM ${PYTHON} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
COPY tools/image/build.lock tools/image/requirements.lock ./
RUN python -m venv /opt/build && /opt/build/bin/pip install --quiet --require-hashes -r build.lock
RUN python -m venv --without-pip /opt/avactl
RUN /opt/build/bin/pip --python /opt/avactl/bin/python install --quiet --only-binary=:all: --no-compile --require-hashes -r requirements.lock
COPY . .
RUN /opt/build/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir /opt/dist .
RUN /opt/build/bin/pip --python /opt/avactl/bin/python install --quiet --no-index --no-deps --no-compile /opt/dist/avactl-*.whl
# Pods have read-only root file systems: Python could not keep what it compiles.
RUN /opt/avactl/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/avactl/lib

FROM ${PYTHON}
RUN apt-get update \
 && apt-get install --yes --no-install-recommends git openssh-client \
 && rm -rf /var/lib/apt/lists/* /var/log/apt /var/log/dpkg.log
COPY --from=build /opt/avactl /opt/avactl
ENV PATH=/opt/avactl/bin:/usr/local/bin:/usr/bin:/bin HOME=/tmp
USER 1000:1000
WORKDIR /specs
ENTRYPOINT ["avactl"]
