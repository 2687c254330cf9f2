# A command line in a container: docker build -t minrnn-gen . && docker run --gpus all -v "$PWD:/work" minrnn-gen run spec.yaml
# Without --gpus it plans, compiles and runs on the CPU. The image has no CUDA toolkit: NVRTC and cuBLAS come from pip.
FROM python:3.12-slim
# The C part of replayed calls is compiled at installation, and kernels for `verify` when they are asked for.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc g++ libc6-dev && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml constraints.txt hatch_build.py README.md LICENSE /source/
COPY minrnn_gen /source/minrnn_gen
COPY templates /source/templates
COPY gpu_profiles /source/gpu_profiles
RUN pip install --no-cache-dir --constraint /source/constraints.txt "/source[cuda13]" \
    && rm -rf /source && useradd --create-home user
USER user
WORKDIR /work
ENTRYPOINT ["minrnn-gen"]
