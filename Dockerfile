# queryserver as a container, with a PostgreSQL of yours: docs/operations/install.md.
#   BASE    any Debian with Python 3.11 or newer as python3, such as python:3.x-slim
#   EXTRAS  of pyproject.toml, in quotes: "ldap kerberos"

ARG BASE=python:3.13-slim

FROM ${BASE} AS build
ARG EXTRAS=""
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
# strip for the wheels; a compiler for gssapi, which has none for Linux. Python's own images have its headers, Debian lacks them.
RUN for extra in $EXTRAS; do \
      case $extra in embedded|kerberos|ldap) ;; *) echo "EXTRAS: $extra is not one of embedded, kerberos, ldap" >&2; exit 1 ;; esac; \
    done \
    && needed=binutils \
    && case " $EXTRAS " in *" kerberos "*) \
      headers=$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))') \
      && needed="$needed gcc libc6-dev libkrb5-dev $([ -e "$headers/Python.h" ] || echo python3-dev)" ;; \
    esac \
    && apt-get update -qq \
    && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $needed
# pip of one environment fills the other, which is shipped without pip.
RUN python3 -m venv /opt/build && python3 -m venv --without-pip /opt/queryserver
COPY requirements requirements
RUN pip="/opt/build/bin/pip --python /opt/queryserver/bin/python" \
    && $pip install --require-hashes --requirement requirements/build.lock --requirement requirements/service.lock \
    && for extra in $EXTRAS; do \
      $pip install --require-hashes --no-build-isolation --requirement "requirements/$extra.lock" || exit 1; \
    done
COPY LICENSE README.md pyproject.toml ./
COPY alembic alembic
COPY src src
# Then what only building needs is removed: tools, sources, headers, tests, symbols for debuggers; and Arrow's Flight and S3,
# which nothing else of Arrow uses and we do not either.
RUN pip="/opt/build/bin/pip --python /opt/queryserver/bin/python" \
    && $pip install --no-deps --no-build-isolation --no-index . \
    && $pip uninstall --yes --requirement requirements/build.lock \
    && cd /opt/queryserver/lib/python3.*/site-packages \
    && find . -type d -name tests -prune -exec rm -rf {} + \
    && find . -type f -regex '.*\.\(a\|c\|cpp\|h\|hpp\|pxd\|pxi\|pyx\)' -delete \
    && rm -rf pyarrow/src pyarrow/flight.py pyarrow/_flight.* pyarrow/libarrow_flight.* pyarrow/libarrow_python_flight.* \
      pyarrow/_s3fs.* pyarrow/libarrow_s3.* \
    && find pyarrow \( -name 'lib*.so' -o -name 'lib*.so.*.*.*' \) ! -name 'lib.*' -delete \
    && find . -type f -name '*.so*' -exec strip --strip-unneeded {} +

FROM ${BASE}
ARG EXTRAS=""
ARG REVISION=""
LABEL org.opencontainers.image.title="queryserver" \
      org.opencontainers.image.description="SQL on any engine over HTTP, with the REST API of Hue" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN case " $EXTRAS " in *" kerberos "*) \
      apt-get update -qq \
      && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends libgssapi-krb5-2 \
      && apt-get clean && rm -rf /var/lib/apt/lists/* ;; \
    esac \
    && groupadd --gid 10001 queryserver \
    && useradd --uid 10001 --gid 10001 --no-log-init --no-create-home --home-dir /var/lib/queryserver --shell /usr/sbin/nologin queryserver \
    && install --directory --mode 700 --owner 10001 --group 10001 /var/lib/queryserver
COPY --from=build /opt/queryserver /opt/queryserver
# A settings file cannot change the hosts and the data directory: the environment goes before it.
ENV PATH=/opt/queryserver/bin:$PATH \
    QUERYSERVER__DESKTOP__HTTP_HOST=0.0.0.0 \
    QUERYSERVER__DESKTOP__TASK_SERVER__METRICS_HOST=0.0.0.0 \
    QUERYSERVER__DESKTOP__DATA_DIR=/var/lib/queryserver \
    HOME=/var/lib/queryserver \
    PYTHONUNBUFFERED=1
# A number: Kubernetes cannot check a name against runAsNonRoot.
USER 10001:10001
WORKDIR /var/lib/queryserver
VOLUME /var/lib/queryserver
EXPOSE 8888
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=10s --start-period=30s --retries=3 CMD ["queryserver", "health"]
ENTRYPOINT ["queryserver"]
CMD ["serve"]
