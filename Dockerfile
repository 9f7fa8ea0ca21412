# minibroker as an image; docs/containers.md says how it is run.
#
#   docker build -t minibroker .                         a broker, and every command but the audit
#   docker build -t minibroker-audit --target audit .    the audit, with Spark and a Java
#
# What is installed is made in stages of its own, so that neither pip's files nor the source are in
# an image. Libraries come before the code, since they change less often: a build after a change
# of code takes seconds. tests/acceptance/test_compose.py runs what stands here, without an engine.

FROM python:3.11.14-slim-bookworm AS base
ENV PATH=/opt/minibroker/bin:$PATH \
    PYTHONUNBUFFERED=1

FROM base AS wheel
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM base AS libraries
WORKDIR /source
COPY pyproject.toml .
RUN python -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
        print(*project["dependencies"], sep="\n")' > requirements.txt \
    && python -m venv --without-pip /opt/minibroker \
    && pip --python /opt/minibroker install --no-cache-dir --requirement requirements.txt

FROM libraries AS audit-libraries
RUN python -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
        print(*project["optional-dependencies"]["audit"], sep="\n")' > requirements.txt \
    && pip --python /opt/minibroker install --no-cache-dir --requirement requirements.txt

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
# the demo and the audit hand on.
FROM base AS runtime
RUN groupadd --gid 10001 minibroker \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/minibroker \
        --shell /usr/sbin/nologin minibroker \
    && install --directory --owner 10001 --group 10001 --mode 0750 /var/lib/minibroker /evidence
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
ENV KAFKA_LOG_DIRS=/var/lib/minibroker
EXPOSE 9092
VOLUME ["/var/lib/minibroker"]
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=5s --timeout=5s --start-period=60s --retries=3 \
    CMD ["minibroker", "health", "--ready", "-b", "127.0.0.1:9092"]
CMD ["start", "--config", "/mnt/shared/config"]
