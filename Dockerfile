# docker build -t spikevrt .            with CUDA; --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu: without
# docker run --rm -v "$PWD/out:/spikevrt/experiments" spikevrt               make demo: out/demo/report.html
# docker run --rm -it --gpus all --shm-size 8g -v "$PWD:/mine" spikevrt bash
FROM python:3.12-slim-bookworm
RUN apt-get update && apt-get install -y --no-install-recommends make libgl1 libglib2.0-0 && rm -rf /var/lib/apt/lists/*
WORKDIR /spikevrt
ARG TORCH_INDEX=
COPY Makefile requirements.txt ./
RUN PIP_NO_CACHE_DIR=1 make .venv/.installed TORCH_INDEX=$TORCH_INDEX
COPY . .
CMD ["make", "demo"]
