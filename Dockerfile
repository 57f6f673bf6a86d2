# A keepwarm server on a CPU. Docker and Podman build it alike:
#
#     docker build -t keepwarm --build-arg PIP_OPTIONS='--extra-index-url URL' .
#     docker run -p 127.0.0.1:8080:8080 -e KEEPWARM_API_KEY -v keepwarm-cache:/var/cache/keepwarm keepwarm
#     docker stop -t 40 keepwarm
#
# PIP_OPTIONS names the index of PyTorch's CPU builds, as PyTorch's installation page has it;
# without it pip takes the CUDA build, several GB (Dockerfile.gpu is for that). BASE is the image
# that both stages begin with; who publishes an image gives its digest, debian:12-slim@sha256:...
# The server listens on all addresses of the container and therefore does not start without a key.
ARG BASE=debian:12-slim
FROM ${BASE} AS build
ARG PIP_OPTIONS=""
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates python3 python3-venv \
 && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/keepwarm
COPY . /src
# The torch build pinned for machines with a GPU brings triton; everything else is needed.
RUN /opt/keepwarm/bin/pip install --no-cache-dir --disable-pip-version-check $PIP_OPTIONS \
    -c /src/constraints.txt '/src[server,otel,postgres]'

FROM ${BASE}
# The compiler makes the CPU kernels for the processor that the container meets, at the first start;
# the cache keeps them. Without it the server runs as well, slower at long contexts. HAProxy is for
# 'keepwarm cluster balance' (deploy/kubernetes), which is started in place of a server.
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates g++ haproxy python3 \
 && rm -rf /var/lib/apt/lists/*
RUN useradd --system --uid 10001 --home-dir /var/cache/keepwarm --create-home keepwarm
COPY --from=build /opt/keepwarm /opt/keepwarm
ENV PATH=/opt/keepwarm/bin:/usr/bin:/bin
ENV XDG_CACHE_HOME=/var/cache
ENV PYTHONUNBUFFERED=1
USER 10001
VOLUME /var/cache/keepwarm
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=15s --timeout=5s --start-period=120s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/readyz', timeout=4)"]
ENTRYPOINT ["keepwarm"]
CMD ["serve", "--host", "0.0.0.0", "--log-format", "json"]
