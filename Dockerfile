# queryserver as a container, behind a load balancer, with a PostgreSQL of yours:
#   docker run -e QUERYSERVER__DESKTOP__DATABASE__URL=postgresql://... -e QUERYSERVER__DESKTOP__SECRET_KEY=... -p 8888:8888 queryserver
# The tables come from `queryserver migrate`, run once per release.

FROM python:3.11-slim AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
RUN python -m venv /opt/queryserver
COPY requirements.lock ./
RUN /opt/queryserver/bin/pip install --require-hashes --requirement requirements.lock
COPY pyproject.toml README.md alembic.ini ./
COPY alembic alembic
COPY src src
RUN /opt/queryserver/bin/pip install --no-deps --no-build-isolation --no-index .

FROM python:3.11-slim
RUN useradd --system --uid 10001 --home-dir /var/lib/queryserver --create-home --shell /usr/sbin/nologin queryserver
COPY --from=build /opt/queryserver /opt/queryserver
ENV PATH=/opt/queryserver/bin:$PATH PYTHONUNBUFFERED=1 QUERYSERVER__DESKTOP__DATA_DIR=/var/lib/queryserver
USER queryserver
WORKDIR /var/lib/queryserver
VOLUME /var/lib/queryserver
EXPOSE 8888
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s --retries=3 \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8888/desktop/debug/is_alive', timeout=2)"]
ENTRYPOINT ["queryserver"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8888"]
