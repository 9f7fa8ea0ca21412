# minibroker as an image; docs/containers.md says how it is run.
#
#   docker build -t minibroker .                         a broker, and every command but the audit
#   docker build -t minibroker-audit --target audit .    the audit, with Spark and a Java
#
# What is installed is made in stages of its own, so that neither pip's files nor the source are in
# an image. Libraries come before the code, since they change less often: a build after a change
# of code takes seconds. Each is locked to a version and its hashes in docker/*.lock.txt, so that an
# image built later has the same ones. tests/acceptance/test_compose.py runs what stands here,
# without an engine.

FROM python:3.11.14-slim-bookworm AS base
ENV PATH=/opt/minibroker/bin:$PATH \
    PYTHONUNBUFFERED=1

FROM base AS wheel
WORKDIR /source
COPY docker/build.lock.txt .
RUN pip install --no-cache-dir --require-hashes --requirement build.lock.txt
COPY . .
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .

FROM base AS libraries
WORKDIR /source
COPY docker/libraries.lock.txt .
RUN python -m venv --without-pip /opt/minibroker \
    && pip --python /opt/minibroker install --no-cache-dir --require-hashes \
        --requirement libraries.lock.txt

FROM libraries AS audit-libraries
COPY docker/audit.lock.txt .
RUN pip --python /opt/minibroker install --no-cache-dir --require-hashes \
        --requirement audit.lock.txt

FROM libraries AS installed
COPY --from=wheel /wheels /wheels
RUN pip --python /opt/minibroker install --no-cache-dir --no-deps --no-index /wheels/*.whl \
    && pip --python /opt/minibroker check

FROM audit-libraries AS audit-installed
COPY --from=wheel /wheels /wheels
RUN pip --python /opt/minibroker install --no-cache-dir --no-deps --no-index /wheels/*.whl \
    && pip --python /opt/minibroker check

# The user has a number that other containers and volumes can name. A new volume takes its owner
# from the directory that it is mounted at: /var/lib/minibroker has a broker's data, /evidence what
# the demo and the audit hand on. Another user (`--user`) may enter the first, to read why it may
# not write there.
FROM base AS runtime
LABEL org.opencontainers.image.title="minibroker" \
      org.opencontainers.image.description="A replicated log broker" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 minibroker \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/minibroker \
        --shell /usr/sbin/nologin minibroker \
    && install --directory --owner 10001 --group 10001 --mode 0755 /var/lib/minibroker /evidence
WORKDIR /var/lib/minibroker
USER 10001:10001
ENTRYPOINT ["minibroker"]

FROM runtime AS audit
COPY --from=audit-installed /opt/minibroker /opt/minibroker
CMD ["audit", "run", "--help"]

# Like other images of Kafka's kind it reads a file at /mnt/shared/config and KAFKA_... variables,
# which win over the file.
FROM runtime AS broker
COPY --from=installed /opt/minibroker /opt/minibroker
COPY docker/server.properties /mnt/shared/config/server.properties
ENV KAFKA_LOG_DIRS=/var/lib/minibroker \
    MINIBROKER_VOLUME=/var/lib/minibroker
EXPOSE 9092
VOLUME ["/var/lib/minibroker"]
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=10s --start-period=60s --retries=3 \
    CMD ["minibroker", "health", "--ready", "-b", "127.0.0.1:9092"]
CMD ["start", "--config", "/mnt/shared/config"]
