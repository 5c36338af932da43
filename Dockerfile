# docker build -t spikevrt .            with CUDA; --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu: without
# mkdir -p out && docker run --rm --user "$(id -u):$(id -g)" -v "$PWD/out:/spikevrt/experiments" spikevrt
#                                       make demo: out/demo/report.html, with files of your own user
# docker run --rm -it --user "$(id -u):$(id -g)" --gpus all --shm-size 8g -v "$PWD:/mine" spikevrt bash
FROM python:3.12-slim-bookworm
RUN apt-get update && apt-get install -y --no-install-recommends make libgl1 libglib2.0-0 && rm -rf /var/lib/apt/lists/*
WORKDIR /spikevrt
ARG TORCH_INDEX=
COPY Makefile requirements-lock.txt ./
RUN PIP_NO_CACHE_DIR=1 make .venv/.installed TORCH_INDEX=$TORCH_INDEX REQUIREMENTS=requirements-lock.txt
COPY . .
# The container runs as any user: `--user` says which, and the programs write into these folders alone.
RUN mkdir -p experiments trainsets && chmod a+rwx . experiments trainsets
ENV HOME=/tmp REQUIREMENTS=requirements-lock.txt
USER 1000
CMD ["make", "demo"]
