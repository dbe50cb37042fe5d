# The agent's image: Debian, both iptables backends, Python, and the agent with its libraries.
# Locked: requirements.lock (libraries) and requirements-build.lock (what builds the wheel), both
# written by hack/lock.sh. Nothing here needs BuildKit.

FROM debian:trixie-slim AS build
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3-venv
WORKDIR /src
RUN python3 -m venv /opt/build \
 && python3 -m venv --without-pip /opt/onenth
COPY requirements.lock requirements-build.lock ./
RUN /opt/build/bin/pip install --no-cache-dir --require-hashes \
      --requirement requirements-build.lock \
 && /opt/build/bin/pip --python /opt/onenth/bin/python install --no-cache-dir --no-compile \
      --only-binary :all: --require-hashes --requirement requirements.lock
COPY pyproject.toml README.md LICENSE ./
COPY agent agent
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir dist . \
 && /opt/build/bin/pip --python /opt/onenth/bin/python install --no-cache-dir --no-compile \
      --no-deps --no-index dist/*.whl
COPY hack/slim-venv.sh ./
# The root file system is read-only when it runs, so everything is compiled now.
RUN ./slim-venv.sh /opt/onenth \
 && /opt/onenth/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/onenth/lib


FROM debian:trixie-slim
ARG REVISION=unknown
ARG VERSION=unknown
LABEL org.opencontainers.image.title="onenth" \
      org.opencontainers.image.description="Programs Kubernetes Services as netfilter rules: every endpoint gets exactly one n-th of the connections" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="debian:trixie-slim" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN apt-get update \
 && apt-get install --yes --no-install-recommends iptables libpython3-stdlib python3-minimal \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/log/* \
      /usr/share/doc/* /usr/share/man/* /usr/share/locale/* \
 && groupadd --gid 65532 onenth \
 && useradd --uid 65532 --gid 65532 --home-dir / --no-create-home onenth
COPY --from=build /opt/onenth /opt/onenth
ENV PATH=/opt/onenth/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# A library that lost too much is found here and not on a node.
RUN onenth version \
 && python -c "import agent.daemon; from kubernetes import config; from kubernetes.client import ApiClient"
# Rules of the host's network are root's to write: the kernel gives CAP_NET_ADMIN to no other user
# of a container unless the runtime makes it ambient, which Kubernetes does not. Everything that
# only reads or renders also works as user 65532.
USER root
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["onenth", "probe", "livez"]
ENTRYPOINT ["onenth"]
CMD ["run"]
